"""Record batches of sbp-v0.1 (docs/protocols/sbp.md, "Record batches of the document"). Big-endian around little-endian
tables::

    i8 magic 0x22 | i64 base offset | i32 meta length | meta | records
    record: i32 meta length | i32 body length | meta | body

No count of records is stored and a batch does not tell its length: it ends where its bytes end, or where another
batch's magic stands in the place of a record (whose first byte is never 0x22: its meta would have half a gigabyte).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

import msgspec

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.wire.flat import Table, Tables, Text, i16, i32, i64

BATCH_MAGIC = 0x22

FORMAT_FLAG = 4
"""Format number, in the low four bits of an entry's flags, of an entry whose payload is one record batch."""

FORMAT_MASK = 0x0F

MAX_TIMESTAMP_DELTA = (1 << 31) - 1
"""Most milliseconds between the first record of a batch and another."""

WRAPPED = "anabranch.wrapped"
"""Key of the batch property that marks a batch around payloads of another format (``wrapped.py``); the value is the
number of that format."""

_HEAD = Struct(">BqI")
_BASE = Struct(">q")
_RECORD = Struct(">II")
_HEAD_BYTES = _HEAD.size
RECORDS_IN_A_TURN = 50_000
"""Records walked without a break; 16 MiB hold two million."""
EMPTY_RECORD_BYTES = _RECORD.size
_EMPTY_RECORDS = re.compile(rb"(?:\0{%d})+" % EMPTY_RECORD_BYTES)
"""Records without meta and body, any number of them: there are as many as a wrapped payload has records."""


class KeyValue(msgspec.Struct):
    key: str
    value: str


class BatchMeta(msgspec.Struct):
    """Meta of a batch. ``base_timestamp`` in ms. ``last_offset_delta`` is the writer's claim: some writers count from
    0, others from 1.
    """

    stream_id: int = 0
    flags: int = 0
    base_offset: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    properties: list[KeyValue] = msgspec.field(default_factory=list)


class RecordMeta(msgspec.Struct):
    offset_delta: int = 0
    timestamp_delta: int = 0
    headers: list[KeyValue] = msgspec.field(default_factory=list)
    properties: list[KeyValue] = msgspec.field(default_factory=list)


KEY_VALUE = Table(KeyValue, Text("key", always=True), Text("value", always=True))
BATCH_META = Table(
    BatchMeta,
    i64("stream_id"),
    i16("flags"),
    i64("base_offset"),
    i32("last_offset_delta"),
    i64("base_timestamp"),
    Tables("properties", KEY_VALUE),
)
RECORD_META = Table(
    RecordMeta,
    i32("offset_delta"),
    i32("timestamp_delta"),
    Tables("headers", KEY_VALUE),
    Tables("properties", KEY_VALUE),
)


class DocumentRecord(msgspec.Struct):
    """A record. ``timestamp`` in ms, 0 when unknown; ``offset`` is -1 until it is read back."""

    body: Buffer
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    properties: list[tuple[str, str]] = msgspec.field(default_factory=list)
    timestamp: int = 0
    offset: int = -1


class RecordBatch(msgspec.Struct):
    """A batch read back: offsets ``[base_offset, end_offset)``. ``wrapped``: the format number of the payloads in the
    bodies of its records, -1 for a batch that wraps none.
    """

    base_offset: int
    end_offset: int
    meta: BatchMeta
    records: list[DocumentRecord]
    wrapped: int = -1


# --- walking --------------------------------------------------------------------------------------------------------


def _first_record(data: memoryview, at: int) -> int:
    """Return where the records of the batch at ``at`` begin."""
    if len(data) - at < _HEAD_BYTES:
        raise DecodeError(f"a record batch of {len(data) - at} bytes has no head")
    magic, _, meta_length = _HEAD.unpack_from(data, at)
    if magic != BATCH_MAGIC:
        raise DecodeError(f"record batch magic is {magic:#x}, not {BATCH_MAGIC:#x}")
    if meta_length > len(data) - at - _HEAD_BYTES:
        raise DecodeError("the meta of a record batch is longer than the batch")
    return int(at + _HEAD_BYTES + meta_length)


