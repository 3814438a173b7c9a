"""Events of Pravega's writers as columns."""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from bridges.formats.columns import Unusual
from bridges.formats.columns.rows import Body, Fields, Rows, spread
from bridges.formats.columns.varints import Int64s, Numbers, chain, steps_by
from bridges.formats.columns.weaving import BigEndian, Constant, cut, weave
from bridges.formats.pravega import (
    EVENT_HEAD,
    HEADER_SIZE,
    NO_WRITER,
    Header,
    PravegaBuilder,
    Shape,
    check,
    claims_of,
)
from bridges.formats.records import Buffer, StoredBatch

_EVENT = struct.Struct(">iI")
_LARGE = 64 * 1024
"""Bytes whose checksum takes a step of its own."""


@dataclass(slots=True, kw_only=True)
class PravegaBody(Body):
    """Events of a batch. ``places``: distances of the batch's events from its first offset, if it has gaps. ``begins``:
    of each further append, the number of its first event and its position in the batch's bytes."""

    header: Header
    places: Int64s | None
    begins: Int64s | None

    @property
    def producer(self) -> str | None:
        return None if self.header.writer_id == NO_WRITER else str(UUID(bytes=self.header.writer_id))

    def has_begins(self, events: Int64s) -> bool:
        """Return whether appends begin where they should, if ``data`` has events at these positions."""
        if self.begins is None:
            return True
        numbers, positions = self.begins
        inside = (numbers >= self.first) & (numbers < self.first + len(events))
        found = events[numbers[inside] - self.first] == positions[inside] - self.skipped
        return bool(found.all())


def open_body(batch: StoredBatch, limit: int) -> Generator[None, None, PravegaBody | None]:
    header = check(batch.payload)
    if len(batch.payload) > _LARGE:
        yield None
    if not header.size:
        return None
    if header.shape == Shape.BYTES:
        raise Unusual
    span = batch.end_offset - batch.base_offset
    view = memoryview(batch.payload)[HEADER_SIZE:]
    data = view[len(view) - header.size :]
    places = None
    if header.shape == Shape.SCATTERED:
        places = np.frombuffer(view[: len(view) - header.size], ">u4").astype(np.int64)
        if len(places) and ((np.diff(places, prepend=-1) <= 0).any() or int(places[-1]) >= span):
            raise Unusual
    elif header.records > span:
        raise Unusual
    begins = None
    appends = claims_of(header, batch.payload)
    if len(appends) > 1:
        begins = np.cumsum(np.array(appends, np.int64), axis=0)[:-1].T
    return PravegaBody(batch=batch, data=data, count=header.records, header=header, places=places, begins=begins)


def decode(bodies: Sequence[PravegaBody], partial: bool = False) -> Rows:
    numbers = Numbers(body.data for body in bodies)
    starts: list[Int64s] = []
    at = behind = 0
    for body in bodies:
        end = at + len(body.data)
        found, behind = chain(numbers, at, end, body.count, _head, _steps, partial)
        if (behind != end and not partial) or not body.has_begins(found - at):
            raise Unusual
        starts.append(found)
        at = end
    events = np.concatenate(starts)
    count = len(events)
    if not count:
        raise Unusual
    own = [body.first + np.arange(len(found)) for body, found in zip(bodies, starts, strict=True)]
    numbered = np.concatenate(own)
    places = np.concatenate(
        [
            numbers_of if body.places is None else body.places[numbers_of]
            for body, numbers_of in zip(bodies, own, strict=True)
        ]
    )
    # Only writers that number their events one by one, rather than an append as a whole, tell their numbers.
    known = [body.header.writer_id != NO_WRITER and body.header.events == body.header.records for body in bodies]
    first = [
        body.header.last_number - body.header.records + 1 if one else 0 for body, one in zip(bodies, known, strict=True)
    ]
    return Rows(
        numbers,
        spread(bodies, [body.batch.base_offset for body in bodies], count) + places,
        spread(bodies, [body.header.time_ms for body in bodies], count),
        np.where(spread(bodies, known, count) > 0, np.maximum(spread(bodies, first, count) + numbered, -1), -1),
        None,
        Fields(numbers.data, events + EVENT_HEAD, events + EVENT_HEAD + numbers.big_endian(events + 4)),
        None,
        behind,
    )


def _head(data: Buffer, position: int) -> tuple[int, int]:
    """Return the size of an event's head, its type (0) and its length, and the position behind the event."""
    try:
        kind, size = _EVENT.unpack_from(data, position)
    except struct.error:
        raise Unusual from None
    if kind:
        raise Unusual
    return EVENT_HEAD, position + EVENT_HEAD + int(size)


_steps = steps_by(_head)


def encode(
    builders: Sequence[PravegaBuilder], rows: Rows, counts: Sequence[int], producers: Sequence[str | None]
) -> None:
    """Add ``rows`` to ``builders``: to each as many as its count."""
    firsts = np.cumsum([0, *counts])
    newest = np.maximum.reduceat(rows.timestamps, firsts[:-1]).tolist()
    data, ends = weave(len(rows), [Constant(bytes(4)), BigEndian(rows.values.sizes), rows.values])
    for builder, first, count, most, piece in zip(
        builders, firsts, counts, newest, cut(data, ends, firsts), strict=False
    ):
        builder.add_encoded(piece, int(rows.offsets[first]), count, most)
