"""What a produced batch must fulfil before it may be appended (reference/kafka.md, rules 21-26 and 29-32)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridges.errors import BatchInvalid
from bridges.formats.base import FormatId
from bridges.formats.compression import Compression
from bridges.formats.kafka import CONTROL, TRANSACTIONAL, Header, check_batch, iterate, set_log_append_time
from bridges.ledger import ProducerStamp
from bridges.partition_log import Batch
from kafka_front.service.log_errors import code_of
from kafka_front.service.topic_rules import TopicRules
from kafka_front.wire.errors import ErrorCode

_ZSTD_SINCE = 7
"""First Produce version whose clients know zstd (KIP-110)."""


@dataclass(slots=True)
class Refusal(Exception):
    """A batch that must not be appended; ``records`` names the offending ones by index (KIP-467)."""

    code: ErrorCode
    message: str
    records: list[tuple[int, str]] = field(default_factory=list)


def accept(records: memoryview | None, version: int, rules: TopicRules, now_ms: int) -> Batch:
    """Check one partition's records and make them a batch for the log; applies the topic's timestamp type.

    Raises Refusal.
    """
    if records is None:
        raise Refusal(ErrorCode.INVALID_RECORD, "the request holds no records for this partition")
    try:
        header = check_batch(records)
    except BatchInvalid as error:
        raise Refusal(code_of(error), str(error)) from error
    if len(records) > rules.max_message_bytes:
        limit = rules.max_message_bytes
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(records)} bytes exceeds max.message.bytes {limit}")
    _check_attributes(header, version)
    producer = None
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise Refusal(ErrorCode.INVALID_RECORD, "an idempotent batch carries no sequence number or producer epoch")
        producer = ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
    if rules.compacted:
        _check_keys(records)
    max_timestamp = header.max_timestamp
    if rules.log_append_time:
        set_log_append_time(records, now_ms)
        max_timestamp = now_ms
    elif rules.bounds_past or max_timestamp - now_ms > rules.after_max_ms:
        _check_times(records, rules, now_ms)
    return Batch(records, header.record_count, int(FormatId.KAFKA), max_timestamp, producer)


def _check_attributes(header: Header, version: int) -> None:
    if header.attributes & CONTROL:
        raise Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.attributes & TRANSACTIONAL:
        raise Refusal(ErrorCode.INVALID_TXN_STATE, "the batch belongs to a transaction that was never begun here")
    if header.codec > Compression.ZSTD:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {header.codec} is not known")
    if header.codec == Compression.ZSTD and version < _ZSTD_SINCE:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {_ZSTD_SINCE}, this is {version}")


def _check_keys(records: memoryview) -> None:
    # Only compacted topics pay for looking into the records.
    try:
        missing = [index for index, record in enumerate(iterate(records)) if record.key is None]
    except BatchInvalid as error:
        raise Refusal(code_of(error), str(error)) from error
    if missing:
        text = "a compacted topic takes no record without a key"
        raise Refusal(ErrorCode.INVALID_RECORD, text, [(index, text) for index in missing])


def _check_times(records: memoryview, rules: TopicRules, now_ms: int) -> None:
    try:
        wrong = [
            index
            for index, record in enumerate(iterate(records))
            if record.timestamp >= 0
            and (now_ms - record.timestamp > rules.before_max_ms or record.timestamp - now_ms > rules.after_max_ms)
        ]
    except BatchInvalid as error:
        raise Refusal(code_of(error), str(error)) from error
    if wrong:
        text = "the record's timestamp is too far from the broker's clock"
        raise Refusal(ErrorCode.INVALID_TIMESTAMP, text, [(index, text) for index in wrong])
