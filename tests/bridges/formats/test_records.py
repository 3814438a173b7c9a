"""Records whatever their format: reading from inside a batch, reading a bounded part, batches without records."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, FormatId, StoredFormat, Translator, decode
from bridges.formats.codecs.compression import Compression
from bridges.formats.kafka import check_count, encode, parse_header, set_log_append_time
from bridges.formats.records import CODEC_HEADER, Buffer, Record, StoredBatch, bounded
from sbp_document.format import DocumentFormat
from sbp_document.wire.record_batch import FORMAT_FLAG

BASE = 1000
DOCUMENT = DocumentFormat()

RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=60) | st.integers(0, 100_000).map(bytes),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        timestamp=st.integers(1, 1 << 30),
    ),
    max_size=12,
)


def built(form: StoredFormat, records: list[Record], span: int | None = None) -> StoredBatch:
    end = BASE + (len(records) if span is None else span)
    builder = form.builder(BASE, end)
    for record in records:
        builder.add(record)
    return StoredBatch(BASE, end, int(form.id), builder.finish(), 77)


#: All formats but that of notes for the ledger, which hold none.
HOLDING_RECORDS = [DOCUMENT, *(form for form in FORMATS.values() if form.id not in (DOCUMENT.id, FormatId.LEDGER_NOTE))]


def kafka(records: list[Record], codec: int = 0, **stamp: int) -> StoredBatch:
    return StoredBatch(BASE, BASE + len(records), int(FormatId.KAFKA), encode(records, BASE, codec=codec, **stamp), 77)


def batches(records: list[Record]) -> list[StoredBatch]:
    """The records in every format, and with every codec."""
    return [*(kafka(records, codec) for codec in Compression), *(built(form, records) for form in HOLDING_RECORDS)]


@settings(deadline=None)
@given(RECORDS, st.data())
def test_reading_from_inside_a_batch_gives_the_same_records(given_records: list[Record], data: st.DataObject) -> None:
    for offset, record in enumerate(given_records, BASE):
        record.offset = offset
    start = data.draw(st.integers(BASE - 2, BASE + len(given_records) + 2))
    for batch in batches(given_records):
        form = FORMATS[batch.flags]
        behind = [record for record in form.records(batch, start=start) if record is not None]
        assert behind == [record for record in decode(batch) if record.offset >= start]


@settings(deadline=None)
@given(RECORDS, st.integers(-1, 13), st.integers(-1, 300))
def test_a_bounded_part_is_the_longest_that_fits(given_records: list[Record], count: int, size: int) -> None:
    for batch in batches(given_records):
        full = decode(batch)
        part = [one for one in bounded(FORMATS[batch.flags].records(batch), count, size) if one is not None]
        assert part == full[: len(part)]
        assert count < 0 or len(part) <= count
        assert size < 0 or len(part) <= 1 or sum(one.size for one in part) <= size
        if count:
            assert bool(part) == bool(full)
        if len(part) < len(full) and len(part) != count:
            assert sum(one.size for one in full[: len(part) + 1]) > size or sum(one.size for one in part) == size


def test_no_more_is_decoded_than_is_asked_for() -> None:
    torn = kafka([Record(None, b"good"), Record(None, b"bad")])
    torn = torn._replace(payload=bytes(torn.payload[:-1]) + b"\x7f")
    with pytest.raises(BatchInvalid):
        decode(torn)
    form = FORMATS[torn.flags]
    assert [one.value for one in bounded(form.records(torn), 1) if one is not None] == [b"good"]
    assert list(bounded(form.records(torn), 0)) == []
    assert [one.value for one in bounded(form.records(torn), -1, 4) if one is not None] == [b"good"]


@pytest.mark.parametrize("codec", list(Compression))
def test_what_lies_before_the_start_is_neither_kept_nor_passed_over_in_one_go(codec: int) -> None:
    batch = kafka([Record(None, b"x", timestamp=1)] * 5_000 + [Record(b"k", b"last", timestamp=2)], codec)
    items = list(FORMATS[batch.flags].records(batch, start=BASE + 5_000))
    assert [(one.offset, one.key, one.value) for one in items if one is not None] == [(BASE + 5_000, b"k", b"last")]
    assert items.count(None) >= 10


@pytest.mark.parametrize("codec", list(Compression))
def test_a_start_behind_large_records(codec: int) -> None:
    large = [Record(None, bytes([number]) * 300_000, timestamp=1) for number in range(5)]
    batch = kafka(large, codec)
    for start in range(6):
        found = [one.value for one in FORMATS[batch.flags].records(batch, start=BASE + start) if one is not None]
        assert found == [one.value for one in large[start:]]


@pytest.mark.parametrize("length", [-1, 0, 5, 1 << 40])
def test_a_record_that_is_passed_over_cannot_lead_astray(length: int) -> None:
    zigzag = (length << 1) ^ (length >> 63)
    number = bytearray()
    while zigzag > 0x7F:
        number.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    number.append(zigzag)
    good = encode([Record(None, b"x" * 40, timestamp=1)] * 2, BASE)
    batch = StoredBatch(BASE, BASE + 2, int(FormatId.KAFKA), bytes(good[:61] + number + good[62:]))
    with pytest.raises(BatchInvalid):
        list(FORMATS[FormatId.KAFKA].records(StoredBatch(*batch[:3], _sized(batch.payload)), start=BASE + 1))


def _sized(batch: Buffer) -> bytes:
    return batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:]  # type: ignore[operator]


@pytest.mark.parametrize("form", list(HOLDING_RECORDS), ids=lambda form: form.name)
@pytest.mark.parametrize("span", [0, 3])
def test_a_batch_of_no_records_is_legal(form: StoredFormat, span: int) -> None:
    empty = built(form, [], span)
    form.describe(empty.payload)
    found = decode(empty)
    if form.id == FormatId.RAW:  # its payload is a value, whatever it holds
        assert [one.value for one in found] == [b""]
    else:
        assert found == []
        assert form.describe(empty.payload).max_timestamp == -1


def test_kafka_readers_get_a_batch_without_records_for_a_gap() -> None:
    empty = built(DOCUMENT, [], 3)
    payload = Translator(1 << 20).payload(1, empty, FormatId.KAFKA)
    assert payload is not None
    header = parse_header(payload)
    check_count(header, len(payload))
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (BASE, 2, 0)
    assert (header.base_timestamp, header.max_timestamp, header.size) == (-1, -1, len(payload))


def test_when_a_record_was_written() -> None:
    for batch in batches([Record(None, b"x", timestamp=5)]):
        assert [one.written for one in decode(batch)] == [77]
    stamped = kafka([Record(None, b"x", timestamp=5)])
    at_once(set_log_append_time(memoryview(stamped.payload), 99))
    assert [(one.timestamp, one.written) for one in decode(stamped)] == [(99, 99)]


def test_a_records_sequence_is_that_of_its_place() -> None:
    batch = kafka([Record(None, b"x")] * 3, producer_id=7, producer_epoch=0, base_sequence=(1 << 31) - 2)
    assert [(one.producer, one.sequence) for one in decode(batch)] == [
        ("7", (1 << 31) - 2),
        ("7", (1 << 31) - 1),
        ("7", 0),
    ]
    assert [one.sequence for one in FORMATS[batch.flags].records(batch, start=BASE + 2) if one is not None] == [0]
    assert [one.sequence for one in decode(kafka([Record(None, b"x")], producer_id=7))] == [-1]


@pytest.mark.parametrize("form", [FormatId.KAFKA, FORMAT_FLAG, FormatId.YDB])
def test_a_value_that_is_still_encoded_says_so_to_foreign_readers(form: FormatId) -> None:
    record = Record(None, b"?", [("a", b"b")], 5, codec="custom-10007", attributes=[("origin", b"here")])
    (found,) = decode(built(FORMATS[form], [record]))
    assert found.headers == [("a", b"b"), (CODEC_HEADER, b"custom-10007")]
    assert found.value == b"?"
    assert list(found.attributes) == ([("origin", b"here")] if form == FORMAT_FLAG else [])
    assert record.headers == [("a", b"b")], "telling it changes nothing"


def test_a_record_is_small() -> None:
    assert sys.getsizeof(Record(None, None)) <= 120
