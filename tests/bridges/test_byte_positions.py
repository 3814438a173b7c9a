"""Positions in bytes: a partition through appends, trims, snapshots and crashes, against a list of all its events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.errors import LogUnavailable, OffsetOutOfRange
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.byte_column import ByteColumn, BytePlace
from bridges.log.offset_index import OffsetIndex
from bridges.log.partition_log import Batch
from sbp_back.errors import DecodeError
from tests.bridges.log_lab import World, batch, settle

KAFKA = int(FormatId.KAFKA)
sizes = st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("records"), sizes),
        st.tuples(st.just("producer"), sizes),
        st.tuples(st.just("opaque"), st.integers(0, 40)),
        st.tuples(st.just("marker"), st.just(0)),
        st.tuples(st.just("damaged"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("position"), st.integers(0, 60)),
        st.tuples(st.just("find"), st.integers(0, 900)),
        st.tuples(st.just("trim"), st.integers(0, 60)),
        st.tuples(st.just("snapshot"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """The bytes that each offset takes, and where it was told to begin."""

    events: list[int] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    start: int = 0
    counted: int = -1
    end: int = 0

    def count(self) -> None:
        """Somebody asks: all there is is counted, from where counting ended on, or the log begins."""
        self.counted = max(self.counted, self.start)
        for offset in range(self.counted, len(self.events)):
            self.told[offset] = self.end
            self.end += self.events[offset]
        self.counted = len(self.events)
        self.told[self.counted] = self.end


async def _run(todo: list[tuple[str, object]], interval: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridges.log.byte_search.ByteColumn", lambda start: ByteColumn(start, interval, 4))
        world = World()
        model = Model()
        log = await world.boot()
        sequence = 0

        def write(payload: bytes | bytearray, events: list[int], flags: int = KAFKA, stamped: bool = False) -> None:
            log.append(Batch(payload, len(events), flags, 1000, stamp if stamped else None), world.done)
            world.writer.acknowledge(1)
            model.events += events

        for what, argument in todo:
            if what in ("records", "producer"):
                assert isinstance(argument, list)
                records = [Record(b"key", None if size is None else bytes(size), [("h", b"x")]) for size in argument]
                stamp = batch(len(argument), sequence=sequence).producer if what == "producer" else None
                sequence += len(argument) if stamp is not None else 0
                stamps = (
                    {}
                    if stamp is None
                    else {"producer_id": 7, "producer_epoch": 0, "base_sequence": stamp.base_sequence}
                )
                write(encode(records, **stamps), [8 + (size or 0) for size in argument], stamped=stamp is not None)
                continue
            assert isinstance(argument, int)
            if what == "opaque":
                write(bytes(argument), [8 + argument, 0, 0], flags=int(FormatId.RAW))
            elif what == "marker":
                write(encode([Record(b"\0\0\0\1", bytes(6))], attributes=0x30), [0])
            elif what == "damaged":
                good = encode([Record(None, b"unreadable")] * argument)
                write(good[:-1] + b"\x7f", [0] * argument)
            elif what == "end":
                model.count()
                assert await log.byte_end() == BytePlace(len(model.events), model.end)
            elif what == "position":
                if model.start <= argument <= len(model.events):
                    model.count()
                    assert await log.byte_position(argument) == model.told[argument]
                else:
                    with pytest.raises(OffsetOutOfRange):
                        await log.byte_position(argument)
            elif what == "find":
                model.count()
                if model.told[model.start] <= argument < model.end:
                    record = max(
                        offset
                        for offset in range(model.start, len(model.events))
                        if model.events[offset] and model.told[offset] <= argument
                    )
                    assert await log.find_byte(argument) == BytePlace(record, model.told[record])
                elif argument == model.end:
                    assert await log.find_byte(argument) == BytePlace(len(model.events), model.end)
                else:
                    with pytest.raises(OffsetOutOfRange):
                        await log.find_byte(argument)
            elif what == "trim":
                if argument <= len(model.events):
                    if model.counted >= 0:
                        model.count()
                    await log.trim(argument)
                    model.start = max(model.start, argument)
            elif what == "snapshot":
                assert await world.logs.snapshot(log) is None
            else:
                log = await world.boot()
        await settle()


@settings(max_examples=250, deadline=None)
@given(steps, st.sampled_from([1, 150, 1 << 16]))
def test_what_was_told_stays_whatever_happens_to_the_node(todo: list[tuple[str, object]], interval: int) -> None:
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


async def test_those_who_ask_together_have_it_counted_once() -> None:
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    for _ in range(5):
        log.append(batch(2, size=10), world.done)
    world.writer.acknowledge(5)
    reads = world.backend.reads
    assert set(await asyncio.gather(*(log.byte_end() for _ in range(20)))) == {BytePlace(10, 180)}
    assert world.backend.reads == reads + 1


def test_an_index_without_the_column_is_what_it_was() -> None:
    plain, used = OffsetIndex(), OffsetIndex()
    for index in (plain, used):
        index.add(0, 100, 5, 5)
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