def next_record(data: memoryview, at: int) -> tuple[int, int]:
    """Return where the body of the record at ``at`` begins and ends."""
    left = len(data) - at - 8
    if left < 0:
        raise DecodeError("a record batch ends inside a record")
    meta_length, body_length = _RECORD.unpack_from(data, at)
    if meta_length + body_length > left:
        raise DecodeError("a record is longer than its batch")
    body = at + 8 + int(meta_length)
    return body, body + int(body_length)


def parse_head(data: memoryview, *, lenient: bool = False) -> tuple[int, BatchMeta, int]:
    """Return base offset and meta of the batch that begins ``data``, and where its records begin. Raises
    ``DecodeError``; with ``lenient`` not for a malformed meta, which the server stores unchecked: the result is then an
    empty meta.
    """
    at = _first_record(data, 0)
    meta: BatchMeta = _read_meta(BATCH_META, data[_HEAD_BYTES:at], lenient)
    return int(_BASE.unpack_from(data, 1)[0]), meta, at


def parse_record_meta(data: memoryview, *, lenient: bool = False) -> RecordMeta:
    """Return the meta of a record, with ``lenient`` as in :func:`parse_head`."""
    meta: RecordMeta = _read_meta(RECORD_META, data, lenient)
    return meta


def wrapped_format(meta: BatchMeta) -> int:
    """Return the format number of the payloads in a batch, -1 for a batch with records of its own."""
    for pair in meta.properties:
        if pair.key == WRAPPED and pair.value.isdecimal():
            return int(pair.value[:9])
    return -1


def end_of_empty_records(data: memoryview, at: int) -> int:
    """Return where the run of empty records that may begin at ``at`` ends."""
    run = _EMPTY_RECORDS.match(data, at)
    return at if run is None else run.end()


def count_records(batch: Buffer) -> int:
    """Count the records of exactly one batch, by walking it. Raises ``DecodeError``, also for a batch without
    records.
    """
    counting = counting_records(batch)
    try:
        while True:
            next(counting)
    except StopIteration as end:
        return int(end.value)


def counting_records(batch: Buffer) -> Generator[None, None, int]:
    """Count as :func:`count_records` does, in steps: yield after each ``RECORDS_IN_A_TURN`` while records are left."""
    data = memoryview(batch)
    size = len(data)
    at = _first_record(data, 0)
    unpack = _RECORD.unpack_from
    count = walked = 0
    while at <= size - 8:
        if walked == RECORDS_IN_A_TURN:
            walked = 0
            yield
        walked += 1
        meta_length, body_length = unpack(data, at)
        if not meta_length and not body_length:
            after = end_of_empty_records(data, at)
            count += (after - at) // EMPTY_RECORD_BYTES
            at = after
            continue
        at += 8 + meta_length + body_length
        count += 1
    if at != size:
        raise DecodeError("a record batch ends inside a record")
    if not count:
        raise DecodeError("a record batch without records")
    return count


def _read_meta(table: Table, data: memoryview, lenient: bool) -> Any:
    """Read a meta; an empty one has the defaults."""
    if not len(data):
        return table.make()
    try:
        return table.read(bytes(data))
    except DecodeError:
        if lenient:
            return table.make()
        raise


def base_offset_of(batch: Buffer) -> int:
    """Return the offset written in a batch, -1 when it is too short for one."""
    return int(_BASE.unpack_from(batch, 1)[0]) if len(batch) > _HEAD_BYTES else -1


def set_base_offset(batch: Buffer, base_offset: int) -> None:
    """Write the offset the server has assigned; the meta, a copy of the client's, stays as it is."""
    _BASE.pack_into(batch, 1, base_offset)


def split_batches(data: Buffer) -> list[memoryview]:
    """Return the batches that fill ``data``, one after the other. Raises ``DecodeError``."""
    view = memoryview(data)
    return [view[start:end] for start, end in pairwise([*_starts(view), len(view)])]


