"""Positions in bytes: a partition through appends, trims, snapshots and crashes, against a list of all its events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.errors import DataCorrupt, LogUnavailable, OffsetOutOfRange, PositionLost, PositionTrimmed
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.producer import ProducerStamp
from bridges.formats.records import Record
from bridges.log.byte_positions.column import ByteColumn, BytePlace
from bridges.log.byte_positions.starts import ByteStart, ByteStarts
from bridges.log.damage.skipping import skip
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.log.state.offset_index import OffsetIndex
from sbp_back.errors import DecodeError
from sbp_back.wire.entry import pack_entry
from tests import databases
from tests.bridges.log.log_lab import World, batch, settle
from tests.bridges.log.self_counted import SELF_COUNTED, self_counted, self_counted_known
from tests.databases import on_each_engine
from tests.depth import examples

KAFKA = int(FormatId.KAFKA)
sizes = st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=4)
WRITES = ("records", "producer", "counted", "opaque", "marker", "damaged")
writes = st.one_of(
    st.tuples(st.just("records"), sizes),
    st.tuples(st.just("producer"), sizes),
    st.tuples(st.just("counted"), sizes),
    st.tuples(st.just("opaque"), st.integers(0, 40)),
    st.tuples(st.just("marker"), st.just(0)),
    st.tuples(st.just("damaged"), st.integers(1, 3)),
)
# Offsets and positions are taken modulo what there is.
asks = st.tuples(st.sampled_from(["end", "position", "find", "find", "batch", "batch"]), st.integers(0, 5000))
changes = st.tuples(
    st.sampled_from(["lose", "lose", "trim", "trim bytes", "snapshot", "crash", "crash"]), st.integers(0, 5000)
)
steps = st.tuples(
    st.lists(writes, min_size=2, max_size=8), st.lists(writes | asks | asks | changes, min_size=5, max_size=40)
).map(lambda both: [*both[0], *both[1]])


@dataclass
class Model:
    """The bytes that each offset takes, and where it was told to begin."""

    events: list[int] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    start: int = 0
    counted: int = -1
    end: int = 0
    byte_start: int = 0
    lost: set[int] = field(default_factory=set)
    bases: list[int] = field(default_factory=list)
    """Of each offset where its batch begins."""

    def past(self, offset: int) -> int:
        while offset in self.lost:
            offset += 1
        return offset

    @property
    def first(self) -> int:
        """The position of the first byte kept."""
        return max(self.told[self.past(self.start)], self.byte_start)

    def record(self, position: int) -> int:
        """The record that has the byte at a position below the end; behind the batch if none of its records do."""
        taking = (offset for offset, events in enumerate(self.events) if events and offset in self.told)
        return max(offset for offset in taking if self.told[offset] <= position)

    def count(self) -> None:
        """Somebody asks: all there is is counted, from where counting ended on, or the log begins."""
        self.counted = max(self.counted, self.start)
        for offset in range(self.counted, len(self.events)):
            self.told[offset] = self.end
            self.end += self.events[offset]
        self.counted = len(self.events)
        self.told[self.counted] = self.end


async def check_found(model: Model, ask: Callable[[int], Awaitable[BytePlace]], position: int, *, whole: bool) -> None:
    if position < model.first:
        with pytest.raises(PositionTrimmed) as trimmed:
            await ask(position)
        assert trimmed.value.start == model.first
    elif position > model.end:
        with pytest.raises(OffsetOutOfRange):
            await ask(position)
    elif position == model.end:
        assert await ask(position) == BytePlace(len(model.events), model.end)
    elif (record := model.record(position)) in model.lost:
        with pytest.raises(PositionLost) as lost:
            await ask(position)
        assert lost.value.position == model.told[model.past(record)]
    else:
        found = await ask(position)
        base = model.bases[record]
        before = sum(model.events[base:record])
        assert found == (
            BytePlace(base, model.told[record] - before) if whole else BytePlace(record, model.told[record])
        )


async def check_trimmed(model: Model, log: PartitionLog, position: int) -> None:
    with pytest.raises(OffsetOutOfRange):
        await log.trim_bytes(model.end + 1)
    first = max(position, model.first)
    if position >= model.first:
        record = model.record(first) if first < model.end else len(model.events)
        if record in model.lost:
            record = model.past(record)
            first = model.told[record]
        model.byte_start, model.start = first, max(model.start, record)
    assert await log.trim_bytes(position) == first
    assert await log.byte_start() == model.first == first
    with pytest.raises(PositionTrimmed) as told:
        await log.find_byte(first - 1)
    assert told.value.start == first


def written(kind: str, argument: object, producer: int) -> tuple[Batch, list[int]]:
    """A batch, and what each of its offsets takes."""
    if isinstance(argument, list):
        values = [size or 0 for size in argument]
        if kind == "counted":
            return Batch(self_counted(values), len(values), SELF_COUNTED), [8 + size for size in values]
        records = [Record(b"key", None if size is None else bytes(size), [("h", b"x")]) for size in argument]
        stamp = ProducerStamp(producer, 0, 0, len(values)) if kind == "producer" else None
        names = {} if stamp is None else {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        return Batch(encode(records, **names), len(values), KAFKA, 1000, stamp), [8 + size for size in values]
    assert isinstance(argument, int)
    if kind == "opaque":
        return Batch(bytes(argument), 3, int(FormatId.RAW)), [8 + argument, 0, 0]
    if kind == "marker":
        return Batch(encode([Record(b"\0\0\0\1", bytes(6))], attributes=0x30), 1, KAFKA), [0]
    good = encode([Record(None, b"unreadable")] * argument)
    return Batch(good[:-1] + b"\x7f", argument, KAFKA), [18] * (argument - 1) + [8]


async def _run(todo: list[tuple[str, object]], interval: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "bridges.log.byte_positions.search.ByteColumn", partial(ByteColumn, interval=interval, max_rows=4)
        )
        world = World()
        model = Model()
        log = await world.boot()
        for number, (what, argument) in enumerate(todo):
            if what in WRITES:
                one, events = written(what, argument, number)
                log.append(one, world.done)
                world.writer.acknowledge(1)
                model.bases += [len(model.events)] * len(events)
                model.events += events
                if log.byte_length is not None:
                    model.count()
                    assert log.byte_length == model.end
                continue
            assert isinstance(argument, int)
            if what == "end":
                model.count()
                assert await log.byte_end() == BytePlace(len(model.events), model.end)
                continue
            offset = argument % (len(model.events) + 2)
            if what == "position":
                if model.start <= offset <= len(model.events):
                    model.count()
                    assert await log.byte_position(offset) == model.told[model.past(offset)]
                else:
                    with pytest.raises(OffsetOutOfRange):
                        await log.byte_position(offset)
            elif what in ("find", "batch"):
                model.count()
                ask = log.find_byte if what == "find" else log.find_byte_batch
                await check_found(model, ask, argument % (model.end + 2), whole=what == "batch")
            elif what == "trim bytes":
                model.count()
                await check_trimmed(model, log, argument % (model.end // 2 + 1))
            elif what == "lose":
                if model.start <= offset < len(model.events) and offset not in model.lost:
                    span, _ = await skip(world.logs, log, offset, force=True)
                    if model.counted >= 0:
                        model.count()
                    else:
                        model.events[slice(*span)] = [0] * (span[1] - span[0])
                    model.lost.update(range(*span))
            elif what == "trim":
                offset = argument % (len(model.events) // 2 + 1)
                if model.counted >= 0:
                    model.count()
                await log.trim(offset)
                model.start = max(model.start, offset)
            elif what == "snapshot":
                assert await world.logs.snapshotter.take(log) is None
            else:
                log = await world.boot()
        await settle()


@settings(max_examples=examples(40), deadline=None)
@given(steps, st.sampled_from([1, 150, 1 << 16]))
@example([("records", [None]), ("opaque", 0), ("end", 0), ("lose", 0), ("find", 0)], 1)
def test_what_was_told_stays_whatever_happens_to_the_node(todo: list[tuple[str, object]], interval: int) -> None:
    with self_counted_known():
        asyncio.run(_run(todo, interval))


async def test_a_trim_waits_until_what_was_told_is_kept() -> None:
    world = World()
    log = await world.boot()
    for _ in range(3):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(2)
    assert await log.byte_end() == BytePlace(4, 72)
    world.writer.acknowledge(1)
    assert await log.byte_end() == BytePlace(6, 108), "the snapshot that counting began with knows nothing of it"
    await log.trim(6)
    again = await world.boot()
    assert await again.byte_end() == BytePlace(6, 108)


async def test_nothing_is_told_that_cannot_be_kept() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(1)
    save = world.snapshots.save

    async def refuse(*_: object) -> None:
        raise LogUnavailable("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.snapshots, "save", refuse)
        with pytest.raises(LogUnavailable):
            await log.byte_end()
    assert world.snapshots.save == save
    assert await log.byte_end() == BytePlace(2, 36)


async def test_what_was_declared_lost_takes_no_bytes() -> None:
    world = World()
    log = await world.boot()
    for _ in range(3):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(3)
    log.skip((2, 4))
    assert await log.byte_end() == BytePlace(6, 72)
    assert await log.byte_position(4) == 36
    log.skip((4, 6))
    log.append(batch(1, size=2), world.done)
    world.writer.acknowledge(1)
    log.skip((6, 7))
    assert await log.byte_end() == BytePlace(7, 72)


@pytest.mark.parametrize("asked_again", [True, False])
async def test_what_was_counted_and_is_damaged_afterwards_keeps_its_bytes(asked_again: bool) -> None:
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    for _ in range(6):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(6)
    assert await log.byte_end() == BytePlace(12, 216)
    if asked_again:
        assert await world.logs.snapshotter.take(log) is None
        log = await world.boot()
    world.backend.damaged = {4, 6}
    assert (await skip(world.logs, log, 4, force=False))[0] == (4, 8)
    log = await world.boot()
    assert await log.byte_end() == BytePlace(12, 216)
    assert [await log.byte_position(offset) for offset in (2, 4, 7, 8, 10)] == [36, 144, 144, 144, 180]
    assert await log.find_byte(150) == BytePlace(8, 144)
    for position in (72, 100, 143):
        with pytest.raises(PositionLost) as lost:
            await log.find_byte_batch(position)
        assert (lost.value.offset, lost.value.position) == (8, 144)


@on_each_engine
async def test_starts_inside_records_survive_the_node_and_go_with_the_topic(tmp_path: Path) -> None:
    database = databases.database(tmp_path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
    await database.open()
    await database.run(lambda db: db.execute("INSERT INTO topics (name, topic_id, created_ms) VALUES ('t', x'00', 0)"))
    await database.run(lambda db: db.execute("INSERT INTO partitions (topic, idx, stream_id) VALUES ('t', 0, 1)"))
    world = World()
    world.byte_starts = ByteStarts(database)
    log = await world.boot()
    for _ in range(3):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(3)
    assert await log.trim_bytes(60) == 60
    assert log.log_start_offset == 3, "the record that holds the byte is kept"
    assert await log.trim_bytes(20) == 60, "a start never moves back"
    world.byte_starts = ByteStarts(database)
    await world.byte_starts.load()
    world.snapshots.saved.clear()
    log = await world.boot()
    assert (await log.byte_start(), await log.byte_end()) == (60, BytePlace(6, 108)), "without any snapshot"
    await world.byte_starts.save(2, ByteStart(7, BytePlace(1, 0)))
    assert world.byte_starts.find(2) is None, "of a partition that was deleted nothing is kept"
    world.logs.topic_deleted("t", [0])
    assert world.byte_starts.find(1) is None
    await database.run(lambda db: ByteStarts.erase(db, "t"))
    assert await database.run(lambda db: db.execute("SELECT * FROM byte_starts").fetchall()) == []
    await database.close()


async def test_those_who_ask_together_have_it_counted_once() -> None:
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    for _ in range(5):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(5)
    reads = world.backend.reads
    assert set(await asyncio.gather(*(log.byte_end() for _ in range(20)))) == {BytePlace(10, 180)}
    assert world.backend.reads == reads + 1


@pytest.mark.timeout(30)
async def test_who_asks_for_more_in_the_turn_in_which_counting_ends_does_not_stop_the_loop() -> None:
    world = World()
    log = await world.boot()
    asking: list[asyncio.Task[BytePlace]] = []

    def write() -> None:
        log.append(batch(2, size=10), world.done)
        world.writer.acknowledge(1)

    def counted(*_: object) -> None:
        if not asking:
            write()
            asking.append(asyncio.create_task(log.byte_end()))

    with pytest.MonkeyPatch.context() as patch:
        # The first count ends in the step in which it adds a batch: the second question comes before its callbacks.
        add = ByteColumn.add
        patch.setattr(ByteColumn, "add", lambda *given: (add(*given), counted())[0])
        write()
        assert await log.byte_end() == BytePlace(4, 72)
    assert await asking[0] == BytePlace(4, 72)


def test_an_index_without_the_column_is_what_it_was() -> None:
    plain, used = OffsetIndex(), OffsetIndex()
    for index in (plain, used):
        index.add(0, 100, 5, 5, 5)
    before = plain.snapshot()
    used.column = ByteColumn(0)
    used.column.add(3, 30, 100)
    assert plain.column is None
    copy = OffsetIndex()
    copy.restore(used.snapshot())
    assert copy.column is not None
    assert copy.column.end == BytePlace(3, 30)
    assert copy.column.saved_offset == 3
    assert copy.snapshot() == used.snapshot()
    copy.restore(before)
    assert copy.column is None
    assert copy.snapshot() == before
    for cut in range(len(before), len(used.snapshot())):
        if cut > len(before):
            with pytest.raises(DecodeError):
                OffsetIndex().restore(used.snapshot()[:cut])
    with pytest.raises(DecodeError):
        OffsetIndex().restore(before + b"x")


def test_rows_stay_bounded_and_true() -> None:
    column = ByteColumn(0, 10, 8)
    for number in range(1, 1001):
        column.add(number, 8, 20)
    assert len(column) <= 8
    for offset in range(0, 1001, 7):
        row, after = column.before(offset), column.after(offset)
        assert row is not None
        assert row.position == 8 * row.offset
        assert row.offset <= offset <= after.offset
        assert after.position == 8 * after.offset


@pytest.mark.usefixtures("slow_turns")
async def test_nothing_is_counted_for_nobody_and_who_asks_next_goes_on_from_there() -> None:
    world = World()
    log = await world.boot()
    for _ in range(200):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(200)
    asking = [asyncio.create_task(log.byte_end()) for _ in range(2)]

    async def counted(more: int) -> int:
        while (column := log.state.index.column) is None or column.end.offset < more:
            await asyncio.sleep(0)
        return column.end.offset

    at = await counted(2)
    asking[0].cancel()
    at = await counted(at + 40)  # one is there still
    asking[1].cancel()
    await settle()
    ended = await counted(at)
    await settle()
    assert at <= ended == await counted(at) < 400, "nobody waits for the rest"
    assert await log.byte_end() == BytePlace(400, 200 * 36)


@pytest.mark.timeout(30)
async def test_positions_of_a_partition_whose_front_is_gone_are_refused() -> None:
    world = World()
    world.backend.entries = [pack_entry(1, 0, 9, 0, 1, 5_000, b"of a format that nobody knows")]
    world.backend.end = 1
    log = await world.boot()
    with pytest.raises(DataCorrupt, match="offset 0 is not installed"):
        await log.byte_end()
