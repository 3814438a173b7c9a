"""A copy of a log's files that is made while the store works opens with everything that was acknowledged before it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreCorrupt
from sbp_back.range_server.store.upkeep.backup import LogBackup
from tests.sbp_back.range_server.store.store_harness import Driver, entry_bytes, make_entry, small_options

STREAMS = range(1, 5)
SIZE = 3000


async def work(driver: Driver, begin: int, end: int) -> None:
    """Append to all streams; keep little of each but the first, so that segments are emptied and evacuated."""
    for base in range(begin, end):
        await asyncio.gather(*(driver.append(make_entry(stream, base, size=SIZE)) for stream in STREAMS))
    for stream in STREAMS[1:]:
        await driver.trim(stream, end - 5)


async def test_a_copy_made_under_appends_trims_and_evacuations_opens_with_all_of_it(tmp_path: Path) -> None:
    options = small_options(evacuate_below=0.5, evacuate_batch_bytes=8000)
    async with Driver(tmp_path / "store", options) as driver:
        for stream in STREAMS:
            await driver.create(stream)
        await work(driver, 0, 10)
        backup = LogBackup(driver.path, tmp_path / "backup")
        for number in range(1, 25):
            end = number * 10
            copying = asyncio.ensure_future(asyncio.to_thread(backup.catch_up))
            await work(driver, end, end + 10)
            await copying
            # Each round opens the copy as it is, and the next one goes on with it.
            shutil.copytree(tmp_path / "backup", tmp_path / "opened")
            async with Driver(tmp_path / "opened", options) as copy:
                for stream in STREAMS:
                    stored = copy.store.ranges[stream, 0]
                    assert stored.next_offset >= end
                    entries = await copy.read_all(stream, stored.min_offset)
                    assert [one.base_offset for one in entries] == list(range(stored.min_offset, stored.next_offset))
                    assert stored.min_offset == 0 if stream == 1 else stored.min_offset >= end - 5
                    last = entries[-1]
                    assert entry_bytes(last) == entry_bytes(make_entry(stream, last.base_offset, size=SIZE))
            shutil.rmtree(tmp_path / "opened")
        assert driver.store.stats.segments_deleted > 10
        assert driver.failures == []


async def test_a_segment_that_went_after_a_part_of_it_was_copied_goes_from_the_copy(tmp_path: Path) -> None:
    async with Driver(tmp_path / "store") as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0, size=SIZE))
        backup = LogBackup(driver.path, tmp_path / "backup")
        backup.catch_up()
        first = driver.segments()[0]
        for base in range(1, 100):
            await driver.append(make_entry(1, base, size=SIZE))
        await driver.trim(1, 95)
        await driver.until(lambda: not first.exists())
        backup.catch_up()
        assert backup.copied.keys() == {
            f"{path.parent.name}/{path.name}" for path in (tmp_path / "backup").rglob("*") if path.is_file()
        }
        assert f"wal/{first.name}" not in backup.copied
        async with Driver(tmp_path / "backup") as copy:
            assert [one.base_offset for one in await copy.read_all(1, 95)] == list(range(95, 100))


async def test_segments_that_go_while_checkpoints_are_copied_are_not_missed(tmp_path: Path) -> None:
    async with Driver(tmp_path / "store") as driver:
        await driver.create(1)
        for base in range(60):
            await driver.append(make_entry(1, base, size=SIZE))
        await driver.until(lambda: any((driver.path / "ckpt").glob("*.ckpt")))
        before, loop = driver.segments(), asyncio.get_running_loop()

        async def renew() -> None:
            for base in range(60, 200):
                await driver.append(make_entry(1, base, size=SIZE))
            await driver.trim(1, 195)
            await driver.until(lambda: not set(before) & set(driver.segments()))

        changes = iter([renew])

        def check() -> None:
            for change in changes:
                asyncio.run_coroutine_threadsafe(change(), loop).result()

        await asyncio.to_thread(LogBackup(driver.path, tmp_path / "backup").catch_up, check)
        async with Driver(tmp_path / "backup") as copy:
            assert [one.base_offset for one in await copy.read_all(1, 195)] == list(range(195, 200))


async def test_a_damaged_group_before_later_ones_is_no_end_of_the_log(tmp_path: Path) -> None:
    async with Driver(tmp_path / "store") as driver:
        await driver.create(1)
        for base in range(3):
            await driver.append(make_entry(1, base, size=5000))
        (segment,) = (driver.path / "wal").glob("*.seg")
        content = bytearray(segment.read_bytes())
        content[content.index(b"1/0/1/1/")] ^= 1
        segment.write_bytes(content)
        with pytest.raises(StoreCorrupt, match="a group is missing before a later one"):
            LogBackup(driver.path, tmp_path / "backup").catch_up()
