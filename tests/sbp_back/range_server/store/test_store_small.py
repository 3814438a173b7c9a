"""Small groups that the event loop writes itself (`durability = os`): when it does, when it must not, and the order."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch_kit.errors import DiskFull, StoreError, StoreFailed
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.store import StoreOptions
from sbp_back.range_server.store.writing import wal_writer
from tests.sbp_back.range_server.store.store_harness import (
    KIB,
    Driver,
    FaultyFiles,
    entry_bytes,
    make_entry,
    small_options,
)

LOOP = "loop"
THREAD = "anabranch-wal"


class WatchedFiles(FaultyFiles):
    """Tells which thread does what; ``gate`` holds up writes of the WAL thread, a write moves ``clock`` on."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.others: set[str] = set()
        self.gate: threading.Event | None = None
        self.entered = threading.Event()
        self.clock = 0.0
        self.write_seconds = 0.0

    @staticmethod
    def here() -> str:
        thread = threading.current_thread()
        return LOOP if thread is threading.main_thread() else thread.name

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        self.writes.append(self.here())
        self.clock += self.write_seconds
        if self.gate is not None and self.here() == THREAD:
            self.entered.set()
            self.gate.wait()
        return super().write(fd, parts, offset, durable)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self.others.add(self.here())
        super().allocate(fd, offset, size)

    def sync(self, fd: int) -> None:
        self.others.add(self.here())
        super().sync(fd)


def watched(files: WatchedFiles, **changes: object) -> StoreOptions:
    """Options under which only groups are written: nothing ahead of them."""
    values = {"zero_ahead_bytes": 0, "segment_bytes": 4096 * KIB, "durability": "os", **changes}
    return small_options(files=files, **values)


async def begin(driver: Driver, files: WatchedFiles) -> None:
    """A range, and room allocated for what follows."""
    await driver.create(1)
    files.writes.clear()
    files.others.clear()


async def test_small_appends_of_one_turn_are_one_group_of_the_loop(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        groups = driver.store.stats.groups
        pending = [driver.append(make_entry(1, base)) for base in range(5)]
        pending.append(driver.append(*(make_entry(1, base) for base in range(5, 8))))
        assert files.writes == [], "what is submitted later in this turn belongs into the same group"
        assert not any(future.done() for future in pending)
        await asyncio.gather(*pending)
        assert files.writes == [LOOP]
        assert driver.store.stats.groups == groups + 1
        assert driver.store.stats.pending_bytes == 0
        await driver.append(make_entry(1, 8))
        assert files.writes == [LOOP, LOOP]
        driver.reopen()
        entries = await driver.read_all(1)
        assert [entry_bytes(entry) for entry in entries] == [entry_bytes(make_entry(1, base)) for base in range(9)]


async def test_flushes_are_never_the_loops_business(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files, durability="fsync")) as driver:
        await begin(driver, files)
        await driver.append(make_entry(1, 0))
        assert files.writes == [THREAD]


async def test_much_is_written_by_the_thread(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        await driver.append(make_entry(1, 0, size=wal_writer.SMALL_BYTES + 1))
        assert files.writes == [THREAD]
        # Each is small, together they are not.
        half = wal_writer.SMALL_BYTES // 2
        await asyncio.gather(*(driver.append(make_entry(1, base, size=half)) for base in range(1, 4)))
        assert LOOP not in files.writes
        await driver.append(make_entry(1, 4))
        assert files.writes[-1] == LOOP


async def test_order_is_kept_when_the_thread_gets_work_in_the_same_turn(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        order: list[str] = []
        pending = [driver.append(make_entry(1, 0)), driver.seal(1), driver.append(make_entry(1, 1)), driver.create(2)]
        for name, future in zip(("append", "seal", "late", "create"), pending, strict=True):
            future.add_done_callback(lambda _future, name=name: order.append(name))  # type: ignore[misc]
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), StoreError, type(None)]
        assert order == ["append", "seal", "late", "create"]
        assert driver.store.ranges[1, 0].end == 1
        assert LOOP not in files.writes


