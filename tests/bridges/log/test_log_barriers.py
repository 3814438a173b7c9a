"""What one request's callback or one opening raises costs that request: not others' answers, nor the log's progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from bridges.errors import LogDeleted, LogError, LogUnavailable
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.producer import LedgerKind, ProducerStamp
from bridges.formats.records import Record, StoredBatch
from bridges.log.ledger.expiry import expire_producers
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.model import Entry
from tests.bridges.log.log_lab import Sleeper, World, batch, settle
from tests.kit.waiting import until


def broken(*_: object) -> None:
    raise RuntimeError("a bug in a callback")


def failures(world: World) -> dict[str, int]:
    return world.logs.barrier.failures


class BrokenWaiter:
    def log_moved(self, log: PartitionLog) -> None:
        raise RuntimeError("a bug in a waiter")


async def answer_to(ask: Callable[[Callable[..., None]], None]) -> tuple[Any, ...]:
    """What a callback is called with, in bounded time."""
    answers: list[tuple[Any, ...]] = []
    ask(lambda *answer: answers.append(answer))
    for _ in range(50):
        await asyncio.sleep(0)
        if answers:
            break
    [answer] = answers
    return answer


@pytest.mark.parametrize("step", ["open", "fetch_entries", "load"])
async def test_an_opening_that_meets_a_bug_is_answered_counted_and_tried_again(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    log.fail(LogUnavailable("gone"))
    place: Any = world.snapshots if step == "load" else world.backend
    works = getattr(place, step)

    async def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug in an opening")

    monkeypatch.setattr(place, step, bug)
    opened = len(world.backend.writers)
    log.append(batch(sequence=1), world.done)
    (error,) = await answer_to(log.when_open)
    assert isinstance(error, LogUnavailable)
    assert isinstance(world.answers[-1], LogUnavailable)
    assert failures(world) == {"opening": 1}
    assert all(writer.closed for writer in world.backend.writers[opened:]), "what was taken is let go of"
    monkeypatch.setattr(place, step, works)
    log.append(batch(sequence=1), world.done)
    await log.ready()
    world.writer.acknowledge(1)
    assert world.answers[-1] == 1


async def test_an_opening_that_fails_after_taking_the_stream_lets_go_of_its_writer() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    log.fail(LogUnavailable("gone"))
    entries, world.backend.entries = world.backend.entries, []
    with pytest.raises(LogUnavailable):
        await log.ready()
    assert world.writer.closed
    world.backend.entries = entries
    await log.ready()


async def test_a_broken_callback_of_an_opening_skips_none_of_the_others() -> None:
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    opened: list[LogError | None] = []
    log.when_open(broken)
    log.when_open(opened.append)
    await log.ready()
    assert opened == [None]
    assert failures(world) == {"opening answer": 1}
    world.backend.refusals = [SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "no")]
    log.fail(LogUnavailable("gone"))
    log.append(batch(), broken)
    log.append(batch(), world.done)
    log.when_open(broken)
    log.when_open(opened.append)
    await settle()
    assert isinstance(opened[1], LogUnavailable)
    assert isinstance(world.answers[0], LogUnavailable)
    assert failures(world) == {"opening answer": 2, "append answer": 1}


async def test_a_queued_batch_that_cannot_be_appended_is_answered_and_the_others_keep_their_order() -> None:
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    log.append(batch(sequence=0), world.done)
    log.append(Batch(b"cannot be stamped", 1, 1, -1, ProducerStamp(8, 0, 0, 1), admitted=True), world.done)
    log.append(batch(sequence=1), world.done)
    await log.ready()
    assert [type(answer).__name__ for answer in world.answers] == ["LogError"]
    assert failures(world) == {"append": 1}
    world.writer.acknowledge(2)
    assert world.answers[1:] == [0, 1]
    assert log.last(LedgerKind.KAFKA, ProducerStamp(8, 0, 0, 1).key) is None


async def test_what_an_answer_appends_comes_behind_what_is_queued_already() -> None:
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    log.append(batch(sequence=0), world.done)
    # Refused as soon as the log is open: whoever is told appends the producer's third batch.
    log.append(batch(sequence=9), lambda base, error: log.append(batch(sequence=2), world.done))
    log.append(batch(sequence=1), world.done)
    await log.ready()
    world.writer.acknowledge(3)
    assert world.answers == [0, 1, 2]


async def test_a_log_deleted_by_an_answer_while_it_opens_appends_nothing_more() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    log.fail(LogUnavailable("gone"))
    # Its producer is at 1: refused at once, and what is told deletes the topic.
    log.append(batch(sequence=7), lambda base, error: world.logs.topic_deleted("t", [0]))
    log.append(batch(sequence=1), world.done)
    (error,) = await answer_to(log.when_open)
    assert type(error).__name__ == "LogDeleted"
    assert type(world.answers[-1]).__name__ == "LogDeleted"
    assert not world.writer.flying
    await settle()
    assert world.writer.closed


@pytest.mark.usefixtures("slow_turns")
async def test_many_queued_appends_are_handed_over_in_slices_and_in_order() -> None:
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    for sequence in range(1700):
        log.append(batch(sequence=sequence), world.done)
    opening = asyncio.ensure_future(log.ready())
    handed_over = [0]
    while not opening.done():
        await asyncio.sleep(0)
        if world.backend.writers[1:]:
            stored = len(world.backend.entries)
            handed_over.append(len(world.writer.flying) + stored)
            if len(handed_over) == 3:
                world.writer.acknowledge(1)  # answers come before all are handed over
                log.append(batch(sequence=1700), world.done)
    assert max(after - before for before, after in pairwise(handed_over)) <= 5
    world.writer.acknowledge(1700)
    assert world.answers == list(range(1701))


async def test_a_log_that_fails_while_it_takes_what_was_queued_refuses_the_rest_and_opens_again() -> None:
    """The rest comes behind what has failed: appended alone it would come before its repetition."""
    world = World()
    log = await world.boot()
    log.fail(LogUnavailable("gone"))
    for sequence in range(700):
        log.append(batch(sequence=sequence), world.done)
    opened: list[LogError | None] = []
    log.when_open(opened.append)
    await until(lambda: len(world.backend.writers) >= 2 and world.writer.flying)
    assert 0 < len(world.writer.flying) < 700
    world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "lost"))
    await log.ready()
    assert [type(answer) for answer in world.answers] == [LogUnavailable] * 700
    assert opened == [None]
    assert log.epoch > 1
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    assert world.answers[700:] == [0]


async def test_a_broken_answer_costs_neither_later_batches_nor_repetitions_nor_readers() -> None:
    world = World()
    log = await world.boot()
    sleeper = Sleeper()
    log.add_waiter(BrokenWaiter())
    log.add_waiter(sleeper)
    log.append(batch(sequence=0), broken)
    log.append(batch(sequence=0), broken)
    log.append(batch(sequence=0), world.done)
    log.append(batch(sequence=1), world.done)
    world.writer.acknowledge(2)
    await settle()
    assert world.answers == [0, 1]
    assert (log.high_watermark, sleeper.woken) == (2, 1)
    assert failures(world) == {"append answer": 2, "waiter": 1}
    assert [b.base_offset for b in await log.read_batches(0, 1 << 20)] == [0, 1]


@pytest.mark.parametrize("lives_on", [True, False])
async def test_a_broken_answer_to_a_refused_batch_skips_none_of_the_others(lives_on: bool) -> None:
    world = World()
    log = await world.boot()
    log.append(batch(sequence=0), broken)
    log.append(batch(sequence=0), broken)
    log.append(batch(sequence=0), world.done)
    log.append(batch(sequence=1), world.done)
    error = SbpError(ErrorCode.PD_NO_AVAILABLE_RS, "none")
    (world.writer.refuse if lives_on else world.writer.fail)(error)
    assert [type(answer) for answer in world.answers] == [LogUnavailable] * 2
    assert failures(world) == {"append answer": 2}
    assert log.is_open == lives_on


async def test_a_bug_in_the_bookkeeping_of_a_durable_batch_does_not_keep_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = await world.boot()
    for sequence in range(3):
        log.append(batch(sequence=sequence), world.done)
    world.writer.acknowledge(1)
    monkeypatch.setattr(type(log.state.index), "add", broken)
    world.writer.acknowledge(1)
    monkeypatch.undo()
    world.writer.acknowledge(1)
    assert world.answers == [0, 1, 2]
    assert failures(world) == {"stored batch": 1}
    for offset in range(3):
        assert (await log.read_batches(offset, 1))[0].base_offset == offset


async def test_a_bug_in_a_snapshot_costs_the_snapshot_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(snapshot_bytes=1)
    log = await world.boot()
    monkeypatch.setattr(world.logs.snapshotter, "want", broken)
    sleeper = Sleeper()
    log.add_waiter(sleeper)
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    await settle()
    assert (world.answers, sleeper.woken) == ([0], 1)
    assert failures(world) == {"snapshot": 1}


async def test_late_answers_of_a_writer_that_was_let_go_of_settle_nothing_of_the_next() -> None:
    world = World()
    log = await world.boot()
    old = world.writer
    log.append(batch(), world.done)
    log.fail(LogUnavailable("gone"))
    log.append(batch(), world.done)
    await log.ready()
    old.flying[0][1](None)
    assert world.answers[1:] == [], "only the new writer can say that the batch is durable"
    world.writer.acknowledge(1)
    assert world.answers[1:] == [0]


async def test_a_backend_that_gives_another_offset_than_it_announced_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = await world.boot()
    old = world.writer
    monkeypatch.setattr(old, "append", lambda *_: 17)
    log.append(batch(sequence=0), world.done)
    await settle()
    assert [type(answer) for answer in world.answers] == [LogUnavailable]
    assert old.closed
    log.append(batch(sequence=0), world.done)
    await log.ready()
    world.writer.acknowledge(1)
    assert world.answers[1:] == [0]


@pytest.mark.usefixtures("slow_turns")
async def test_many_waiters_are_woken_in_slices_each_once_and_none_is_left_out() -> None:
    world = World()
    log = await world.boot()
    turns: list[list[Sleeper]] = []

    def counting(schedule: Callable[[Callable[[], None]], None]) -> Callable[[Callable[[], None]], None]:
        def counted(callback: Callable[[], None]) -> None:
            def turn() -> None:
                turns.append([])
                callback()

            schedule(turn)

        return counted

    world.logs.schedule = counting(world.logs.schedule)  # type: ignore[method-assign]
    world.logs.schedule_answer = counting(world.logs.schedule_answer)  # type: ignore[method-assign]

    class Counted(Sleeper):
        def log_moved(self, log: PartitionLog) -> None:
            super().log_moved(log)
            turns[-1].append(self)
            log.remove_waiter(self)

    sleepers = [Counted() for _ in range(300)]
    for sleeper in sleepers:
        log.add_waiter(sleeper)
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    await asyncio.sleep(0)
    # The log moves again while they are being told.
    late = Counted()
    log.add_waiter(late)
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    await settle()
    assert max(map(len, turns)) <= 50
    assert [sleeper.woken for sleeper in sleepers] == [1] * 300
    assert late.woken == 1


async def test_a_read_whose_answer_cannot_be_made_sense_of_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    monkeypatch.setattr("bridges.log.partition.reading.stored_batches", broken)
    batches, error = await answer_to(lambda done: log.read(0, 100, done))
    assert (batches, type(error)) == ([], LogError)
    assert failures(world) == {"read": 1}


async def test_a_read_that_waits_for_an_opening_is_answered_whatever_the_backend_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    log.fail(LogUnavailable("gone"))
    monkeypatch.setattr(world.backend, "fetch", broken)
    batches, error = await answer_to(lambda done: log.read(0, 100, done))
    assert (batches, type(error)) == ([], LogError)


async def test_a_broken_reader_is_seen_and_the_backend_not_bothered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    later: list[Callable[[list[Entry]], None]] = []
    monkeypatch.setattr(world.backend, "fetch", lambda _1, _2, _3, done, limit: later.append(done))

    def reader(batches: list[StoredBatch], error: LogError | None) -> None:
        raise RuntimeError("a bug in a reader")

    log.read(0, 100, reader)
    later[0](world.backend.entries)
    assert failures(world) == {"read answer": 1}


async def test_retention_of_one_partition_that_meets_a_bug_does_not_keep_the_others_from_theirs() -> None:
    world = World(partitions=2)
    await world.boot()

    def limits(topic: str) -> tuple[int, int]:
        raise RuntimeError("a bug in the configuration")

    assert await world.retain([("t", 0), ("t", 1)], limits, 10_000) == 0
    assert failures(world) == {"retention": 2}


async def test_what_an_answer_to_a_refused_batch_appends_is_in_the_log_and_in_the_ledger() -> None:
    world = World()
    log = await world.boot()
    other = Batch(encoded(9), 1, int(FormatId.KAFKA), 1000, ProducerStamp(9, 0, 0, 1))

    def append_more(appended: Appended, error: LogError | None) -> None:
        world.done(appended, error)
        log.append(other, world.done)

    log.append(batch(sequence=0), append_more)
    log.append(batch(sequence=1), world.done)
    log.append(batch(sequence=1), world.done)
    log.append(batch(sequence=2), world.done)
    world.writer.refuse(SbpError(ErrorCode.PD_NO_AVAILABLE_RS, "none"))
    assert [type(answer) for answer in world.answers] == [LogUnavailable] * 4, "the repetition, too, and nothing else"
    world.writer.acknowledge(1)
    assert world.answers[4:] == [0]
    log.append(Batch(encoded(9), 1, int(FormatId.KAFKA), 1000, ProducerStamp(9, 0, 0, 1)), world.done)
    assert world.answers[5:] == [0], "its repetition is recognised"
    log.append(batch(sequence=0), world.done)
    world.writer.acknowledge(1)
    assert world.answers[6:] == [1], "what was refused is not"


def encoded(producer_id: int) -> bytearray:
    return encode([Record(None, b"x", timestamp=1000)], producer_id=producer_id, producer_epoch=0, base_sequence=0)


async def in_turns(answers: list[Any], until: int) -> list[int]:
    """How many were answered in each turn of the event loop until ``until`` were."""
    seen = [0, len(answers)]
    while len(answers) < until:
        await asyncio.sleep(0)
        seen.append(len(answers))
    return [later - sooner for sooner, later in pairwise(seen)]


@pytest.mark.usefixtures("slow_turns")
async def test_much_that_is_in_flight_is_refused_in_slices_and_before_anything_later_is_answered() -> None:
    world = World()
    log = await world.boot()
    answers: list[tuple[int, bool]] = []

    def append(number: int) -> None:
        log.append(batch(), lambda appended, error: answers.append((number, error is None)))

    for number in range(170):
        append(number)
    world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "gone"))
    append(170)
    assert max(await in_turns(answers, 170)) <= 50
    await settle()
    world.writer.acknowledge(1)
    assert answers == [(number, number == 170) for number in range(171)]


@pytest.mark.usefixtures("slow_turns")
async def test_a_deleted_log_answers_in_slices_too() -> None:
    world = World()
    log = await world.boot()
    answers: list[LogError | None] = []
    for _ in range(170):
        log.append(batch(), lambda appended, error: answers.append(error))
    log.delete()
    assert max(await in_turns(answers, 170)) <= 50
    assert {type(error) for error in answers} == {LogDeleted}


@pytest.mark.usefixtures("slow_turns")
async def test_many_who_wait_for_an_opening_are_answered_in_slices() -> None:
    world = World()
    log = await world.boot(open_it=False)
    answered: list[int] = []
    for number in range(170):
        log.when_open(lambda error, number=number: answered.append(number))  # type: ignore[misc]
    assert max(await in_turns(answered, 170)) <= 50
    assert answered == list(range(170))


async def test_a_log_whose_producers_cannot_be_expired_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one from which nothing can be forgotten where there are more than the node remembers."""
    world = World(partitions=3, max_producers=30)
    await world.boot()
    logs = [world.logs.get("t", n) for n in range(3)]
    for log in logs:
        assert log is not None
        await log.ready()
        for pid in range(20):
            log.state.ledger.record(ProducerStamp(pid, 0, 0, 1), pid, 1_000_000)
    first = logs[0]
    assert first is not None
    table = first.state.ledger.table(LedgerKind.KAFKA)
    with monkeypatch.context() as patch:
        patch.setattr(type(table), "shrink", only_of_others(table, type(table).shrink))
        assert await expire_producers(world.logs, 1_000_000) > 0
        assert [len(log.state.ledger) <= 15 for log in logs if log is not None] == [False, True, True]
        assert failures(world) == {"forgetting of producers": 1}
    with monkeypatch.context() as patch:
        patch.setattr(type(table), "expire", only_of_others(table, type(table).expire))
        assert await expire_producers(world.logs, 1 << 60) > 0
        assert [len(log.state.ledger) for log in logs if log is not None] == [20, 0, 0]
        assert failures(world)["producer expiry"] == 1


def only_of_others(broken_one: object, method: Callable[..., int]) -> Callable[..., int]:
    def call(table: object, *args: int) -> int:
        if table is broken_one:
            raise RuntimeError("a bug in a ledger")
        return method(table, *args)

    return call