def _starts(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        yield at
        at = _first_record(view, at)
        while at < len(view) and view[at] != BATCH_MAGIC:
            after = end_of_empty_records(view, at)
            at = after if after > at else next_record(view, at)[1]


# --- reading --------------------------------------------------------------------------------------------------------


def parse_batches(data: Buffer) -> list[RecordBatch]:
    """Parse the batches that a FETCH returned. Bodies are slices of ``data``. Raises ``DecodeError``."""
    return [parse_batch(batch) for batch in split_batches(data)]


def parse_batch(batch: Buffer, *, lenient: bool = False) -> RecordBatch:
    """Parse exactly one batch. Its records are numbered from the base offset; their deltas are the writer's claim and
    count only in batches the server made. Raises ``DecodeError``; with ``lenient`` not for a malformed meta, which the
    server stores unchecked: it is then read as empty.
    """
    data = memoryview(batch)
    base, meta, at = parse_head(data, lenient=lenient)
    wrapped = wrapped_format(meta)
    records = list(_records(data, base, meta, at, wrapped, lenient))
    return RecordBatch(base, records[-1].offset + 1 if records else base, meta, records, wrapped)


def read_records(batch: Buffer, *, lenient: bool = False) -> Iterator[DocumentRecord]:
    """Yield the records of exactly one batch as :func:`parse_batch` reads them."""
    data = memoryview(batch)
    base, meta, at = parse_head(data, lenient=lenient)
    return _records(data, base, meta, at, wrapped_format(meta), lenient)


def _records(
    data: memoryview, base: int, meta: BatchMeta, at: int, wrapped: int, lenient: bool
) -> Iterator[DocumentRecord]:
    end = base
    while at < len(data):
        body, after = next_record(data, at)
        of_record = parse_record_meta(data[at + 8 : body], lenient=lenient)
        end = max(end, base + of_record.offset_delta if wrapped >= 0 else end)
        yield DocumentRecord(
            data[body:after],
            [(pair.key, pair.value) for pair in of_record.headers],
            [(pair.key, pair.value) for pair in of_record.properties],
            meta.base_timestamp + of_record.timestamp_delta,
            end,
        )
        end += 1
        at = after


# --- writing --------------------------------------------------------------------------------------------------------


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(key, value) for key, value in pairs]


def pack_head(base_offset: int, meta: BatchMeta) -> bytes:
    """Encode the head and the meta of a batch."""
    table = BATCH_META.write(meta)
    return _HEAD.pack(BATCH_MAGIC, base_offset, len(table)) + table


def pack_record_head(meta: RecordMeta, body_length: int) -> bytes:
    """Encode the head and the meta of a record."""
    table = RECORD_META.write(meta)
    return _RECORD.pack(len(table), body_length) + table


def encode_batch(
    records: Sequence[DocumentRecord],
    *,
    stream_id: int = 0,
    flags: int = 0,
    properties: Sequence[tuple[str, str]] = (),
) -> bytearray:
    """Encode a batch to append; its base offset is 0 until the server assigns one.

    Raises ``ValueError`` for no records, and for records more than 24 days apart, which a batch cannot hold together.
    """
    if not records:
        raise ValueError("a record batch holds at least one record")
    base_timestamp = records[0].timestamp
    if any(abs(record.timestamp - base_timestamp) > MAX_TIMESTAMP_DELTA for record in records):
        raise ValueError(f"records of one batch may be at most {MAX_TIMESTAMP_DELTA} ms apart")
    meta = BatchMeta(stream_id, flags, 0, len(records) - 1, base_timestamp, _pairs(properties))
    out = bytearray(pack_head(0, meta))
    for delta, record in enumerate(records):
        of_record = RecordMeta(
            delta, record.timestamp - base_timestamp, _pairs(record.headers), _pairs(record.properties)
        )
        out += pack_record_head(of_record, len(record.body))
        out += record.body
    return out
