"""Several ranges are read at once: each gives what a read of it alone finds, with few reads of the log."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreCorrupt, StoreError
from sbp_back.range_server.store import gather
from sbp_back.wire.model import Entry
from tests.sbp_back.range_server.store.store_harness import Driver, FaultyFiles, entry_bytes, make_entry, small_options

NEVER = 1 << 62
Asked = tuple[int, int, int, int, int]
"""Stream, offset, limit, bytes, room for the first."""


async def gathered(driver: Driver, *asked: Asked) -> tuple[list[int], list[list[Entry] | StoreError]]:
    """What was planned of each range, and what was found of those of which anything was."""
    plan = driver.store.gathering()
    sizes = [plan.add(stream, 0, offset, limit, most, first) for stream, offset, limit, most, first in asked]
    done: asyncio.Future[list[list[Entry] | StoreError]] = asyncio.get_running_loop().create_future()
    driver.store.gather(plan, done.set_result)
    return sizes, await done


async def fill(driver: Driver, rng: random.Random, entries: int = 200) -> dict[int, list[Entry]]:
    """Entries of three streams among one another, over several segments."""
    stored: dict[int, list[Entry]] = {1: [], 2: [], 3: []}
    for stream in stored:
        await driver.create(stream)
    ends = dict.fromkeys(stored, 0)
    while sum(map(len, stored.values())) < entries:
        group = []
        for _ in range(rng.randint(1, 6)):
            stream = rng.choice((1, 2, 3))
            entry = make_entry(stream, ends[stream], rng.randint(1, 4), rng.choice((1, 30, 700, 3000)))
            ends[stream] = entry.end_offset
            stored[stream].append(entry)
            group.append(entry)
        await driver.append(*group)
    return stored


def expected(entries: list[Entry], offset: int, limit: int, most: int, first: int) -> list[Entry]:
    found: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.end_offset <= offset or entry.base_offset >= limit:
            continue
        if size + entry.size > most and (found or 0 <= first < entry.size):
            break
        found.append(entry)
        size += entry.size
    return found


@pytest.mark.parametrize("way", ["page cache", "disk", "in small reads"])
async def test_each_range_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(gather, "STEP_BYTES", 9_000)
    monkeypatch.setattr(gather, "STEP_ROWS", 7)
    rng = random.Random(4)
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        stored = await fill(driver, rng)
        driver.reopen()
        files.uncached = way != "page cache"
        files.read_at_once = 100 if way == "in small reads" else 0
        for _ in range(60):
            asked: list[Asked] = []
            for stream in rng.sample((1, 2, 3), 3):
                end = stored[stream][-1].end_offset
                offset = rng.randint(0, end - 1)
                limit = rng.choice((end, NEVER, rng.randint(offset + 1, end)))
                asked.append(
                    (stream, offset, limit, rng.choice((1, 500, 20_000, 1 << 20)), rng.choice((-1, 50, 5_000)))
                )
            sizes, found = await gathered(driver, *asked)
            wanted = [expected(stored[one[0]], *one[1:]) for one in asked]
            assert sizes == [sum(entry.size for entry in entries) for entries in wanted]
            got = [[entry_bytes(entry) for entry in entries] for entries in found if isinstance(entries, list)]
            assert got == [[entry_bytes(entry) for entry in entries] for entries in wanted if entries]
            for entries in found:
                assert isinstance(entries, list)
                assert all(entry.payload.readonly for entry in entries if isinstance(entry.payload, memoryview))
        assert driver.store.stats.damaged_entries == 0


async def test_ranges_that_lie_among_one_another_are_read_together(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files, segment_bytes=1 << 20)) as driver:
        for stream in range(40):
            await driver.create(stream)
        for base in range(10):
            await driver.append(*(make_entry(stream, base, size=500) for stream in range(40)))
        _, found = await gathered(driver, *((stream, 2, NEVER, 1 << 20, -1) for stream in range(40)))
        assert [[entry.base_offset for entry in entries] for entries in found if isinstance(entries, list)] == [
            list(range(2, 10))
        ] * 40
        assert files.scattered == 1
        # What is kept of one range keeps nothing of the others alive.
        (first, *_) = found
        assert isinstance(first, list)
        assert isinstance(first[0].payload, memoryview)
        assert memoryview(first[0].payload.obj).nbytes == sum(entry.size for entry in first)


async def test_what_is_not_there_is_not_planned(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        for base in range(5):
            await driver.append(make_entry(1, base))
        await driver.trim(1, 2)
        sizes, found = await gathered(
            driver, (9, 0, NEVER, 1000, -1), (1, 1, NEVER, 1000, -1), (1, 5, NEVER, 1000, -1), (1, 3, 3, 1000, -1)
        )
        assert sizes == [-1, -1, -1, -1]
        assert found == []


async def test_damage_ends_what_is_told_of_its_range_only(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.create(2)
        for base in range(5):
            await driver.append(make_entry(1, base, size=500), make_entry(2, base, size=500))
        position = driver.store.ranges[1, 0].runs[0].meta[2 * 3] + 300
        with open(driver.segments()[0], "r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 4]))
        _, (first, second) = await gathered(driver, (1, 0, NEVER, 1 << 20, -1), (2, 0, NEVER, 1 << 20, -1))
        assert isinstance(first, list)
        assert isinstance(second, list)
        assert [entry.base_offset for entry in first] == [0, 1]
        assert [entry.base_offset for entry in second] == [0, 1, 2, 3, 4]
        _, (damaged,) = await gathered(driver, (1, 2, NEVER, 1 << 20, -1))
        assert isinstance(damaged, StoreCorrupt)
        assert "offset 2 of range 0 of stream 1" in str(damaged)
        assert driver.store.stats.damaged_entries == 2


async def test_a_file_that_ends_early_is_damage(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        for base in range(5):
            await driver.append(make_entry(1, base, size=500))
        meta = driver.store.ranges[1, 0].runs[0].meta
        os.truncate(driver.segments()[0], meta[3 * 3] + 10)
        _, (found,) = await gathered(driver, (1, 0, NEVER, 1 << 20, -1))
        assert isinstance(found, list)
        assert [entry.base_offset for entry in found] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["disk", "bug"])
async def test_an_error_while_reading_concerns_those_who_read(tmp_path: Path, kind: str) -> None:
    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        files.uncached = True
        if kind == "disk":
            files.read_error = errno.EIO
        else:
            files.bug = ("scatter", "anabranch-read")
        _, (found,) = await gathered(driver, (1, 0, NEVER, 1000, -1))
        assert type(found) is StoreError
        files.read_error = files.bug = None
        _, (found,) = await gathered(driver, (1, 0, NEVER, 1000, -1))
        assert isinstance(found, list)
        await driver.append(make_entry(1, 1))
        assert driver.failures == []


async def test_who_waits_when_the_store_closes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "STEP_ROWS", 1)
    driver = Driver(tmp_path)
    await driver.create(1)
    for base in range(9):
        await driver.append(make_entry(1, base))
    plan = driver.store.gathering()
    assert plan.add(1, 0, 0, NEVER, 1 << 20, -1) > 0
    answers: list[object] = []
    driver.store.gather(plan, answers.extend)
    assert answers == []
    driver.close()
    (answer,) = answers
    assert isinstance(answer, StoreError)


async def test_long_gatherings_take_turns_and_a_callback_that_raises_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "STEP_ROWS", 1)
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        for base in range(30):
            await driver.append(make_entry(1, base))
        order: list[str] = []

        def begin(name: str, entries: int, fails: bool = False) -> None:
            plan = driver.store.gathering()
            assert plan.add(1, 0, 0, entries, 1 << 20, -1) > 0

            def done(_: object) -> None:
                order.append(name)
                if fails:
                    raise ZeroDivisionError("a defect")

            driver.store.gather(plan, done)

        begin("long", 30)
        begin("short", 3, fails=True)
        turns = 0
        while len(order) < 2:
            await asyncio.sleep(0)
            turns += 1
        assert order == ["short", "long"]
        assert turns >= 30 // 2, "two steps in a turn"
        assert len(problems) == 1
