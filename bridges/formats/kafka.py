"""Kafka's RecordBatch v2 as a stored format: header, checks, stamping in place, records.

Layout and rules: KIP-98 and reference/kafka.md, section 3, rules 21-26. The base offset and the leader epoch lie
outside the checksum, so storing a batch rewrites twelve bytes and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import crc32c

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.base import BatchInfo, FormatId
from bridges.formats.compression import DEFAULT_LIMIT, compress, decompress
from bridges.ledger import ProducerStamp
from bridges.records import Buffer, Record, StoredBatch

HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""Bytes before the part that the batch's own length field counts."""
MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_RECORD_MIN = 7
"""Encoded bytes of the smallest record: length, attributes, two deltas, two lengths, header count."""


class Header(NamedTuple):
    """The fixed 61 bytes of a batch, field by field."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD


class RawRecord(NamedTuple):
    """A record inside a batch, with its deltas resolved."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def parse_header(batch: Buffer, position: int = 0) -> Header:
    """Read the header at ``position``. Raises BatchInvalid when fewer than 61 bytes are there."""
    if len(batch) - position < HEADER_SIZE:
        raise BatchInvalid(f"a record batch has {len(batch) - position} bytes, fewer than its header")
    return Header._make(_HEADER.unpack_from(batch, position))


def check_batch(batch: memoryview) -> Header:
    """Verify that ``batch`` is exactly one well-formed batch with a good checksum (rules 21 and 22).

    Raises BatchCorrupt for a checksum that does not match, BatchInvalid for everything else.
    """
    header = parse_header(batch)
    if header.magic != MAGIC:
        raise BatchInvalid(f"record batches of magic {header.magic} are not accepted, only {MAGIC}")
    if header.length + LOG_OVERHEAD != len(batch):
        raise BatchInvalid(f"a batch of {header.length + LOG_OVERHEAD} bytes came in a field of {len(batch)}")
    if crc32c.crc32c(batch[_CRC_START:]) != header.crc:
        raise BatchCorrupt("the batch's checksum does not match its bytes")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise BatchInvalid(f"a batch of {header.record_count} records ends at offset delta {header.last_offset_delta}")
    return header


def stamp(batch: Buffer, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch in place; neither is covered by the checksum (rule 23)."""
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)


def set_log_append_time(batch: memoryview, now_ms: int) -> None:
    """Make the broker's clock the batch's timestamp, which the checksum covers (rule 24)."""
    (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES_AT)
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(batch[_CRC_START:]))


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zig-zag varint of at most 64 bits; returns (value, next position)."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise BatchInvalid("a variable-length number in a record is too long")


def _take(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    """A nullable byte string that must end at or before ``end``."""
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise BatchInvalid("a field of a record is longer than the record")
    return bytes(data[position : position + length]), position + length


def iterate(batch: Buffer, limit: int = DEFAULT_LIMIT) -> Iterator[RawRecord]:
    """The records of one batch, in order.

    Decompresses to at most ``limit`` bytes. Raises BatchInvalid (or one of its kinds) as soon as a record is malformed.
    """
    header = parse_header(batch)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    data = decompress(header.codec, body, limit)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    position = 0
    if header.record_count < 0 or header.record_count * _RECORD_MIN > len(data):
        raise BatchInvalid(f"{header.record_count} records cannot lie in {len(data)} bytes")
    try:
        for _ in range(header.record_count):
            length, position = _varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise BatchInvalid("a record is longer than its batch")
            position += 1  # attributes, unused
            timestamp_delta, position = _varint(data, position)
            offset_delta, position = _varint(data, position)
            key, position = _take(data, position, end)
            value, position = _take(data, position, end)
            headers, position = _headers(data, position, end)
            if position != end:
                raise BatchInvalid("a record does not fill the length it claims")
            yield RawRecord(
                header.base_offset + offset_delta,
                header.base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except IndexError as error:
        raise BatchInvalid("a record ends within a field") from error


def _headers(data: Buffer, position: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, position = _varint(data, position)
    if count < 0 or count > end - position:
        raise BatchInvalid(f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        name, position = _take(data, position, end)
        value, position = _take(data, position, end)
        if name is None:
            raise BatchInvalid("a record header has no name")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError as error:
            raise BatchInvalid("a record header's name is not UTF-8") from error
    return headers, position


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _put_varint(out, -1)
    else:
        _put_varint(out, len(value))
        out += value


def encode(
    records: Sequence[Record],
    base_offset: int = 0,
    *,
    count: int | None = None,
    codec: int = 0,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """Lay ``records`` out as one batch.

    Records whose ``offset`` is set keep it relative to ``base_offset`` (gaps are legal when reading); others are
    numbered in order. ``count`` is the number of offsets the batch spans, by default the number of records.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp = records[0].timestamp
    body = bytearray()
    one = bytearray()
    for index, record in enumerate(records):
        one.clear()
        one.append(0)
        _put_varint(one, record.timestamp - base_timestamp)
        _put_varint(one, record.offset - base_offset if record.offset >= 0 else index)
        _put_bytes(one, record.key)
        _put_bytes(one, record.value)
        _put_varint(one, len(record.headers))
        for name, value in record.headers:
            _put_bytes(one, name.encode())
            _put_bytes(one, value)
        _put_varint(body, len(one))
        body += one
    payload = compress(codec, body) if codec else body
    batch = bytearray(HEADER_SIZE)
    batch += payload
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes | codec,
        (len(records) if count is None else count) - 1,
        base_timestamp,
        max(record.timestamp for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(memoryview(batch)[_CRC_START:]))
    return batch


class KafkaFormat:
    """The stored-format plug of RecordBatch v2 (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FormatId.KAFKA
    name = "kafka"

    def describe(self, payload: Buffer) -> BatchInfo:
        header = parse_header(payload)
        producer = None
        if header.producer_id >= 0:
            producer = ProducerStamp(
                header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
            )
        return BatchInfo(header.max_timestamp, header.leader_epoch, producer)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        stamp(payload, base_offset, epoch)

    def place(self, payload: Buffer, base_offset: int) -> Buffer:
        header = parse_header(payload)
        if header.base_offset == base_offset:
            return payload
        placed = bytearray(payload)
        stamp(placed, base_offset, header.leader_epoch)
        return placed

    def decode(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> list[Record]:
        header = parse_header(batch.payload)
        if header.attributes & CONTROL:
            return []
        producer = str(header.producer_id) if header.producer_id >= 0 else None
        return [
            Record(
                raw.key,
                raw.value,
                raw.headers,
                raw.timestamp,
                raw.offset,
                producer,
                header.base_sequence + index if producer is not None else -1,
            )
            for index, raw in enumerate(iterate(batch.payload, limit))
        ]

    def encode(self, records: Sequence[Record], base_offset: int, end_offset: int) -> Buffer:
        return encode(records, base_offset, count=end_offset - base_offset)
