"""Reads that wait at the end of a segment are told whatever happens to it, whenever it does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from bridges.errors import LogError
from bridges.formats.producer import EventStamp
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.partition.partition_log import PartitionLog
from pravega_front.service.reads import Found, Parked, Seen, read
from pravega_front.service.segment import Cursors, Segment
from pravega_front.wire import commands as wire
from tests.bridges.log.log_lab import World, settle

NAME = "scope/stream/0.#epoch.0"


async def append(world: World, segment: Segment) -> None:
    def done(length: int, error: LogError | None) -> None:
        assert error is None

    segment.append([b"event"], 5, EventStamp(uuid4().bytes, 1, 1), None, done)
    world.writer.acknowledge(1)
    await settle()


async def seal(world: World, segment: Segment) -> None:
    segment.loose_sealed = True
    segment.log.moved()


async def trim(world: World, segment: Segment) -> None:
    await append(world, segment)
    await segment.log.trim(1)


Change = Callable[[World, Segment], Any]


@pytest.mark.parametrize("change", [append, seal, trim])
async def test_what_happens_between_a_look_and_the_wait_is_told(change: Change) -> None:
    world = World()
    log = await world.boot()
    segment = Segment(NAME, log, cast(Any, None), 100, Cursors(), loose=True)
    request = wire.ReadSegment(NAME, 0, 100, "", 1)
    seen = await read(segment, request, 100)
    assert isinstance(seen, Seen)
    await change(world, segment)
    again: list[Parked] = []
    parked = Parked(segment, request, seen, again.append)
    parked.recheck()
    assert again == [parked]
    if not segment.loose_sealed:
        await append(world, segment)
    assert again == [parked], "once"
    await world.logs.close()


@pytest.mark.parametrize("change", [append, seal, trim])
async def test_what_happens_while_it_is_looked_is_told(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    log = await world.boot()
    segment = Segment(NAME, log, cast(Any, None), 100, Cursors(), loose=True)
    length = Segment.length

    async def slow(self: Segment) -> int:
        found = await length(self)
        monkeypatch.setattr(Segment, "length", length)
        await change(world, segment)
        return found

    monkeypatch.setattr(Segment, "length", slow)
    request = wire.ReadSegment(NAME, 0, 100, "", 1)
    seen = await read(segment, request, 100)
    if not isinstance(seen, Found):
        again: list[Parked] = []
        Parked(segment, request, seen, again.append).recheck()
        assert len(again) == 1
    await world.logs.close()


async def test_a_read_that_waits_is_called_when_its_segment_moves() -> None:
    world = World()
    log: PartitionLog = await world.boot()
    segment = Segment(NAME, log, cast(Any, None), 100, Cursors())
    request = wire.ReadSegment(NAME, 0, 100, "", 1)
    seen = await read(segment, request, 100)
    assert isinstance(seen, Seen)
    again: list[Parked] = []
    parked = Parked(segment, request, seen, again.append)
    parked.recheck()
    assert not again
    await append(world, segment)
    assert again == [parked]
    await world.logs.close()


async def test_places_of_readers_are_bounded_over_all_segments() -> None:
    async def translate(stream_id: int, stored: StoredBatch, flags: int, behind: object) -> Buffer:
        return stored.payload  # which is Pravega's already

    world = World()
    log = await world.boot()
    cursors = Cursors(most=5)
    translator: Any = SimpleNamespace(translate=translate)
    segments = [Segment(NAME, log, translator, 100, cursors, loose=True) for _ in range(8)]
    for number in range(5):
        await append(world, segments[0])
        for segment in segments:
            assert b"".join(await segment.read(5 * number, 5)) == b"event"
    assert len(cursors) == 5
    # What was remembered before a truncation is not believed after it.
    await segments[0].truncate(10)
    assert b"".join(await segments[0].read(10, 100)) == b"event" * 3
    await world.logs.close()


async def test_many_small_batches_are_read_as_few_pieces() -> None:
    """A view of each would take more memory than is counted for a read."""

    async def translate(stream_id: int, stored: StoredBatch, flags: int, behind: object) -> Buffer:
        return stored.payload

    world = World()
    log = await world.boot()
    segment = Segment(NAME, log, cast(Any, SimpleNamespace(translate=translate)), 100, Cursors(), loose=True)
    for _ in range(50):
        await append(world, segment)
    pieces = await segment.read(2, 246)
    assert b"".join(pieces) == (b"event" * 50)[2:248]
    assert len(pieces) == 1
    await world.logs.close()
