"""YDB's messages, Pravega's events and other formats as columns, compared with the same batches read one by one."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bridges.formats import FormatId, format_of
from bridges.formats import pravega as pravega_format
from bridges.formats.base import APPEND_TIME
from bridges.formats.codecs.ydb import Codec
from bridges.formats.ledger_note import encode_note
from bridges.formats.pravega import NO_WRITER, Shape
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.protobuf import put_bytes, put_varint
from bridges.formats.records import Buffer, Record, StoredBatch
from bridges.formats.ydb import DELTA_TAG, KEY_ITEM, TOMBSTONE_ITEM, Head, encode_batch
from sbp_document.wire.record_batch import FORMAT_FLAG
from spark_pipeline.core.client.node_answers import AbortedTransaction
from spark_pipeline.core.decoding import records as decode_records
from spark_pipeline.core.decoding.batches import Aborted
from spark_pipeline.core.errors import UnreadableBatch
from tests.spark_pipeline.core.oracle import decoded, expected

VALUES = st.none() | st.binary(max_size=20) | st.sampled_from([bytes(130), bytes(5000)])
RECORDS = st.builds(
    Record,
    key=st.none() | st.binary(max_size=9),
    value=VALUES,
    headers=st.just([])
    | st.lists(st.tuples(st.text(max_size=9) | st.just(KEY_ITEM), st.none() | st.binary(max_size=200)), max_size=3),
    timestamp=st.integers(-1, 1 << 44) | st.integers(-(1 << 50), 1 << 50),
)


@st.composite
def built(draw: st.DrawFn, form: int) -> list[StoredBatch]:
    """Batches as our own builder of a format makes them, with gaps between their records."""
    found, base = [], draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 4))):
        records = draw(st.lists(RECORDS, max_size=10)) * draw(st.sampled_from([1, 1, 30]))
        offset, placed = base, []
        for record in records:
            offset += draw(st.sampled_from([0, 0, 0, 3])) if len(records) < 20 else 0
            placed.append(Record(record.key, record.value, record.headers, record.timestamp, offset))
            offset += 1
        end = offset + draw(st.integers(0 if records else 1, 2))
        builder = format_of(form).builder(base, end)
        for record in placed:
            builder.add(record)
        flags = form | (draw(st.sampled_from([0, APPEND_TIME])) if form == FormatId.YDB else 0)
        found.append(StoredBatch(base, end, flags, bytes(builder.finish()), draw(st.sampled_from([-1, 1_700_000]))))
        base = end
    return found


def message(
    out: bytearray,
    seq_no: int,
    data: bytes | None,
    created: tuple[int, int] | None = None,
    items: list[tuple[str | None, bytes | None]] = [],  # noqa: B006 - not changed
    delta: int = -1,
    *,
    backwards: bool = False,
) -> None:
    """One message as an SDK writes it; ``backwards``: with its fields in another order."""
    fields = []
    one = bytearray(b"\x08")
    put_varint(one, seq_no)
    fields.append(one)
    if created is not None:
        time = bytearray()
        for tag, value in ((0x08, created[0]), (0x10, created[1])):
            if value:
                time.append(tag)
                put_varint(time, value)
        one = bytearray()
        put_bytes(one, 0x12, time)
        fields.append(one)
    if data is not None:
        one = bytearray()
        put_bytes(one, 0x1A, data)
        one.append(0x20)
        put_varint(one, len(data))
        fields.append(one)
    for name, value in items:
        item = bytearray()
        parts = []
        if name is not None:
            put_bytes(item, 0x0A, name.encode())
            parts.append(bytes(item))
            item.clear()
        if value is not None:
            put_bytes(item, 0x12, value)
            parts.append(bytes(item))
        one = bytearray()
        put_bytes(one, 0x3A, b"".join(reversed(parts) if backwards else parts))
        fields.append(one)
    if delta >= 0:
        one = bytearray([DELTA_TAG])
        put_varint(one, delta)
        fields.append(one)
    put_bytes(out, 0x0A, b"".join(reversed(fields) if backwards else fields))


ITEM_NAMES = st.sampled_from([KEY_ITEM, TOMBSTONE_ITEM, "__kez", "", "name", "ключ"]) | st.none()
MESSAGES = st.tuples(
    st.integers(0, 1 << 50),
    st.none() | st.binary(max_size=30) | st.sampled_from([bytes(3000)]),
    st.none() | st.tuples(st.integers(0, 1 << 45), st.integers(0, 10**9)),
    st.lists(st.tuples(ITEM_NAMES, st.none() | st.binary(max_size=20)), max_size=4),
    st.booleans(),
)


@settings(deadline=None)
@given(built(FormatId.YDB), st.data())
def test_ydb_as_we_translate_to_it(stored: list[StoredBatch], data: st.DataObject) -> None:
    assert decoded(stored) == expected(stored)
    if stored:
        span = st.integers(stored[0].base_offset, stored[-1].end_offset)
        start, end = sorted((data.draw(span), data.draw(span)))
        assert decoded(stored, start, end) == expected(stored, start, end)


@settings(deadline=None)
@given(
    st.lists(MESSAGES, min_size=1, max_size=8),
    st.sampled_from([1, 40]),
    st.sampled_from([b"", b"\x08\x07", b"\x12\x00"]),
)
def test_ydb_as_its_clients_write_it(messages: list[Any], times: int, behind: bytes) -> None:
    out = bytearray()
    for seq_no, data, created, items, backwards in messages * times:
        message(out, seq_no, data, created, items, backwards=backwards)
    count = len(messages) * times
    payload = encode_batch(Head(False, Codec.RAW, count, 1, count, 5, b"producer", b""), bytes(out) + behind)
    stored = [StoredBatch(11, 11 + count, FormatId.YDB, payload, 5)]
    assert decoded(stored) == expected(stored)
    middle = 11 + count // 2
    assert decoded(stored, middle, middle + 2) == expected(stored, middle, middle + 2)


def test_usual_messages_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    out = bytearray()
    items: list[tuple[str | None, bytes | None]] = [(KEY_ITEM, b"k"), ("header", b"v"), (KEY_ITEM, b"another")]
    for number in range(300):
        message(out, number + 1, bytes(number), (1_700_000_000, 5_000_000), items[: number % 4])
    payload = encode_batch(Head(False, Codec.RAW, 300, 1, 300, 5, b"producer", b""), out)
    stored = [StoredBatch(11, 311, FormatId.YDB, payload, 5)]
    wanted = expected(stored)
    monkeypatch.setattr(decode_records, "decode", None)
    assert decoded(stored) == wanted
    assert wanted[3]["headers"] == [{"key": "header", "value": b"v"}, {"key": KEY_ITEM, "value": b"another"}]


@pytest.mark.parametrize("codec", [Codec.GZIP, 10_007])
def test_compressed_bodies_and_those_of_unknown_codecs(codec: int) -> None:
    out = bytearray()
    for number in range(3):
        message(out, number + 1, gzip.compress(b"plain"))
    payload = encode_batch(Head(False, codec, 3, 1, 3, 5, b"p", b""), out)
    stored = [StoredBatch(0, 3, FormatId.YDB, payload, 5)]
    rows = decoded(stored)
    assert rows == expected(stored)
    if codec == Codec.GZIP:
        assert (rows[0]["value"], rows[0]["codec"], rows[0]["headers"]) == (b"plain", None, None)
    else:
        assert rows[0]["codec"] == "custom-10007"
        assert rows[0]["headers"] == [{"key": "anabranch.codec", "value": b"custom-10007"}]


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 6), st.booleans())
def test_any_bytes_for_messages(body: bytes, count: int, sparse: bool) -> None:
    payload = encode_batch(Head(sparse, Codec.RAW, count, 1, count, 5, b"", b""), body)
    compared([StoredBatch(0, 6 if sparse else max(1, count), FormatId.YDB, payload, 5)])


def test_every_byte_of_a_message_wrong() -> None:
    out = bytearray()
    message(out, 1, b"data", (5, 6_000_000), [(KEY_ITEM, b"k"), ("n", b"v")], 0)
    message(out, 2, b"", None, [(TOMBSTONE_ITEM, b"")], 3)
    for place in range(len(out)):
        for bit in (0, 4, 7):
            changed = bytearray(out)
            changed[place] ^= 1 << bit
            payload = encode_batch(Head(True, Codec.RAW, 2, 1, 2, 5, b"", b""), changed)
            compared([StoredBatch(0, 6, FormatId.YDB, payload, 5)])


def compared(stored: list[StoredBatch]) -> None:
    """Either both give the same rows, or both refuse the batch."""
    try:
        wanted = expected(stored)
    except Exception:  # noqa: BLE001 - whatever it says
        with pytest.raises(UnreadableBatch):
            decoded(stored)
    else:
        assert decoded(stored) == wanted


def events(*values: bytes) -> bytes:
    return b"".join(struct.pack(">iI", 0, len(value)) + value for value in values)


@settings(deadline=None)
@given(built(FormatId.PRAVEGA), st.data())
def test_pravega_as_we_translate_to_it(stored: list[StoredBatch], data: st.DataObject) -> None:
    assert decoded(stored) == expected(stored)
    if stored:
        span = st.integers(stored[0].base_offset, stored[-1].end_offset)
        start, end = sorted((data.draw(span), data.draw(span)))
        assert decoded(stored, start, end) == expected(stored, start, end)


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=30) | st.sampled_from([bytes(300), bytes(70_000)]), max_size=10),
    st.sampled_from([1, 30]),
    st.sampled_from([NO_WRITER, bytes(range(16))]),
    st.integers(-1, 400),
    st.sampled_from([Shape.EVENTS, Shape.BYTES, Shape.SCATTERED]),
    st.integers(-1, 1),
)
def test_pravega_as_its_clients_write_it(
    values: list[bytes], times: int, writer: bytes, claimed: int, shape: Shape, more: int
) -> None:
    body = events(*(values * times))
    count = max(0, len(values) * times + more)
    records = 1 if shape == Shape.BYTES else count
    places = struct.pack(f">{records}I", *range(1, records + 1)) if shape == Shape.SCATTERED else b""
    payload = pravega_format.encode(
        [places, body], len(body), shape, records, writer_id=writer, last_number=7, events=max(claimed, 0), time_ms=9
    )
    compared([StoredBatch(5, 5 + max(1, count + 1), FormatId.PRAVEGA, payload, 5)])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=20), max_size=3), st.integers(-2, 2), st.booleans()), min_size=1),
    st.integers(0, 1),
)
def test_pravega_as_appends_are_gathered(appends: list[tuple[list[bytes], int, bool]], numbered: int) -> None:
    made = [(events(*values) + b"?" * broken, max(1, len(values) + wrong)) for values, wrong, broken in appends]
    assume(any(data for data, _ in made))
    size = sum(len(data) for data, _ in made)
    shape, records, front = pravega_format.gathered([(claimed, len(data)) for data, claimed in made], 1000)
    count = records if numbered else sum(claimed for _, claimed in made)
    parts: list[Buffer] = [front, *(data for data, _ in made)]
    payload = pravega_format.encode(
        parts, size, shape, records, writer_id=bytes(range(16)), last_number=500, events=count, time_ms=9
    )
    compared([StoredBatch(5, 5 + records, FormatId.PRAVEGA, payload, 5)])


@pytest.mark.parametrize("appends", [1, 30])
def test_usual_events_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch, appends: int) -> None:
    values = [bytes(number % 50) for number in range(300)]
    each = 300 // appends
    parts: list[Buffer] = [events(*values[first : first + each]) for first in range(0, 300, each)]
    shape, records, front = pravega_format.gathered([(each, len(part)) for part in parts], 1000)
    size = sum(map(len, parts))
    payload = pravega_format.encode(
        [front, *parts], size, shape, records, writer_id=bytes(range(16)), last_number=1000, events=300, time_ms=9
    )
    stored = [StoredBatch(5, 305, FormatId.PRAVEGA, payload, 5)]
    wanted = expected(stored)
    monkeypatch.setattr(decode_records, "decode", None)
    assert decoded(stored) == wanted
    assert [wanted[0]["seq"], wanted[-1]["seq"]] == [701, 1000]


def test_a_damaged_batch_of_pravega_is_named() -> None:
    body = events(b"value")
    payload = bytearray(pravega_format.encode([body], len(body), Shape.EVENTS, 1))
    payload[-1] ^= 1
    with pytest.raises(UnreadableBatch, match=r"offset 5 of t-3 cannot be read: .*checksum"):
        decoded([StoredBatch(5, 6, FormatId.PRAVEGA, bytes(payload), 5)])


def test_events_of_an_aborted_transaction_are_gaps() -> None:
    body = events(b"value")
    stored = [
        StoredBatch(
            base,
            base + 1,
            FormatId.PRAVEGA,
            pravega_format.encode([body], len(body), Shape.EVENTS, 1, part=InTransaction(producer, 0)),
            5,
        )
        for base, producer in ((0, 8), (1, 9), (2, 8))
    ]
    aborted = Aborted(lambda: [AbortedTransaction(8, 0, 1)])
    assert [row["offset"] for row in decoded(stored, aborted=aborted)] == [1, 2]


def test_opaque_batches_documents_and_notes() -> None:
    document = format_of(FORMAT_FLAG).builder(5, 7)
    for value in (b"one", b"two"):
        document.add(Record(None, value, [("h", b"v")], 1234))
    stored = [
        StoredBatch(0, 5, FormatId.RAW, b"opaque", 99),
        StoredBatch(5, 7, FORMAT_FLAG, bytes(document.finish()), 98),
        StoredBatch(7, 8, FormatId.LEDGER_NOTE, encode_note(EventStamp(bytes(16), 5)), 97),
        StoredBatch(8, 9, FormatId.RAW, b"", -1),
    ]
    assert decoded(stored) == expected(stored)
    assert [row["offset"] for row in decoded(stored)] == [0, 5, 6, 8]
    assert decoded(stored, 6, 8) == expected(stored, 6, 8)


def test_a_format_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(UnreadableBatch, match="stored format 7 is not known"):
        decoded([StoredBatch(0, 1, 7, b"", 0)])
