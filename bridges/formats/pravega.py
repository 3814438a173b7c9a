"""Appends of Pravega's writers as a stored format: the append's bytes verbatim behind a header.

A segment is a log of bytes. Event writers append whole events, each a head of eight bytes (type 0, length) and its
data; byte streams append any bytes. The header says which of the two a batch is (:class:`Shape`). It counts bytes as
readers of the segment do, so positions need no parsing of events.

The number of events is the writer's claim. It determines the number of offsets, as far as the bytes can hold so many
events. If the bytes are fewer whole events, these have the first offsets and the rest are gaps: Java's writer also
counts an empty event that it sends after a scale. Bytes that are not whole events, or more events than offsets, are one
record, and the other offsets gaps.

Appends that were gathered into one batch each have their own claim in front of the bytes, so that a wrong one spoils
only its own append.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.base import BatchInfo, FinishedAtOnce, FormatId
from bridges.formats.checksum import crc32c
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.records import Buffer, Record, StoredBatch

_HEAD = struct.Struct(">IBBh16sqiIIqq")
HEADER_SIZE = _HEAD.size
_BODY_OF_CHECKSUM = 4
_VERSION = 1
_CRC = struct.Struct(">I")
_CLAIM = struct.Struct(">II")
_EVENT = struct.Struct(">iI")
_SIZE = struct.Struct(">4xI")
EVENT_HEAD = _EVENT.size
"""Bytes in front of an event's data: type and length."""
OPAQUE = "pravega.bytes"
"""A record's ``codec`` for bytes that are not whole events."""
NO_WRITER = bytes(16)
_AT_ONCE = 200
_PIECE = 64 * 1024


class Shape(IntEnum):
    """The kind of a batch's bytes; stored, never renumber."""

    EVENTS = 0
    """Whole events, as many as the batch has offsets, or fewer."""
    BYTES = 1
    """Any bytes; the batch has one offset."""
    SCATTERED = 2
    """Whole events with gaps between their offsets. The events' places in the batch precede them, 4 bytes each."""
    GATHERED = 3
    """Several consecutive appends. Their number precedes them, 4 bytes, and then for each its number of offsets and of
    bytes, 4 bytes each."""


class Header(NamedTuple):
    """The header in front of the bytes. ``last_number`` and ``events`` are the writer's claims, ``time_ms`` is when the
    append arrived, and ``transaction`` the id of the producer in whose transaction it was committed, or -1."""

    shape: int
    epoch: int
    writer_id: bytes
    last_number: int
    events: int
    records: int
    size: int
    time_ms: int
    transaction: int


