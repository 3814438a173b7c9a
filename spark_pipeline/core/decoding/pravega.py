"""Events of Pravega's writers as columns.

Bytes that are no events, or do not match their header, raise :class:`Unusual` and are read record by record (see
:mod:`spark_pipeline.core.decoding.kafka`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pyarrow as pa

from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.pravega import EVENT_HEAD, HEADER_SIZE, NO_WRITER, Header, Shape, check, claims_of
from bridges.formats.records import StoredBatch
from spark_pipeline.core.decoding.columns import Fields, Wanted, assemble, times
from spark_pipeline.core.decoding.varints import Int64s, Numbers, Unusual, chain, steps_by
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns

_EVENT = struct.Struct(">iI")
_PLACE = 4
"""Bytes of an event's relative offset in a batch that has gaps."""


@dataclass(slots=True)
class Body:
    """A batch whose checksum matches its bytes."""

    batch: StoredBatch
    header: Header

    @property
    def size(self) -> int:
        """Return the bytes that its events take."""
        return len(self.batch.payload) - HEADER_SIZE


def open_body(batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Body | None:
    """Check ``batch``; return None for a batch without bytes. Raises BatchInvalid, BatchCorrupt."""
    header = check(batch.payload)
    return Body(batch, header) if header.size else None


def decode(bodies: Sequence[Body], within: OffsetRange, columns: Columns) -> pa.RecordBatch:
    """Return the records of ``bodies``, at least one, in a range of offsets. Raises Unusual."""
    if any(body.header.shape == Shape.BYTES for body in bodies):
        raise Unusual
    appends = [claims_of(body.header, body.batch.payload) for body in bodies]
    numbers = Numbers(memoryview(body.batch.payload)[HEADER_SIZE:] for body in bodies)
    counts = np.array([body.header.records for body in bodies], np.int64)
    starts: list[Int64s] = []
    places: list[Int64s] = []
    at = 0
    for body, own in zip(bodies, appends, strict=True):
        stop = at + body.size
        begin = stop - body.header.size
        found, behind = chain(numbers, begin, stop, body.header.records, _head, _steps)
        if behind != stop or not _begin_with(found, own, begin):
            raise Unusual
        starts.append(found)
        places.append(body.batch.base_offset + _own_places(body, numbers, at))
        at = stop
    events = np.concatenate(starts)
    offsets = np.concatenate(places)
    wanted = Wanted(offsets, counts, within)

    def value() -> pa.Array:
        size = numbers.big_endian(events + 4)
        return Fields(numbers.data, events + EVENT_HEAD, events + EVENT_HEAD + size).array(wanted.chosen)

    def sequence() -> pa.Array:
        numbered = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        # Only writers that number their events one by one, rather than an append as a whole, tell their numbers.
        known = [body.header.writer_id != NO_WRITER and body.header.events == body.header.records for body in bodies]
        first = [
            body.header.last_number - body.header.records + 1 if one else 0
            for body, one in zip(bodies, known, strict=True)
        ]
        given = wanted.of_batches(first) + wanted.choose(numbered)
        return pa.array(given, mask=(wanted.of_batches(known) == 0) | (given < 0))

    sent = [body.batch.written_ms for body in bodies]
    writers = [
        None if body.header.writer_id == NO_WRITER else str(UUID(bytes=body.header.writer_id)) for body in bodies
    ]
    made = {
        **wanted.columns("pravega", sent, writers),
        "value": value,
        "timestamp": lambda: times(wanted.of_batches([body.header.time_ms for body in bodies])),
        "seq": sequence,
    }
    return assemble(within, columns, wanted.count, made)


def _head(data: bytes, position: int) -> tuple[int, int]:
    """Return the size of an event's head, its type (0) and its length, and the position behind the event."""
    try:
        kind, size = _EVENT.unpack_from(data, position)
    except struct.error:
        raise Unusual from None
    if kind:
        raise Unusual
    return EVENT_HEAD, position + EVENT_HEAD + int(size)


_steps = steps_by(_head)


def _begin_with(found: Int64s, appends: Sequence[tuple[int, int]], begin: int) -> bool:
    """Return whether each append holds as many of the decoded events as it has offsets."""
    if len(appends) == 1:
        return True
    places, sizes = np.cumsum(np.array(appends, np.int64), axis=0)[:-1].T
    return bool((places < len(found)).all() and (found[places] == begin + sizes).all())


def _own_places(body: Body, numbers: Numbers, at: int) -> Int64s:
    """Return the distance of each event from the batch's first offset."""
    count = body.header.records
    span = body.batch.end_offset - body.batch.base_offset
    if body.header.shape != Shape.SCATTERED:
        if count > span:
            raise Unusual
        return np.arange(count, dtype=np.int64)
    own = numbers.big_endian(at + _PLACE * np.arange(count, dtype=np.int64))
    if count and ((np.diff(own, prepend=-1) <= 0).any() or int(own[-1]) >= span):
        raise Unusual
    return own
