"""What Produce refuses, and with which code (reference/kafka.md, rules 20-32)."""

from __future__ import annotations

import pytest

from bridges.formats.kafka import encode, parse_header
from bridges.ledger import ProducerStamp
from bridges.records import Record
from kafka_front.service.batch_check import Refusal, accept
from kafka_front.service.topic_rules import TopicRules
from kafka_front.wire.errors import ErrorCode

FOREVER = 2**63 - 1
NOW = 1_700_000_000_000
PLAIN = TopicRules(1_048_588, False, FOREVER, 3_600_000, False)


def batch(*records: Record, **options: int) -> memoryview:
    return memoryview(encode(records or (Record(b"k", b"v", timestamp=NOW),), **options))


def refusal(records: memoryview | None, rules: TopicRules = PLAIN, version: int = 9) -> Refusal:
    with pytest.raises(Refusal) as caught:
        accept(records, version, rules, NOW)
    return caught.value


def test_a_good_batch_is_taken_as_it_is() -> None:
    records = batch(producer_id=7, producer_epoch=1, base_sequence=30)
    before = bytes(records)
    taken = accept(records, 9, PLAIN, NOW)
    assert bytes(records) == before
    assert (taken.count, taken.max_timestamp, taken.producer) == (1, NOW, ProducerStamp(7, 1, 30, 1))
    assert taken.payload is records


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (memoryview(b""), ErrorCode.INVALID_RECORD),
        (memoryview(bytes(batch()) + bytes(batch())), ErrorCode.INVALID_RECORD),
        (memoryview(bytes(batch())[:-1] + b"!"), ErrorCode.CORRUPT_MESSAGE),
        (batch(attributes=0x20), ErrorCode.INVALID_RECORD),
        (batch(attributes=0x10), ErrorCode.INVALID_TXN_STATE),
        (batch(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(producer_id=7), ErrorCode.INVALID_RECORD),
        (batch(count=2), ErrorCode.INVALID_RECORD),
    ],
    ids=["none", "empty", "two", "crc", "control", "transactional", "codec", "no-sequence", "count"],
)
def test_bad_batches(records: memoryview | None, code: ErrorCode) -> None:
    assert refusal(records).code is code


def test_zstd_needs_a_client_that_may_know_it() -> None:
    assert refusal(batch(codec=4), version=6).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert accept(batch(codec=4), 7, PLAIN, NOW).count == 1


def test_the_size_limit_is_that_of_the_batch_as_sent() -> None:
    records = batch(Record(None, bytes(1000), timestamp=NOW))
    exact = TopicRules(len(records), False, FOREVER, FOREVER, False)
    assert accept(records, 9, exact, NOW).count == 1
    below = TopicRules(len(records) - 1, False, FOREVER, FOREVER, False)
    assert refusal(records, below).code is ErrorCode.MESSAGE_TOO_LARGE


def test_compacted_topics_name_the_records_without_a_key() -> None:
    rules = TopicRules(1_048_588, False, FOREVER, FOREVER, True)
    keyed, bare = Record(b"k", b"v", timestamp=NOW), Record(None, b"v", timestamp=NOW)
    assert accept(batch(keyed, keyed), 9, rules, NOW).count == 2
    for codec in (0, 1):
        found = refusal(batch(keyed, bare, keyed, bare, codec=codec), rules)
        assert found.code is ErrorCode.INVALID_RECORD
        assert [index for index, _ in found.records] == [1, 3]


def test_timestamps_too_far_from_the_clock_are_named() -> None:
    rules = TopicRules(1_048_588, False, 1000, 500, False)
    times = [NOW - 1001, NOW - 1000, NOW + 500, NOW + 501]
    found = refusal(batch(*(Record(None, b"v", timestamp=time) for time in times)), rules)
    assert found.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in found.records] == [0, 3]


def test_log_append_time_replaces_the_batch_timestamp_and_skips_the_bounds() -> None:
    rules = TopicRules(1_048_588, True, 1000, 500, False)
    records = batch(Record(None, b"v", timestamp=5))
    taken = accept(records, 9, rules, NOW)
    assert taken.max_timestamp == NOW
    assert parse_header(records).attributes & 0x08
    assert parse_header(records).max_timestamp == NOW
