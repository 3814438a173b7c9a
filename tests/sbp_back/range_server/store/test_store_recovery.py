"""Crashes and damage: what was acknowledged is there or missed loudly, what was not is cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreCorrupt
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.store import Files, Store
from sbp_back.range_server.store.layout.checkpoint import checkpoint_files
from sbp_back.range_server.store.layout.format import BLOCK
from sbp_back.wire.model import Entry
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options


def offsets_on_disk(path: Path, stream: int = 1, **changes: object) -> list[int]:
    """Bases of a stream's entries after recovery, read without a running store."""
    store = Store.open(path, small_options(**changes))
    try:
        for segment in (path / "wal").glob("*.seg"):
            segment.read_bytes()  # in the page cache, so that reads answer at once: there is no loop to answer on later
        got: list[Entry] = []
        stored = store.ranges.get((stream, 0))
        at = stored.min_offset if stored is not None else 0
        while stored is not None and at < stored.visible_end:
            store.read(stream, 0, at, -1, 1 << 20, lambda result: got.extend(checked(result)))
            at = got[-1].end_offset
        return [entry.base_offset for entry in got]
    finally:
        store.close()


def checked(result: object) -> list[Entry]:
    assert isinstance(result, list), result
    return result


async def crashed_store(tmp_path: Path, groups: int = 4, size: int = 5000) -> tuple[Path, list[tuple[int, int]]]:
    """A copy of a store that was not closed, and where its groups lie in the only segment."""
    bounds: list[tuple[int, int]] = []
    async with Driver(tmp_path / "live") as driver:
        await driver.create(1)
        for base in range(groups):
            begin = driver.store.log.active.used
            await driver.append(make_entry(1, base, size=size))
            bounds.append((begin, driver.store.log.active.used))
        return driver.crash_copy(tmp_path / "crashed"), bounds


async def test_a_crash_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    crashed, bounds = await crashed_store(tmp_path)
    assert offsets_on_disk(crashed) == list(range(len(bounds)))


@pytest.mark.parametrize("rest", ["cut", "zeros", "garbage", "older bytes"])
async def test_a_torn_last_group_is_cut_wherever_it_was_torn(tmp_path: Path, rest: str) -> None:
    crashed, bounds = await crashed_store(tmp_path)
    segment = next((crashed / "wal").glob("*.seg"))
    whole = segment.read_bytes()
    begin, end = bounds[-1]
    used = begin + 48 + 56 + make_entry(1, 0, size=5000).size
    noise = random.Random(1).randbytes(end - begin)
    places = [*range(begin, end, 97), begin + 1, begin + 47, begin + 48, begin + 104, used - 1, used, end - 1, end]
    for place in sorted(set(places)):
        if rest == "cut":
            data = whole[:place]
        elif rest == "zeros":
            data = whole[:place] + bytes(len(whole) - place)
        elif rest == "garbage":
            data = whole[:place] + noise[place - begin :] + whole[end:]
        else:
            data = whole[:place] + whole[place - (end - begin) : begin] + whole[end:]
        shutil.copytree(crashed, tmp_path / "try")
        (tmp_path / "try" / "wal" / segment.name).write_bytes(data)
        # The padding carries no data: without it the group still counts, unless the file ends before.
        survives = data[begin:used] == whole[begin:used] and len(data) >= end
        expected = list(range(len(bounds))) if survives else list(range(len(bounds) - 1))
        assert offsets_on_disk(tmp_path / "try") == expected, place
        assert offsets_on_disk(tmp_path / "try") == expected, "the repair is permanent"
        shutil.rmtree(tmp_path / "try")


async def test_the_log_goes_on_after_a_torn_group(tmp_path: Path) -> None:
    crashed, bounds = await crashed_store(tmp_path)
    segment = next((crashed / "wal").glob("*.seg"))
    with open(segment, "r+b") as file:
        file.seek(bounds[-1][0] + 3000)
        file.write(b"\xff" * 2000)
    async with Driver(crashed) as driver:
        assert driver.store.stats.recovery_cut_bytes > 0
        assert any("torn" in message for message in driver.store.messages)
        assert driver.store.ranges[1, 0].next_offset == 3
        await driver.append(make_entry(1, 3, size=10, fill=1))
        again = driver.crash_copy(tmp_path / "again")
    assert offsets_on_disk(again) == [0, 1, 2, 3]


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("where", [0, 30, 44, 60, 110, 3000])
async def test_damage_before_the_last_group_is_refused(tmp_path: Path, where: int, bit: int) -> None:
    crashed, bounds = await crashed_store(tmp_path)
    segment = next((crashed / "wal").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[bounds[1][0] + where] ^= 1 << bit
    segment.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=f"segment {segment.name}, position {bounds[1][0]}"):
        Store.open(crashed, small_options())
    assert segment.read_bytes() == data  # nothing was changed
    assert offsets_on_disk(crashed, accept_data_loss=True) == [0]
    assert offsets_on_disk(crashed) == [0]


