"""The partition log's own logic, with a backend that does what the test says, when the test says."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from bridges.errors import (
    BatchTooLarge,
    LogDeleted,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageFull,
)
from bridges.formats import FormatId
from bridges.formats.kafka import parse_header
from bridges.log.partition.partition_log import PartitionLog
from sbp_back.errors import ErrorCode, FencedError, NoSpace, SbpError
from sbp_back.wire.entry import pack_entry
from tests.bridges.log.log_lab import Sleeper, World, batch, settle
from tests.left_behind import left_behind


async def test_offsets_are_given_in_order_and_batches_stamped_before_they_leave() -> None:
    world = World()
    log = await world.boot()
    for count in (3, 2):
        log.append(batch(count), world.done)
    assert (log.next_offset, log.high_watermark, world.answers) == (5, 0, [])
    assert [parse_header(entry.payload).base_offset for entry, _ in world.writer.flying] == [0, 3]
    assert all(parse_header(entry.payload).leader_epoch == log.epoch for entry, _ in world.writer.flying)
    world.writer.acknowledge(1)
    assert (log.high_watermark, world.answers) == (3, [0])
    world.writer.acknowledge(1)
    assert (log.high_watermark, world.answers) == (5, [0, 3])


async def test_appends_before_the_log_is_open_keep_their_order() -> None:
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    for sequence in range(3):
        log.append(batch(sequence=sequence), world.done)
    await log.ready()
    world.writer.acknowledge(3)
    assert world.answers == [0, 1, 2]


async def test_a_duplicate_in_flight_waits_for_its_original() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(2, sequence=0), world.done)
    log.append(batch(2, sequence=0), world.done)
    assert len(world.writer.flying) == 1
    assert world.answers == []
    world.writer.acknowledge(1)
    assert world.answers == [0, 0]
    log.append(batch(2, sequence=0), world.done)
    assert world.answers == [0, 0, 0]
    log.append(batch(2, sequence=9), world.done)
    assert isinstance(world.answers[-1], OutOfOrderSequence)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(NoSpace(), StorageFull), (SbpError(ErrorCode.PD_NO_AVAILABLE_RS, "none left"), LogUnavailable)],
)
async def test_a_writer_that_lives_on_takes_back_what_it_refused(error: SbpError, refusal: type[LogError]) -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    log.append(batch(sequence=1), world.done)
    log.append(batch(sequence=2), world.done)
    log.append(batch(sequence=2), world.done)
    world.writer.refuse(error)
    assert world.answers[0] == 0
    assert [type(answer) for answer in world.answers[1:]] == [refusal] * 3
    assert log.is_open
    log.append(batch(sequence=1), world.done)
    log.append(batch(sequence=2), world.done)
    world.writer.acknowledge(2)
    assert world.answers[4:] == [1, 2]


@pytest.mark.parametrize("error", [SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "x"), FencedError(1460, "sealed")])
async def test_a_lost_backend_fails_what_is_in_flight_and_the_next_use_takes_a_newer_epoch(error: SbpError) -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    log.append(batch(sequence=1), world.done)
    log.append(batch(sequence=1), world.done)
    world.writer.fail(error)
    assert [type(answer) for answer in world.answers[1:]] == [LogUnavailable] * 2
    first_epoch = log.epoch
    log.append(batch(sequence=1), world.done)
    await log.ready()
    assert log.epoch > first_epoch
    world.writer.acknowledge(1)
    assert world.answers[-1] == 1
    assert log.epoch_end(first_epoch) == (first_epoch, 1)
    assert log.epoch_end(log.epoch) == (log.epoch, 2)


async def test_fenced_while_opening_tries_a_newer_epoch_and_gives_up_in_the_end() -> None:
    world = World()
    world.backend.refusals = [FencedError(1471, "old")] * 4
    log = await world.boot()
    assert world.backend.epochs == [0, 1, 2, 3, 4]
    log.fail(LogUnavailable("gone"))
    world.backend.refusals = [FencedError(1471, "old")] * 5
    with pytest.raises(LogUnavailable):
        await log.ready()
    await log.ready()


async def test_after_a_restart_duplicates_are_still_known_with_and_without_a_snapshot() -> None:
    for snapshot_bytes in (1, 1 << 30):
        world = World(snapshot_bytes=snapshot_bytes)
        log = await world.boot()
        for sequence in range(7):
            log.append(batch(sequence=sequence), world.done)
            world.writer.acknowledge(1)
        await settle()
        assert bool(world.snapshots.saved) == (snapshot_bytes == 1)
        log = await world.boot()
        log.append(batch(sequence=6), world.done)
        log.append(batch(sequence=2), world.done)
        log.append(batch(sequence=1), world.done)
        assert world.answers[7:9] == [6, 2]
        assert isinstance(world.answers[9], OutOfOrderSequence)
        assert log.size_bytes == sum(len(entry.payload) for entry in world.backend.entries)


async def test_a_snapshot_that_claims_more_than_is_durable_is_not_used() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    assert await world.logs.snapshotter.take(log) is None
    world.snapshots.saved[1] = (5, world.snapshots.saved[1][1])
    log = await world.boot()
    assert log.high_watermark == 1
    assert not world.snapshots.saved, "the log may grow past it"
    log.append(batch(sequence=0), world.done)
    assert world.answers == [0, 0]


async def test_reads_come_from_memory_or_the_backend_and_only_below_the_high_watermark() -> None:
    world = World(tail_cache_bytes=600)
    log = await world.boot()
    for _ in range(5):
        log.append(batch(2), world.done)
    world.writer.acknowledge(4)
    recent = await log.read_batches(6, 1 << 20)
    assert [(b.base_offset, b.end_offset) for b in recent] == [(6, 8)]
    assert world.backend.reads == 0
    old = await log.read_batches(1, 1 << 20)
    assert [b.base_offset for b in old] == [0, 2, 4, 6]
    assert world.backend.reads == 1
    assert await log.read_batches(8, 100) == []
    for offset in (-1, 9):
        with pytest.raises(OffsetOutOfRange):
            await log.read_batches(offset, 100)


async def test_waiters_are_woken_once_for_a_group_of_acknowledgements() -> None:
    world = World()
    log = await world.boot()
    sleeper = Sleeper()
    log.add_waiter(sleeper)
    for _ in range(3):
        log.append(batch(), world.done)
    await settle()
    assert sleeper.woken == 0
    world.writer.acknowledge(3)
    await settle()
    assert sleeper.woken == 1
    log.remove_waiter(sleeper)
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    await settle()
    assert sleeper.woken == 1


async def test_deleting_answers_everybody() -> None:
    world = World()
    log = await world.boot()
    sleeper = Sleeper()
    log.add_waiter(sleeper)
    log.append(batch(), world.done)
    world.logs.topic_deleted("t", [0])
    await settle()
    assert isinstance(world.answers[0], LogDeleted)
    assert sleeper.woken == 1
    log.append(batch(), world.done)
    assert isinstance(world.answers[1], LogDeleted)
    with pytest.raises(LogDeleted):
        await log.ready()
    world.writer.refuse(SbpError(ErrorCode.RANGE_NOT_FOUND, "late answers of the backend change nothing"))
    assert len(world.answers) == 2


async def test_records_are_found_by_time_inside_batches() -> None:
    world = World()
    log = await world.boot()
    for timestamp in (1000, 3000, 2000, 3000):
        log.append(batch(2, timestamp=timestamp), world.done)
        world.writer.acknowledge(1)
    assert await log.find_timestamp(0) == (0, 1000)
    assert await log.find_timestamp(1001) == (2, 3000)
    assert await log.find_timestamp(3001) is None
    assert await log.find_max_timestamp() == (2, 3000)
    await log.trim(3)
    assert await log.find_timestamp(0) == (3, 3000)


async def test_trimming_everything_leaves_an_empty_log_that_goes_on() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(4), world.done)
    world.writer.acknowledge(1)
    with pytest.raises(OffsetOutOfRange):
        await log.trim(5)
    assert await log.trim(4) == 4
    assert (log.log_start_offset, log.size_bytes) == (4, 0)
    assert await log.find_max_timestamp() is None
    log.append(batch(1), world.done)
    world.writer.acknowledge(1)
    assert world.answers == [0, 4]


@pytest.mark.parametrize("reopened", [False, True])
async def test_retention_by_age_trims_a_partition_that_never_stops_trickling(
    reopened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in the time of retention is less than a row of the index is long."""
    hour, keep = 3_600_000, 7 * 86_400_000
    now = 1_700_000_000_000
    monkeypatch.setattr("bridges.log.partition.append_path.now_ms", lambda: now)
    world = World()
    log = await world.boot()
    for number in range(30 * 24):
        log.append(batch(timestamp=now, size=50), world.done)
        world.writer.acknowledge(1)
        now += hour
        if reopened and number % 100 == 99:
            assert await world.logs.snapshotter.take(log) is None
            log = await world.boot()
        await world.retain([("t", 0)], lambda _: (keep, -1), now)
    kept = log.high_watermark - log.log_start_offset
    assert 7 * 24 - 1 <= kept <= 9 * 24, "all that is young, and little that is not"


