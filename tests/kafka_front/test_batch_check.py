"""What Produce refuses, and with which code (reference/kafka.md, rules 20-32)."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from typing import Any

import crc32c
import pytest

from bridges.catalog.topic_rules import TopicRules
from bridges.formats import kafka as kafka_format
from bridges.formats.compression import PIECE
from bridges.formats.kafka import check_batch, encode, parse_header
from bridges.formats.producer import ProducerStamp
from bridges.formats.records import Buffer, Record
from bridges.log.partition_log import Batch
from bridges.sliced import SLICE_RECORDS, SlicedWorks
from kafka_front.service import batch_check
from kafka_front.service.batch_check import BatchLimits, Refusal, Unchecked, accept
from kafka_front.wire.errors import ErrorCode

FOREVER = 2**63 - 1
NOW = 1_700_000_000_000
PLAIN = TopicRules(1_048_588, False, FOREVER, 3_600_000, False)


def batch(*records: Record, **options: int) -> memoryview:
    return memoryview(encode(records or (Record(b"k", b"v", timestamp=NOW),), **options))


def taken(records: memoryview, rules: TopicRules = PLAIN) -> Batch:
    """What is appended in the end, however long the check takes."""
    batch = accept(records, 9, rules, NOW)
    if isinstance(batch, Unchecked):
        unchecked = batch

        async def finish() -> None:
            works = SlicedWorks()
            await unchecked.finish(works)
            works.close()

        asyncio.run(finish())
        batch = unchecked.batch
    return batch


def claiming(records: memoryview, max_timestamp: int) -> memoryview:
    """The same batch with another highest timestamp in its header and a good checksum."""
    struct.pack_into(">q", records, 35, max_timestamp)
    struct.pack_into(">I", records, 17, crc32c.crc32c(records[21:]))
    return records


def refusal(records: memoryview | None, rules: TopicRules = PLAIN, version: int = 9) -> Refusal:
    with pytest.raises(Refusal) as caught:
        accept(records, version, rules, NOW)
    return caught.value


def test_a_good_batch_is_taken_as_it_is() -> None:
    records = batch(producer_id=7, producer_epoch=1, base_sequence=30)
    before = bytes(records)
    found = taken(records, PLAIN)
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
    assert isinstance(accept(batch(codec=4), 7, PLAIN, NOW), Batch)


def test_the_size_limit_is_that_of_the_batch_as_sent() -> None:
    records = batch(Record(None, bytes(1000), timestamp=NOW))
    exact = TopicRules(len(records), False, FOREVER, FOREVER, False)
    assert taken(records, exact).count == 1
    below = TopicRules(len(records) - 1, False, FOREVER, FOREVER, False)
    assert refusal(records, below).code is ErrorCode.MESSAGE_TOO_LARGE


def test_compacted_topics_name_the_records_without_a_key() -> None:
    rules = TopicRules(1_048_588, False, FOREVER, FOREVER, True)
    keyed, bare = Record(b"k", b"v", timestamp=NOW), Record(None, b"v", timestamp=NOW)
    assert taken(batch(keyed, keyed), rules).count == 2
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
    found = taken(records, rules)
    assert found.max_timestamp == NOW
    assert parse_header(records).attributes & 0x08
    assert parse_header(records).max_timestamp == NOW


# --- what a header claims -------------------------------------------------------------------------------------------

UNBOUNDED = TopicRules(1_048_588, False, FOREVER, FOREVER, False)
HOUR = 3_600_000


@pytest.mark.parametrize("rules", [PLAIN, UNBOUNDED], ids=["bounded", "unbounded"])
@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("claim", [NOW + HOUR + 1, 1 << 62])
def test_a_highest_timestamp_that_no_record_has_is_put_right(rules: TopicRules, codec: int, claim: int) -> None:
    records = claiming(
        batch(Record(None, b"a", timestamp=NOW - 5), Record(None, b"b", timestamp=3), codec=codec), claim
    )
    found = taken(records, rules)
    assert found.max_timestamp == NOW - 5
    assert check_batch(records).max_timestamp == NOW - 5, "what is stored says the same, and its checksum is good"


def test_a_highest_timestamp_below_the_first_record_is_put_right() -> None:
    records = claiming(batch(Record(None, b"a", timestamp=NOW - 5), Record(None, b"b", timestamp=NOW)), -1)
    assert taken(records).max_timestamp == NOW


def test_honest_times_far_ahead_are_kept_where_the_topic_allows_them() -> None:
    records = batch(Record(None, b"a", timestamp=NOW + 400 * 24 * HOUR))
    before = bytes(records)
    assert taken(records, UNBOUNDED).max_timestamp == NOW + 400 * 24 * HOUR
    assert bytes(records) == before
    assert refusal(records).code is ErrorCode.INVALID_TIMESTAMP


def test_records_within_the_allowed_skew_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_check, "heads", lambda *_: pytest.fail("the records were looked at"))
    records = batch(Record(None, b"a", timestamp=NOW + HOUR), codec=4)
    assert isinstance(accept(records, 9, PLAIN, NOW), Batch)


# --- what a client sizes --------------------------------------------------------------------------------------------

COMPACTED = TopicRules(1_048_588, False, FOREVER, FOREVER, True)


def bomb(count: int, codec: int = 4) -> memoryview:
    """Empty records with a key, a few hundred bytes however many."""
    one = Record(b"", None, timestamp=NOW, offset=0)
    return batch(*[one] * count, codec=codec)


def test_a_bomb_of_records_is_refused_before_anything_is_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_format, "inflate", lambda *_: pytest.fail("something was inflated"))
    records = bomb(3001)
    assert len(records) < 500
    for rules in (PLAIN, COMPACTED):
        with pytest.raises(Refusal) as caught:
            accept(records, 9, rules, NOW, BatchLimits(3000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE, "which has a producer split it"


@pytest.mark.parametrize(("codec", "most"), [(0, 1), (1, 1032), (2, 22), (3, 255), (4, 32768)])
def test_more_records_than_the_bytes_can_hold_are_refused(codec: int, most: int) -> None:
    records = batch(Record(b"k", None, timestamp=NOW), codec=codec)
    count = (len(records) - 61) * most // 7 + 1
    struct.pack_into(">i", records, 57, count)
    struct.pack_into(">i", records, 23, count - 1)
    struct.pack_into(">I", records, 17, crc32c.crc32c(records[21:]))
    assert refusal(records).code is ErrorCode.INVALID_RECORD


def test_what_inflates_beyond_the_limit_is_refused_where_the_records_matter() -> None:
    records = batch(Record(b"k", bytes(2_000_000), timestamp=NOW), codec=4)
    unchecked = accept(records, 9, COMPACTED, NOW, BatchLimits(inflated_bytes=1_000_000))
    assert isinstance(unchecked, Unchecked)

    async def finish() -> Refusal:
        works = SlicedWorks()
        with pytest.raises(Refusal) as caught:
            await unchecked.finish(works)
        works.close()
        return caught.value

    assert asyncio.run(finish()).code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_waits_holds_no_decompressor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is a thousand times the size of such a batch, which is all that is counted."""
    open_now = 0
    real = kafka_format.inflate

    def inflate(*args: Any) -> Iterator[Buffer | None]:
        nonlocal open_now
        open_now += 1
        try:
            yield from real(*args)
        finally:
            open_now -= 1

    monkeypatch.setattr(kafka_format, "inflate", inflate)
    waiting = [accept(bomb(5000), 9, COMPACTED, NOW) for _ in range(10)]
    assert all(isinstance(one, Unchecked) for one in waiting)
    assert open_now == 0


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
async def test_no_turn_of_the_loop_looks_at_more_than_a_slice(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 120_000
    done: list[tuple[bool, int, int]] = []  # of each step: on the loop, records, bytes inflated
    loop_thread = threading.get_ident()
    records_seen = bytes_seen = 0
    real_heads, real_inflate = batch_check.heads, kafka_format.inflate

    def heads(*args: Any) -> Iterator[tuple[int, int, bool] | None]:
        nonlocal records_seen
        for head in real_heads(*args):
            records_seen += head is not None
            yield head

    def inflate(*args: Any) -> Iterator[Buffer | None]:
        nonlocal bytes_seen
        for piece in real_inflate(*args):
            bytes_seen += 0 if piece is None else len(piece)
            yield piece

    def advance(work: Any) -> tuple[bool, Any]:
        nonlocal records_seen, bytes_seen
        records_seen = bytes_seen = 0
        result = real_advance(work)
        done.append((threading.get_ident() == loop_thread, records_seen, bytes_seen))
        return result

    real_advance = batch_check.advance
    monkeypatch.setattr(batch_check, "heads", heads)
    monkeypatch.setattr(kafka_format, "inflate", inflate)
    monkeypatch.setattr(batch_check, "advance", advance)
    monkeypatch.setattr("bridges.sliced.advance", advance)
    unchecked = accept(bomb(count, codec), 9, COMPACTED, NOW)
    assert isinstance(unchecked, Unchecked)
    works = SlicedWorks()
    await unchecked.finish(works)
    works.close()
    assert [on_loop for on_loop, _, _ in done] == [True] + [False] * (len(done) - 1)
    assert done[0][2] <= PIECE
    assert all(number <= SLICE_RECORDS for _, number, _ in done)
    assert sum(number for _, number, _ in done[1:]) == count, "begun anew off the loop, where it may hold what it needs"
    if codec != 2:  # librdkafka's raw snappy has one block; ours are small
        assert all(size <= 2 * PIECE for _, _, size in done)
    assert works.steps == len(done) - 1
