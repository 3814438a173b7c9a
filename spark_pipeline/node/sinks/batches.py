"""The request format of a sink's batches, and the checks of a batch before it may be appended.

A request is the length of a JSON object in four bytes, that object, and batches in Kafka's format one after the other.
The claims of a batch's header are checked here. The rules of the topic are checked before any batch of a request is
appended (bridges/log/partition/admission.py).
"""

from __future__ import annotations

from msgspec import Struct

from bridges.errors import BatchInvalid, BatchTooLarge
from bridges.formats.base import FormatId
from bridges.formats.compression import Compression
from bridges.formats.kafka import (
    CONTROL,
    HEADER_SIZE,
    RECORD_MIN,
    TRANSACTIONAL,
    check_batch,
    check_count,
)
from bridges.formats.producer import InTransaction, ProducerStamp
from bridges.log.partition.partition_log import Batch


class WriteLimits(Struct, frozen=True):
    """The limits for every batch, whatever its topic allows."""

    records: int
    inflated_bytes: int


def accept(payload: memoryview, producer: int, epoch: int, limits: WriteLimits) -> Batch:
    """Check a batch of an attempt and return it; the topic's rules are still to be checked.

    Raises BatchInvalid, BatchTooLarge.
    """
    header = check_batch(payload)
    if header.record_count * RECORD_MIN > len(payload) - HEADER_SIZE:
        check_count(header, len(payload) - HEADER_SIZE, limits.inflated_bytes)
    if header.record_count > limits.records:
        raise BatchTooLarge(f"a batch of {header.record_count} records exceeds limits.batch_records, {limits.records}")
    if header.attributes & CONTROL or not header.attributes & TRANSACTIONAL:
        raise BatchInvalid("a sink writes transactional batches, which are no control batches")
    if (header.producer_id, header.producer_epoch) != (producer, epoch) or header.base_sequence < 0:
        raise BatchInvalid("a batch names another producer, or no sequence number")
    if header.codec > Compression.ZSTD:
        raise BatchInvalid(f"compression codec {header.codec} is not known")
    stamp = ProducerStamp(producer, epoch, header.base_sequence, header.record_count)
    count, newest = header.record_count, header.max_timestamp
    batch = Batch(payload, count, int(FormatId.KAFKA), newest, stamp, header=header)
    batch.transaction = InTransaction(producer, epoch)
    return batch
