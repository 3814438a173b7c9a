"""Writers of numbered events and of seq_nos against simple models: in the rules alone, and in a log that crashes.

The models remember every number that was stored, by its writer; the log must store each once, in order, and tell of
each append what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.errors import AppendConditionFailed, BatchInvalid, EventNumberConflict, LogError, LogUnavailable
from bridges.formats.base import BatchInfo, FormatId
from bridges.formats.producer import EventStamp, InTransaction, LedgerKind, ProducerStamp, SeqNoStamp
from bridges.formats.raw import RawFormat
from bridges.formats.records import Buffer
from bridges.log.interfaces import Appended, Batch, Guard, note
from bridges.log.ledger.expiry import expire_producers
from bridges.log.ledger.ledger import Ledger
from bridges.log.ledger.rules import RULES, Last, Repeated, SeqNoRule, Skip
from bridges.log.partition.partition_log import PartitionLog
from sbp_back.errors import ErrorCode, SbpError
from tests.bridges.log.log_lab import World, settle
from tests.bridges.log.log_lab import batch as kafka_batch
from tests.depth import examples

WRITER = bytes(range(16))


class Stamped(RawFormat):
    """Batches that name their writer as those of the fronts will: a letter, the writer, numbers."""

    def describe(self, payload: Buffer) -> BatchInfo:
        kind, writer, *numbers = bytes(payload).split(b" ")
        values = [int(number) for number in numbers]
        stamp: EventStamp | SeqNoStamp = SeqNoStamp(writer, values)
        if kind == b"e":
            stamp = EventStamp(writer.rjust(16), values[-1], len(values))
        return super().describe(payload)._replace(producer=stamp)


def events(writer: int, *numbers: int, expected: int | None = None, end: int | None = None) -> Batch:
    payload = b"e %d " % writer + b" ".join(b"%d" % number for number in numbers)
    stamp = EventStamp((b"%d" % writer).rjust(16), numbers[-1], len(numbers), expected)
    return Batch(payload, len(numbers), int(FormatId.RAW), -1, stamp, None if end is None else Guard(end))


def seq_nos(writer: int, numbers: Sequence[int]) -> Batch:
    payload = b"s %d " % writer + b" ".join(b"%d" % number for number in numbers)
    stamp = SeqNoStamp(b"%d" % writer, numbers)
    return Batch(
        payload, len(numbers), int(FormatId.RAW), -1, stamp, rest=lambda skipped: seq_nos(writer, numbers[skipped:])
    )


@pytest.fixture(autouse=True)
def stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("bridges.formats").formats.FORMATS, int(FormatId.RAW), Stamped())


# --- the rules alone ------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.none() | st.integers(-1, 12)), max_size=60))
def test_the_last_event_number_decides(appends: list[tuple[int, int, int | None]]) -> None:
    ledger = Ledger()
    table = ledger.table(LedgerKind.EVENT_NUMBER)
    stored: dict[bytes, list[int]] = {}
    for base, (writer, number, expected) in enumerate(appends):
        key = bytes((writer,)) * 16
        stamp = EventStamp(key, number, 1, expected)
        last = max(stored.get(key, [-1]))
        at = ledger.last(LedgerKind.EVENT_NUMBER, key)
        assert (-1 if at is None else at.number) == last
        if number == last or (number < last and expected is None):
            assert table.check(key, stamp) == Repeated(at.base_offset, at.base_offset + 1)  # type: ignore[union-attr]
        elif expected not in (None, last) or number < last:
            with pytest.raises(EventNumberConflict) as conflict:
                table.check(key, stamp)
            assert conflict.value.last == last
        else:
            assert table.check(key, stamp) is None
            table.record(key, stamp, base, base)
            stored.setdefault(key, []).append(number)
            assert ledger.last(LedgerKind.EVENT_NUMBER, key) == Last(number, base)


requests = st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True).map(sorted)


@given(st.lists(st.tuples(st.integers(0, 1), requests), max_size=40))
def test_only_what_is_above_the_highest_seq_no_is_new(appends: list[tuple[int, list[int]]]) -> None:
    ledger = Ledger()
    table = ledger.table(LedgerKind.SEQ_NO)
    highest: dict[bytes, int] = {}
    base = 0
    for writer, numbers in appends:
        key = b"%d" % writer
        new = [number for number in numbers if number > highest.get(key, 0)]
        found = table.check(key, SeqNoStamp(key, numbers))
        if not new:
            assert isinstance(found, Repeated)
            assert found.end_offset <= base
            continue
        assert found == (None if new == numbers else Skip(len(numbers) - len(new)))
        table.record(key, SeqNoStamp(key, new), base, base)
        base += len(new)
        highest[key] = new[-1]
        assert ledger.last(LedgerKind.SEQ_NO, key) == Last(new[-1], base - len(new))


def test_a_range_of_seq_nos_is_as_good_as_a_list() -> None:
    ledger = Ledger()
    ledger.record(SeqNoStamp(b"p", range(1, 1 << 30)), 0, 0)
    stamp = SeqNoStamp(b"p", range(5, 1 << 31))
    assert ledger.table(stamp.kind).check(stamp.key, stamp) == Skip((1 << 30) - 5)


def test_names_of_any_length_are_keys_of_bounded_length_and_never_one_anothers() -> None:
    names = [b"", b"p", b"p" * 64, b"p" * 65, b"p" * 8192, b"\0" * 33, b"\0p"]
    keys = {SeqNoStamp(name, [1]).key for name in names}
    assert len(keys) == len(names)
    assert max(map(len, keys)) <= 64
    assert {SeqNoStamp(key, [1]).key for key in keys if key.startswith(b"\0")}.isdisjoint(keys), (
        "nobody can name a digest"
    )


# --- in a log -------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """The answers to appends, in the order in which they came."""

    answers: list[Appended | LogError] = field(default_factory=list)

    def done(self, appended: Appended, error: LogError | None) -> None:
        self.answers.append(appended if error is None else error)


async def test_a_repeated_batch_that_is_in_flight_is_answered_with_it_and_refused_with_it() -> None:
    world, told = World(), Told()
    log = await world.boot()
    for batch in (events(1, 5, 6), events(1, 6), seq_nos(2, [1, 2]), seq_nos(2, [2, 3, 9]), seq_nos(2, [9])):
        log.append(batch, told.done)
    assert told.answers == []
    assert log.last(LedgerKind.EVENT_NUMBER, b"1".rjust(16)) == Last(6, 0), "what is in flight counts"
    assert log.last(LedgerKind.SEQ_NO, b"2") == Last(9, 4)
    world.writer.acknowledge(1)
    assert told.answers == [Appended(0, 2), Appended(0, 2, duplicate=True)]
    world.writer.refuse(SbpError(ErrorCode.PD_NO_AVAILABLE_RS, "none"))
    assert [type(answer) for answer in told.answers[2:]] == [LogUnavailable] * 3
    assert log.last(LedgerKind.SEQ_NO, b"2") is None
    log.append(seq_nos(2, [1]), told.done)
    world.writer.acknowledge(1)
    log.append(seq_nos(2, [1, 2, 7]), told.done)
    world.writer.acknowledge(1)
    assert told.answers[5:] == [Appended(2, 3), Appended(3, 5, skipped=1)]
    assert [bytes(entry.payload) for entry in world.backend.entries] == [b"e 1 5 6", b"s 2 1", b"s 2 2 7"]


async def test_a_guard_is_decided_with_what_is_in_flight_and_a_repetition_comes_before_it() -> None:
    world, told = World(), Told()
    log = await world.boot()
    log.append(events(1, 1, end=0), told.done)
    log.append(events(2, 1, end=0), told.done)
    log.append(events(1, 1, end=0), told.done)  # again: its first has been appended
    log.append(events(2, 1, end=1), told.done)
    assert [type(answer) for answer in told.answers] == [AppendConditionFailed]
    failed = told.answers[0]
    assert isinstance(failed, AppendConditionFailed)
    assert failed.end_offset == 1
    world.writer.acknowledge(2)
    assert told.answers[1:] == [Appended(0, 1), Appended(0, 1, duplicate=True), Appended(1, 2)]


async def test_a_batch_without_records_tells_the_ledger_and_is_durable_in_its_order() -> None:
    world, told = World(), Told()
    log = await world.boot()
    log.append(events(1, 3), told.done)
    log.append(note(EventStamp(b"1".rjust(16), 7)), told.done)
    log.append(note(SeqNoStamp(b"2" * 100, [8]), Guard(2)), told.done)
    log.append(events(1, 6), told.done)  # the note stands for all up to 7
    log.append(note(SeqNoStamp(b"2" * 100, [9])), told.done)
    world.writer.acknowledge(3)
    assert told.answers == [Appended(0, 1), Appended(1, 2), Appended(1, 2, duplicate=True), Appended(2, 3)]
    log = await world.boot()  # the last one never arrived
    assert log.last(LedgerKind.EVENT_NUMBER, b"1".rjust(16)) == Last(7, 1)
    assert log.last(LedgerKind.SEQ_NO, SeqNoStamp(b"2" * 100, [8]).key) == Last(8, 2)


async def test_a_batch_that_cannot_be_cut_costs_itself() -> None:
    world, told = World(), Told()
    log = await world.boot()
    log.append(seq_nos(1, [1, 2]), told.done)
    whole = seq_nos(1, [2, 3])
    whole.rest = None
    log.append(whole, told.done)

    def broken(skipped: int) -> Batch:
        raise ZeroDivisionError(skipped)

    whole.rest = broken
    log.append(whole, told.done)
    log.append(seq_nos(1, [2, 3]), told.done)
    world.writer.acknowledge(2)
    assert [type(answer) for answer in told.answers] == [BatchInvalid, LogError, Appended, Appended]
    assert told.answers[2:] == [Appended(0, 2), Appended(2, 3, skipped=1)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["events", "seq_nos", "kafka", "acknowledge", "refuse", "snapshot", "crash", "trim"]),
        st.integers(0, 2),
        requests,
    ),
    max_size=50,
)


@settings(max_examples=examples(100), deadline=None)
@given(steps, st.sampled_from([1, 5_000, 1 << 30]))
async def test_every_number_is_stored_once_whatever_happens_to_the_node(
    taken: list[tuple[str, int, list[int]]], snapshot_bytes: int
) -> None:
    """A number that was answered for lies in the log, and no number lies there twice or out of order."""
    world = World(snapshot_bytes=snapshot_bytes)
    log = await world.boot()
    promised: set[tuple[bytes, int]] = set()
    kafka = 0

    def write(batch: Batch, name: bytes, numbers: list[int]) -> None:
        def done(appended: Appended, error: LogError | None) -> None:
            if error is not None:
                return
            assert appended.duplicate or appended.end - appended.base + appended.skipped == len(numbers)
            promised.update((name, number) for number in numbers)

        log.append(batch, done)

    for what, writer, numbers in taken:
        if what == "events":
            last = numbers[-1:]
            write(events(writer, *last), b"e %d" % writer, last)
        elif what == "seq_nos":
            write(seq_nos(writer, numbers), b"s %d" % writer, numbers)
        elif what == "kafka":
            log.append(kafka_batch(sequence=kafka), world.done)
            kafka += 1
        elif what == "acknowledge":
            world.writer.acknowledge(min(writer + 1, len(world.writer.flying)))
        elif what == "refuse":
            kafka -= sum(isinstance(stamp_of(entry.payload), ProducerStamp) for entry, _ in world.writer.flying)
            world.writer.refuse(SbpError(ErrorCode.PD_NO_AVAILABLE_RS, "none"))
        elif what == "snapshot":
            assert await world.logs.snapshotter.take(log) is None
        elif what == "trim":
            await log.trim(min(writer * 3, log.high_watermark))
        else:
            await settle()
            kafka -= sum(isinstance(stamp_of(entry.payload), ProducerStamp) for entry, _ in world.writer.flying)
            log = await world.boot()
        check(world, log, promised)
    world.writer.acknowledge(len(world.writer.flying))
    await settle()
    log = await world.boot()
    check(world, log, promised)


def stamp_of(payload: Buffer) -> object:
    data = bytes(payload)
    return Stamped().describe(data).producer if data[:2] in (b"e ", b"s ") else ProducerStamp(7, 0, 0, 1)


def check(world: World, log: PartitionLog, promised: set[tuple[bytes, int]]) -> None:
    numbers: dict[bytes, list[int]] = {}
    for entry in world.backend.entries:
        kind, *rest = bytes(entry.payload).split(b" ")
        if kind in (b"e", b"s") and len(rest) > 1:
            numbers.setdefault(kind + b" " + rest[0], []).extend(int(number) for number in rest[1:])
    for name, stored in numbers.items():
        assert stored == sorted(set(stored)), f"{name!r} lies in the log twice or out of order"
    for name, number in promised:
        if name.startswith(b"s"):
            assert number <= max(numbers.get(name, [0]))
        else:
            assert number <= max(numbers[name])
    if not world.writer.flying:
        for name, stored in numbers.items():
            kind, writer = name.split(b" ")
            key = writer.rjust(16) if kind == b"e" else writer
            known = log.last(LedgerKind.EVENT_NUMBER if kind == b"e" else LedgerKind.SEQ_NO, key)
            assert known is not None
            assert known.number == stored[-1]


# --- fronts that are not installed ------------------------------------------------------------------------------------


class FrontsFormat(Stamped):
    """A format that a front brings, whose batches may also belong to a transaction: of producer 77."""

    id = 9  # type: ignore[assignment]
    name = "front's"

    def describe(self, payload: Buffer) -> BatchInfo:
        found = super().describe(bytes(payload).removeprefix(b"t "))
        return found._replace(transaction=InTransaction(77, -1) if bytes(payload).startswith(b"t ") else None)


KIND = 200


class FrontsStamp(SeqNoStamp):
    __slots__ = ()
    kind = KIND


class Installed:
    """A world that a front may be part of, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        self._patch = monkeypatch

    async def boot(self, *, front: bool) -> PartitionLog:
        formats = __import__("bridges.formats").formats.FORMATS
        if front:
            self._patch.setitem(formats, 9, FrontsFormat())
        else:
            self._patch.delitem(formats, 9, raising=False)
        self.world.options.rules = {**RULES, **({KIND: SeqNoRule()} if front else {})}
        return await self.world.boot()

    def append(self, log: PartitionLog, batch: Batch) -> object:
        log.append(batch, self.world.done)
        if self.world.writer.flying:
            self.world.writer.acknowledge(1)
        return self.world.answers[-1]


