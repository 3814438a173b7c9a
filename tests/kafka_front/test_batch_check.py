"""What Produce refuses whatever the topic, and with which code (docs/protocols/kafka.md, rules 20-23, 25 and 29-31)."""

from __future__ import annotations

import struct

import crc32c
import pytest

from bridges.formats import kafka as kafka_format
from bridges.formats.kafka import encode
from bridges.formats.producer import ProducerStamp
from bridges.formats.records import Record
from kafka_front.service.produce.batch_check import DEFAULT_LIMITS, BatchLimits, Refusal, accept
from kafka_front.wire.errors import ErrorCode

NOW = 1_700_000_000_000


def batch(*records: Record, **options: int) -> memoryview:
    return memoryview(encode(records or (Record(b"k", b"v", timestamp=NOW),), **options))


def refusal(records: memoryview | None, version: int = 9, limits: BatchLimits = DEFAULT_LIMITS) -> Refusal:
    with pytest.raises(Refusal) as caught:
        accept(records, version, limits=limits)
    return caught.value


def test_a_good_batch_is_taken_as_it_is() -> None:
    records = batch(producer_id=7, producer_epoch=1, base_sequence=30)
    before = bytes(records)
    found = accept(records, 9)
    assert bytes(records) == before
    assert (found.count, found.max_timestamp, found.producer) == (1, NOW, ProducerStamp(7, 1, 30, 1))
    assert found.payload is records


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (memoryview(b""), ErrorCode.INVALID_RECORD),
        (memoryview(bytes(batch()) + bytes(batch())), ErrorCode.INVALID_RECORD),
        (memoryview(bytes(batch())[:-1] + b"!"), ErrorCode.CORRUPT_MESSAGE),
        (batch(attributes=0x20), ErrorCode.INVALID_RECORD),
        (batch(attributes=0x10), ErrorCode.INVALID_RECORD),
        (batch(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(producer_id=7), ErrorCode.INVALID_RECORD),
        (batch(count=2), ErrorCode.INVALID_RECORD),
    ],
    ids=["none", "empty", "two", "crc", "control", "transactional", "codec", "no-sequence", "count"],
)
def test_a_bad_batch_is_refused_with_its_code(records: memoryview | None, code: ErrorCode) -> None:
    assert refusal(records).code is code


def test_zstd_needs_a_client_that_may_know_it() -> None:
    assert refusal(batch(codec=4), version=6).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert accept(batch(codec=4), 7).count == 1


def test_a_bomb_of_records_is_refused_before_anything_is_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_format, "inflate", lambda *_: pytest.fail("something was inflated"))
    records = batch(*[Record(b"", None, timestamp=NOW, offset=0)] * 3001, codec=4)
    assert len(records) < 500
    code = refusal(records, limits=BatchLimits(3000)).code
    assert code is ErrorCode.MESSAGE_TOO_LARGE, "which has a producer split it"


@pytest.mark.parametrize(("codec", "most"), [(0, 1), (1, 1032), (2, 22), (3, 255), (4, 32768)])
def test_more_records_than_the_bytes_can_hold_are_refused(codec: int, most: int) -> None:
    records = batch(Record(b"k", None, timestamp=NOW), codec=codec)
    count = (len(records) - 61) * most // 7 + 1
    struct.pack_into(">i", records, 57, count)
    struct.pack_into(">i", records, 23, count - 1)
    struct.pack_into(">I", records, 17, crc32c.crc32c(records[21:]))
    assert refusal(records).code is ErrorCode.INVALID_RECORD