async def test_nothing_overtakes_what_the_thread_has(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        files.gate = threading.Event()
        first = driver.append(make_entry(1, 0, size=wal_writer.SMALL_BYTES + 1))
        await asyncio.to_thread(files.entered.wait)
        small = [driver.append(make_entry(1, base)) for base in range(1, 4)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert files.writes == [THREAD]
        assert not any(future.done() for future in (first, *small))
        files.gate.set()
        await asyncio.gather(first, *small)
        assert files.writes == [THREAD, THREAD]
        assert [entry.base_offset for entry in await driver.read_all(1)] == [0, 1, 2, 3]
        await driver.append(make_entry(1, 4))
        assert files.writes[-1] == LOOP


async def test_a_callback_that_submits_gets_the_next_group(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        finished = asyncio.get_running_loop().create_future()

        def go_on(base: int) -> None:
            def done(error: StoreError | None) -> None:
                assert error is None
                if base == 9:
                    finished.set_result(None)
                else:
                    go_on(base + 1)

            driver.store.append([make_entry(1, base)], done)

        go_on(0)
        await finished
        assert files.writes == [LOOP] * 10
        assert len(await driver.read_all(1)) == 10


async def test_segments_and_space_are_made_by_other_threads(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files, segment_bytes=64 * KIB, allocate_step_bytes=8 * KIB)) as driver:
        await begin(driver, files)
        for base in range(60):
            await driver.append(make_entry(1, base, size=3000))
        assert len(driver.segments()) > 2
        assert {LOOP, THREAD} <= set(files.writes)
        assert LOOP not in files.others
        driver.reopen()
        assert len(await driver.read_all(1)) == 60


async def test_after_a_slow_write_the_thread_writes_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = WatchedFiles()
    monkeypatch.setattr(wal_writer, "time", SimpleNamespace(perf_counter=lambda: files.clock))
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        files.write_seconds = 0.25  # the kernel makes writers wait until the disk has caught up
        await driver.append(make_entry(1, 0))
        files.write_seconds = 0.0
        await driver.append(make_entry(1, 1))
        files.clock += 7.9
        await driver.append(make_entry(1, 2))
        assert files.writes == [LOOP, THREAD, THREAD]
        files.clock += 0.2
        await driver.append(make_entry(1, 3))
        assert files.writes == [LOOP, THREAD, THREAD, LOOP]
        assert len(await driver.read_all(1)) == 4


async def test_what_waits_for_the_end_of_the_turn_is_written_when_the_store_is_closed(tmp_path: Path) -> None:
    files = WatchedFiles()
    driver = Driver(tmp_path, watched(files))
    await begin(driver, files)
    pending = [driver.append(make_entry(1, base)) for base in range(3)]
    driver.close()
    await asyncio.gather(*pending)
    async with Driver(tmp_path) as driver:
        assert len(await driver.read_all(1)) == 3


@pytest.mark.parametrize("fault", ["write", "short"])
async def test_a_failing_disk(tmp_path: Path, fault: str) -> None:
    files = WatchedFiles()
    driver = Driver(tmp_path, watched(files))
    await begin(driver, files)
    await driver.append(make_entry(1, 0))
    if fault == "write":
        files.write_error = errno.EIO
    else:
        files.short_by = 1
    got = await asyncio.gather(*(driver.append(make_entry(1, base)) for base in (1, 2)), return_exceptions=True)
    assert all(isinstance(error, StoreFailed) for error in got), got
    assert set(files.writes) == {LOOP}
    files.write_error = None
    files.short_by = 0
    later = [driver.append(make_entry(1, 1)), driver.create(5), driver.trim(1, 1)]
    got = await asyncio.gather(*later, return_exceptions=True)
    assert all(isinstance(error, StoreFailed) for error in got), got
    assert driver.failures == [driver.store.failed]
    assert [entry.base_offset for entry in await driver.read_all(1)] == [0]
    driver.close()
    async with Driver(tmp_path) as driver:
        bases = [entry.base_offset for entry in await driver.read_all(1)]
        assert bases in ([0], [0, 1, 2])


async def test_a_disk_that_is_full_in_the_middle_of_a_write(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        await driver.append(make_entry(1, 0))
        files.write_error = errno.ENOSPC
        small = [driver.append(make_entry(1, base, fill=1)) for base in (1, 2)]
        got = await asyncio.gather(*small, return_exceptions=True)
        assert [type(error) for error in got] == [DiskFull, DiskFull]
        assert set(files.writes) == {LOOP}
        with pytest.raises(DiskFull):
            await driver.append(make_entry(1, 3))
        files.write_error = None
        await driver.until(lambda: not driver.store.stats.disk_full)
        await driver.append(make_entry(1, 1, fill=2))
        assert driver.failures == []
        assert files.writes[-1] == LOOP
        driver.reopen()
        assert [bytes(entry.payload) for entry in await driver.read_all(1)] == [
            bytes(make_entry(1, 0).payload),
            bytes(make_entry(1, 1, fill=2).payload),
        ]


async def test_one_refused_append_does_not_spoil_its_group(tmp_path: Path) -> None:
    files = WatchedFiles()
    async with Driver(tmp_path, watched(files)) as driver:
        await begin(driver, files)
        wrong = [make_entry(1, 1), make_entry(1, 3)]
        pending = [driver.append(make_entry(1, 0)), driver.append(*wrong), driver.append(make_entry(1, 1))]
        got = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(outcome) for outcome in got] == [type(None), StoreError, type(None)]
        assert files.writes == [LOOP]
        assert [entry.base_offset for entry in await driver.read_all(1)] == [0, 1]


async def test_a_group_that_was_begun_and_not_finished_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's view is ahead of the log then: an append that follows on it would leave a hole."""
    files = WatchedFiles()
    driver = Driver(tmp_path, watched(files))
    await begin(driver, files)

    def no_memory(*_arguments: object) -> list[Buffer]:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(wal_writer, "encode_group", no_memory)
        with pytest.raises(StoreFailed, match="MemoryError"):
            await driver.append(make_entry(1, 0))
    await driver.until(lambda: bool(driver.failures))
    with pytest.raises(StoreFailed):
        await driver.append(make_entry(1, 1))
    driver.close()
    async with Driver(tmp_path) as driver:
        assert driver.store.ranges[1, 0].next_offset == 0
