"""A process whose event loop stands still ends and says where; a slow disk or database ends nothing."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch_kit.run.watchdog import LOOKS, SlowThreads, Watchdog, stacks
from bridges.commands.failure import EXIT_STALLED
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

SECONDS = 60.0
SCRIPT = Path(__file__).with_name("standing_still.py")


def ended(watchdog: Watchdog, told: queue.SimpleQueue[int]) -> int:
    watchdog.start()
    try:
        return told.get(timeout=SECONDS)
    finally:
        watchdog.stop()


def test_a_loop_that_turns_is_left_alone_and_one_that_stands_still_ends_the_process() -> None:
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    turns = [0]

    def seen() -> None:
        turns[0] += 1
        if turns[0] < 3 * LOOKS:
            watchdog.turn()

    watchdog = Watchdog(0.05, EXIT_STALLED, seen=seen, is_at_disk=lambda: False, end=told.put)
    watchdog.turn()
    assert ended(watchdog, told) == EXIT_STALLED
    assert turns == [3 * LOOKS], "as long as it turned"


def test_a_loop_that_stands_still_where_it_starts_a_thread_ends_the_process() -> None:
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    watchdog = Watchdog(0.05, EXIT_STALLED, is_at_disk=lambda: False, end=told.put)
    watchdog.start()
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        assert told.get(timeout=SECONDS) == EXIT_STALLED


def test_a_loop_that_the_kernel_holds_for_the_disk_does_not_end_the_process() -> None:
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    looks = [0]

    def is_at_disk() -> bool:
        looks[0] += 1
        return looks[0] <= 3 * LOOKS

    assert ended(Watchdog(0.05, 6, is_at_disk=is_at_disk, end=told.put), told) == 6
    assert looks == [4 * LOOKS]


def test_stacks_name_the_threads_and_what_they_are_at() -> None:
    goes_on = threading.Event()

    def stand_still_here() -> None:
        goes_on.wait()

    thread = threading.Thread(target=stand_still_here, name="of this test")
    thread.start()
    try:
        found = stacks()
        assert next(iter(found)) == threading.main_thread().name
        assert "stand_still_here" in found["of this test"]
    finally:
        goes_on.set()
        thread.join()


async def test_a_slow_thread_is_told_once_and_so_is_its_going_on(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [0.0]
    slow = SlowThreads(10.0, {"the disk": lambda: seconds[0]})
    for seconds[0] in (9.0, 10.0, 20.0, 0.0, 0.0):
        await slow.check(0)
    out, _ = capsys.readouterr()
    assert out.count("the disk does not get on") == out.count("the disk gets on again") == 1


# --- whole processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[NodeProcess]:
    what, limit, workers = request.param
    settings = {"node.stall_ms": limit, "node.workers": workers, "node.worker_port_step": "0"}
    made = NodeProcess(tmp_path / "data", settings=settings)
    made.python = [sys.executable, str(SCRIPT)]
    monkeypatch.setenv("STANDS_STILL", what)
    with made.lent():
        asked(made, "/healthz")  # it is watched from a moment after its start on
        yield made


def asked(node: NodeProcess, path: str, body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(node.console + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.read()
        status: int = answer.status
        return status


@pytest.mark.parametrize("node", [("loop", "1s", "1")], indirect=True)
def test_a_node_whose_loop_is_blocked_ends_with_its_own_code_and_tells_where(node: NodeProcess) -> None:
    assert node.process is not None
    os.kill(node.pid, signal.SIGUSR1)
    assert node.process.wait(SECONDS) == EXIT_STALLED
    (at,) = [line for line in map(json.loads, node.tail().splitlines()) if line["event"] == "thread MainThread is at"]
    assert "stand_still" in at["stack"]
    node.process = None
    node.start()  # nothing of it is in the way


@pytest.mark.parametrize("node", [("log", "3s", "1"), ("database", "3s", "1")], indirect=True)
def test_a_node_lives_while_its_disk_or_database_stands_still_and_goes_on_with_it(node: NodeProcess) -> None:
    assert asked(node, "/api/topics", {"name": "before"}) == 201
    os.kill(node.pid, signal.SIGUSR1)
    with ThreadPoolExecutor() as pool:
        waits: Future[int] = pool.submit(asked, node, "/api/topics", {"name": "meanwhile"})
        if os.environ["STANDS_STILL"] == "log":
            waits = pool.submit(asked, node, "/api/topics/before/records", {"value": "v"})
        until = time.monotonic() + SECONDS
        while "does not get on" not in node.tail():
            assert time.monotonic() < until
            assert asked(node, "/healthz") == 200, "the loop turns"
        assert not waits.done(), "nothing is answered that is not durable"
        os.kill(node.pid, signal.SIGUSR2)
        assert waits.result() in (200, 201)
    assert node.terminate() == 0


@pytest.mark.parametrize("node", [("loop", "3s", "2")], indirect=True)
def test_a_worker_whose_loop_is_blocked_is_started_again(node: NodeProcess) -> None:
    (worker, _) = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGUSR1)
    wait_until(lambda: "a worker has ended" in node.tail(), seconds=SECONDS)
    told = next(line for line in map(json.loads, node.tail().splitlines()) if line["event"] == "a worker has ended")
    assert told["exit_code"] == EXIT_STALLED
    assert "stand_still" in node.tail()
    node.stop()
