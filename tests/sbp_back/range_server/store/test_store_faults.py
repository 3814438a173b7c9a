"""Failing disks and full disks: no false acknowledgement, and a full disk is not a failing one."""

from __future__ import annotations

import asyncio
import errno
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch_kit.errors import DiskFull, StoreError, StoreFailed
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.server import RangeServer, RangeServerOptions
from sbp_back.range_server.store import Store, store
from sbp_back.range_server.store.index import StoredRange
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, FaultyFiles, make_entry, small_options


async def outcomes(*futures: asyncio.Future[None]) -> list[BaseException | None]:
    return await asyncio.gather(*futures, return_exceptions=True)


async def append_until(driver: Driver, error: type[StoreError], size: int) -> int:
    """Append to stream 1 from offset 0 until it is refused with ``error``; how many were accepted."""
    for base in range(1000):
        try:
            await driver.append(make_entry(1, base, size=size))
        except error:
            return base
    raise AssertionError("never refused")


@pytest.mark.parametrize("fault", ["write", "flush", "short"])
async def test_a_failing_disk_fails_everything_from_there_on(tmp_path: Path, fault: str) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files, zero_ahead_bytes=0))
    await driver.create(1)
    await driver.append(make_entry(1, 0))
    if fault == "write":
        files.write_error = errno.EIO
    elif fault == "flush":
        files.flush_error = errno.EIO
    else:
        files.short_by = 1
    got = await outcomes(driver.append(make_entry(1, 1)), driver.append(make_entry(1, 2)), driver.seal(1))
    assert all(isinstance(error, StoreFailed) for error in got), got
    # A disk that seems to work again proves nothing about the pages the kernel dropped.
    files.write_error = files.flush_error = None
    files.short_by = 0
    got = await outcomes(driver.append(make_entry(1, 1)), driver.create(5), driver.trim(1, 1), driver.delete(1))
    assert all(isinstance(error, StoreFailed) for error in got), got
    assert len(driver.failures) == 1
    assert driver.failures[0] is driver.store.failed
    assert [e.base_offset for e in await driver.read(1)] == [0]
    assert driver.store.ranges[1, 0].next_offset == 1
    driver.close()
    async with Driver(tmp_path) as driver:
        # What failed may be there or not, but never in part.
        bases = [e.base_offset for e in await driver.read(1)]
        assert bases == list(range(len(bases)))
        assert len(bases) >= 1
        await driver.append(make_entry(1, len(bases))) if driver.store.ranges[1, 0].end < 0 else None


async def test_a_failing_disk_in_the_background_fails_the_store(tmp_path: Path) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files, zero_ahead_bytes=0))
    await driver.create(1)
    driver.store.disk_failing(OSError(errno.EIO, "lost"))
    await driver.until(lambda: bool(driver.failures))
    with pytest.raises(StoreFailed):
        await driver.append(make_entry(1, 0))
    driver.close()


async def test_a_flush_before_a_checkpoint_that_fails_is_final(tmp_path: Path) -> None:
    """With durability os that is where data is flushed, and to try it again would prove nothing."""
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files, durability="os", zero_ahead_bytes=0))
    await driver.create(1)
    await driver.append(make_entry(1, 0))
    driver.store.maintenance.rolled()  # a checkpoint, as when a segment is full
    await driver.until(lambda: driver.store.stats.checkpoints == 1)
    files.sync_error = errno.EIO
    driver.store.maintenance.rolled()
    await driver.until(lambda: bool(driver.failures))
    files.sync_error = None
    assert driver.store.stats.checkpoints == 1
    with pytest.raises(StoreFailed, match="Input/output error"):
        await driver.append(make_entry(1, 1))
    driver.close()