def shape_of(events: int, size: int, most: int) -> tuple[Shape, int]:
    """Return the shape and the number of offsets of an append of ``size`` bytes whose writer claims ``events`` events.

    The claim is reduced to what the bytes could hold. If it then exceeds ``most``, the append counts as bytes.
    """
    events = min(events, size // EVENT_HEAD)
    if 1 <= events <= most:
        return Shape.EVENTS, events
    return Shape.BYTES, 1


def gathered(claims: Sequence[tuple[int, int]], most: int) -> tuple[Shape, int, bytes]:
    """Return the shape and the number of offsets of appends that become one batch, and the bytes to put in front of
    theirs. ``claims`` has (events claimed, bytes) of each append; at least one has bytes."""
    if len(claims) > 1:
        laid: list[int] = []
        records = 0
        for events, size in claims:
            if size:
                possible = size // EVENT_HEAD
                offsets = events if events < possible else possible
                if not 1 <= offsets <= most:  # shape_of inlined: the call would be most of the cost
                    offsets = 1
                records += offsets
                laid += (offsets, size)
        if len(laid) > 2:
            return Shape.GATHERED, records, struct.pack(f">{len(laid) + 1}I", len(laid) // 2, *laid)
        claims = [one for one in claims if one[1]]
    events, size = claims[0]
    shape, records = shape_of(events, size, most)
    return shape, records, b""


def encode(
    parts: list[Buffer],
    size: int,
    shape: Shape,
    records: int,
    *,
    writer_id: bytes = NO_WRITER,
    last_number: int = -1,
    events: int = 0,
    time_ms: int = -1,
    part: InTransaction | None = None,
) -> bytes:
    """Encode a batch of ``records`` offsets. ``parts`` are its bytes; ``size`` counts those of the segment, without the
    prefix of the shape."""
    transaction, epoch = (-1, 0) if part is None else part[:2]
    head = bytearray(
        _HEAD.pack(0, _VERSION, shape, epoch, writer_id, last_number, events, records, size, time_ms, transaction)
    )
    checksum = crc32c(memoryview(head)[_BODY_OF_CHECKSUM:])
    for one in parts:
        checksum = crc32c(one, checksum)
    _CRC.pack_into(head, 0, checksum)
    return b"".join((bytes(head), *parts))  # a join of bytes alone releases the interpreter


def parse_header(payload: Buffer) -> Header:
    """Return the header, after checking its sizes against the payload. Raises BatchInvalid."""
    if len(payload) < HEADER_SIZE:
        raise BatchInvalid(f"a batch of Pravega's has {len(payload)} bytes, fewer than its header")
    _, version, shape, epoch, *fields = _HEAD.unpack_from(payload)
    if version != _VERSION or shape > Shape.GATHERED:
        raise BatchInvalid(f"a batch of Pravega's has version {version} and shape {shape}, which are not known")
    header = Header(shape, epoch, *fields)
    if HEADER_SIZE + _front(header, payload) + header.size != len(payload):
        raise BatchInvalid("a batch of Pravega's has another length than its header says")
    return header


def _front(header: Header, payload: Buffer) -> int:
    """Return the number of bytes between the header and the segment's bytes."""
    if header.shape == Shape.SCATTERED:
        return _CRC.size * header.records
    if header.shape == Shape.GATHERED and len(payload) >= HEADER_SIZE + _CRC.size:
        return _CRC.size + _CLAIM.size * int(_CRC.unpack_from(payload, HEADER_SIZE)[0])
    return 0


def byte_count(payload: Buffer) -> int:
    """Return how many bytes of its segment a batch is. Raises BatchInvalid."""
    return parse_header(payload).size


def segment_bytes(payload: Buffer) -> memoryview:
    """Return the bytes that readers of the segment get. Raises BatchInvalid."""
    header = parse_header(payload)
    return memoryview(payload)[HEADER_SIZE + _front(header, payload) :]


def claims_of(header: Header, payload: Buffer) -> list[tuple[int, int]]:
    """Return (offsets, bytes) of each append of a batch, in order. Raises BatchInvalid."""
    if header.shape != Shape.GATHERED:
        return [(header.records, header.size)]
    front = memoryview(payload)[HEADER_SIZE + _CRC.size : HEADER_SIZE + _front(header, payload)]
    found: list[tuple[int, int]] = list(_CLAIM.iter_unpack(front))
    whole = sum(size for _, size in found) == header.size and sum(offsets for offsets, _ in found) == header.records
    if not whole or not all(offsets for offsets, _ in found):
        raise BatchInvalid("the appends of a batch of Pravega's are not what its header says of all of them")
    return found


def check(payload: Buffer) -> Header:
    """Return the header of a batch after verifying its checksum. Raises BatchInvalid, BatchCorrupt."""
    header = parse_header(payload)
    view = memoryview(payload)
    if crc32c(view[_BODY_OF_CHECKSUM:]) != _CRC.unpack_from(payload)[0]:
        raise BatchCorrupt("the checksum of a batch of Pravega's does not match its bytes")
    return header


class PravegaFormat:
    """The stored format of Pravega's appends (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FormatId.PRAVEGA
    name = "pravega"

    def describe(self, payload: Buffer) -> BatchInfo:
        header = parse_header(payload)
        stamp = None
        if header.writer_id != NO_WRITER:
            stamp = EventStamp(header.writer_id, header.last_number, header.events)
        part = InTransaction(header.transaction, header.epoch) if header.transaction >= 0 else None
        return BatchInfo(header.time_ms, -1, stamp, transaction=part)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        return None  # positions are derived from the batches before it

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        header = check(batch.payload)
        base, end = batch.base_offset, batch.end_offset
        body = memoryview(batch.payload)[HEADER_SIZE:]
        if len(batch.payload) > _PIECE:
            yield None  # the checksum has just covered up to 16 MiB
        span = end - base
        if header.shape == Shape.SCATTERED:
            at = _front(header, batch.payload)
            events = yield from _whole_events(body, at, len(body))
            if events == header.records:
                yield from _show_events(header, batch, body, at, range(events), start, scattered=True)
            elif header.size and base >= start:
                yield _record(header, bytes(body[at:]), base, batch.written_ms, -1, OPAQUE)
            return
        at = len(body) - header.size
        if header.records > span:
            if base >= start:
                yield _record(header, bytes(body[at:]), base, batch.written_ms, -1, OPAQUE)
            return
        place = 0
        for number, (offsets, size) in enumerate(claims_of(header, batch.payload), 1):
            # Find the events' ends first: an append that does not parse yields no event.
            events = yield from _whole_events(body, at, at + size)
            # A batch of bytes has one event only if its writer claimed too many.
            room = offsets if header.shape != Shape.BYTES or header.events > 1 else 0
            if 0 < events <= room:
                exact = events == offsets and header.events == header.records
                yield from _show_events(header, batch, body, at, range(place, place + events), start, numbered=exact)
            elif size and base + place >= start:
                yield _record(header, bytes(body[at : at + size]), base + place, batch.written_ms, -1, OPAQUE)
            at += size
            place += offsets
            if not number % _AT_ONCE:
                yield None

    def event_bytes(self, payload: Buffer) -> int | None:
        return byte_count(payload)

    def builder(self, base_offset: int, end_offset: int) -> PravegaBuilder:
        return PravegaBuilder(base_offset, end_offset)


def _whole_events(body: memoryview, at: int, end: int) -> Generator[None, None, int]:
    """Return how many whole events the bytes from ``at`` to ``end`` are; -1 if they are not whole events."""
    events = 0
    while at + EVENT_HEAD <= end:
        kind, size = _EVENT.unpack_from(body, at)
        if kind:
            return -1
        at += EVENT_HEAD + size
        events += 1
        if not events % _AT_ONCE:
            yield None
    return events if at == end else -1


def _show_events(
    header: Header,
    batch: StoredBatch,
    body: memoryview,
    at: int,
    places: range,
    start: int,
    *,
    scattered: bool = False,
    numbered: bool = True,
) -> Iterator[Record | None]:
    """Yield the events from ``at`` on, which were checked before, as records at ``places`` in their batch."""
    base, span = batch.base_offset, batch.end_offset - batch.base_offset
    # A writer numbers its events one by one, or an append as a whole.
    first = header.last_number - header.events + 1 if numbered and header.events == header.records else None
    work = 0
    last = -1
    for number in places:
        _, size = _EVENT.unpack_from(body, at)
        place = number
        if scattered:
            (place,) = _CRC.unpack_from(body, _CRC.size * number)
            if not last < place < span:
                raise BatchInvalid("the places of a batch's events are not in order within it")
            last = place
        if base + place >= start:
            value = bytes(body[at + EVENT_HEAD : at + EVENT_HEAD + size])
            yield _record(header, value, base + place, batch.written_ms, -1 if first is None else first + number)
            work += size
        at += EVENT_HEAD + size
        work += _PIECE // _AT_ONCE
        # An event's overhead counts like some hundred of its bytes.
        if work >= _PIECE:
            work = 0
            yield None


def _record(
    header: Header, value: bytes, offset: int, written_ms: int, sequence: int, codec: str | None = None
) -> Record:
    producer = None if header.writer_id == NO_WRITER else str(UUID(bytes=header.writer_id))
    return Record(
        None,
        value,
        timestamp=header.time_ms,
        offset=offset,
        producer=producer,
        sequence=sequence if producer is not None else -1,
        written=written_ms,
        codec=codec,
    )


class PravegaBuilder(FinishedAtOnce):
    """A builder that makes an event of each record's value; keys and headers are lost, because Pravega has no place for
    them."""

    __slots__ = ("_base", "_end", "_parts", "_places", "_size", "_time")

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self._base = base_offset
        self._end = end_offset
        self._parts: list[Buffer] = []
        self._places: list[int] = []
        self._size = 0
        self._time = -1

    def __len__(self) -> int:
        return len(self._places)

    def add(self, record: Record) -> None:
        value = record.value or b""
        self._parts += (_EVENT.pack(0, len(value)), value)
        self._places.append(record.offset - self._base)
        self._size += EVENT_HEAD + len(value)
        self._time = max(self._time, record.timestamp)

    def add_encoded(self, events: bytes, first_offset: int, count: int, max_time: int) -> None:
        """Add encoded events of consecutive offsets."""
        self._parts.append(events)
        self._size += len(events)
        first = first_offset - self._base
        self._places += range(first, first + count)
        self._time = max(self._time, max_time)

    def finish(self) -> Buffer:
        count = len(self._places)
        if count and count == self._end - self._base:
            return encode(self._parts, self._size, Shape.EVENTS, count, time_ms=self._time)
        places = struct.pack(f">{count}I", *self._places)
        return encode([places, *self._parts], self._size, Shape.SCATTERED, count, time_ms=self._time)
