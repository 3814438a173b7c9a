"""What a batch of a sink must fulfil before it may be appended, and the request it comes in.

A request is four bytes that tell the length of a JSON object, that object, and batches in Kafka's format one after the
other. What a header claims is compared with what is known; records are looked at, in slices, only where a topic's
configuration asks for it or the times are strange, as Kafka's own producers have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.errors import BatchInvalid, BatchTooLarge
from bridges.formats.base import FormatId
from bridges.formats.compression import Compression
from bridges.formats.kafka import (
    CONTROL,
    HEADER_SIZE,
    RECORD_MIN,
    TRANSACTIONAL,
    Header,
    check_batch,
    check_count,
    heads,
    set_log_append_time,
    set_max_timestamp,
)
from bridges.formats.producer import InTransaction, ProducerStamp
from bridges.log.partition_log import Batch
from bridges.log.time_search import CLOCK_SKEW_MS
from bridges.sliced import SLICE_RECORDS, Sliced

if TYPE_CHECKING:
    from bridges.catalog.topic_rules import TopicRules


class WriteLimits(Struct, frozen=True):
    """What no batch may exceed, whatever its topic allows."""

    records: int
    inflated_bytes: int


def accept(
    payload: memoryview, producer: int, epoch: int, rules: TopicRules, now_ms: int, limits: WriteLimits
) -> tuple[Batch, Sliced[None] | None]:
    """A batch of an attempt, ready for its log, and what is left to be looked at of it before that.

    Raises BatchInvalid, BatchTooLarge.
    """
    header = check_batch(payload)
    if header.record_count * RECORD_MIN > len(payload) - HEADER_SIZE:
        check_count(header, len(payload) - HEADER_SIZE, limits.inflated_bytes)
    if len(payload) > rules.max_message_bytes:
        raise BatchTooLarge(
            f"a batch of {len(payload)} bytes exceeds the topic's max.message.bytes, {rules.max_message_bytes}"
        )
    if header.record_count > limits.records:
        raise BatchTooLarge(f"a batch of {header.record_count} records exceeds limits.batch_records, {limits.records}")
    if header.attributes & CONTROL or not header.attributes & TRANSACTIONAL:
        raise BatchInvalid("a sink writes transactional batches, which are no control batches")
    if (header.producer_id, header.producer_epoch) != (producer, epoch) or header.base_sequence < 0:
        raise BatchInvalid("a batch names another producer, or no sequence number")
    if header.codec > Compression.ZSTD:
        raise BatchInvalid(f"compression codec {header.codec} is not known")
    stamp = ProducerStamp(producer, epoch, header.base_sequence, header.record_count)
    part = InTransaction(producer, epoch)
    batch = Batch(
        payload, header.record_count, int(FormatId.KAFKA), header.max_timestamp, producer=stamp, transaction=part
    )
    if _strange(header, rules, now_ms):
        return batch, _records(batch, header, rules, now_ms, limits)
    if rules.log_append_time:
        set_log_append_time(payload, now_ms)
        batch.max_timestamp = now_ms
    return batch, None


def _strange(header: Header, rules: TopicRules, now_ms: int) -> bool:
    if rules.compacted:
        return True
    ahead = header.max_timestamp - now_ms
    return not rules.log_append_time and (
        rules.bounds_past
        or ahead > CLOCK_SKEW_MS
        or ahead > rules.after_max_ms
        or header.max_timestamp < header.base_timestamp
    )


def _records(batch: Batch, header: Header, rules: TopicRules, now_ms: int, limits: WriteLimits) -> Sliced[None]:
    """What needs every record. Raises BatchInvalid."""
    payload = batch.payload
    assert isinstance(payload, memoryview)
    earliest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    highest, index = -1, 0
    for head in heads(payload, limits.inflated_bytes):
        if head is None:
            yield None
            continue
        _, timestamp, keyed = head
        if rules.compacted and not keyed:
            raise BatchInvalid("a compacted topic takes no record without a key")
        if not rules.log_append_time and timestamp >= 0 and not earliest <= timestamp <= latest:
            raise BatchInvalid(f"the timestamp {timestamp} is further from the node's clock than the topic allows")
        highest = max(highest, timestamp)
        index += 1
        if not index % SLICE_RECORDS:
            yield None
    if rules.log_append_time:
        set_log_append_time(payload, now_ms)
        batch.max_timestamp = now_ms
    elif highest != header.max_timestamp:
        set_max_timestamp(payload, highest)
        batch.max_timestamp = highest