async def test_retention_by_age_and_by_size() -> None:
    world = World()
    log = await world.boot()
    size = 70_000
    for index in range(6):
        log.append(batch(timestamp=index * 1000, size=size), world.done)
        world.writer.acknowledge(1)
    assert log.upkeep.retention_offset(-1, -1, 10_000) is None
    assert log.upkeep.retention_offset(10_000, -1, 10_000) is None
    assert log.upkeep.retention_offset(7_000, -1, 10_000) == 3
    assert log.upkeep.retention_offset(1_000, -1, 10_000) == 6
    assert log.upkeep.retention_offset(-1, 3 * size, 10_000) == 3
    assert log.upkeep.retention_offset(-1, 7 * size, 10_000) is None
    trimmed = await world.retain([("t", 0), ("gone", 0)], lambda _: (7_000, -1), 10_000)
    assert (trimmed, log.log_start_offset) == (1, 3)


async def test_closing_saves_what_moved() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    await world.logs.close()
    assert world.snapshots.saved[1][0] == 1
    assert world.writer.closed
    assert world.logs.get("t", 1) is None


@pytest.mark.usefixtures("slow_turns")
async def test_closing_very_many_logs_leaves_others_their_turns() -> None:
    """A node that stops still says to others that it lives."""
    world = World(partitions=200)
    await world.boot()
    logs = [world.logs.get("t", n) for n in range(200)]
    for log in logs:
        assert log is not None
        await log.ready()
    closed: list[int] = []

    def turn() -> None:
        closed.append(sum(writer.closed for writer in world.backend.writers))
        if closed[-1] < 200:
            asyncio.get_running_loop().call_soon(turn)

    turn()
    await world.logs.close()
    await settle()
    assert closed[-1] == 200
    assert max(after - before for before, after in pairwise(closed)) <= 8


