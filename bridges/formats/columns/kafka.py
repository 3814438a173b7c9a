"""Kafka's record batches as columns. Only the starts of records are followed from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.codecs.compression import PIECE, inflate
from bridges.formats.columns import Unusual
from bridges.formats.columns.rows import Body, Fields, Headers, Rows, spread
from bridges.formats.columns.varints import Int64s, Numbers, chain, zigzag
from bridges.formats.columns.weaving import Constant, Number, Part, cut, lists, weave
from bridges.formats.kafka import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchBuilder,
    Header,
    check_count,
    checksum,
    parse_header,
)
from bridges.formats.pieces import written
from bridges.formats.producer import SEQUENCES
from bridges.formats.records import Buffer, StoredBatch

_MOST_HEADERS = 64
"""Most headers of one record: each is a pass over all records."""
_ALIKE = 64
"""Most batches that are compared with the previous one in one step."""
_LARGEST_TIME = 1 << 60
"""Times beyond it could overflow when they are added."""


@dataclass(slots=True, kw_only=True)
class KafkaBody(Body):
    """Records of a record batch."""

    header: Header

    @property
    def producer(self) -> str | None:
        return str(self.header.producer_id) if self.header.producer_id >= 0 else None

    @property
    def written(self) -> int:
        return self.header.max_timestamp if self.late else self.batch.written_ms

    @property
    def late(self) -> bool:
        return self.header.attributes & LOG_APPEND_TIME != 0


def open_body(batch: StoredBatch, limit: int) -> Generator[None, None, KafkaBody | None]:
    header = parse_header(batch.payload)
    view = memoryview(batch.payload)[: header.size]
    if len(view) != header.size or header.length < HEADER_SIZE - 12:
        raise BatchInvalid(f"a batch of {header.size} bytes has {len(view)}")
    if (yield from checksum(view)) != header.crc:
        raise BatchCorrupt("the batch's checksum does not match its bytes")
    if header.attributes & CONTROL or not (header.record_count or header.codec):
        return None
    body: Buffer = view[HEADER_SIZE:]
    check_count(header, len(body), limit)
    if header.codec:
        whole = BytesIO()  # joining pieces would need their bytes twice
        spent = 0
        for piece in inflate(header.codec, body, limit):
            if piece is not None:
                spent += (yield from written(whole, piece)) + PIECE // 64
            if piece is None or spent >= PIECE:
                spent = 0
                yield None
        body = whole.getvalue()
    return KafkaBody(batch=batch, data=body, count=header.record_count, header=header)


def decode(bodies: Sequence[KafkaBody], partial: bool = False) -> Rows:
    numbers = Numbers(body.data for body in bodies)
    starts, behind = _starts(bodies, numbers, partial)
    if not len(starts):
        raise Unusual
    count = len(starts)
    length, at = numbers.zigzag(starts)
    end = at + length
    timestamp_delta, at = numbers.zigzag(at + 1)  # behind the attributes, which nothing uses
    offset_delta, at = numbers.zigzag(at)
    spans = [body.batch.end_offset - body.batch.base_offset for body in bodies]
    deltas = [min(body.header.last_offset_delta, span - 1) for body, span in zip(bodies, spans, strict=True)]
    if int(offset_delta.min()) < 0 or (offset_delta > spread(bodies, deltas, count)).any():
        raise Unusual
    key, at = _field(numbers, at, end)
    value, at = _field(numbers, at, end)
    header_count, at = numbers.zigzag(at)
    if (at > end).any() or int(header_count.min()) < 0 or int(header_count.max()) > _MOST_HEADERS:
        raise Unusual
    has_headers = header_count > 0
    if (at != end)[~has_headers].any():
        raise Unusual
    if max(abs(int(timestamp_delta.min())), int(timestamp_delta.max())) > _LARGEST_TIME:
        raise Unusual
    bases = [body.header.max_timestamp if body.late else body.header.base_timestamp for body in bodies]
    if any(abs(base) > _LARGEST_TIME for base in bases):
        raise Unusual
    if any(body.late for body in bodies):
        timestamp_delta = np.where(spread(bodies, [body.late for body in bodies], count), 0, timestamp_delta)
    sequences = [body.header.base_sequence if body.header.producer_id >= 0 else -1 for body in bodies]
    first = spread(bodies, sequences, count)
    return Rows(
        numbers,
        spread(bodies, [body.batch.base_offset for body in bodies], count) + offset_delta,
        spread(bodies, bases, count) + timestamp_delta,
        np.where(first < 0, -1, (first + offset_delta) % SEQUENCES),
        None if key.missing is not None and key.missing.all() else key,
        value,
        _headers(numbers, header_count, at, end) if has_headers.any() else None,
        behind,
    )


def _starts(bodies: Sequence[KafkaBody], numbers: Numbers, partial: bool) -> tuple[Int64s, int]:
    """Return the position at which each record begins, which is that of its length, and the end of the last record.

    If a batch has the size and the record count of the previous batch, its records most likely have the same lengths.
    That is checked for several batches at once, which costs less than following the records of each.
    """
    found: list[Int64s] = []
    begin = behind = number = 0
    most = _ALIKE
    while number < len(bodies):
        size, count = len(bodies[number].data), bodies[number].count
        starts, behind = chain(numbers, begin, begin + size, count, _head, _steps, partial)
        found.append(starts)
        alike = 0
        for body in bodies[number + 1 : number + 1 + most]:
            if len(body.data) != size or body.count != count:
                break
            alike += 1
        if alike:
            same = numbers.repeats(starts, size, alike)
            # If the guess fails, compare only one batch next time, so that guessing costs little.
            most = min(_ALIKE, 2 * most) if same == alike else 1
            found += [starts + size * ahead for ahead in range(1, same + 1)]
            alike = same
            behind += size * same
        begin += size * (1 + alike)
        number += 1 + alike
    return np.concatenate(found), behind


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


def _steps(data: bytes, position: int, end: int, number: int) -> tuple[list[int], int]:
    """Follow ``number`` records; lengths of one and two bytes, the common case, are decoded in place."""
    found: list[int] = []
    for _ in range(number):
        if position >= end:
            break
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


def _field(numbers: Numbers, at: Int64s, limit: Int64s) -> tuple[Fields, Int64s]:
    """Return the nullable byte strings whose lengths lie at ``at``, and the positions behind them."""
    length, begin = numbers.zigzag(at)
    missing = length < 0
    end = begin + np.maximum(length, 0)
    if (end > limit).any():
        raise Unusual
    return Fields(numbers.data, begin, end, missing if missing.any() else None), end


def _headers(numbers: Numbers, counts: Int64s, begins: Int64s, limits: Int64s) -> Callable[[], Headers]:
    """Return the function that reads headers: all first ones at once, then all second ones."""

    def read() -> Headers:
        first = np.concatenate(([0], np.cumsum(counts)))
        total = int(first[-1])
        bounds = np.zeros((4, total), np.int64)
        missing = np.zeros(total, np.bool_)
        live = np.flatnonzero(counts)
        at = begins[live]
        number = 0
        try:
            while len(live):
                name, at = _field(numbers, at, limits[live])
                if name.missing is not None:
                    raise Unusual
                value, at = _field(numbers, at, limits[live])
                place = first[live] + number
                bounds[0, place], bounds[1, place] = name.starts, name.ends
                bounds[2, place], bounds[3, place] = value.starts, value.ends
                if value.missing is not None:
                    missing[place] = value.missing
                number += 1
                goes_on = counts[live] > number
                ended = ~goes_on
                if (at[ended] != limits[live][ended]).any():
                    raise Unusual
                live, at = live[goes_on], at[goes_on]
        except IndexError:
            raise Unusual from None
        names = Fields(numbers.data, bounds[0], bounds[1])
        return first, names, Fields(numbers.data, bounds[2], bounds[3], missing if missing.any() else None)

    return read


def encode(
    builders: Sequence[BatchBuilder], rows: Rows, counts: Sequence[int], producers: Sequence[str | None]
) -> None:
    """Add ``rows`` to ``builders``: to each as many as its count."""
    firsts = np.cumsum([0, *counts])
    times = rows.timestamps
    bases = [builder.base_of(int(times[first])) for builder, first in zip(builders, firsts, strict=False)]
    newest = np.maximum.reduceat(times, firsts[:-1]).tolist()
    distances = rows.offsets - np.repeat([builder.base_offset for builder in builders], counts)
    parts: list[Part] = [
        Constant(b"\0"),
        Number(zigzag(times - np.repeat(bases, counts))),
        Number(distances << 1),
        *([Constant(b"\1")] if rows.keys is None else _nullable(rows.keys)),
        *_nullable(rows.values),
        *_encode_headers(rows),
    ]
    data, ends = weave(len(rows), parts, lambda size: [Number(size << 1)])
    for builder, count, most, piece in zip(builders, counts, newest, cut(data, ends, firsts), strict=True):
        builder.add_encoded(piece, count, most)


def _encode_headers(rows: Rows) -> list[Part]:
    if rows.headers is None:
        return [Constant(b"\0")]
    first, names, values = rows.headers()
    return [Number(np.diff(first) << 1), lists(first, [*_nullable(names), *_nullable(values)])]


def _nullable(fields: Fields) -> list[Part]:
    sizes = fields.sizes << 1
    return [Number(sizes if fields.missing is None else np.where(fields.missing, 1, sizes)), fields]