def of_front(number: int, *, in_transaction: bool = False) -> Batch:
    one = seq_nos(5, [number])
    one.flags = 9
    if in_transaction:
        one.payload = b"t " + bytes(one.payload)
        one.transaction = InTransaction(77, -1)
    return one


@pytest.mark.parametrize("snapshot", [True, False])
async def test_writers_of_a_kind_whose_front_is_away_are_not_forgotten(
    snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows come back from every snapshot taken meanwhile, and however long they were away."""
    node = Installed(monkeypatch)
    log = await node.boot(front=True)
    stamp = FrontsStamp(b"w", [7])
    log.state.ledger.record(stamp, 0, 1)
    node.append(log, kafka_batch(1))
    await node.world.logs.snapshotter.take(log)
    for _ in range(2):
        log = await node.boot(front=False)
        assert await expire_producers(node.world.logs, 1 << 60) == 0
        node.append(log, kafka_batch(1))
        if snapshot:
            await node.world.logs.snapshotter.take(log)
    log = await node.boot(front=True)
    assert log.last(KIND, b"w") == Last(7, 0)


@pytest.mark.parametrize("how", ["restarts", "snapshots"])
async def test_what_a_front_wrote_is_known_again_after_runs_without_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repetitions, and transactions that ended while nobody could read what was in them."""
    node = Installed(monkeypatch)
    log = await node.boot(front=True)
    assert node.append(log, of_front(1)) == 0
    assert node.append(log, of_front(2, in_transaction=True)) == 1
    for _ in range(3):
        log = await node.boot(front=False)
        node.append(log, kafka_batch(1))
        if how == "snapshots":
            await node.world.logs.snapshotter.take(log)
            await node.world.logs.close()
    log = await node.boot(front=False)
    log.append_marker(77, -1, False, node.world.done)
    node.world.writer.acknowledge(1)
    log = await node.boot(front=True)
    assert node.append(log, of_front(2)) == 1, "a repetition"
    assert [tuple(one) for one in log.aborted(0, log.high_watermark)] == [(77, 1, 5)]
    await node.world.logs.snapshotter.take(log)
    assert node.world.snapshots.saved[1][0] == log.high_watermark, "from now on there are snapshots again"


async def test_what_has_to_be_saved_is_saved_without_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trimming must go on; who trims what a front wrote gives up what only that could tell."""
    node = Installed(monkeypatch)
    log = await node.boot(front=True)
    node.append(log, of_front(1))
    log = await node.boot(front=False)
    for number in range(3):
        node.append(log, kafka_batch(1, sequence=number))
    assert await log.trim(2) == 2
    assert log.state.unread == -1
    log = await node.boot(front=False)
    assert len(log.state.ledger) == 1