async def test_a_batch_the_backend_cannot_take_leaves_no_trace() -> None:
    world = World()
    log = await world.boot()
    world.writer.largest = 200
    log.append(batch(sequence=0), world.done)
    log.append(batch(sequence=1, size=500), world.done)
    assert isinstance(world.answers[-1], BatchTooLarge)
    log.append(batch(sequence=1), world.done)  # the producer has made it smaller
    world.writer.acknowledge(2)
    assert world.answers[1:] == [0, 1]


async def test_what_another_writer_appends_moves_what_is_in_flight() -> None:
    world = World()
    log = await world.boot()
    woken: list[int] = []

    class Waiting:
        def log_moved(self, log: PartitionLog) -> None:
            woken.append(log.high_watermark)

    log.append(batch(2, sequence=0), world.done)
    world.writer.acknowledge(1)
    log.add_waiter(Waiting())
    log.append(batch(3, sequence=2), world.done)
    log.append(batch(1, sequence=5), world.done)
    log.append(batch(3, sequence=2), world.done)  # a repetition of one in flight
    theirs = pack_entry(1, 0, int(FormatId.RAW), 2, 4, 5_000, b"theirs")
    world.writer.overtake(theirs)
    assert (log.high_watermark, log.next_offset) == (6, 10)
    assert world.answers == [0], "what is in flight is not acknowledged for that"
    world.writer.acknowledge(2)
    assert world.answers == [0, 6, 6, 9]
    await settle()
    assert woken[-1] == 10
    # What they say of themselves, in memory and in what is read, is where they are.
    assert [parse_header(entry.payload).base_offset for entry in world.backend.entries if entry.flags == 1] == [0, 6, 9]
    assert [(b.base_offset, b.end_offset) for b in await log.read_batches(0, 1 << 20)] == [
        (0, 2),
        (2, 6),
        (6, 9),
        (9, 10),
    ]
    assert [b.base_offset for b in await log.read_batches(6, 1 << 20)] == [6, 9]
    # A later repetition is answered with the offset the batch really has.
    log.append(batch(1, sequence=5), world.done)
    assert world.answers[-1] == 9
    assert log.upkeep.retention_offset(-1, 0, 0) is None