async def test_a_failure_to_create_a_segment_is_final(tmp_path: Path) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files))
    await driver.create(1)
    files.open_error = errno.EIO
    base = await append_until(driver, StoreFailed, 9000)
    files.open_error = None
    assert len(await driver.read_all(1)) == base
    driver.close()
    async with Driver(tmp_path) as driver:
        assert len(await driver.read_all(1)) == base


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_no_room_for_another_segment_refuses_appends_and_nothing_else(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files, segment_bytes=256 * KIB)) as driver:
        await driver.create(1)
        await driver.create(2)
        await driver.append(make_entry(2, 0))
        files.allocate_error = number
        base = await append_until(driver, DiskFull, 5000)
        assert base > 0
        # Appends that were submitted while their predecessor was being refused must not slip in.
        got = await outcomes(*(driver.append(make_entry(1, base + n, size=5000)) for n in range(5)))
        assert all(isinstance(error, DiskFull) for error in got), got
        assert driver.store.ranges[1, 0].next_offset == base
        assert driver.store.stats.disk_full
        assert driver.store.failed is None
        assert len(await driver.read_all(1)) == base
        # Without a range nobody opens, and so reads, a partition: half of the reserve is for that, and no more.
        got = [(await outcomes(driver.create(stream_id)))[0] for stream_id in range(3, 100)]
        assert isinstance(got[-1], DiskFull)
        assert (3, 0) in driver.store.ranges
        # These are what makes room.
        await driver.seal(2)
        await driver.trim(1, base)
        await driver.delete(2)
        files.allocate_error = None
        driver.store.maintenance.tick()
        await driver.until(lambda: not driver.store.stats.disk_full)
        await driver.append(make_entry(1, base))
        assert caplog.messages.count("the disk is full: appends are refused until there is room, reads go on") == 1
        assert caplog.messages.count("appends are accepted again: the disk has room") == 1
        assert driver.failures == []
        driver.reopen()
        assert [e.base_offset for e in await driver.read(1, base)] == [base]
        assert (2, 0) not in driver.store.ranges


async def test_control_records_have_a_reserve_when_a_segment_is_full(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files, zero_ahead_bytes=0)) as driver:
        await driver.create(1)
        files.allocate_error = files.open_error = errno.ENOSPC
        base = await append_until(driver, DiskFull, 3000)
        await driver.trim(1, 1)  # one block each: at least one always fits
        assert driver.store.ranges[1, 0].min_offset == 1
        crashed = driver.crash_copy(tmp_path / "crashed")
        files.allocate_error = files.open_error = None
    store = Store.open(crashed, small_options())
    assert (store.ranges[1, 0].min_offset, store.ranges[1, 0].next_offset) == (1, base)
    store.close()


async def test_a_file_system_that_runs_full_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """Copy-on-write file systems cannot reserve space: the write itself reports it, and must leave no trace."""
    files = FaultyFiles()
    async with Driver(tmp_path / "live", small_options(files=files, zero_ahead_bytes=0)) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        files.flush_error = errno.ENOSPC  # everything is written, but the flush finds no room
        with pytest.raises(DiskFull):
            await driver.append(make_entry(1, 1, fill=1))
        files.flush_error = None
        crashed = driver.crash_copy(tmp_path / "crashed")
        await driver.until(lambda: not driver.store.stats.disk_full)
        await driver.append(make_entry(1, 1, fill=2))
        assert driver.failures == []
        after = driver.crash_copy(tmp_path / "after")
    async with Driver(crashed) as driver:
        assert [e.base_offset for e in await driver.read(1)] == [0, 1][: driver.store.ranges[1, 0].next_offset]
    async with Driver(after) as driver:
        assert bytes((await driver.read(1))[1].payload) == make_entry(1, 1, fill=2).payload


async def test_below_the_low_water_mark_appends_wait_for_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files, low_water_bytes=1 << 20)) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        files.free = (1 << 20) - 1
        await driver.until(lambda: driver.store.stats.disk_full)
        with pytest.raises(DiskFull, match="1048575 bytes are free"):
            await driver.append(make_entry(1, 1))
        assert sum("appends are refused below 1048576" in one for one in caplog.messages) == 1
        await driver.trim(1, 1)
        assert await driver.read(1, 1) == []
        assert driver.store.stats.disk_free == (1 << 20) - 1
        driver.reopen()
        with pytest.raises(DiskFull):
            await driver.append(make_entry(1, 1))
        files.free = 1 << 20
        await driver.until(lambda: not driver.store.stats.disk_full)
        await driver.append(make_entry(1, 1))


