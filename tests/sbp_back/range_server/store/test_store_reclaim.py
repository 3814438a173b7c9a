"""Trimming, deleting and evacuating: space comes back, and nothing that is still wanted goes."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store.index import StoredRange
from tests.sbp_back.range_server.store.store_harness import (
    KIB,
    Driver,
    FaultyFiles,
    entry_bytes,
    make_entry,
    small_options,
)


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in (path / "wal").iterdir())


async def fill(driver: Driver, streams: list[int], begin: int, end: int, size: int = 4000) -> None:
    for base in range(begin, end):
        await asyncio.gather(*(driver.append(make_entry(stream, base, size=size)) for stream in streams))


async def test_trim_is_durable_and_frees_the_disk(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await fill(driver, [1], 0, 100)
        before = disk_bytes(tmp_path)
        await driver.trim(1, 95)
        await driver.until(lambda: len(driver.segments()) <= 3 and disk_bytes(tmp_path) < before / 2)
        for _ in range(2):
            assert driver.store.ranges[1, 0].min_offset == 95
            assert driver.store.streams[1].min_offset == 95
            with pytest.raises(StoreError, match="begins at 95"):
                await driver.read(1, 94)
            assert [e.base_offset for e in await driver.read_all(1, 95)] == list(range(95, 100))
            driver.reopen()


async def test_trim_inside_a_batch_keeps_the_batch(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.append(*(make_entry(1, base, 10) for base in range(0, 50, 10)))
        await driver.trim(1, 25)
        for _ in range(2):
            assert [e.base_offset for e in await driver.read(1, 25)] == [20, 30, 40]
            driver.reopen()
        await driver.trim(1, 10)  # never back
        assert driver.store.ranges[1, 0].min_offset == 25


async def test_trim_beyond_the_end_of_an_open_range_stops_there(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0, 10))
        await driver.trim(1, 1000)
        assert driver.store.ranges[1, 0].min_offset == 10
        await driver.append(make_entry(1, 10))
        assert [e.base_offset for e in await driver.read(1, 10)] == [10]


async def test_ranges_with_nothing_left_go_except_the_last(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        for index in range(4):
            await driver.create(1, index=index, epoch=index, start=index * 10)
            await driver.append(make_entry(1, index * 10, 10, index=index))
            await driver.seal(1, index=index, epoch=index)
        await driver.trim(1, 25)
        for _ in range(2):
            assert sorted(driver.store.ranges) == [(1, 2), (1, 3)]
            assert driver.store.streams[1].first_index == 2
            with pytest.raises(StoreError, match="trimmed away"):
                await driver.create(1, index=1, epoch=9, start=10)
            driver.reopen()
        await driver.trim(1, 1000)
        assert sorted(driver.store.ranges) == [(1, 3)]
        assert driver.store.ranges[1, 3].min_offset == 40
        await driver.create(1, index=4, epoch=4, start=40)
        await driver.append(make_entry(1, 40, index=4))


async def test_delete_frees_the_disk_and_the_name(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.create(2)
        await fill(driver, [1], 0, 60)
        await driver.append(make_entry(2, 0))
        await driver.delete(1)
        await driver.delete(77)
        assert (1, 0) not in driver.store.ranges
        await driver.until(lambda: len(driver.segments()) <= 3)
        with pytest.raises(StoreError, match="does not exist"):
            await driver.append(make_entry(1, 60))
        await driver.create(1, epoch=9, start=5)
        await driver.append(make_entry(1, 5, fill=2))
        for _ in range(2):
            assert [entry_bytes(e) for e in await driver.read(1, 5)] == [entry_bytes(make_entry(1, 5, fill=2))]
            assert [e.base_offset for e in await driver.read(2)] == [0]
            driver.reopen()


async def test_rows_of_a_deleted_stream_do_not_come_back_under_its_name(tmp_path: Path) -> None:
    """The old rows are still in index files and segments that another stream keeps alive."""
    async with Driver(tmp_path / "live", small_options(evacuate_below=0)) as driver:
        await driver.create(1)
        await driver.create(2)
        await fill(driver, [1, 2], 0, 20)
        await driver.delete(1)
        await driver.create(1, epoch=1)
        await driver.append(make_entry(1, 0, fill=2))
        await fill(driver, [2], 20, 40)
        crashed = driver.crash_copy(tmp_path / "crashed")
    for number, path in enumerate((tmp_path / "live", crashed, crashed)):
        if number == 2:
            for index in (crashed / "wal").glob("*.idx"):
                index.unlink()
        async with Driver(path) as driver:
            assert [entry_bytes(e) for e in await driver.read_all(1)] == [entry_bytes(make_entry(1, 0, fill=2))]
            assert len(await driver.read_all(2)) == 40


async def test_the_segment_being_written_is_freed_as_well(tmp_path: Path) -> None:
    async with Driver(tmp_path, small_options(segment_bytes=1024 * KIB)) as driver:
        await driver.create(1)
        await fill(driver, [1], 0, 100)
        first = driver.segments()[0]
        await driver.delete(1)
        await driver.until(lambda: not first.exists())
        assert driver.store.stats.live_bytes == 0


async def test_a_slow_stream_does_not_pin_the_log(tmp_path: Path) -> None:
    async with Driver(tmp_path / "live") as driver:
        await driver.create(1)
        await driver.create(2)
        await driver.append(*(make_entry(1, base, 3, 200) for base in range(0, 15, 3)))
        for begin in range(0, 200, 20):
            await fill(driver, [2], begin, begin + 20)
            await driver.trim(2, begin + 15)
        await driver.until(lambda: driver.store.stats.evacuated_bytes > 0 and len(driver.segments()) <= 5)
        assert driver.store.ranges[1, 0].next_offset == 15
        expected = [entry_bytes(make_entry(1, base, 3, 200)) for base in range(0, 15, 3)]
        assert [entry_bytes(e) for e in await driver.read_all(1)] == expected
        await driver.append(make_entry(1, 15))
        crashed = driver.crash_copy(tmp_path / "crashed")
        no_index = driver.crash_copy(tmp_path / "no_index")
    for index in (no_index / "wal").glob("*.idx"):
        index.unlink()
    for path in (tmp_path / "live", crashed, no_index):
        async with Driver(path) as driver:
            got = await driver.read_all(1)
            assert [entry_bytes(e) for e in got[:-1]] == expected
            assert got[-1].base_offset == 15
            assert (await driver.read_all(2, 195))[-1].base_offset == 199


async def test_evacuation_under_load(tmp_path: Path) -> None:
    """Writers, readers and trims go on while survivors are copied; many small slow streams among one fast one."""
    slow = list(range(10, 40))
    async with Driver(tmp_path, small_options(evacuate_batch_bytes=2000)) as driver:
        await driver.create(1)
        for stream in slow:
            await driver.create(stream)
        ends = dict.fromkeys(slow, 0)
        for round_number in range(60):
            await fill(driver, [1], round_number * 5, round_number * 5 + 5, size=6000)
            stream = slow[round_number % len(slow)]
            await driver.append(make_entry(stream, ends[stream], 2, 150))
            ends[stream] += 2
            await driver.trim(1, round_number * 5 + 1)
            driver.store.maintenance.tick()
            for stream in slow[:: round_number % 7 + 1]:
                got = await driver.read_all(stream)
                assert [e.base_offset for e in got] == list(range(0, ends[stream], 2))
        await driver.until(lambda: driver.store.stats.evacuated_bytes > 0 and len(driver.segments()) < 12)
        for _ in range(2):
            for stream in slow:
                assert [entry_bytes(e) for e in await driver.read_all(stream)] == [
                    entry_bytes(make_entry(stream, base, 2, 150)) for base in range(0, ends[stream], 2)
                ]
            driver.reopen()


async def test_streams_that_vanish_during_their_evacuation(tmp_path: Path) -> None:
    async with Driver(tmp_path, small_options(evacuate_batch_bytes=300)) as driver:
        for stream in (1, 2, 3):
            await driver.create(stream)
        await driver.append(*(make_entry(stream, base, 1, 100) for base in range(20) for stream in (2, 3)))
        await fill(driver, [1], 0, 60)
        driver.store.trim_stream(1, 60, lambda _error: None)
        deleted = driver.delete(2)
        trimmed = driver.trim(3, 10)
        driver.store.maintenance.tick()
        await asyncio.gather(deleted, trimmed)
        await driver.create(2, epoch=3)  # copies in flight belong to the stream before this one
        await driver.append(make_entry(2, 0, fill=9))
        await driver.until(lambda: len(driver.segments()) <= 3)
        for _ in range(2):
            assert [entry_bytes(e) for e in await driver.read(2)] == [entry_bytes(make_entry(2, 0, fill=9))]
            assert [e.base_offset for e in await driver.read(3, 10)] == list(range(10, 20))
            driver.reopen()


async def test_a_segment_with_a_damaged_survivor_stays(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.create(2)
        await driver.append(make_entry(2, 0, size=300))
        await fill(driver, [1], 0, 60)
        first = driver.segments()[0]
        run = driver.store.ranges[2, 0].runs[0]
        with open(first, "r+b") as file:
            file.seek(run.meta[0] + 200)
            file.write(b"\0\0\0")
        await driver.trim(1, 60)
        await driver.until(lambda: driver.store.stats.damaged_entries > 0 and len(driver.segments()) <= 4)
        assert first.exists()
        with pytest.raises(StoreError, match="is damaged"):
            await driver.read(2)


async def test_segments_are_not_closed_under_a_reader(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files, max_open_segments=2)) as driver:
        await driver.create(1)
        await fill(driver, [1], 0, 100)
        files.uncached = True
        reads = [asyncio.ensure_future(driver.read(1, base, max_bytes=20_000)) for base in range(0, 90, 5)]
        await asyncio.sleep(0)
        await driver.trim(1, 99)
        for base, read in zip(range(0, 90, 5), reads, strict=True):
            assert (await read)[0].base_offset == base
        await driver.until(lambda: len(driver.segments()) <= 3)
        assert sum(segment.fd >= 0 for segment in driver.store.log.segments) <= 3


async def test_retention_by_size_trims_the_oldest_of_everybody(tmp_path: Path) -> None:
    limit = 6 * 64 * KIB
    async with Driver(tmp_path, small_options(retention_bytes=limit)) as driver:
        await driver.create(1)
        await driver.create(2)
        await fill(driver, [1, 2], 0, 150)
        await driver.until(lambda: driver.store.stats.log_bytes <= limit)
        low = driver.store.ranges[1, 0].min_offset
        assert 0 < low < 150
        assert driver.store.ranges[2, 0].min_offset > 0
        assert [e.base_offset for e in await driver.read_all(1, low)] == list(range(low, 150))
        driver.reopen()
        assert driver.store.ranges[1, 0].min_offset >= low


async def test_duplicates_of_an_evacuation_that_was_cut_off(tmp_path: Path) -> None:
    """Crash after the copies are durable but before the old segment is gone, again and again."""
    path = tmp_path / "0"
    async with Driver(path) as driver:
        await driver.create(1)
        await driver.create(2)
        await driver.append(*(make_entry(1, base, size=100) for base in range(30)))
        await fill(driver, [2], 0, 60)
        await driver.trim(2, 60)
        crashed = driver.crash_copy(tmp_path / "1")
    for number in range(1, 5):
        files = FaultyFiles()
        async with Driver(crashed, small_options(files=files)) as driver:
            files.unlink_error = errno.EIO
            await driver.until(lambda: driver.store.stats.evacuated_bytes > 0 or driver.store.stats.segments <= 3)
            assert [entry_bytes(e) for e in await driver.read_all(1)] == [
                entry_bytes(make_entry(1, base, size=100)) for base in range(30)
            ]
            crashed = driver.crash_copy(tmp_path / str(number + 1))
            files.unlink_error = None
        shutil.rmtree(tmp_path / str(number))


async def test_a_range_sealed_below_its_data_and_trimmed_to_its_end_holds_no_segment(tmp_path: Path) -> None:
    """The index file of the segment still has the rows behind the end, and none of those before it counts."""
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.create(2)
        await fill(driver, [1, 2], 0, 20)
        await driver.until(lambda: driver.store.log.segments[0].indexed)
        await driver.seal(1, 3)
        await driver.trim(1, 3)
        assert driver.store.ranges[1, 0].live_bytes == 0
        driver.reopen()
        assert driver.store.ranges[1, 0].live_bytes == 0
        assert driver.store.ranges[1, 0].runs == []
        await driver.trim(2, 20)
        await driver.until(lambda: len(driver.segments()) <= 2 and driver.store.stats.segments_deleted >= 2)
        groups = driver.store.stats.groups
        for _ in range(10):
            driver.store.maintenance.tick()
            await asyncio.sleep(0.001)
        assert driver.store.stats.groups == groups


@pytest.mark.parametrize("trim_first", [False, True])
@pytest.mark.parametrize("end", [13, 15])
async def test_nothing_is_kept_for_a_range_that_ends_where_it_begins(
    tmp_path: Path, end: int, trim_first: bool
) -> None:
    """The batch that holds the end also holds the smallest offset, but no offset of it can be asked for."""
    async with Driver(tmp_path / "live") as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0, 10), make_entry(1, 10, 10))
        if trim_first:
            await driver.trim(1, 15)
            await driver.seal(1, end)
        else:
            await driver.seal(1, end)
            await driver.trim(1, 15)
        crashed = driver.crash_copy(tmp_path / "crashed")
        for _ in range(2):
            stored = driver.store.ranges[1, 0]
            assert (stored.runs, stored.live_bytes, stored.gaps()) == ([], 0, [])
            assert driver.store.stats.live_bytes == 0
            assert await driver.read(1, 15) == []
            driver.reopen()
    async with Driver(crashed) as driver:
        assert driver.store.ranges[1, 0].runs == []


async def test_evacuation_that_gets_nowhere_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: a survivor that stays where it is would otherwise be copied for ever."""
    async with Driver(tmp_path) as driver:
        for stream in (1, 2):
            await driver.create(stream)
        await driver.append(make_entry(1, 0))
        await fill(driver, [2], 0, 40)
        monkeypatch.setattr(StoredRange, "relocate", lambda *_arguments: False)
        await driver.trim(2, 40)
        await driver.until(lambda: driver.store.stats.maintenance_errors > 0)
        assert "00000000000000000000.seg" in driver.store.stats.last_maintenance_error
        groups = driver.store.stats.groups
        for _ in range(10):
            driver.store.maintenance.tick()
            await asyncio.sleep(0.001)
        assert driver.store.stats.groups == groups
        assert driver.store.stats.maintenance_errors == 1
        assert len(await driver.read(1)) == 1
