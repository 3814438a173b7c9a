"""Kafka's record batches as columns, without a Python step for each field of each record.

Only the starts of records must be followed from one to the next. All other numbers are then read for all records at
once, and keys and values are taken out of the bytes as whole columns. Anything unusual (numbers of more than eight
bytes, fields that reach over their record, ...) raises :class:`Unusual`; :mod:`.records` then reads the records one by
one and either returns them or reports the damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import crc32c
import numpy as np
import pyarrow as pa

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.compression import DEFAULT_LIMIT, inflate
from bridges.formats.kafka import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    Header,
    check_count,
    parse_header,
)
from bridges.formats.producer import SEQUENCES
from bridges.formats.records import Buffer, StoredBatch
from spark_pipeline.core.decoding.columns import Fields, Make, Wanted, assemble, list_of, strings, times
from spark_pipeline.core.decoding.varints import Int64s, Numbers, Unusual, chain
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns

_CRC_START = 21
_MOST_HEADERS = 10_000
"""Most headers of one record; a record with more is read by itself, and refused."""
_ALIKE = 64
"""Most batches that are compared with the previous one in one step."""


@dataclass(slots=True)
class Body:
    """A batch whose records can be read: its header and its decompressed records."""

    batch: StoredBatch
    header: Header
    data: Buffer

    @property
    def size(self) -> int:
        """Return the bytes that it takes."""
        return len(self.data)


def open_body(batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Body | None:
    """Check and decompress ``batch``; return None if it holds no records for readers.

    Raises BatchCorrupt for a checksum that does not match, BatchInvalid for other damage, DecompressedTooLarge for more
    than ``limit`` bytes.
    """
    header = parse_header(batch.payload)
    view = memoryview(batch.payload)[: header.size]
    if len(view) != header.size or header.length < HEADER_SIZE - 12:
        raise BatchInvalid(f"a batch of {header.size} bytes has {len(view)}")
    if crc32c.crc32c(view[_CRC_START:]) != header.crc:
        raise BatchCorrupt("the batch's checksum does not match its bytes")
    if header.attributes & CONTROL or not header.record_count:
        return None
    body = view[HEADER_SIZE:]
    check_count(header, len(body), limit)
    if header.codec:
        body = memoryview(b"".join(piece for piece in inflate(header.codec, body, limit) if piece is not None))
    return Body(batch, header, body)


def decode(bodies: Sequence[Body], within: OffsetRange, columns: Columns) -> pa.RecordBatch:
    """Return the records of ``bodies``, at least one, in a range of offsets. Raises Unusual."""
    numbers = Numbers(body.data for body in bodies)
    found = _starts(bodies, numbers)
    counts = np.array([body.header.record_count for body in bodies], np.int64)
    try:
        places = _places(numbers, found, counts, bodies)
    except IndexError:
        raise Unusual from None
    offsets = np.repeat(np.array([body.batch.base_offset for body in bodies], np.int64), counts) + places.offset_delta
    wanted = Wanted(offsets, counts, within)
    made = _columns(numbers, places, bodies, wanted)
    return assemble(within, columns, wanted.count, made)


def _starts(bodies: Sequence[Body], numbers: Numbers) -> Int64s:
    """Return the position at which each record begins, which is that of its length.

    If a batch has the size and the record count of the previous batch, its records most likely have the same lengths.
    That is checked for several batches at once, which costs less than following the records of each.
    """
    found: list[Int64s] = []
    begin = number = 0
    most = _ALIKE
    while number < len(bodies):
        size, count = len(bodies[number].data), bodies[number].header.record_count
        starts, _ = chain(numbers, begin, begin + size, count, _head, _steps)
        found.append(starts)
        alike = 0
        for body in bodies[number + 1 : number + 1 + most]:
            if len(body.data) != size or body.header.record_count != count:
                break
            alike += 1
        if alike:
            same = numbers.repeats(starts, size, alike)
            # If the guess fails, compare only one batch next time, so that guessing costs little.
            most = min(_ALIKE, 2 * most) if same == alike else 1
            found += [starts + size * ahead for ahead in range(1, same + 1)]
            alike = same
        begin += size * (1 + alike)
        number += 1 + alike
    return np.concatenate(found)


def _head(data: bytes, position: int) -> tuple[int, int]:
    """Return the size of a record's head, which is its length field, and the position behind the record."""
    begin = position
    size = shift = 0
    while True:
        byte = data[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 49:
            raise Unusual
    if size & 1:
        raise Unusual
    return position - begin, position + (size >> 1)


def _steps(data: bytes, position: int, number: int) -> tuple[list[int], int]:
    """Follow ``number`` records; lengths of one and two bytes, the common case, are decoded in place."""
    found: list[int] = []
    for _ in range(number):
        found.append(position)
        size = data[position]
        if size & 1:
            raise Unusual
        if size < 0x80:
            position += 1 + (size >> 1)
            continue
        second = data[position + 1]
        if second < 0x80:
            position += 2 + ((size & 0x7E | second << 7) >> 1)
        else:
            position = _head(data, position)[1]
    return found, position


@dataclass(slots=True)
class _Places:
    """Positions in each record: its two deltas, its key and value, and its headers."""

    timestamp_delta: Int64s
    offset_delta: Int64s
    key: Fields
    value: Fields
    header_count: Int64s
    header_at: Int64s
    end: Int64s


def _places(numbers: Numbers, starts: Int64s, counts: Int64s, bodies: Sequence[Body]) -> _Places:
    length, at = numbers.zigzag(starts)
    end = at + length
    timestamp_delta, at = numbers.zigzag(at + 1)  # behind the attributes, which nothing uses
    offset_delta, at = numbers.zigzag(at)
    spans = [body.batch.end_offset - body.batch.base_offset for body in bodies]
    deltas = [min(body.header.last_offset_delta, span - 1) for body, span in zip(bodies, spans, strict=True)]
    last = np.repeat(np.array(deltas, np.int64), counts)
    if int(offset_delta.min()) < 0 or (offset_delta > last).any():
        raise Unusual
    key, at = _field(numbers, at, end)
    value, at = _field(numbers, at, end)
    header_count, at = numbers.zigzag(at)
    if (at > end).any() or int(header_count.min()) < 0 or int(header_count.max()) > _MOST_HEADERS:
        raise Unusual
    if (at[header_count == 0] != end[header_count == 0]).any():
        raise Unusual
    return _Places(timestamp_delta, offset_delta, key, value, header_count, at, end)


def _field(numbers: Numbers, at: Int64s, limit: Int64s) -> tuple[Fields, Int64s]:
    """Return the nullable byte strings whose lengths lie at ``at``, and the positions behind them."""
    length, begin = numbers.zigzag(at)
    missing = length < 0
    end = begin + np.maximum(length, 0)
    if (end > limit).any():
        raise Unusual
    return Fields(numbers.data, begin, end, missing if missing.any() else None), end


def _columns(numbers: Numbers, places: _Places, bodies: Sequence[Body], wanted: Wanted) -> dict[str, Make]:
    of_batches, some = wanted.of_batches, wanted.choose
    append_time = [body.header.attributes & LOG_APPEND_TIME != 0 for body in bodies]

    def timestamp() -> pa.Array:
        base = [
            body.header.max_timestamp if late else body.header.base_timestamp
            for body, late in zip(bodies, append_time, strict=True)
        ]
        delta = some(places.timestamp_delta)
        if any(append_time):
            delta = np.where(of_batches([int(late) for late in append_time]) > 0, 0, delta)
        return times(of_batches(base) + delta)

    def sequence() -> pa.Array:
        first = of_batches([body.header.base_sequence if body.header.producer_id >= 0 else -1 for body in bodies])
        return pa.array((first + some(places.offset_delta)) % SEQUENCES, mask=first < 0)

    written = [
        body.header.max_timestamp if late else body.batch.written_ms
        for body, late in zip(bodies, append_time, strict=True)
    ]
    ids = [body.header.producer_id for body in bodies]
    return {
        **wanted.columns("kafka", written, [str(one) if one >= 0 else None for one in ids], append_time),
        "key": lambda: places.key.array(wanted.chosen),
        "value": lambda: places.value.array(wanted.chosen),
        "timestamp": timestamp,
        "headers": lambda: _headers(numbers, places, wanted),
        "seq": sequence,
    }


def _headers(numbers: Numbers, places: _Places, wanted: Wanted) -> pa.Array:
    """Return each record's list of headers, null for none; all first headers are read at once, then all second."""
    count, at, limit = map(wanted.choose, (places.header_count, places.header_at, places.end))
    first = np.concatenate(([0], np.cumsum(count)))
    total = int(first[-1])
    bounds = np.zeros((4, total), np.int64)
    missing = np.zeros(total, np.bool_)
    live = np.flatnonzero(count)
    at = at[live]
    number = 0
    try:
        while len(live):
            name, at = _field(numbers, at, limit[live])
            if name.missing is not None:
                raise Unusual
            value, at = _field(numbers, at, limit[live])
            place = first[live] + number
            bounds[0, place], bounds[1, place] = name.starts, name.ends
            bounds[2, place], bounds[3, place] = value.starts, value.ends
            if value.missing is not None:
                missing[place] = value.missing
            number += 1
            goes_on = count[live] > number
            ended = ~goes_on
            if (at[ended] != limit[live][ended]).any():
                raise Unusual
            live, at = live[goes_on], at[goes_on]
    except IndexError:
        raise Unusual from None
    names = strings(Fields(numbers.data, bounds[0], bounds[1]))
    values = Fields(numbers.data, bounds[2], bounds[3], missing if missing.any() else None).array()
    return list_of(first, names, values)
