"""What a produced batch must fulfil before it may be appended (reference/kafka.md, rules 21-26 and 29-32)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from bridges.catalog.topic_rules import TopicRules
from bridges.errors import BatchInvalid, LogError
from bridges.formats.base import FormatId
from bridges.formats.compression import DEFAULT_LIMIT, Compression
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
from bridges.formats.producer import ProducerStamp
from bridges.log.partition_log import Batch
from bridges.log.time_search import CLOCK_SKEW_MS
from bridges.sliced import SLICE_RECORDS, Sliced, SlicedWorks, advance
from kafka_front.service.log_errors import code_of
from kafka_front.wire.errors import ErrorCode

_KAFKA = int(FormatId.KAFKA)
_LOOKED_AT = CONTROL | TRANSACTIONAL | Compression.ZSTD
"""Attributes of which something is to be said; codecs from zstd on have its bit."""
_ZSTD_SINCE = 7
"""First Produce version whose clients know zstd (KIP-110)."""


@dataclass(slots=True)
class Refusal(Exception):
    """A batch that must not be appended; ``records`` names the offending ones by index (KIP-467)."""

    code: ErrorCode
    message: str
    records: list[tuple[int, str]] = field(default_factory=list)


class BatchLimits(Struct, frozen=True):
    """What no batch may exceed, whatever its topic allows; see docs/operations.md."""

    records: int = 250_000
    inflated_bytes: int = DEFAULT_LIMIT


DEFAULT_LIMITS = BatchLimits()


class Unchecked(Struct):
    """A batch that is good so far, and whose records take longer to look at than a turn of the event loop may."""

    batch: Batch
    work: Sliced[None]

    async def finish(self, works: SlicedWorks) -> None:
        """Look at the rest of the records; then ``batch`` may be appended. Raises Refusal."""
        try:
            await works.finish(self.work, self.batch.count)
        except LogError as error:
            raise Refusal(code_of(error), str(error)) from error


_GLANCED_AT = 4 * SLICE_RECORDS
_GLANCE = 20
"""What looking into a batch costs apart from its records, in records."""


class Glances:
    """How many records are looked at here in one turn of the event loop: a request may have any number of batches."""

    __slots__ = ("_left", "_soon")

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._left = _GLANCED_AT
        self._soon = soon

    def take(self, records: int) -> bool:
        """Whether the first slice of a batch of so many records may be looked at in this turn."""
        if self._left <= 0:
            return False
        if self._left == _GLANCED_AT:
            self._soon(self._refill)
        self._left -= _GLANCE + min(records, SLICE_RECORDS)
        return True

    def _refill(self) -> None:
        self._left = _GLANCED_AT


def accept(
    records: memoryview | None,
    version: int,
    rules: TopicRules,
    now_ms: int,
    limits: BatchLimits = DEFAULT_LIMITS,
    glances: Glances | None = None,
) -> Batch | Unchecked:
    """Check one partition's records and make them a batch for the log; applies the topic's timestamp type.

    Of most batches only the header is looked at; of compacted topics', and of those whose times are bounded or strange,
    every record, here if they are few and ``glances`` allows it. Raises Refusal.
    """
    if records is None:
        raise Refusal(ErrorCode.INVALID_RECORD, "the request holds no records for this partition")
    try:
        header = check_batch(records)
        if header.record_count * RECORD_MIN > len(records) - HEADER_SIZE:
            check_count(header, len(records) - HEADER_SIZE, limits.inflated_bytes)
    except BatchInvalid as error:
        raise Refusal(code_of(error), str(error)) from error
    if len(records) > rules.max_message_bytes:
        limit = rules.max_message_bytes
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(records)} bytes exceeds max.message.bytes {limit}")
    if header.record_count > limits.records:
        # The code that has a producer split its batch.
        text = f"a batch of {header.record_count} records exceeds limits.batch_records {limits.records}"
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, text)
    if header.attributes & _LOOKED_AT:
        _check_attributes(header, version)
    producer = None
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise Refusal(ErrorCode.INVALID_RECORD, "an idempotent batch carries no sequence number or producer epoch")
        producer = ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
    batch = Batch(records, header.record_count, _KAFKA, header.max_timestamp, producer)
    if rules.log_append_time:
        if rules.compacted:
            return _looked_into(batch, partial(_check_records, batch, header, rules, now_ms, limits), glances)
        set_log_append_time(records, now_ms)
        batch.max_timestamp = now_ms
    elif (
        rules.compacted
        or rules.bounds_past
        or (ahead := header.max_timestamp - now_ms) > CLOCK_SKEW_MS
        or ahead > rules.after_max_ms
        or header.max_timestamp < header.base_timestamp
    ):
        return _looked_into(batch, partial(_check_records, batch, header, rules, now_ms, limits), glances)
    return batch


def _looked_into(batch: Batch, check: Callable[[], Sliced[None]], glances: Glances | None) -> Batch | Unchecked:
    """The first slice of the records at once; most batches have no second."""
    if glances is None or glances.take(batch.count):
        work = check()
        try:
            ended, _ = advance(work)
        except BatchInvalid as error:
            raise Refusal(code_of(error), str(error)) from error
        if ended:
            return batch
        # Begun anew when its turn comes: the state of a decompressor is a thousand times the size of such a batch.
        work.close()
    return Unchecked(batch, check())


def _check_attributes(header: Header, version: int) -> None:
    if header.attributes & CONTROL:
        raise Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.attributes & TRANSACTIONAL:
        raise Refusal(ErrorCode.INVALID_TXN_STATE, "the batch belongs to a transaction that was never begun here")
    if header.codec > Compression.ZSTD:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {header.codec} is not known")
    if header.codec == Compression.ZSTD and version < _ZSTD_SINCE:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {_ZSTD_SINCE}, this is {version}")


def _check_records(batch: Batch, header: Header, rules: TopicRules, now_ms: int, limits: BatchLimits) -> Sliced[None]:
    """What needs every record (rules 24 and 26). The highest timestamp is what the records say, as in Kafka: a header
    that says something else is put right. Raises Refusal and BatchInvalid."""
    records = batch.payload
    assert isinstance(records, memoryview)
    keys, times = rules.compacted, not rules.log_append_time
    earliest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    highest = -1
    without_key: list[int] = []
    wrong_time: list[int] = []
    index = 0
    for head in heads(records, limits.inflated_bytes):
        if head is None:
            yield None
            continue
        _, timestamp, keyed = head
        if keys and not keyed:
            without_key.append(index)
        if timestamp > highest:
            highest = timestamp
        if times and timestamp >= 0 and not earliest <= timestamp <= latest:
            wrong_time.append(index)
        index += 1
        if not index % SLICE_RECORDS:
            yield None
    if without_key:
        text = "a compacted topic takes no record without a key"
        raise Refusal(ErrorCode.INVALID_RECORD, text, _named(without_key, text))
    if wrong_time:
        text = "the record's timestamp is too far from the broker's clock"
        raise Refusal(ErrorCode.INVALID_TIMESTAMP, text, _named(wrong_time, text))
    if not times:
        set_log_append_time(records, now_ms)
        batch.max_timestamp = now_ms
    elif highest != header.max_timestamp:
        set_max_timestamp(records, highest)
        batch.max_timestamp = highest


_NAMED = 1000
"""Records of one batch that a refusal names; the first tell the client what is wrong."""


def _named(indexes: list[int], text: str) -> list[tuple[int, str]]:
    return [(index, text) for index in indexes[:_NAMED]]
