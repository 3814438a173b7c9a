"""What is tried a second time: a test in which a foreign library crashed, and no other."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from ydb._grpc.grpcwrapper.common_utils import GrpcWrapperAsyncIO
from ydb._topic_common import common

from tests import foreign_crashes
from tests.foreign_crashes import KNOWN, SPARK_START, WHEEL_AT_EXIT, YDB_LOOP, crash_in, stack_of_ydb_loop

pytest_plugins = ["pytester"]

AT_EXIT = """Fatal Python error: PyGILState_Release: thread state 0x7f4dd4002ec0 must be current when releasing
Python runtime state: finalizing (tstate=0x00007f4de0376ef8)"""
NOT_STARTED = "org.apache.spark.SparkException: Python worker failed to connect back."


def test_crashes_are_known_by_their_words() -> None:
    assert crash_in(AT_EXIT) is WHEEL_AT_EXIT
    assert crash_in(NOT_STARTED) is SPARK_START
    for ours in ("assert 3 == 4", "TimeoutError", "thread panicked at 'explicit panic'", "ended with -11", "Killed"):
        assert crash_in(ours) is None
    # The interpreter of a test that is at work is nobody's end.
    assert crash_in(AT_EXIT.replace("finalizing", "initialized")) is None
    assert len({one.words for one in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize(("said", "times", "passed"), [(NOT_STARTED, 2, 1), (AT_EXIT, 2, 1), ("lost record 7", 1, 0)])
def test_only_a_known_crash_is_tried_again_and_once(
    pytester: pytest.Pytester, said: str, times: int, passed: int
) -> None:
    pytester.makeconftest("from tests.foreign_crashes import pytest_runtest_protocol as pytest_runtest_protocol")
    pytester.makepyfile(f"""
        from pathlib import Path
        def tried(name):
            with Path(name).open("a") as file:
                file.write(".")
            return len(Path(name).read_text())
        def test_that_passes_then():
            assert tried("then") > 1, {said!r}
        def test_that_fails():
            assert tried("fails") > 2, {said!r}
    """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=passed, failed=2 - passed, warnings=2 * (times - 1))
    assert [(pytester.path / name).read_text() for name in ("then", "fails")] == ["." * times] * 2


def test_a_stream_that_never_ends_stops_no_client_of_ydb_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_crashes, "TURNS_S", 0.2)
    stuck = common._get_shared_event_loop()
    assert stack_of_ydb_loop() == ""
    stream, begun, ended = GrpcWrapperAsyncIO(lambda _: None), Event(), Event()
    stream._wait_executor = ThreadPoolExecutor(1)
    stream._wait_executor.submit(ended.wait)

    async def close() -> None:
        begun.set()
        stream.close()

    closing = asyncio.run_coroutine_threadsafe(close(), stuck)
    assert begun.wait(10)
    assert crash_in(stack_of_ydb_loop()) is YDB_LOOP
    another = common._get_shared_event_loop()
    assert another is not stuck
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), another).result(10)
    ended.set()
    closing.result(10)


def test_a_loop_of_ydb_that_is_busy_is_nobodys_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_crashes, "TURNS_S", 0.1)
    loop, over = common._get_shared_event_loop(), Event()
    loop.call_soon_threadsafe(over.wait)
    assert crash_in(stack_of_ydb_loop()) is None
    over.set()
    assert common._get_shared_event_loop() is loop