async def test_damage_with_the_next_group_in_the_next_segment_is_refused(tmp_path: Path) -> None:
    async with Driver(tmp_path / "live", small_options(evacuate_below=0)) as driver:
        await driver.create(1)
        ends = []
        while len(driver.segments()) < 2 or driver.store.log.active.used == BLOCK:
            ends.append((driver.store.log.active, driver.store.log.active.used))
            await driver.append(make_entry(1, len(ends) - 1, size=9000))
        crashed = driver.crash_copy(tmp_path / "crashed")
    first, last_begin = ends[-2]
    for path in (crashed / "ckpt").iterdir():
        path.unlink()  # as if the crash had come before the checkpoint of the roll
    for path in (crashed / "wal").glob("*.idx"):
        path.unlink()
    intact = shutil.copytree(crashed, tmp_path / "intact")
    assert offsets_on_disk(intact) == list(range(len(ends)))
    segment = crashed / "wal" / first.path.name
    data = bytearray(segment.read_bytes())
    data[last_begin + 200] ^= 1
    segment.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=f"segment {segment.name}, position {last_begin}"):
        Store.open(crashed, small_options())
    assert offsets_on_disk(crashed, accept_data_loss=True) == list(range(len(ends) - 2))
    assert list((crashed / "wal").glob("*.damaged"))  # what was cut off is kept for the operator


async def test_a_flipped_bit_in_an_entry_is_told_to_its_reader(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        for base in range(5):
            await driver.append(make_entry(1, base, size=500))
        run = driver.store.ranges[1, 0].runs[0]
        position = run.meta[2 * 3] + 300
        with open(driver.segments()[0], "r+b") as file:
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes([byte[0] ^ 4]))
        assert [e.base_offset for e in await driver.read(1)] == [0, 1]
        with pytest.raises(StoreCorrupt, match="offset 2 of range 0 of stream 1"):
            await driver.read(1, 2)
        assert [e.base_offset for e in await driver.read(1, 3)] == [3, 4]
        assert driver.store.stats.damaged_entries == 2


async def full_store(tmp_path: Path) -> Path:
    """A cleanly closed store of several segments with the streams 1 and 2."""
    async with Driver(tmp_path / "full", small_options(evacuate_below=0)) as driver:
        await driver.create(1)
        await driver.create(2)
        for base in range(60):
            await asyncio.gather(driver.append(make_entry(1, base, size=4000)), driver.append(make_entry(2, base)))
        assert len(driver.segments()) >= 5
    return tmp_path / "full"


