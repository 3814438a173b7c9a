"""Record batches of sbp-v0.1 (reference/sbp.md, section 1.3). Big-endian around little-endian tables::

    i8 magic 0x22 | i64 base offset | i32 meta length | meta | records
    record: i32 meta length | i32 body length | meta | body

No count of records is stored and a batch does not tell its length: it ends where its bytes end, or where another
batch's magic stands in the place of a record (whose first byte is never 0x22: its meta would have half a gigabyte).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import Any

from sbp_back.errors import DecodeError
from sbp_back.flat import Table, Tables, Text, i16, i32, i64
from sbp_back.model import Buffer, Entry

BATCH_MAGIC = 0x22

FORMAT_FLAG = 4
"""Format number, in the low four bits of an entry's flags, of an entry whose payload is one record batch."""

FORMAT_MASK = 0x0F

MAX_TIMESTAMP_DELTA = (1 << 31) - 1
"""Most milliseconds between the first record of a batch and another."""

WRAPPED = "anabranch.wrapped"
"""Key of the batch property that marks a batch made by the server: its one record's body is the payload of a foreign
entry, and the value is the number of that payload's format. The offsets before that record belong to it too."""

_HEAD = Struct(">BqI")
_BASE = Struct(">q")
_RECORD = Struct(">II")
_HEAD_BYTES = _HEAD.size


@dataclass(slots=True)
class KeyValue:
    key: str
    value: str


@dataclass(slots=True)
class BatchMeta:
    """``base_timestamp`` in ms. ``last_offset_delta`` is the writer's claim: some count from 0, some from 1."""

    stream_id: int = 0
    flags: int = 0
    base_offset: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    properties: list[KeyValue] = field(default_factory=list)


@dataclass(slots=True)
class RecordMeta:
    offset_delta: int = 0
    timestamp_delta: int = 0
    headers: list[KeyValue] = field(default_factory=list)
    properties: list[KeyValue] = field(default_factory=list)


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


@dataclass(slots=True)
class DocumentRecord:
    """A record. ``timestamp`` in ms, 0 when unknown; ``offset`` is -1 until it is read back."""

    body: Buffer
    headers: list[tuple[str, str]] = field(default_factory=list)
    properties: list[tuple[str, str]] = field(default_factory=list)
    timestamp: int = 0
    offset: int = -1


@dataclass(slots=True)
class RecordBatch:
    """A batch read back: offsets ``[base_offset, end_offset)``. ``wrapped``: the format number of a foreign entry that
    is the body of the only record, -1 for a batch that was written as one."""

    base_offset: int
    end_offset: int
    meta: BatchMeta
    records: list[DocumentRecord]
    wrapped: int = -1


# --- walking --------------------------------------------------------------------------------------------------------


def _first_record(data: memoryview, at: int) -> int:
    """Where the records of the batch at ``at`` begin."""
    if len(data) - at < _HEAD_BYTES:
        raise DecodeError(f"a record batch of {len(data) - at} bytes has no head")
    magic, _, meta_length = _HEAD.unpack_from(data, at)
    if magic != BATCH_MAGIC:
        raise DecodeError(f"record batch magic is {magic:#x}, not {BATCH_MAGIC:#x}")
    if meta_length > len(data) - at - _HEAD_BYTES:
        raise DecodeError("the meta of a record batch is longer than the batch")
    return int(at + _HEAD_BYTES + meta_length)


def _next_record(data: memoryview, at: int) -> tuple[int, int]:
    """Where the body of the record at ``at`` begins and ends."""
    left = len(data) - at - 8
    if left < 0:
        raise DecodeError("a record batch ends inside a record")
    meta_length, body_length = _RECORD.unpack_from(data, at)
    if meta_length + body_length > left:
        raise DecodeError("a record is longer than its batch")
    body = at + 8 + int(meta_length)
    return body, body + int(body_length)


def count_records(batch: Buffer) -> int:
    """Records of exactly one batch, by walking it. Raises ``DecodeError``, also for a batch without records."""
    data = memoryview(batch)
    size = len(data)
    at = _first_record(data, 0)
    unpack = _RECORD.unpack_from
    count = 0
    while at <= size - 8:
        meta_length, body_length = unpack(data, at)
        at += 8 + meta_length + body_length
        count += 1
    if at != size:
        raise DecodeError("a record batch ends inside a record")
    if not count:
        raise DecodeError("a record batch without records")
    return count


def _read_meta(table: Table, data: memoryview, lenient: bool) -> Any:
    """An empty meta is one of defaults."""
    if not len(data):
        return table.make()
    try:
        return table.read(bytes(data))
    except DecodeError:
        if lenient:
            return table.make()
        raise


def set_base_offset(batch: Buffer, base_offset: int) -> None:
    """Writes the offset the server has assigned; the meta, a copy of the client's, stays as it is."""
    _BASE.pack_into(batch, 1, base_offset)


