"""Kafka's batches as columns, compared with the same batches read record by record."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchInvalid
from bridges.formats import FormatId, format_of
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.columns.kafka import open_body
from bridges.formats.kafka import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, KafkaFormat, encode, marker
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record, StoredBatch
from spark_pipeline.core.client.node_answers import AbortedTransaction
from spark_pipeline.core.decoding import records as decode_records
from spark_pipeline.core.decoding.batches import Aborted, decode
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from tests.spark_pipeline.core.oracle import EVERYTHING, decoded, expected

CODECS = range(5)
BYTES = st.none() | st.binary(max_size=20) | st.sampled_from([50, 64, 5000]).map(bytes)
NAMES = st.text(max_size=12)
RECORDS = st.builds(
    Record,
    key=BYTES,
    value=BYTES,
    headers=st.just([]) | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=200)), max_size=4),
    timestamp=st.integers(-1, 1 << 44),
)


@st.composite
def batches(draw: st.DrawFn) -> list[StoredBatch]:
    """Some batches that follow one another, with gaps in and between them."""
    found, base = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 5))):
        records = draw(st.lists(RECORDS, max_size=12)) * draw(st.sampled_from([1, 1, 30]))
        offset = base
        placed = []
        for record in records:
            offset += draw(st.sampled_from([0, 0, 0, 0, 3])) if len(records) < 20 else 0
            placed.append(Record(record.key, record.value, record.headers, record.timestamp, offset))
            offset += 1
        end = offset + draw(st.integers(0 if records else 1, 3))
        producer = draw(st.sampled_from([{}, {"producer_id": 7, "producer_epoch": 1, "base_sequence": 2**31 - 3}]))
        attributes = draw(st.sampled_from([0, 0, LOG_APPEND_TIME]))
        payload = encode(
            placed, base, codec=draw(st.sampled_from(CODECS)), attributes=attributes, count=end - base, **producer
        )
        found.append(StoredBatch(base, end, FormatId.KAFKA, bytes(payload), draw(st.sampled_from([-1, 1_700_000]))))
        base = end + draw(st.integers(0, 2))
    return found


@settings(deadline=None)  # what an example takes is a matter of what it draws
@given(batches(), st.data())
def test_the_same_rows(stored: list[StoredBatch], data: st.DataObject) -> None:
    assert decoded(stored) == expected(stored)
    if stored:
        span = st.integers(stored[0].base_offset, stored[-1].end_offset)
        start, end = sorted((data.draw(span), data.draw(span)))
        assert decoded(stored, start, end, batch_bytes=data.draw(st.sampled_from([1, 1000, 1 << 21]))) == expected(
            stored, start, end
        )


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 8000, 8191, 8192, 70_000, 1_100_000, 17_000_000])
def test_lengths_of_every_number_of_bytes(size: int) -> None:
    records = [Record(b"k" * (size // 2), bytes(size), [("h", bytes(size // 3))], 1 << 43), Record(None, b"x", [], 5)]
    stored = [StoredBatch(9, 11, FormatId.KAFKA, bytes(encode(records, 9)), 4)]
    assert decoded(stored) == expected(stored)


def test_long_batches_of_records_that_are_alike_and_not() -> None:
    rng = random.Random(7)
    records = [Record(b"key", bytes(100), [], 1_000 + number) for number in range(3000)]
    for number in range(0, 3000, 700):
        records[number].value = bytes(rng.randrange(200))
    records[1400:1700] = [Record(None, bytes(rng.randrange(90)), [], 4) for _ in range(300)]
    stored = [StoredBatch(0, 3000, FormatId.KAFKA, bytes(encode(records)), 4)]
    assert decoded(stored) == expected(stored)


@pytest.mark.parametrize("size", [10, 120, 5000, 9000])
def test_batches_that_are_as_long_as_the_one_before(size: int) -> None:
    def batch(number: int, *sizes: int) -> StoredBatch:
        records = [Record(b"%03d" % number, bytes([number]) * one, [], 1_000) for one in sizes]
        base = len(sizes) * number
        return StoredBatch(base, base + len(sizes), FormatId.KAFKA, bytes(encode(records, base)), 4)

    alike = [size, size, size + 1, size - 1]
    others = [size, size, size - 1, size + 1]
    stored = [batch(number, *(others if number in (70, 71, 75, 140) else alike)) for number in range(150)]
    assert len({len(one.payload) for one in stored}) == 1
    assert decoded(stored, batch_bytes=1 << 30) == expected(stored)


@pytest.mark.parametrize("names", [("value",), ("offset",), ("timestamp", "partition"), ("headers", "key"), ("seq",)])
def test_only_the_columns_that_are_asked_for(names: tuple[str, ...]) -> None:
    stored = [StoredBatch(0, 2, FormatId.KAFKA, bytes(encode([Record(b"a", b"b"), Record(None, None)])), -1)]
    assert decoded(stored, columns=Columns(names)) == [{name: row[name] for name in names} for row in expected(stored)]


def test_control_batches_and_aborted_ones_are_gaps() -> None:
    def batch(base: int, producer: int, *values: bytes) -> StoredBatch:
        records = [Record(None, value, [], 1) for value in values]
        part = {} if producer < 0 else {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        payload = encode(records, base, attributes=TRANSACTIONAL if producer >= 0 else 0, **part)
        return StoredBatch(base, base + len(records), FormatId.KAFKA, bytes(payload), 1)

    def end(base: int, producer: int, *, commit: bool) -> StoredBatch:
        payload = marker(InTransaction(producer, 0, commit), 5)
        return StoredBatch(base, base + 1, FormatId.KAFKA, bytes(payload), 1)

    stored = [
        batch(0, 1, b"aborted", b"aborted"),
        batch(2, 2, b"kept 2"),
        batch(3, -1, b"kept 3"),
        end(4, 1, commit=False),
        batch(5, 1, b"kept 5"),
        end(6, 1, commit=True),
        batch(7, 2, b"kept 7"),
        end(8, 2, commit=True),
        batch(9, 1, b"aborted again"),
        end(10, 1, commit=False),
    ]
    asked = []

    def told() -> list[AbortedTransaction]:
        asked.append(1)
        return [AbortedTransaction(1, 9, 10), AbortedTransaction(1, 0, 4)]

    found = decoded(stored, aborted=Aborted(told))
    assert [(row["offset"], row["value"]) for row in found] == [(n, f"kept {n}".encode()) for n in (2, 3, 5, 7)]
    assert asked == [1], "once for all"
    decoded(stored[3:4], aborted=Aborted(told))
    assert asked == [1], "who meets no transaction does not ask"


def test_a_batch_of_another_format_between() -> None:
    stored = [
        StoredBatch(0, 1, FormatId.KAFKA, bytes(encode([Record(b"k", b"one", [], 5)])), -1),
        StoredBatch(1, 4, FormatId.RAW, b"opaque", 77),
        StoredBatch(4, 5, FormatId.KAFKA, bytes(encode([Record(b"k", b"two", [], 6)], 4)), -1),
    ]
    assert decoded(stored) == expected(stored)
    assert [row["writer"] for row in decoded(stored)] == ["kafka", "raw", "kafka"]


def test_rows_come_in_pieces_of_the_size_asked_for() -> None:
    records = [Record(None, bytes(1000), [], 5) for _ in range(1000)]
    stored = [
        StoredBatch(base, base + 1000, FormatId.KAFKA, bytes(encode(records, base, codec=codec)), -1)
        for base, codec in ((0, 0), (1000, 4))
    ]
    found = list(decode(stored, OffsetRange("t", 0, 0, 2000), EVERYTHING, 100_000))
    assert sum(batch.num_rows for batch in found) == 2000
    assert all(50 <= batch.num_rows <= 200 for batch in found)


def broken(change: int) -> StoredBatch:
    """A batch whose checksum is right and whose records are not."""
    payload = encode([Record(b"key", b"value", [("h", b"v")], 5), Record(b"key", b"value", [], 6)])
    payload[change] ^= 0x55
    struct.pack_into(">I", payload, 17, crc32c.crc32c(memoryview(payload)[21:]))
    return StoredBatch(0, 2, FormatId.KAFKA, bytes(payload), -1)


def test_every_byte_of_the_records_wrong_is_read_like_the_oracle_does() -> None:
    """Damage that the checksum does not tell gives the same rows, or an error that names the record that is wrong."""
    size = len(broken(61).payload)
    refused = 0
    for change in range(61, size):
        stored = [broken(change)]
        try:
            wanted = expected(stored)
        except Exception:  # noqa: BLE001 - whatever it says
            refused += 1
            good = iter(KafkaFormat().records(stored[0]))
            wrong = 0
            with suppress(BatchInvalid):
                for record in good:
                    wrong = record.offset + 1 if record else wrong
            with pytest.raises(UnreadableBatch, match=f"offset {wrong} of t-3"):
                decoded(stored)
            continue
        assert decoded(stored) == wanted
    assert refused > 5


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 4), st.integers(-1, 300))
def test_any_bytes_for_records(body: bytes, codec: int, count: int) -> None:
    payload = bytearray(encode([Record(None, b"")]))[:61] + body
    struct.pack_into(">i", payload, 8, len(payload) - 12)
    struct.pack_into(">h", payload, 21, codec)
    struct.pack_into(">i", payload, 57, count)
    struct.pack_into(">i", payload, 23, 400)
    struct.pack_into(">I", payload, 17, crc32c.crc32c(memoryview(payload)[21:]))
    stored = [StoredBatch(0, 500, FormatId.KAFKA, bytes(payload), -1)]
    try:
        wanted = expected(stored)
    except Exception:  # noqa: BLE001 - whatever it says
        with pytest.raises(UnreadableBatch):
            decoded(stored)
    else:
        assert decoded(stored) == wanted


def test_a_checksum_that_does_not_match_names_the_batch() -> None:
    good = bytes(encode([Record(b"key", b"value", [], 5)], 0))
    bad = bytearray(encode([Record(b"key", b"value", [], 5)], 1))
    bad[-3] ^= 1
    stored = [StoredBatch(0, 1, FormatId.KAFKA, good, -1), StoredBatch(1, 2, FormatId.KAFKA, bytes(bad), -1)]
    with pytest.raises(UnreadableBatch, match=r"offset 1 of t-3 cannot be read: .*checksum"):
        decoded(stored)


def test_a_header_that_claims_more_than_the_bytes_can_hold() -> None:
    payload = bytearray(encode([Record(None, b"x")] * 3, codec=4))
    struct.pack_into(">i", payload, 57, 1 << 30)
    struct.pack_into(">I", payload, 17, crc32c.crc32c(memoryview(payload)[21:]))
    with pytest.raises(UnreadableBatch, match="cannot lie in"):
        decoded([StoredBatch(0, 3, FormatId.KAFKA, bytes(payload), -1)])


def test_a_bomb_is_refused() -> None:
    payload = encode([Record(None, bytes(5_000_000))], codec=4)
    stored = [StoredBatch(0, 1, FormatId.KAFKA, bytes(payload), -1)]
    with pytest.raises(UnreadableBatch, match="exceeds the limit of 1000000"):
        list(decode(stored, OffsetRange("t", 0, 0, 1), EVERYTHING, 1 << 20, limit=1_000_000))


def test_usual_batches_are_not_read_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("read record by record")

    monkeypatch.setattr(decode_records, "decode", never)
    records = [Record(b"k" if n % 3 else None, bytes(n), [("a", b"1"), ("b", None)][: n % 3], n) for n in range(500)]
    stored = [StoredBatch(0, 500, FormatId.KAFKA, bytes(encode(records, codec=codec)), -1) for codec in CODECS]
    assert len(decoded(stored)) == 2500


def test_batches_that_arrays_do_not_take_in_do_not_spoil_others() -> None:
    far = [Record(None, b"x", [], 0), Record(None, b"y", [], 1 << 62)]  # a number of nine bytes
    stored = [
        StoredBatch(0, 1, FormatId.KAFKA, bytes(encode([Record(None, b"a", [], 5)])), -1),
        StoredBatch(1, 3, FormatId.KAFKA, bytes(encode(far, 1)), -1),
    ]
    rows = decoded(stored, columns=Columns(("offset", "value")))
    assert rows == [{"offset": 0, "value": b"a"}, {"offset": 1, "value": b"x"}, {"offset": 2, "value": b"y"}]


def test_a_control_batch_of_another_kind_is_left_out() -> None:
    payload = encode([Record(b"k", b"v")], attributes=CONTROL)
    stored = [StoredBatch(0, 1, FormatId.KAFKA, bytes(payload), -1)]
    assert decoded(stored) == [] == expected(stored)
    assert at_once(open_body(stored[0], DEFAULT_LIMIT)) is None
    assert format_of(FormatId.KAFKA).describe(payload).control