async def test_a_missing_segment_is_refused_by_name(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    for number, segment in enumerate(sorted((full / "wal").glob("*.seg"))):
        broken = shutil.copytree(full, tmp_path / f"broken{number}")
        (broken / "wal" / segment.name).unlink()
        if segment.stat().st_size > BLOCK and not segment.with_suffix(".idx").exists():
            continue  # prepared ahead and never used
        with pytest.raises(StoreCorrupt, match=segment.name):
            Store.open(broken, small_options())
        store = Store.open(broken, small_options(accept_data_loss=True))
        assert any("data loss accepted" in message for message in store.messages)
        store.close()


async def test_after_accepted_loss_the_gap_is_an_error_and_the_rest_readable(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    sorted((full / "wal").glob("*.seg"))[1].unlink()
    async with Driver(full, small_options(accept_data_loss=True)) as driver:
        first, second = driver.store.ranges[1, 0].runs[:2]
        assert first.end < second.first
        assert [e.base_offset for e in await driver.read(1)] == list(range(first.end))
        with pytest.raises(StoreCorrupt, match="is lost"):
            await driver.read(1, first.end)
        assert (await driver.read_all(1, second.first))[-1].base_offset == 59
        await driver.append(make_entry(1, 60))


async def test_index_files_are_rebuilt_when_missing_or_damaged(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    indexes = sorted((full / "wal").glob("*.idx"))
    for number, index in enumerate(indexes):
        data = bytearray(index.read_bytes())
        if number % 3 == 0:
            index.unlink()
        elif number % 3 == 1:
            data[len(data) // 2] ^= 16
            index.write_bytes(data)
        else:
            index.write_bytes(data[: len(data) // 2])
    assert offsets_on_disk(full) == list(range(60))
    assert offsets_on_disk(full, stream=2) == list(range(60))
    assert sorted((full / "wal").glob("*.idx")) == indexes


async def test_damage_is_found_when_an_index_is_rebuilt(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    first = sorted((full / "wal").glob("*.seg"))[0]
    first.with_suffix(".idx").unlink()
    data = bytearray(first.read_bytes())
    data[3 * BLOCK + 2000] ^= 1
    first.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=f"segment {first.name}"):
        Store.open(full, small_options())


async def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    # The last checkpoint of that run may have come so late that the one at its end took its place.
    async with Driver(full, small_options(evacuate_below=0)) as driver:
        await driver.append(make_entry(2, 60))
    newest, older = sorted((full / "ckpt").glob("*.ckpt"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:-3])
    assert older.exists()
    assert offsets_on_disk(full) == list(range(60))


def damage_newest_checkpoint(path: Path) -> None:
    newest = checkpoint_files(path / "ckpt")[0]
    newest.write_bytes(newest.read_bytes()[:-3])


async def test_idle_restarts_keep_a_checkpoint_to_fall_back_to(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    for _ in range(3):
        Store.open(full, small_options()).close()
        assert len(checkpoint_files(full / "ckpt")) == 2
    damage_newest_checkpoint(full)
    assert offsets_on_disk(full) == list(range(60))
    # The damaged one is not what the next start could fall back to.
    assert len(checkpoint_files(full / "ckpt")) == 2
    damage_newest_checkpoint(full)
    assert offsets_on_disk(full) == list(range(60))


async def unflushed_store(tmp_path: Path) -> tuple[Path, list[int]]:
    """A copy of a store with durability os that was not closed, and where its groups of one entry begin."""
    begins: list[int] = []
    async with Driver(tmp_path / "os", small_options(durability="os")) as driver:
        await driver.create(1)
        for base in range(6):
            begins.append(driver.store.log.active.used)
            await driver.append(make_entry(1, base, size=3000))
        return driver.crash_copy(tmp_path / "unflushed"), begins


def lose(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes(BLOCK))


async def test_what_was_never_flushed_is_cut_with_a_word_about_it(tmp_path: Path) -> None:
    crashed, begins = await unflushed_store(tmp_path)
    lose(next((crashed / "wal").glob("*.seg")), begins[3])
    store = Store.open(crashed, small_options(durability="os"))
    assert any(f"at {begins[3]}: what was written behind" in message for message in store.messages), store.messages
    store.close()
    async with Driver(crashed, small_options(durability="os")) as driver:
        # As large as the lost one: nothing behind it may count again.
        await driver.append(make_entry(1, 3, size=3000, fill=1))
        again = driver.crash_copy(tmp_path / "again")
    assert offsets_on_disk(again) == [0, 1, 2, 3]


@pytest.mark.parametrize("before", [False, True])
async def test_flushed_groups_are_not_cut_for_unflushed_ones_beside_them(tmp_path: Path, before: bool) -> None:
    crashed, begins = await unflushed_store(tmp_path)
    async with Driver(crashed, small_options(durability="fsync" if before else "os")) as driver:
        position = driver.store.log.active.used
        for base in range(6, 9):
            await driver.append(make_entry(1, base, size=3000))
        mixed = driver.crash_copy(tmp_path / "mixed")
    segment = next((mixed / "wal").glob("*.seg"))
    # The start before these groups made all that was there durable, whatever it was written with.
    lose(segment, position if before else begins[3])
    with pytest.raises(StoreCorrupt, match=f"segment {segment.name}, position {position if before else begins[3]}"):
        Store.open(mixed, small_options(durability="os"))


async def test_no_segment_is_deleted_before_two_checkpoints_cover_it(tmp_path: Path) -> None:
    async with Driver(tmp_path / "live", small_options(evacuate_below=0)) as driver:
        await driver.create(1)
        base = 0
        while len(driver.store.log.segments) < 2:
            await driver.append(make_entry(1, base, size=9000))
            base += 1
        await driver.trim(1, base)
        await driver.until(lambda: driver.store.stats.segments_deleted > 0)
        crashed = driver.crash_copy(tmp_path / "crashed")
    assert len(checkpoint_files(crashed / "ckpt")) == 2
    damage_newest_checkpoint(crashed)
    async with Driver(crashed) as driver:
        assert driver.store.ranges[1, 0].min_offset == base


async def test_no_segment_is_deleted_that_the_older_checkpoint_needs(tmp_path: Path) -> None:
    async with Driver(tmp_path / "live") as driver:
        for stream in (1, 2, 3):
            await driver.create(stream)
        for base in range(60):
            await asyncio.gather(driver.append(make_entry(1, base, size=4000)), driver.append(make_entry(2, base)))
            if base == 30:
                await driver.seal(3)
        deleted = driver.store.stats
        await driver.trim(1, 60)
        await driver.until(lambda: deleted.segments_deleted > 0 and len(driver.segments()) <= 3)
        crashed = driver.crash_copy(tmp_path / "crashed")
        driver.reopen()
        await driver.trim(2, 50)
        await driver.until(lambda: len(driver.segments()) <= 3)
    for path in (crashed, tmp_path / "live"):
        assert len(checkpoint_files(path / "ckpt")) == 2
        damage_newest_checkpoint(path)
        assert offsets_on_disk(path) == []
        assert offsets_on_disk(path, stream=2) == list(range(0 if path == crashed else 50, 60))
        async with Driver(path) as driver:
            assert driver.store.ranges[3, 0].end == 0


async def test_without_any_checkpoint_the_whole_log_is_replayed(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    for path in (full / "ckpt").iterdir():
        path.unlink()
    assert offsets_on_disk(full) == list(range(60))
    for path in (full / "ckpt").iterdir():
        path.unlink()
    sorted((full / "wal").glob("*.seg"))[0].unlink()
    with pytest.raises(StoreCorrupt, match="beginning of the log"):
        Store.open(full, small_options())


async def test_a_damaged_segment_header_is_refused(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    segment = sorted((full / "wal").glob("*.seg"))[2]
    with open(segment, "r+b") as file:
        file.write(b"????")
    with pytest.raises(StoreCorrupt, match=f"segment {segment.name}, position 0"):
        Store.open(full, small_options())


async def test_a_damaged_segment_does_not_hide_behind_an_empty_lock_file(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    segments = sorted((full / "wal").glob("*.seg"))
    (full / "LOCK").write_bytes(b"")
    with open(segments[0], "r+b") as file:
        file.write(b"????")
    with pytest.raises(StoreCorrupt, match=f"segment {segments[0].name}, position 0"):
        Store.open(full, small_options())


async def test_clocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time and batch timestamps run backwards through appends, rolls and restarts."""
    now = [2_000_000_000.0]

    def backwards() -> float:
        now[0] -= 1000.0
        return now[0]

    monkeypatch.setattr("time.time", backwards)
    async with Driver(tmp_path / "live") as driver:
        await driver.create(1)
        for base in range(40):
            entry = make_entry(1, base, size=4000)
            entry.timestamp = 10**12 - base * 10**9
            await driver.append(entry)
            if base % 10 == 9:
                for path in (tmp_path / "live").rglob("*.*"):
                    with contextlib.suppress(FileNotFoundError):  # a checkpoint's partial file, renamed meanwhile
                        os.utime(path, (base, 10**9 - base))
                driver.reopen()
        crashed = driver.crash_copy(tmp_path / "crashed")
    assert offsets_on_disk(crashed) == list(range(40))


class CrashAtEveryStep(Files):
    """Copies the directory before every operation that changes it: what a crash at that moment would leave."""

    def __init__(self, root: Path, copies: Path) -> None:
        super().__init__()
        self._root = root
        self._copies = copies
        self._lock = threading.RLock()
        self.enabled = False
        self.acknowledged: dict[int, int] = {}
        self.trimmed: dict[int, int] = {}
        self.steps: list[tuple[str, Path, dict[int, int], dict[int, int]]] = []

    def _step(self, name: str) -> None:
        if self.enabled:
            # Trims that were asked for may or may not have happened; what was acknowledged must be there.
            acknowledged = dict(self.acknowledged)
            target = self._copies / f"{len(self.steps):05d}"
            shutil.copytree(self._root, target)
            self.steps.append((name, target, acknowledged, dict(self.trimmed)))

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        with self._lock:
            self._step(f"write at {offset}")
            return super().write(fd, parts, offset, durable)

    def open(self, path: Path, flags: int) -> int:
        if not flags & os.O_CREAT:
            return super().open(path, flags)
        with self._lock:
            self._step(f"create {path.name}")
            return super().open(path, flags)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        with self._lock:
            self._step("allocate")
            super().allocate(fd, offset, size)

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._step("truncate")
            super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._step(f"rename {target.name}")
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._step(f"unlink {path.name}")
            super().unlink(path)


async def test_a_crash_at_any_step_of_rolling_evacuating_and_deleting_is_harmless(tmp_path: Path) -> None:
    root = tmp_path / "live"
    files = CrashAtEveryStep(root, tmp_path / "copies")
    files_zero = small_options(files=files, zero_ahead_bytes=0)
    async with Driver(root, files_zero) as driver:
        for stream in (1, 2, 3):
            await driver.create(stream)
            files.acknowledged[stream] = files.trimmed[stream] = 0
        files.enabled = True
        for base in range(36):
            batch = [make_entry(1, base, size=200)] if base % 6 == 0 else []
            for stream in (2, 3):
                batch.append(make_entry(stream, base, size=4500))
            if batch[0].stream_id == 1:
                batch[0] = make_entry(1, base // 6, size=200)
            await driver.append(*batch)
            for entry in batch:
                files.acknowledged[entry.stream_id] = entry.end_offset
            if base % 12 == 11:
                files.trimmed[2] = files.trimmed[3] = base - 2
                await driver.trim(2, base - 2)
                await driver.trim(3, base - 2)
        deleted = driver.store.stats
        await driver.until(lambda: deleted.segments_deleted >= 2 and deleted.evacuated_bytes > 0)
        files.enabled = False
        assert driver.store.stats.checkpoints > 2
    names = {name.split()[0] for name, *_ in files.steps}
    assert names == {"write", "create", "allocate", "truncate", "rename", "unlink"}
    for number, (name, copy, acknowledged, trimmed) in enumerate(files.steps):
        if number % 2 and checkpoint_files(copy / "ckpt"):
            damage_newest_checkpoint(copy)
        async with Driver(copy) as driver:
            for stream, end in acknowledged.items():
                stored = driver.store.ranges[stream, 0]
                got = [entry_bytes(e) for e in await driver.read_all(stream, stored.min_offset)]
                size = 200 if stream == 1 else 4500
                expected = [
                    entry_bytes(make_entry(stream, base, size=size))
                    for base in range(stored.min_offset, stored.next_offset)
                ]
                assert got == expected, (name, copy)
                assert stored.next_offset >= end, (name, copy)
                assert stored.min_offset <= trimmed[stream], (name, copy)
            await driver.append(make_entry(1, driver.store.ranges[1, 0].next_offset))
        shutil.rmtree(copy)


async def test_half_made_files_are_removed(tmp_path: Path) -> None:
    full = await full_store(tmp_path)
    leftovers = [
        full / "wal" / "00000000000099999999.seg.tmp",
        full / "wal" / "00000000000099999999.idx",
        full / "ckpt" / "00000000000099999999.ckpt.tmp",
    ]
    for path in leftovers:
        path.write_bytes(b"half")
    assert offsets_on_disk(full) == list(range(60))
    assert not any(path.exists() for path in leftovers)


async def test_a_copy_of_the_log_inside_an_entry_is_not_taken_for_the_log(tmp_path: Path) -> None:
    """Whoever stores a backup of the log in the log: its groups lie on block boundaries inside a torn group."""
    async with Driver(tmp_path / "live") as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0, size=100))
        backup = driver.segments()[0].read_bytes()[: 3 * BLOCK]
        begin = driver.store.log.active.used
        prefix = make_entry(1, 1).prefix
        padding = b"." * (2 * BLOCK - (48 + 56 + len(prefix)))
        from sbp_back.wire.entry import pack_entry

        await driver.append(pack_entry(1, 0, 0, 1, 1, 0, padding + backup))
        crashed = driver.crash_copy(tmp_path / "crashed")
    segment = next((crashed / "wal").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    assert data[begin + 2 * BLOCK :].startswith(backup)
    data[begin + 60] ^= 1
    segment.write_bytes(data)
    assert offsets_on_disk(crashed) == [0]


async def test_start_of_an_empty_store_reads_and_writes_little(tmp_path: Path) -> None:
    written: list[int] = []

    class Counting(Files):
        def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
            count = super().write(fd, parts, offset, durable)
            written.append(count)
            return count

    store = Store.open(tmp_path, small_options(files=Counting(), segment_bytes=256 * 1024 * KIB))
    try:
        assert sum(written) < 64 * KIB
    finally:
        store.close()