def split_batches(data: Buffer) -> list[memoryview]:
    """The batches that fill ``data``, one after the other. Raises ``DecodeError``."""
    view = memoryview(data)
    return [view[start:end] for start, end in pairwise([*_starts(view), len(view)])]


def _starts(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        yield at
        at = _first_record(view, at)
        while at < len(view) and view[at] != BATCH_MAGIC:
            at = _next_record(view, at)[1]


# --- reading --------------------------------------------------------------------------------------------------------


def parse_batches(data: Buffer) -> list[RecordBatch]:
    """What a FETCH returned, read. Bodies are slices of ``data``. Raises ``DecodeError``."""
    return [parse_batch(batch) for batch in split_batches(data)]


def parse_batch(batch: Buffer, *, lenient: bool = False) -> RecordBatch:
    """Exactly one batch. Its records are numbered from the base offset; their deltas are the writer's claim and count
    only in batches the server made. Raises ``DecodeError``; with ``lenient`` not for a meta that is no table, which the
    server stores unseen: it then says nothing."""
    data = memoryview(batch)
    at = _first_record(data, 0)
    base = int(_BASE.unpack_from(data, 1)[0])
    meta: BatchMeta = _read_meta(BATCH_META, data[_HEAD_BYTES:at], lenient)
    wrapped = -1
    for pair in meta.properties:
        if pair.key == WRAPPED and pair.value.isdecimal():
            wrapped = int(pair.value[:9])
    records: list[DocumentRecord] = []
    end = base
    while at < len(data):
        body, after = _next_record(data, at)
        of_record: RecordMeta = _read_meta(RECORD_META, data[at + 8 : body], lenient)
        end = max(end, base + of_record.offset_delta if wrapped >= 0 else end)
        records.append(
            DocumentRecord(
                data[body:after],
                [(pair.key, pair.value) for pair in of_record.headers],
                [(pair.key, pair.value) for pair in of_record.properties],
                meta.base_timestamp + of_record.timestamp_delta,
                end,
            )
        )
        end += 1
        at = after
    return RecordBatch(base, end, meta, records, wrapped)


# --- writing --------------------------------------------------------------------------------------------------------


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(key, value) for key, value in pairs]


def encode_batch(
    records: Sequence[DocumentRecord],
    *,
    stream_id: int = 0,
    flags: int = 0,
    properties: Sequence[tuple[str, str]] = (),
) -> bytearray:
    """A batch to append; its base offset is 0 until the server writes the one it gives.

    Raises ``ValueError`` for no records, and for records more than 24 days apart, which a batch cannot hold together.
    """
    if not records:
        raise ValueError("a record batch holds at least one record")
    base_timestamp = records[0].timestamp
    if any(abs(record.timestamp - base_timestamp) > MAX_TIMESTAMP_DELTA for record in records):
        raise ValueError(f"records of one batch may be at most {MAX_TIMESTAMP_DELTA} ms apart")
    meta = BATCH_META.write(BatchMeta(stream_id, flags, 0, len(records) - 1, base_timestamp, _pairs(properties)))
    out = bytearray(_HEAD.pack(BATCH_MAGIC, 0, len(meta)))
    out += meta
    for delta, record in enumerate(records):
        of_record = RECORD_META.write(
            RecordMeta(delta, record.timestamp - base_timestamp, _pairs(record.headers), _pairs(record.properties))
        )
        out += _RECORD.pack(len(of_record), len(record.body))
        out += of_record
        out += record.body
    return out


def _is_batch_at(payload: Buffer, base_offset: int) -> bool:
    """Flags are any writer's to set; what they promise is looked at."""
    return len(payload) > _HEAD_BYTES and _HEAD.unpack_from(payload)[:2] == (BATCH_MAGIC, base_offset)


def as_batch(entry: Entry) -> list[Buffer]:
    """An entry of any format as the parts of one batch with the same offsets.

    What was written as a batch is that batch. Anything else becomes the body of a single record, which stands at the
    entry's *last* offset: a reader that goes on behind the last record it saw goes on behind the entry.
    """
    if entry.flags & FORMAT_MASK == FORMAT_FLAG and _is_batch_at(entry.payload, entry.base_offset):
        return [entry.payload]
    delta = entry.count - 1
    mark = KeyValue(WRAPPED, str(entry.flags & FORMAT_MASK))
    meta = BATCH_META.write(BatchMeta(entry.stream_id, entry.flags, entry.base_offset, delta, entry.timestamp, [mark]))
    of_record = RECORD_META.write(RecordMeta(delta))
    head = b"".join(
        (
            _HEAD.pack(BATCH_MAGIC, entry.base_offset, len(meta)),
            meta,
            _RECORD.pack(len(of_record), len(entry.payload)),
            of_record,
        )
    )
    return [head, entry.payload]