async def test_a_new_store_on_a_full_disk_says_so(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.allocate_error = errno.ENOSPC
    with pytest.raises(DiskFull, match="No space left"):
        Store.open(tmp_path, small_options(files=files))
    files.allocate_error = None
    Store.open(tmp_path, small_options(files=files)).close()  # nothing half made, lock released


async def test_a_disk_error_while_reading_concerns_the_reader_only(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        files.uncached = True
        files.read_error = errno.EIO
        with pytest.raises(StoreError, match="cannot be read"):
            await driver.read(1)
        files.read_error = None
        assert len(await driver.read(1)) == 1
        assert driver.failures == []


async def test_maintenance_that_fails_is_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        files.unlink_error = errno.EIO
        for base in range(30):
            await driver.append(make_entry(1, base, size=6000))
        await driver.trim(1, 30)
        await driver.until(lambda: driver.store.stats.maintenance_errors > 0)
        assert "Input/output error" in driver.store.stats.last_maintenance_error
        files.unlink_error = None
        await driver.until(lambda: len(driver.segments()) <= 2)
        assert driver.failures == []
        assert driver.store.stats.log_bytes <= 2 * 64 * KIB


async def test_a_caller_that_raises_keeps_nobody_from_the_answer(tmp_path: Path) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with Driver(tmp_path) as driver:
        await driver.create(1)

        def raises(_error: StoreError | None) -> None:
            raise RuntimeError("a bug")

        driver.store.append([make_entry(1, 0)], raises)
        await driver.append(make_entry(1, 1))
    assert [str(context["exception"]) for context in reported] == ["a bug"]


WAL, PREPARE, BACKGROUND, READ, LOOP = (
    "anabranch-wal",
    "anabranch-prepare",
    "anabranch-store",
    "anabranch-read",
    "MainThread",
)


async def failed_for_good(driver: Driver, method: str) -> None:
    """The store is in the failed state, everybody can see it, and whatever comes is answered."""
    await driver.until(lambda: bool(driver.failures))
    assert driver.failures == [driver.store.failed]
    assert re.search(f"RuntimeError: a bug in {method}", str(driver.store.failed))
    got = await outcomes(driver.append(make_entry(1, 0)), driver.create(5), driver.trim(1, 1), driver.seal(1))
    assert all(isinstance(error, StoreFailed) for error in got), got


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_bug_while_a_group_is_written_fails_the_store_and_answers_everybody(
    tmp_path: Path, durability: str
) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files, zero_ahead_bytes=0, durability=durability))
    await driver.create(1)
    await driver.append(make_entry(1, 0))
    files.bug = ("write", WAL if durability == "fsync" else LOOP)
    got = await outcomes(driver.append(make_entry(1, 1)), driver.append(make_entry(1, 2)))
    assert all(isinstance(error, StoreFailed) for error in got), got
    files.bug = None
    await failed_for_good(driver, "write")
    assert [e.base_offset for e in await driver.read(1)] == [0]
    driver.close()
    async with Driver(tmp_path) as driver:
        assert [e.base_offset for e in await driver.read(1)] == [0]


async def test_a_bug_in_the_log_thread_answers_what_waits_behind_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files, zero_ahead_bytes=0, group_max_records=2))
    await driver.create(1)
    files.bug = ("write", WAL)
    # More than one group of them, of every kind, and one that cannot share a group with those before it.
    got = await outcomes(
        *(driver.append(make_entry(1, base)) for base in range(7)),
        driver.append(make_entry(1, 7, size=50_000)),
        driver.create(2),
        driver.trim(1, 1),
        driver.seal(1),
        driver.delete(1),
    )
    assert all(isinstance(error, StoreFailed) for error in got), got
    await failed_for_good(driver, "write")
    driver.close()


