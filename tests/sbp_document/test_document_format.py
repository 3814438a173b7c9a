"""Record batches of sbp-v0.1 as other protocols read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.errors import BatchInvalid
from bridges.formats import FormatId, StoredFormat, Translator, decode, format_of
from bridges.formats.kafka import KafkaFormat, iterate
from bridges.formats.records import Buffer, Record, StoredBatch
from sbp_document.format import DocumentFormat
from sbp_document.wire.record_batch import FORMAT_FLAG, DocumentRecord, encode_batch, set_base_offset
from tests.depth import examples

FORMAT = DocumentFormat()
TEXT = st.text(max_size=6)
RECORDS = st.lists(
    st.builds(
        DocumentRecord,
        st.binary(max_size=20),
        st.lists(st.tuples(TEXT, TEXT), max_size=2),
        st.just([]),
        st.integers(1_700_000_000_000, 1_700_000_100_000),
    ),
    min_size=1,
    max_size=5,
)


def stored(batch: Buffer, count: int, base: int = 0) -> StoredBatch:
    return StoredBatch(base, base + count, int(FORMAT_FLAG), batch)


def test_its_number_is_the_backends() -> None:
    assert int(FORMAT_FLAG) == FORMAT_FLAG
    assert format_of(FORMAT_FLAG).name == "sbp-v0.1"


@settings(deadline=None)
@given(RECORDS, st.integers(0, 2**40))
def test_records_of_the_document_are_read(given_records: list[DocumentRecord], base: int) -> None:
    batch = encode_batch(given_records)
    FORMAT.stamp(batch, base, 7)
    records = decode(stored(batch, len(given_records), base))
    assert records == [
        Record(None, bytes(one.body), [(k, v.encode()) for k, v in one.headers], one.timestamp, base + number)
        for number, one in enumerate(given_records)
    ]
    assert FORMAT.describe(batch).max_timestamp == max(one.timestamp for one in given_records)


@settings(deadline=None)
@given(RECORDS, st.integers(0, 2**40))
def test_kafka_consumers_read_them(given_records: list[DocumentRecord], base: int) -> None:
    batch = encode_batch(given_records)
    set_base_offset(batch, base)
    payload = Translator(1 << 20).payload(1, stored(batch, len(given_records), base), FormatId.KAFKA)
    assert payload is not None
    found = [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in iterate(payload)]
    assert found == [
        (base + number, one.timestamp, None, bytes(one.body), [(k, v.encode()) for k, v in one.headers])
        for number, one in enumerate(given_records)
    ]


@settings(deadline=None)
@given(RECORDS)
def test_records_of_kafka_as_the_document_has_them(given_records: list[DocumentRecord]) -> None:
    records = [
        Record(b"key", bytes(one.body), [(k, v.encode()) for k, v in one.headers], one.timestamp, number)
        for number, one in enumerate(given_records)
    ]
    batch = built(KafkaFormat(), records)
    kafka_batch = StoredBatch(0, len(records), int(FormatId.KAFKA), batch)
    payload = Translator(1 << 20).payload(1, kafka_batch, FORMAT_FLAG)
    assert payload is not None
    back = decode(stored(payload, len(records)))
    assert [(one.key, one.value, one.headers, one.timestamp, one.offset) for one in back] == [
        (None, one.value, one.headers, one.timestamp, one.offset) for one in records
    ]


def built(form: StoredFormat, records: list[Record]) -> Buffer:
    builder = form.builder(0, len(records))
    for record in records:
        builder.add(record)
    return builder.finish()


def test_the_highest_time_of_a_long_batch_is_told_as_high_as_it_can_be() -> None:
    """Searches look into the batch then; telling it exactly would mean to look at every record at once."""
    times = [1_700_000_000_000 + number for number in range(101)]
    short, long = (encode_batch([DocumentRecord(b"", timestamp=one) for one in times[:count]]) for count in (100, 101))
    assert FORMAT.describe(short).max_timestamp == times[99]
    assert FORMAT.describe(long).max_timestamp == times[0] + 2**31 - 1
    assert FORMAT.describe(encode_batch([DocumentRecord(b"")] * 101)).max_timestamp == -1


def test_times_far_apart_are_brought_nearer() -> None:
    records = [Record(None, b"a", timestamp=1_000_000_000_000), Record(None, b"b", timestamp=1_700_000_000_000)]
    first, second = decode(stored(bytes(built(FORMAT, records)), 2))
    assert (first.timestamp, second.timestamp) == (1_000_000_000_000, 1_000_000_000_000 + 2**31 - 1)


@pytest.mark.parametrize(
    ("timestamp", "told"), [(0, -1), (-5, -1), (1_700_000_000_000, 1_700_000_000_000), (2**62, -1)]
)
def test_a_time_that_is_none_is_unknown(timestamp: int, told: int) -> None:
    batch = encode_batch([DocumentRecord(b"x", timestamp=timestamp)])
    assert FORMAT.describe(batch).max_timestamp == told
    assert decode(stored(batch, 1))[0].timestamp == told


@pytest.mark.parametrize("bad", [b"", b"\x22" + bytes(11), b"x" * 50, bytes(encode_batch([DocumentRecord(b"x")]))[:-1]])
def test_what_is_no_batch_is_a_batch_that_is_invalid(bad: bytes) -> None:
    with pytest.raises(BatchInvalid):
        decode(stored(bad, 1))
    with pytest.raises(BatchInvalid):
        FORMAT.describe(bad)


def test_a_batch_must_have_as_many_records_as_offsets() -> None:
    with pytest.raises(BatchInvalid):
        decode(stored(encode_batch([DocumentRecord(b"x")]), 2))


@settings(max_examples=examples(100), deadline=None)
@given(RECORDS, st.data())
def test_damage_is_a_batch_that_is_invalid(given_records: list[DocumentRecord], data: st.DataObject) -> None:
    bad = encode_batch(given_records)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    batch = stored(bad, len(given_records))
    try:
        records = decode(batch)
    except BatchInvalid:
        return
    built(KafkaFormat(), records)  # whatever could be read can be told in another protocol
