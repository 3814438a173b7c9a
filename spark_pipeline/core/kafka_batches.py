"""The batches of a Kafka record set, read by their headers alone: positions, claims, checksums.

The layout is that of message format 2 (KIP-98); bridges/formats/kafka.py has the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from bridges.formats.kafka import CONTROL, HEADER_SIZE, LOG_OVERHEAD, TRANSACTIONAL
from spark_pipeline.core.errors import PipelineError

_HEADER = struct.Struct(">qiibIhi")
"""Base offset, length behind it, leader epoch, magic, checksum, attributes, last offset delta."""
_CRC_FROM = 21
_MAGIC_AT = 16
_EPOCH_FROM, _EPOCH_TO = 12, 16


class OldFormat(PipelineError):
    """A batch has a message format older than Kafka 0.11, which cannot be carried as it is."""


class NoBatch(PipelineError):
    """The bytes at the position of a batch are not a batch."""


class BatchHead(NamedTuple):
    """The header of one batch: offsets ``[base_offset, end_offset)``, bytes ``[at, until)`` of its record set."""

    base_offset: int
    end_offset: int
    at: int
    until: int
    crc: int
    attributes: int

    @property
    def is_control(self) -> bool:
        """Return whether the batch is a marker, which has no records for readers."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch's records count only if its transaction is committed."""
        return bool(self.attributes & TRANSACTIONAL)


def heads(records: memoryview, place: str) -> Iterator[BatchHead]:
    """Yield the heads of the whole batches of a record set, in order; a partial batch at the end is left out.

    Raises OldFormat and NoBatch, whose texts name the partition by ``place``.
    """
    at, size = 0, len(records)
    unpack = _HEADER.unpack_from
    while size - at >= _MAGIC_AT + 1:
        if size - at < _HEADER.size:
            return
        base, length, _, magic, crc, attributes, delta = unpack(records, at)
        if magic in (0, 1):
            raise OldFormat(
                f"{place} has messages of format {magic} at offset {base}: they cannot be carried as they are; have "
                "the source rewrite the topic in format 2 (Kafka 0.11 and later), or leave it out"
            )
        until = at + length + LOG_OVERHEAD
        if magic != 2 or length < HEADER_SIZE - LOG_OVERHEAD or delta < 0:
            raise NoBatch(f"{place} has something at offset {base} that is no batch of records")
        if until > size:
            return
        yield BatchHead(base, base + delta + 1, at, until, crc, attributes)
        at = until


def is_whole(records: memoryview, head: BatchHead) -> bool:
    """Return whether the bytes of a batch match its checksum."""
    return bool(crc32c.crc32c(records[head.at + _CRC_FROM : head.until]) == head.crc)


def digest(records: memoryview, head: BatchHead, before: int = 0) -> int:
    """Return the CRC-32C of ``before`` and a batch without its leader epoch, which differs between clusters."""
    value: int = crc32c.crc32c(records[head.at : head.at + _EPOCH_FROM], before)
    return int(crc32c.crc32c(records[head.at + _EPOCH_TO : head.until], value))


def same(left: memoryview, right: memoryview) -> bool:
    """Return whether two batches are equal except for their leader epochs."""
    return left[:_EPOCH_FROM] == right[:_EPOCH_FROM] and bytes(left[_EPOCH_TO:]) == bytes(right[_EPOCH_TO:])