@pytest.mark.parametrize("method", ["open", "allocate", "rename"])
async def test_a_bug_while_the_next_segment_is_made_fails_the_store(tmp_path: Path, method: str) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files))
    await driver.create(1)
    files.bug = (method, PREPARE)
    await append_until(driver, StoreFailed, 9000)
    await failed_for_good(driver, method)
    driver.close()


async def test_a_bug_in_the_background_fails_the_store(tmp_path: Path) -> None:
    files = FaultyFiles()
    driver = Driver(tmp_path, small_options(files=files))
    await driver.create(1)
    files.bug = ("rename", BACKGROUND)
    await append_until(driver, StoreFailed, 9000)
    await failed_for_good(driver, "rename")
    driver.close()


async def test_a_bug_in_maintenance_on_the_loop_fails_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, small_options())
    await driver.create(1)

    def broken(*_arguments: object) -> None:
        raise RuntimeError("a bug in rebind")

    monkeypatch.setattr("sbp_back.range_server.store.upkeep.maintenance.rebind", broken)
    await append_until(driver, StoreFailed, 9000)
    await failed_for_good(driver, "rebind")
    driver.close()


async def test_a_group_that_cannot_be_applied_fails_the_store_and_answers_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, small_options())
    await driver.create(1)
    await driver.create(2)
    original = StoredRange.append

    def broken(self: StoredRange, *arguments: int) -> None:
        if self.stream_id == 1:
            raise RuntimeError("a bug in apply")
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StoredRange, "append", broken)
    got = await outcomes(driver.append(make_entry(2, 0)), driver.append(make_entry(1, 0)), driver.create(3))
    assert all(isinstance(error, StoreFailed) for error in got), got
    monkeypatch.undo()
    await failed_for_good(driver, "apply")
    assert driver.store.stats.pending_bytes == 0
    driver.close()
    async with Driver(tmp_path) as driver:
        # It was in the log all the time.
        assert len(await driver.read(1)) == len(await driver.read(2)) == 1


async def test_a_bug_while_reading_concerns_the_reader_only(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        files.uncached = True
        files.bug = ("scatter", READ)
        with pytest.raises(StoreError, match="cannot be read: RuntimeError: a bug in scatter"):
            await driver.read(1)
        files.bug = None
        assert len(await driver.read(1)) == 1
        assert driver.failures == []


async def test_a_store_that_failed_before_it_was_served_tells_its_server(tmp_path: Path) -> None:
    driver = Driver(tmp_path, small_options())
    driver.store.disk_failing(OSError(errno.EIO, "lost"))
    await driver.until(lambda: bool(driver.failures))
    told: list[StoreError] = []
    loop = asyncio.get_running_loop()
    server = RangeServer(driver.store, RangeServerOptions(1, "", 3.0), loop, on_failed=told.append)
    await driver.until(lambda: bool(told))
    assert told == driver.failures
    assert server.failure is not None
    await server.close()
    driver.close()


class Gated(FaultyFiles):
    """A disk that writes when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = False
        self.writes, self.may_write = threading.Semaphore(0), threading.Semaphore(0)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        if self.gated:
            self.writes.release()
            self.may_write.acquire()
        return super().write(fd, parts, offset, durable)


async def test_how_long_nothing_has_become_durable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, now = Gated(), 100.0
    monkeypatch.setattr(store, "time", SimpleNamespace(perf_counter=lambda: now))
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        assert driver.store.stats.stuck_seconds == 0
        files.gated = True
        first = driver.append(make_entry(1, 0))
        await asyncio.to_thread(files.writes.acquire)
        now = 107.0
        assert driver.store.stats.stuck_seconds == 7
        second = driver.append(make_entry(1, 1))  # in flight behind it
        files.may_write.release()
        await first
        now = 110.0
        assert driver.store.stats.stuck_seconds == 3, "something came back meanwhile"
        files.may_write.release()
        await second
        now = 500.0
        assert driver.store.stats.stuck_seconds == 0, "nothing waits"
        files.gated = False