async def test_an_overtaken_log_knows_what_its_producers_had_stored_after_all() -> None:
    """A batch whose answer was lost came late: its producer's next one follows it."""
    world = World()
    log = await world.boot()
    payload = batch(2, sequence=0).payload
    late = pack_entry(1, 0, int(FormatId.KAFKA), 0, 2, 1000, payload)
    log.append(batch(1), world.done)
    world.writer.overtake(late)
    world.writer.acknowledge(1)
    log.append(batch(2, sequence=0), world.done)
    assert world.answers == [2, 0], "it is stored already"
    log.append(batch(1, sequence=2), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 3


async def test_a_closed_log_is_not_overtaken() -> None:
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    world.logs.overtaken(1, [pack_entry(1, 0, 0, 0, 4, 5, b"theirs")])
    world.logs.overtaken(99, [pack_entry(99, 0, 0, 0, 4, 5, b"of no partition")])
    assert log.high_watermark == 0


async def test_somebody_waits_until_something_is_true_of_the_log() -> None:
    world = World()
    log = await world.boot()
    await log.until(lambda: True)
    reached = asyncio.ensure_future(log.until(lambda: log.high_watermark >= 2))
    mistaken = asyncio.ensure_future(log.until(lambda: 1 // (1 - log.high_watermark) > 5))
    given_up = asyncio.ensure_future(log.until(lambda: False))
    ended = asyncio.ensure_future(log.ended())
    for _ in range(2):
        log.append(batch(), world.done)
    await settle()
    world.writer.acknowledge(1)
    await settle()
    assert not reached.done()
    with pytest.raises(ZeroDivisionError):
        await mistaken
    world.writer.acknowledge(1)
    await reached
    given_up.cancel()
    await settle()
    assert not ended.done()
    log.sealed((1,))
    assert await log.seal() == await ended == await log.ended() == 2
    gone = asyncio.ensure_future(log.until(lambda: False))
    await settle()
    log.delete()
    with pytest.raises(LogDeleted):
        await gone
    with pytest.raises(LogDeleted):
        await log.until(lambda: False)
    assert world.logs.barrier.failures == {}


async def test_nothing_is_left_of_who_waited_for_what_raises() -> None:
    world = World()
    log = await world.boot()

    async def mistaken() -> None:
        with pytest.raises(ZeroDivisionError):
            await log.until(lambda: 1 // 0 > 0)

    assert await left_behind({"mistaken": mistaken}, settle) == {}


async def test_whoever_holds_the_log_appends_alone_and_others_come_behind() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), world.done)
    hold = await log.hold()
    log.append(batch(2, sequence=1), world.done)
    hold.append(batch(3), world.done)
    second = asyncio.ensure_future(log.hold())
    world.writer.acknowledge(2)
    await settle()
    assert (world.answers, log.next_offset) == ([0, 1], 4)
    assert not second.done(), "one at a time"
    hold.release()
    hold.release()
    assert (await second) is not hold
    (await second).release()
    world.writer.acknowledge(1)
    assert (world.answers, log.next_offset) == ([0, 1, 4], 6)
    log.append(batch(sequence=3), world.done)
    assert log.next_offset == 7


async def test_a_hold_ends_when_the_log_fails() -> None:
    world = World()
    log = await world.boot()
    hold = await log.hold()
    hold.append(batch(), world.done)
    log.append(batch(sequence=0), world.done)
    world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "x"))
    hold.append(batch(), world.done)
    assert sorted(type(answer).__name__ for answer in world.answers) == ["LogUnavailable"] * 3
    log.append(batch(sequence=0), world.done)
    await log.ready()
    hold.release()
    world.writer.acknowledge(1)
    assert world.answers[-1] == 0
