"""Where something is looked for by its time, retention may be at work: what it takes away is passed over."""

from __future__ import annotations

import asyncio

import pytest

from anabranch_kit.memory.budget import Account, MemoryBudget
from bridges.errors import OffsetOutOfRange
from bridges.formats.records import StoredBatch
from bridges.log.partition import append_path
from bridges.log.partition.partition_log import PartitionLog
from tests.bridges.log.log_lab import World, batch
from ydb_topic_front.service.read.start import first_written, written_at

OfTen = tuple[World, PartitionLog]


@pytest.fixture
async def account() -> Account:
    return MemoryBudget(1 << 20, asyncio.get_running_loop().call_soon).account(lambda: None)


@pytest.fixture
async def of_ten(monkeypatch: pytest.MonkeyPatch) -> OfTen:
    """A log of ten batches that were written at 0, 100 ... 900 ms."""
    world = World()
    log = await world.boot()
    for number in range(10):
        monkeypatch.setattr(append_path, "now_ms", lambda number=number: number * 100)
        log.append(batch(), world.done)
    world.writer.acknowledge(10)
    return world, log


def trims(monkeypatch: pytest.MonkeyPatch, *starts: int) -> list[int]:
    """Have the log begin at each of ``starts``, in turn, when somebody is about to read it; gives what is read."""
    read = PartitionLog.read_batches
    left, asked = list(starts), []

    async def read_batches(log: PartitionLog, offset: int, max_bytes: int, limit: int) -> list[StoredBatch]:
        asked.append(offset)
        assert len(asked) < 100, "it ends"
        if left:
            await log.trim(left.pop(0))
        return await read(log, offset, max_bytes, limit)

    monkeypatch.setattr(PartitionLog, "read_batches", read_batches)
    return asked


@pytest.mark.parametrize(("starts", "found"), [((), 200), ((6,), 600), ((4, 7), 700), ((10,), -1)])
async def test_when_something_was_written(
    monkeypatch: pytest.MonkeyPatch, of_ten: OfTen, account: Account, starts: tuple[int, ...], found: int
) -> None:
    _, log = of_ten
    asked = trims(monkeypatch, *starts)
    assert await written_at(log, 2, account) == found
    assert asked == [2, *[start for start in starts if start < 10]]
    assert account.held == 0
    assert await written_at(log, 10, account) == -1


@pytest.mark.parametrize(("starts", "found"), [((), 3), ((6,), 6), ((1, 8), 8), ((10,), 10)])
async def test_the_first_that_was_written_since(
    monkeypatch: pytest.MonkeyPatch, of_ten: OfTen, account: Account, starts: tuple[int, ...], found: int
) -> None:
    _, log = of_ten
    trims(monkeypatch, *starts)
    assert await first_written(log, 250, account) == found
    assert account.held == 0


async def test_what_is_appended_and_taken_away_meanwhile_keeps_nobody_looking(
    monkeypatch: pytest.MonkeyPatch, of_ten: OfTen, account: Account
) -> None:
    """The log begins behind what was its end when the search began."""
    world, log = of_ten
    read = PartitionLog.read_batches

    async def outrun(log: PartitionLog, offset: int, max_bytes: int, limit: int) -> list[StoredBatch]:
        if log.high_watermark == 10:
            for _ in range(10):
                log.append(batch(), world.done)
            world.writer.acknowledge(10)
            await log.trim(15)
        assert log.log_start_offset == 15
        return await read(log, offset, max_bytes, limit)

    monkeypatch.setattr(PartitionLog, "read_batches", outrun)
    async with asyncio.timeout(60):
        assert await first_written(log, 250, account) == 15


async def test_a_log_that_does_not_begin_later_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, of_ten: OfTen, account: Account
) -> None:
    _, log = of_ten

    async def gone(log: PartitionLog, offset: int, max_bytes: int, limit: int) -> list[StoredBatch]:
        raise OffsetOutOfRange("gone")

    monkeypatch.setattr(PartitionLog, "read_batches", gone)
    with pytest.raises(OffsetOutOfRange):
        await written_at(log, 2, account)
    with pytest.raises(OffsetOutOfRange):
        await first_written(log, 250, account)
    assert account.held == 0
