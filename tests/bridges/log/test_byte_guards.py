"""Appends that depend on a position in bytes, in logs that others write to with batches that must be looked at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from bridges.errors import AppendConditionFailed, LogError, LogUnavailable, PartitionSealed
from bridges.formats import FormatId, decode
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record, StoredBatch
from bridges.log.interfaces import Appended, Guard
from bridges.log.partition.partition_log import Batch, PartitionLog
from sbp_back.errors import ErrorCode, SbpError
from tests.bridges.log.log_lab import World, batch, settle
from tests.bridges.log.self_counted import SELF_COUNTED, self_counted, self_counted_known, stamped


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with self_counted_known():
        yield


def event(size: int, at: int = -1, number: int = -1) -> Batch:
    """An event of ``size`` bytes and its head, which is to begin at the position ``at``."""
    guard = None if at < 0 else Guard(end_position=at)
    return Batch(self_counted([size - 8], number=number), 1, SELF_COUNTED, -1, stamped(number), guard)


def refusals(world: World) -> list[int | LogError]:
    """Answers, those that say where the log ends as minus that."""
    return [-one.end_position if isinstance(one, AppendConditionFailed) else one for one in world.answers]


async def opened(world: World) -> PartitionLog:
    log = await world.boot()
    await log.byte_end()
    return log


async def test_what_is_in_flight_counts_and_nothing_waits_where_headers_tell() -> None:
    world = World()
    log = await opened(world)
    log.append(event(100), world.done)
    log.append(event(50, at=100), world.done)
    log.append(event(50, at=100), world.done)
    log.append(event(10, at=150), world.done)
    assert refusals(world) == [-150], "told at once where the log ends"
    assert log.byte_length == 0
    lengths: list[int | None] = []
    log.append(event(10), lambda appended, error: lengths.append(log.byte_length))
    world.writer.acknowledge(4)
    assert refusals(world)[1:] == [0, 1, 2]
    assert (log.byte_length, lengths) == (170, [170]), "of an append, the position behind it"
    log.append(event(10, at=170), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 4


async def test_what_could_not_be_stored_counts_no_more() -> None:
    world = World()
    log = await opened(world)
    log.append(event(100), world.done)
    world.writer.refuse(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "no"))
    log.append(event(30, at=0), world.done)
    world.writer.acknowledge(1)
    assert world.answers[1:] == [0]
    log.append(event(100), world.done)
    world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "gone"))
    log.append(event(30, at=30), world.done)
    await settle()
    world.writer.acknowledge(1)
    assert world.answers[3:] == [1]


async def test_an_append_waits_until_what_others_wrote_is_counted() -> None:
    world = World()
    log = await world.boot()
    for _ in range(2):
        log.append(batch(size=10), world.done)
    log.append(event(20, at=36), world.done)
    log.append(event(20, at=36), world.done)
    log.append(event(20, at=18), world.done)
    log.append(event(20, at=37), world.done)
    await settle()
    assert world.answers == [], "nobody has ever asked, and the batches in flight have to be looked at"
    world.writer.acknowledge(1)
    await settle()
    assert world.answers == [0], "18 is where it ends but for what is in flight: that is not said before it is known"
    world.writer.acknowledge(1)
    await settle()
    world.writer.acknowledge(1)
    assert refusals(world) == [0, 1, -56, -56, -56, 2]
    assert await log.byte_end() == (3, 56)


async def test_an_append_waits_until_a_transaction_is_decided() -> None:
    world = World()
    log = await opened(world)
    payload = encode([Record(None, bytes(10))], attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0)
    log.append(Batch(payload, 1, int(FormatId.KAFKA), transaction=InTransaction(7, 0)), world.done)
    log.append(event(20, at=0), world.done)
    world.writer.acknowledge(1)
    await settle()
    assert world.answers == [0]
    assert log.byte_length is None
    log.append_marker(7, 0, False, world.done)
    await settle()
    world.writer.acknowledge(1)
    await settle()
    world.writer.acknowledge(1)
    assert world.answers == [0, 1, 2], "what was aborted takes no bytes"
    assert log.byte_length == 20


@pytest.mark.parametrize("end", ["fails", "is deleted", "is sealed"])
async def test_those_who_wait_are_answered_when_the_log(end: str) -> None:
    world = World()
    log = await opened(world)
    log.append(batch(size=10), world.done)
    log.append(event(20, at=18), world.done)
    await settle()
    assert world.answers == []
    if end == "fails":
        world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "gone"))
        assert all(isinstance(error, LogUnavailable) for error in world.answers)
    elif end == "is deleted":
        log.delete()
    else:
        log.sealed((1, 2))
        world.writer.acknowledge(1)
        await log.seal()
        await settle()
        assert isinstance(world.answers[-1], PartitionSealed), "also if the position is right"
    assert len(world.answers) == 2
    assert isinstance(world.answers[-1], LogError)


async def test_what_the_ledger_knows_is_answered_whatever_its_position() -> None:
    world = World()
    log = await opened(world)
    log.append(event(20, at=0, number=1), world.done)
    log.append(event(20, at=0, number=1), world.done)
    world.writer.acknowledge(1)
    log.append(event(20, at=0, number=1), world.done)
    assert world.answers == [0, 0, 0]


def taken(stored: StoredBatch) -> int:
    return sum(8 + len(record.value or b"") for record in decode(stored))


@pytest.mark.parametrize("seed", range(20))
async def test_what_was_appended_on_a_condition_begins_where_it_said(seed: int) -> None:
    """Writers of events guess where the log ends, while others write batches that must be looked at."""
    chosen = random.Random(seed)
    world = World()
    log = await world.boot() if seed % 2 else await opened(world)
    begins: list[tuple[int, int]] = []
    answered: list[int] = []
    sizes: list[int] = []

    def conditional(size: int, at: int) -> None:
        def done(appended: Appended, error: LogError | None) -> None:
            answered.append(at)
            if error is None:
                begins.append((appended.base, at))
            else:
                assert isinstance(error, AppendConditionFailed)

        log.append(event(size, at=at), done)

    asked = 0
    for _ in range(80):
        what = chosen.choice(["kafka", "event", "on condition", "on condition", "acknowledge", "turn"])
        size = chosen.randint(8, 30)
        if what == "kafka":
            log.append(batch(size=size), world.done)
        elif what == "event":
            log.append(event(size), world.done)
        elif what == "on condition":
            asked += 1
            conditional(size, chosen.choice([sum(sizes), sum(sizes[:-1]), log.byte_length or 0]))
        elif what == "acknowledge":
            world.writer.acknowledge(chosen.randint(0, len(world.writer.flying)))
        else:
            await asyncio.sleep(0)
        stored = [*world.backend.entries, *(entry for entry, _ in world.writer.flying)]
        sizes = [taken(StoredBatch(e.base_offset, e.end_offset, e.flags, e.payload)) for e in stored]
    while len(answered) < asked:
        world.writer.acknowledge(len(world.writer.flying))
        await asyncio.sleep(0)
    world.writer.acknowledge(len(world.writer.flying))
    for base, at in begins:
        assert await log.byte_position(base) == at
