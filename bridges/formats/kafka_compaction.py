"""Rules of Kafka's compaction: a batch becomes one with fewer records, or none, at the same offsets.

A batch keeps its first and last offset, its producer and its sequence numbers, whichever records are left (KIP-98).
Tombstones, and markers of transactions that have no records left, get a delete horizon: the time from which the next
pass may remove them. It replaces the header's base timestamp (KIP-534).
"""

from __future__ import annotations

import struct

from bridges.formats.checksum import crc32c
from bridges.formats.kafka import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchBuilder,
    Header,
    iterate,
    parse_header,
)
from bridges.formats.records import Buffer, Record

NO_HORIZON = -1


def horizon_of(header: Header) -> int:
    """Return the batch's delete horizon (ms), :data:`NO_HORIZON` without one."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else NO_HORIZON


def builder_of(header: Header, base_timestamp: int) -> BatchBuilder:
    """Return the builder of a batch with the offsets and the producer of another."""
    return BatchBuilder(
        header.base_offset,
        count=header.last_offset_delta + 1,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_timestamp=base_timestamp,
    )


_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21
_CRC_AT = 17


def _header_only(header: Header) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    _HEADER.pack_into(batch, 0, *header._replace(length=HEADER_SIZE - LOG_OVERHEAD, magic=MAGIC, record_count=0))
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_START:]))
    return batch


def emptied(batch: Buffer) -> bytearray:
    """Return the batch without its records: it still carries its producer and sequence numbers. It leaves its
    transaction, so that no transaction counts as open because of it."""
    header = parse_header(batch)
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON | TRANSACTIONAL)
    return _header_only(header._replace(attributes=attributes, base_timestamp=-1))


def gap(base_offset: int, end_offset: int, leader_epoch: int = -1) -> bytearray:
    """Return a batch without records and without a producer, which replaces many batches."""
    span = end_offset - base_offset - 1
    return _header_only(Header(base_offset, 0, leader_epoch, MAGIC, 0, 0, span, -1, -1, -1, -1, -1, 0))


def is_gap(header: Header) -> bool:
    """Return whether a batch has neither records nor a producer."""
    return not header.record_count and header.producer_id < 0


def with_horizon(marker: Buffer, horizon_ms: int) -> Buffer:
    """Return a transaction's marker that may be removed from ``horizon_ms`` on. Raises BatchInvalid."""
    header = parse_header(marker)
    builder = builder_of(header, horizon_ms)
    for raw in iterate(marker):
        builder.add(Record(raw.key, raw.value, raw.headers, raw.timestamp, raw.offset))
    return builder.finish(header.codec, header.attributes & ~CODEC_MASK | DELETE_HORIZON)
