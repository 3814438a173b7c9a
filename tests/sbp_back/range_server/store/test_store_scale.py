"""Many streams, many batches: what they cost in memory, and that nothing grows without limit."""

from __future__ import annotations

import asyncio
import os
import random
import tracemalloc
from array import array
from pathlib import Path

import pytest

from sbp_back.range_server.store.index import Run, StoredRange
from sbp_back.range_server.store.layout.format import BLOCK
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.writing.prepare import Preparer, SegmentFactory
from tests.sbp_back.range_server.store.store_harness import (
    KIB,
    Driver,
    FaultyFiles,
    entry_bytes,
    make_entry,
    small_options,
)


async def test_ten_thousand_streams(tmp_path: Path) -> None:
    count = 10_000
    options = small_options(segment_bytes=1024 * KIB)
    async with Driver(tmp_path / "live", options) as driver:
        await asyncio.gather(*(driver.create(stream) for stream in range(count)))
        for base in range(3):
            await asyncio.gather(*(driver.append(make_entry(stream, base)) for stream in range(count)))
        await asyncio.gather(*(driver.trim(stream, 1) for stream in range(0, count, 100)))
        assert len(driver.segments()) > 5
        crashed = driver.crash_copy(tmp_path / "crashed")
    for path in (tmp_path / "live", crashed):
        async with Driver(path, options) as driver:
            assert len(driver.store.ranges) == count
            for stream in random.Random(1).sample(range(count), 300):
                low = 0 if stream % 100 else 1
                got = await driver.read_all(stream, low)
                assert [entry_bytes(e) for e in got] == [entry_bytes(make_entry(stream, b)) for b in range(low, 3)]


def test_index_memory_per_batch(tmp_path: Path) -> None:
    """20 bytes a batch while a segment is written, plus what arrays keep in reserve."""
    batches = 200_000
    segment = Segment(0, 1 << 28, 0, tmp_path / "x")
    stored = StoredRange(1, 0, 0, 0, 0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for base in range(batches):
        stored.append(segment, base, base + 1, BLOCK + base * 1000, 1000, 0xFFFFFFFF)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used / batches < 28


async def test_rows_of_sealed_segments_leave_the_heap(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        for base in range(0, 3000, 100):
            await driver.append(*(make_entry(1, b, size=30) for b in range(base, base + 100)))
        await driver.until(lambda: all(segment.indexed for segment in driver.store.log.segments[:-1]))
        runs: list[Run] = driver.store.ranges[1, 0].runs
        assert len(runs) > 3
        assert [isinstance(run.bases, array) for run in runs] == [False] * (len(runs) - 1) + [True]
        assert len(await driver.read_all(1)) == 3000
        assert driver.store.batch_bounds(1, 0, 1234) == (1234, 1235)


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_zeros_never_land_on_data(tmp_path: Path, durability: str) -> None:
    """The zeroing thread runs ahead of the writer through many segments; every entry survives it. Where nothing is
    flushed it would only write everything twice."""
    options = small_options(segment_bytes=512 * KIB, zero_ahead_bytes=128 * KIB, durability=durability)
    async with Driver(tmp_path / "live", options) as driver:
        await driver.create(1)
        sizes = [random.Random(base).randrange(1, 30_000) for base in range(400)]
        for base in range(0, 400, 4):
            await driver.append(*(make_entry(1, b, size=sizes[b]) for b in range(base, base + 4)))
        assert (driver.store.stats.zeroed_bytes > 0) is (durability == "fsync")
        expected = [entry_bytes(make_entry(1, base, size=sizes[base])) for base in range(400)]
        assert [entry_bytes(e) for e in await driver.read_all(1)] == expected


def test_zeroing_keeps_clear_of_what_was_claimed(tmp_path: Path) -> None:
    """Every write of zeros lies behind everything the writer had claimed before it."""
    files = FaultyFiles()
    options = small_options(files=files, segment_bytes=1024 * KIB, zero_ahead_bytes=256 * KIB)
    factory = SegmentFactory(tmp_path, options, "c", 1)
    segment, fd = factory.create(0)
    claimed = BLOCK
    overlaps: list[tuple[int, int]] = []
    original = files.write

    def watched(target: int, parts: object, offset: int, durable: bool) -> int:
        if target == fd and offset < claimed:
            overlaps.append((offset, claimed))
        return original(target, parts, offset, durable)  # type: ignore[arg-type]

    files.write = watched  # type: ignore[method-assign]
    preparer = Preparer(factory, overlaps.append)  # type: ignore[arg-type]
    preparer.follow(segment, fd, BLOCK)
    preparer.start(None)
    while claimed < 900 * KIB:
        # Before ``claim`` returns zeros may still land there; afterwards never again.
        preparer.claim(claimed, claimed + 4 * KIB)
        claimed += 4 * KIB
    preparer.stop()
    files.close(fd)
    assert overlaps == []


def test_what_was_zeroed_before_is_not_zeroed_again(tmp_path: Path) -> None:
    options = small_options(segment_bytes=1024 * KIB, zero_ahead_bytes=256 * KIB)
    factory = SegmentFactory(tmp_path, options, "c", 1)
    segment, fd = factory.create(0)

    def zeroed(position: int) -> int:
        preparer = Preparer(factory, pytest.fail)
        preparer.follow(segment, fd, position)
        while preparer.wants_zeros():
            preparer.prepare()
        return preparer.zeroed_bytes

    assert zeroed(BLOCK) > 0
    assert [zeroed(position) for position in (BLOCK, 64 * KIB)] == [0, 0]
    assert zeroed(512 * KIB) > 0
    os.close(fd)
