"""Transactions in a partition's log, against a model that keeps every batch and thinks about nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.errors import (
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionSealed,
    ProducerFenced,
    TooManyTransactions,
    TransactionsOpen,
)
from bridges.formats import FormatId, Translator, decode, format_of
from bridges.formats.kafka import CONTROL, TRANSACTIONAL, encode, marker
from bridges.formats.producer import EventStamp, InTransaction, LedgerKind, ProducerStamp, producer_key
from bridges.formats.records import Record, StoredBatch
from bridges.log.ledger.rules import Last
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.log.state.partition_state import PartitionState
from bridges.log.transactions.partition_transactions import MOST_TOLD, Aborted, Transactions
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from tests.bridges.log.blocks_lab import a_database, small_blocks
from tests.bridges.log.log_lab import Backend, World, settle
from tests.depth import examples

KAFKA = int(FormatId.KAFKA)
ALL = 1 << 30


def data(producer: int | None, value: bytes = b"x", count: int = 1) -> Batch:
    """A batch of a transaction, or of none."""
    attributes = 0 if producer is None else TRANSACTIONAL
    payload = encode(
        [Record(None, value, timestamp=5)] * count,
        attributes=attributes,
        producer_id=-1 if producer is None else producer,
        producer_epoch=-1 if producer is None else 0,
    )
    part = None if producer is None else InTransaction(producer, 0)
    return Batch(payload, count, KAFKA, 5, transaction=part)


def values(batches: list[StoredBatch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in decode(batch)]


# --- the model --------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """Every batch: (base offset, end, producer or None, what it ends: None, True or False)."""

    batches: list[tuple[int, int, int | None, bool | None]] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def fates(self) -> dict[int, bool | None]:
        """Of each batch of a transaction whether it was committed (None: it is open)."""
        fates: dict[int, bool | None] = {}
        for at, (base, _, producer, commit) in enumerate(self.batches):
            if producer is not None and commit is None:
                ends = [one[3] for one in self.batches[at:] if one[2] == producer and one[3] is not None]
                fates[base] = ends[0] if ends else None
        return fates

    def stable(self) -> int:
        opened = [base for base, fate in self.fates().items() if fate is None]
        return max(min(opened, default=self.end), self.start)

    def committed(self) -> list[tuple[int, int]]:
        """What a reader of committed data gets: (base, end) of batches up to the last stable offset."""
        fates, stable = self.fates(), self.stable()
        return [
            (base, end)
            for base, end, _, commit in self.batches
            if end <= stable and end > self.start and commit is None and fates.get(base, True)
        ]


async def check(log: PartitionLog, model: Model, *, forgot: bool) -> None:
    """``forgot``: nothing is known of batches that were trimmed."""
    stable = model.stable()
    if forgot and stable == model.start:
        kept = [base for base, fate in model.fates().items() if fate is None and base >= model.start]
        stable = min(kept, default=model.end)
        assert log.last_stable_offset in (stable, model.start)
    else:
        assert log.last_stable_offset == stable
    assert log.high_watermark == model.end
    position, found = log.log_start_offset, []
    reached = log.last_stable_offset
    while position < reached:
        batches = await log.read_committed(position, ALL)
        assert batches[0].base_offset <= position
        found += [(b.base_offset, b.end_offset) for b in batches if decode(b)]
        position = batches[-1].end_offset
    assert position == reached, "committed data ends at the last stable offset"
    fates = model.fates()
    expected = [
        (base, end)
        for base, end, _, commit in model.batches
        if model.start < end <= reached and commit is None and fates.get(base, True)
    ]
    assert found == expected
    # Who reads everything filters by what is told, as Kafka's consumers do.
    for start in range(log.log_start_offset, reached):
        told = await log.all_aborted(start, reached)
        assert [one.last_offset for one in told] == sorted({one.last_offset for one in told})
        for base, end, producer, commit in model.batches:
            if start < end <= reached and producer is not None and commit is None:
                covered = any(
                    one.producer_id == producer and one.first_offset <= base < one.last_offset for one in told
                )
                assert covered == (fates[base] is False)


PRODUCERS = st.sampled_from([1, 2, 3])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PRODUCERS, st.integers(1, 3)),
        st.tuples(st.just("write"), PRODUCERS, st.integers(1, 3)),
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("commit"), PRODUCERS, st.just(0)),
        st.tuples(st.just("abort"), PRODUCERS, st.just(0)),
        st.tuples(st.just("in flight"), PRODUCERS, st.integers(0, 2)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
        st.tuples(st.just("crash without snapshot"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(120), deadline=None)
@given(operations)
def test_readers_of_committed_data_get_all_of_a_transaction_or_nothing(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(_run(steps, World()))


@settings(max_examples=examples(80), deadline=None)
@given(operations, st.booleans())
def test_so_they_do_when_aborted_ranges_are_in_the_database(steps: list[tuple[str, int, int]], patient: bool) -> None:
    async def run(path: Path) -> None:
        async with a_database(path) as db:
            await _run(steps, World(db=db), patient=patient)

    with TemporaryDirectory() as path, small_blocks():
        asyncio.run(run(Path(path)))


async def _run(steps: list[tuple[str, int, int]], world: World, *, patient: bool = False) -> None:
    """``patient``: what is to be written of aborted ranges is, before anything else happens."""
    model = Model()
    log = await world.boot()
    forgot = False
    for what, number, more in steps:
        if what in ("write", "plain", "commit", "abort"):
            if world.writer.flying:
                log = await world.boot()  # what was in flight never arrived
                forgot = forgot or model.start > 0
            base = log.next_offset
            if what in ("write", "plain"):
                producer = number if what == "write" else None
                log.append(data(producer, count=more), world.done)
                model.batches.append((base, base + more, producer, None))
            else:
                log.append_marker(number, 0, what == "commit", world.done)
                model.batches.append((base, base + 1, number, what == "commit"))
            world.writer.acknowledge(1)
            assert world.answers[-1] == base
        elif what == "in flight":
            if more == 0:
                log.append(data(number), world.done)
            else:
                log.append_marker(number, 0, more == 1, world.done)
        elif what == "snapshot":
            assert await world.logs.snapshotter.take(log) is None
        elif what == "trim":
            ends = [end for _, end, _, _ in model.batches]
            model.start = max([model.start, *(end for end in ends if end <= number)])
            await log.trim(model.start)
        else:
            await settle()
            if what == "crash without snapshot":
                world.snapshots.saved.clear()
            forgot = forgot or model.start > 0
            log = await world.boot()
        if patient:
            await world.logs.aborted.drain()
        await check(log, model, forgot=forgot)
    await world.logs.aborted.drain()


# --- what formats say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_whose_transaction_it_ends_and_how(commit: bool) -> None:
    part = InTransaction(1 << 40, 7, commit)
    info = format_of(KAFKA).describe(marker(part, 1000))
    assert info.control
    assert info.transaction == part
    assert info.producer == ProducerStamp(1 << 40, 7, -1, 0), "it tells the epoch, and takes no sequence number"
    assert info.max_timestamp == -1, "no reader sees its time"
    assert decode(StoredBatch(0, 1, KAFKA, marker(part, 1000))) == []


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\0\0\0\2", b"\0\0\0\5more"])
def test_other_control_batches_end_nothing(key: bytes | None) -> None:
    batch = encode([Record(key, b"")], attributes=TRANSACTIONAL | CONTROL, producer_id=7, producer_epoch=0)
    info = format_of(KAFKA).describe(batch)
    assert (info.control, info.transaction) == (True, None)
    info = format_of(KAFKA).describe(batch[:70])
    assert (info.control, info.transaction) == (True, None)


def test_a_batch_says_whose_transaction_it_belongs_to() -> None:
    info = format_of(KAFKA).describe(data(9).payload)
    assert (info.control, info.transaction) == (False, InTransaction(9, 0))
    info = format_of(KAFKA).describe(data(None).payload)
    assert (info.control, info.transaction) == (False, None)


# --- epochs -----------------------------------------------------------------------------------------------------------


def of_epoch(epoch: int, sequence: int, producer: int = 9) -> Batch:
    """A batch of one record as a transactional producer of Kafka's sends it."""
    stamp = ProducerStamp(producer, epoch, sequence, 1)
    payload = encode(
        [Record(None, b"x", timestamp=5)],
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return Batch(payload, 1, KAFKA, 5, stamp, transaction=InTransaction(producer, epoch))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("life", ["goes on", "in flight", "killed", "killed behind a snapshot"])
async def test_what_comes_after_a_marker_of_a_later_epoch_opens_no_transaction(known: bool, life: str) -> None:
    world = World()
    log = await world.boot()
    if known:
        log.append(of_epoch(3, 0), world.done)
        world.writer.acknowledge(1)
    log.append_marker(9, 4, False, world.done)
    if life != "in flight":
        world.writer.acknowledge(1)
    if life == "killed behind a snapshot":
        assert await world.logs.snapshotter.take(log) is None
    if life.startswith("killed"):
        log = await world.boot()
    end = log.next_offset
    log.append(of_epoch(3, 1), world.done)
    assert isinstance(world.answers[-1], ProducerFenced)
    foreign = EventStamp(bytes(16), 1)
    log.append(Batch(b"x", 1, int(FormatId.RAW), -1, foreign, transaction=InTransaction(9, 3)), world.done)
    assert isinstance(world.answers[-1], ProducerFenced), "also if the ledger knows its writer by something else"
    log.append_marker(9, 3, False, world.done)
    assert isinstance(world.answers[-1], ProducerFenced), "a late marker must not end what came since"
    assert log.next_offset == end
    log.append(of_epoch(4, 0), world.done)
    log.append_marker(9, 4, True, world.done)
    log.append(of_epoch(4, 1), world.done)
    world.writer.acknowledge(len(world.writer.flying))
    assert world.answers[-3:] == [end, end + 1, end + 2]
    assert log.state.transactions.open == {9: end + 2}


async def test_a_marker_leaves_the_sequence_numbers_of_its_epoch_alone_and_new_ones_begin_with_0() -> None:
    world = World()
    log = await world.boot()
    log.append(of_epoch(1, 0), world.done)
    log.append_marker(9, 1, True, world.done)
    log.append(of_epoch(1, 1), world.done)
    log.append(of_epoch(1, 0), world.done)
    log.append_marker(9, 2, True, world.done)
    log.append(of_epoch(2, 7), world.done)
    assert isinstance(world.answers[-1], OutOfOrderSequence)
    log.append(of_epoch(2, 0), world.done)
    log.append(of_epoch(2, 1), world.done)
    world.writer.acknowledge(len(world.writer.flying))
    assert world.answers[1:] == [0, 0, 1, 2, 3, 4, 5]
    assert log.last(LedgerKind.KAFKA, producer_key(9)) == Last(1, 5)


async def test_a_marker_that_could_not_be_stored_fences_nobody() -> None:
    world = World()
    log = await world.boot()
    log.append(of_epoch(3, 0), world.done)
    world.writer.acknowledge(1)
    log.append_marker(9, 4, False, world.done)
    world.writer.refuse(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "no"))
    log.append(of_epoch(3, 1), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 1


async def test_markers_of_writers_without_epochs_fence_nobody() -> None:
    world = World()
    log = await world.boot()
    log.append_marker(9, -1, True, world.done)
    world.writer.acknowledge(1)
    assert not len(log.state.ledger)
    log = await world.boot()
    assert not len(log.state.ledger)


# --- reads ------------------------------------------------------------------------------------------------------------


async def written(world: World, *batches: Batch | tuple[int, bool]) -> PartitionLog:
    log = await world.boot()
    for one in batches:
        if isinstance(one, Batch):
            log.append(one, world.done)
        else:
            log.append_marker(one[0], 0, one[1], world.done)
        world.writer.acknowledge(1)
    return log


@pytest.mark.parametrize("cached", [True, False])
async def test_other_protocols_get_neither_markers_nor_aborted_data(cached: bool) -> None:
    world = World()
    log = await written(
        world,
        data(1, b"no"),
        data(2, b"yes"),
        data(None, b"plain"),
        (1, False),
        (2, True),
        data(1, b"open"),
        data(None),
    )
    if not cached:
        log.tail.clear()
    assert log.last_stable_offset == 5
    batches = await log.read_committed(0, ALL)
    assert [b.base_offset for b in batches] == [0, 1, 2, 3, 4]
    assert values(batches) == [b"yes", b"plain"]
    raw = [await Translator(1 << 20).translate(1, b, FormatId.RAW) for b in batches]
    assert [bytes(one) for one in raw] == [b"", b"yes", b"plain", b"", b""]
    assert await log.read_committed(5, ALL) == []
    assert len(await log.read_batches(0, ALL)) == 7
    assert log.available(5, 1, log.last_stable_offset) == 0
    assert log.available(5, 1) > 0


async def test_what_was_trimmed_while_it_was_read_is_not_told_as_committed() -> None:
    world = World()
    log = await written(world, data(1, b"no"), (1, False), data(None))
    log.tail.clear()
    answers: list[Any] = []
    backend: Any = world.backend

    def held(stream_id: int, offset: int, max_bytes: int, done: Any, *, limit: int) -> None:
        answers.append(lambda: Backend.fetch(backend, stream_id, offset, max_bytes, done, limit=limit))

    backend.fetch = held
    reading = asyncio.ensure_future(log.read_committed(0, ALL))
    await settle()
    await log.trim(2)
    answers[0]()
    with pytest.raises(OffsetOutOfRange):
        await reading


async def test_open_transactions_are_bounded_by_refusing_new_ones_and_aborted_ones_do_not_count() -> None:
    world = World(transactions_per_partition=1)
    log = await written(world, data(1), (1, False), data(2), (2, False), data(3))

    def append(batch: Batch) -> int | LogError:
        log.append(batch, world.done)
        if world.writer.flying:
            world.writer.acknowledge(1)
        return world.answers[-1]

    assert isinstance(append(data(4)), TooManyTransactions)
    assert append(data(3)) == 5, "one that is open goes on"
    assert append(data(None)) == 6, "what belongs to none is not concerned"
    log.append_marker(3, 0, False, world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 7, "and may end"
    assert append(data(4)) == 8
    log = await world.boot()
    log.append(data(5), world.done)
    assert isinstance(world.answers[-1], TooManyTransactions), "a restart makes no difference"


def test_one_read_meets_a_bounded_number_of_aborted_ranges() -> None:
    state = Transactions()
    count = 5 * MOST_TOLD
    for at in range(count):
        state.observe(InTransaction(7, 0), 2 * at)
        state.observe(InTransaction(7, 0, False), 2 * at + 1)
    position, found = 0, []
    while position < 2 * count:
        end = state.reach(position, 2 * count)
        assert position < end
        told = state.aborted(position, end)
        assert len(told) <= MOST_TOLD + 1, "and one that reaches over the end"
        found += told
        position = end
    assert sorted(set(found)) == [Aborted(7, 2 * at, 2 * at + 1) for at in range(count)]


def test_reads_get_on_beside_a_transaction_that_is_long_open() -> None:
    state = Transactions()
    state.observe(InTransaction(1, 0), 0)
    for at in range(1, 2 * MOST_TOLD):
        state.observe(InTransaction(7, 0), 2 * at)
        state.observe(InTransaction(7, 0, False), 2 * at + 1)
    end = 4 * MOST_TOLD
    state.observe(InTransaction(1, 0, False), end)
    assert state.reach(0, end + 1) > 0
    assert Aborted(1, 0, end) in state.aborted(0, 1)
    assert Aborted(1, 0, end) in state.aborted(100, 101)


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_cut_is_refused() -> None:
    state = Transactions()
    for producer in (5, 6, -3):
        state.observe(InTransaction(producer, 0), producer + 10)
    state.observe(InTransaction(5, 0, False), 20)
    data = state.capture()
    again = Transactions()
    again.restore(data)
    assert again.aborted(0, 99) == [Aborted(5, 15, 20)]
    assert list(again.open.items()) == [(6, 16), (-3, 7)]
    assert again.first_open == state.first_open
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            Transactions().restore(data[:end])


def test_the_stored_form_of_snapshots_does_not_change() -> None:
    state = PartitionState()
    for base, batch in enumerate([data(1), data(2)]):
        state.observe(base, batch.payload, KAFKA, 10)
    state.observe(2, marker(InTransaction(1, 0, False), 5), KAFKA, 11)
    capture = state.capture(3)
    stored = b"".join(capture.pieces())
    capture.close()
    assert stored[0] == 6
    columns = bytes.fromhex("0000000100000001")
    columns += b"".join(number.to_bytes(8, "big") for number in (2, 1, 1, 0, 2, 1))
    blocks = bytes.fromhex("ffffffffffffffff0000000000000000")
    assert columns + blocks in stored
    former = Transactions()
    former.restore(columns, former=True)
    assert former.capture() == columns + blocks, "that of version 5 is read"


async def test_markers_and_aborted_data_take_no_bytes_of_a_position() -> None:
    world = World()
    log = await written(world, data(1, b"no"), data(None, b"12"), (1, False), data(2, b"345"), (2, True), data(3))
    two, three = 8 + 2, 8 + 3
    assert (await log.byte_end()) == (6 - 1, two + three)
    assert [await log.byte_position(offset) for offset in range(6)] == [0, 0, two, two, two + three, two + three]
    assert (await log.find_byte(0)).offset == 1
    assert (await log.find_byte(two)).offset == 3


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_sealed_partition_ends_when_its_transactions_have(restarted: bool) -> None:
    world = World()
    log = await written(world, data(1), data(2), data(3), (3, True))
    if restarted:
        world.lineage[0] = ((4, 5), None)
        log = await world.boot()
    else:
        log.sealed((4, 5))
    log.append_marker(1, 0, True, world.done)  # in flight when the seal begins
    sealing = asyncio.ensure_future(log.seal())
    await settle()
    world.writer.acknowledge(1)
    with pytest.raises(LogUnavailable, match="1 transactions are open"):
        await sealing
    assert world.backend.seals == []
    for refused in (data(2), data(None)):
        log.append(refused, world.done)
        assert isinstance(world.answers[-1], PartitionSealed), "it takes nothing else"
    log.append_marker(3, 0, True, world.done)
    assert isinstance(world.answers[-1], PartitionSealed), "nor what ends nothing"
    log.append_marker(2, 0, False, world.done)
    world.writer.acknowledge(1)
    assert await log.seal() == 6
    assert log.last_stable_offset == 6
    assert values(await log.read_committed(0, ALL)) == [b"x", b"x"]
    log.append_marker(2, 0, False, world.done)
    assert isinstance(world.answers[-1], PartitionSealed)


async def test_whoever_could_not_seal_is_told_once_when_no_transaction_is_open_any_more() -> None:
    world = World()
    log = await written(world, data(1), data(2))
    log.sealed((4, 5))
    told = world.catalog.sealed_again
    for _ in range(3):
        with pytest.raises(TransactionsOpen):
            await world.logs.seal("t", 0)
    for producer, expected in ((1, []), (2, [log.stream_id])):
        log.append_marker(producer, 0, True, world.done)
        world.writer.acknowledge(1)
        await settle()
        assert told == expected
    assert await world.logs.seal("t", 0) == 4
    await settle()
    assert told == [log.stream_id]
