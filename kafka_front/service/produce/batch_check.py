"""Checks of a produced batch by the rules of Kafka's protocol (docs/protocols/kafka.md, rules 21-23, 25 and 29-31).

The log checks the topic's rules, for every protocol (bridges/log/partition/admission.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from msgspec import Struct

from bridges.errors import BatchInvalid
from bridges.formats.base import FormatId
from bridges.formats.codecs.compression import DEFAULT_LIMIT, Compression
from bridges.formats.kafka import (
    CONTROL,
    HEADER_SIZE,
    RECORD_MIN,
    TRANSACTIONAL,
    Header,
    check_batch,
    check_count,
)
from bridges.formats.producer import InTransaction, ProducerStamp
from bridges.log.partition.partition_log import Batch
from kafka_front.service.log_errors import code_of
from kafka_front.wire.errors import ErrorCode

_KAFKA = int(FormatId.KAFKA)
_LOOKED_AT = CONTROL | TRANSACTIONAL | Compression.ZSTD
"""Attributes that need a check; codecs from zstd on have its bit."""
_ZSTD_SINCE = 7
"""First Produce version whose clients know zstd (KIP-110)."""


@dataclass(slots=True)
class Refusal(Exception):
    """A batch that must not be appended."""

    code: ErrorCode
    message: str


class BatchLimits(Struct, frozen=True):
    """Limits of any batch, whatever its topic allows; see docs/operations.md."""

    records: int = 250_000
    inflated_bytes: int = DEFAULT_LIMIT


DEFAULT_LIMITS = BatchLimits()


def accept(
    records: memoryview | None,
    version: int,
    lane: Hashable = None,
    limits: BatchLimits = DEFAULT_LIMITS,
    crc: int | None = None,
) -> Batch:
    """Check one partition's records, and return them as a batch for the log, which checks the topic's rules.

    ``lane``: batches of the same lane must not overtake one another; ``crc``: the checksum of ``records``, if it is
    known. Raises Refusal.
    """
    if records is None:
        raise Refusal(ErrorCode.INVALID_RECORD, "the request holds no records for this partition")
    try:
        header = check_batch(records, crc)
        if header.record_count * RECORD_MIN > len(records) - HEADER_SIZE:
            check_count(header, len(records) - HEADER_SIZE, limits.inflated_bytes)
    except BatchInvalid as error:
        raise Refusal(code_of(error), str(error)) from error
    if header.record_count > limits.records:
        # On this code a producer splits its batch.
        text = f"a batch of {header.record_count} records exceeds limits.batch_records {limits.records}"
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, text)
    if header.attributes & _LOOKED_AT:
        _check_attributes(header, version)
    producer = part = None
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise Refusal(ErrorCode.INVALID_RECORD, "an idempotent batch carries no sequence number or producer epoch")
        producer = ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
    if header.attributes & TRANSACTIONAL:
        if producer is None:
            raise Refusal(ErrorCode.INVALID_RECORD, "a batch of a transaction carries no producer id")
        part = InTransaction(header.producer_id, header.producer_epoch)
    batch = Batch(records, header.record_count, _KAFKA, header.max_timestamp, producer, lane=lane, header=header)
    batch.transaction = part
    return batch


def _check_attributes(header: Header, version: int) -> None:
    if header.attributes & CONTROL:
        raise Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.codec > Compression.ZSTD:
        raise Refusal(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {header.codec} is unknown: Kafka's are 0 (none) to 4 (zstd)",
        )
    if header.codec == Compression.ZSTD and version < _ZSTD_SINCE:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {_ZSTD_SINCE}, this is {version}")
