"""Appends of Pravega's writers as a stored format: the append's bytes verbatim behind a header.

A segment is a log of bytes. What writers of events append are whole events, each a head of eight bytes (type 0, length)
and its data; others append any bytes (byte streams). The header says which of the two a batch is (:class:`Shape`). It
counts bytes as readers of the segment do, so positions need no look at the events.

How many events there are is the writer's claim. It is believed for the number of offsets, as far as the bytes can hold
so many; where the bytes turn out to be no such events, the batch is one record of all its bytes, and its other offsets
are gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.base import BatchInfo, FormatId
from bridges.formats.checksum import crc32c
from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.records import Buffer, Record, StoredBatch

_HEAD = struct.Struct(">IBBh16sqiIIqq")
HEADER_SIZE = _HEAD.size
_BODY_OF_CHECKSUM = 4
_VERSION = 1
_CRC = struct.Struct(">I")
_EVENT = struct.Struct(">iI")
EVENT_HEAD = _EVENT.size
"""Bytes in front of an event's data: type and length."""
OPAQUE = "pravega.bytes"
"""What a record's ``codec`` says of bytes that are no whole events."""
NO_WRITER = bytes(16)
_AT_ONCE = 200
_PIECE = 64 * 1024


class Shape(IntEnum):
    """What a batch's bytes are; stored, never renumber."""

    EVENTS = 0
    """As many whole events as the batch has offsets."""
    BYTES = 1
    """Any bytes; the batch has one offset."""
    SCATTERED = 2
    """Whole events with gaps between their offsets: in front of them stand their places in the batch, 4 bytes each."""


class Header(NamedTuple):
    """What stands in front of the bytes. ``last_number`` and ``events`` are the writer's claims, ``time_ms`` is when
    the append came, and ``transaction`` the id of the producer in whose transaction it was committed, or -1."""

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
    """The shape and the number of offsets of an append of ``size`` bytes whose writer claims ``events`` events.

    More than ``most``, or than the bytes could hold, are not believed.
    """
    if 1 <= events <= most and events * EVENT_HEAD <= size:
        return Shape.EVENTS, events
    return Shape.BYTES, 1


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
    """A batch of ``records`` offsets whose bytes are ``parts``, ``size`` bytes together."""
    transaction, epoch = (-1, 0) if part is None else part[:2]
    head = bytearray(
        _HEAD.pack(0, _VERSION, shape, epoch, writer_id, last_number, events, records, size, time_ms, transaction)
    )
    checksum = crc32c(memoryview(head)[_BODY_OF_CHECKSUM:])
    for one in parts:
        checksum = crc32c(one, checksum)
    _CRC.pack_into(head, 0, checksum)
    return b"".join((head, *parts))


def parse_header(payload: Buffer) -> Header:
    """The header, whose sizes agree with the bytes that are there. Raises BatchInvalid."""
    if len(payload) < HEADER_SIZE:
        raise BatchInvalid(f"a batch of Pravega's has {len(payload)} bytes, fewer than its header")
    _, version, shape, epoch, *fields = _HEAD.unpack_from(payload)
    if version != _VERSION or shape > Shape.SCATTERED:
        raise BatchInvalid(f"a batch of Pravega's has version {version} and shape {shape}, which are not known")
    header = Header(shape, epoch, *fields)
    if HEADER_SIZE + _places_size(header) + header.size != len(payload):
        raise BatchInvalid("a batch of Pravega's has another length than its header says")
    return header


def _places_size(header: Header) -> int:
    return 4 * header.records if header.shape == Shape.SCATTERED else 0


def byte_count(payload: Buffer) -> int:
    """How many bytes of its segment a batch is. Raises BatchInvalid."""
    return parse_header(payload).size


def segment_bytes(payload: Buffer) -> memoryview:
    """The bytes that readers of the segment get. Raises BatchInvalid."""
    header = parse_header(payload)
    return memoryview(payload)[HEADER_SIZE + _places_size(header) :]


def check(payload: Buffer) -> Header:
    """The header of a batch whose checksum was compared with its bytes. Raises BatchInvalid, BatchCorrupt."""
    header = parse_header(payload)
    view = memoryview(payload)
    if crc32c(view[_BODY_OF_CHECKSUM:]) != _CRC.unpack_from(payload)[0]:
        raise BatchCorrupt("the checksum of a batch of Pravega's does not match its bytes")
    return header


class PravegaFormat:
    """The stored-format plug of Pravega's appends (see :class:`bridges.formats.base.StoredFormat`)."""

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
        return None  # where its bytes lie is derived from what is before them

    def place(self, payload: Buffer, base_offset: int) -> Buffer:
        return payload

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        header = check(batch.payload)
        base, end = batch.base_offset, batch.end_offset
        body = memoryview(batch.payload)[HEADER_SIZE:]
        yield None  # the checksum was compared with up to 16 MiB
        # Where events end is looked at first: none is shown if they are not what the header claims.
        events = 0
        if header.shape != Shape.BYTES:
            at = _places_size(header)
            while at + EVENT_HEAD <= len(body):
                kind, size = _EVENT.unpack_from(body, at)
                if kind or at + EVENT_HEAD + size > len(body):
                    break
                at += EVENT_HEAD + size
                events += 1
                if not events % _AT_ONCE:
                    yield None
            if at != len(body) or events != header.records:
                events = -1
        if header.shape == Shape.BYTES or events < 0 or (header.shape == Shape.EVENTS and events > end - base):
            if header.size and base >= start:
                opaque = bytes(body[_places_size(header) :])
                yield _record(header, opaque, base, batch.written_ms, -1, OPAQUE)
            return
        at = _places_size(header)
        work = 0
        last = -1
        for number in range(events):
            _, size = _EVENT.unpack_from(body, at)
            place = number
            if header.shape == Shape.SCATTERED:
                (place,) = _CRC.unpack_from(body, 4 * number)
                if not last < place < end - base:
                    raise BatchInvalid("the places of a batch's events are not in order within it")
                last = place
            if base + place >= start:
                # A writer numbers its events one by one, or the append as a whole.
                sequence = header.last_number - events + 1 + number if header.events == events else -1
                value = bytes(body[at + EVENT_HEAD : at + EVENT_HEAD + size])
                yield _record(header, value, base + place, batch.written_ms, sequence)
                work += size
            at += EVENT_HEAD + size
            work += 1
            if work >= _PIECE or not number % _AT_ONCE:
                work = 0
                yield None

    def times(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Iterator[tuple[int, int] | None]:
        for one in self.records(batch, limit):
            yield None if one is None else (one.offset, one.timestamp)

    def event_bytes(self, payload: Buffer) -> int | None:
        return byte_count(payload)

    def builder(self, base_offset: int, end_offset: int) -> PravegaBuilder:
        return PravegaBuilder(base_offset, end_offset)


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


class PravegaBuilder:
    """Each record's value becomes an event; keys and headers are lost, as Pravega has no place for them."""

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

    def finish(self) -> Buffer:
        count = len(self._places)
        if count and count == self._end - self._base:
            return encode(self._parts, self._size, Shape.EVENTS, count, time_ms=self._time)
        places = struct.pack(f">{count}I", *self._places)
        return encode([places, *self._parts], self._size, Shape.SCATTERED, count, time_ms=self._time)
