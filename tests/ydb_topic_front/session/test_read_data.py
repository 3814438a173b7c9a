"""What readers get of stored batches, compared with the messages as protobuf's own library reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, FormatId
from bridges.formats.records import Buffer, Record
from bridges.formats.ydb import Head, encode_batch
from ydb_topic_front.session import read_data
from ydb_topic_front.session.read_data import BatchReader, Place
from ydb_topic_front.session.read_response import ResponseBuilder
from ydb_topic_front.wire.messages import StreamReadFromServer, StreamWriteFromClient, WriteRequest, messages

BASE = 1000
NEVER = 1 << 40
_Meta = messages["Ydb.Topic.StreamWriteMessage.InitRequest"]

WRITTEN = st.lists(
    st.fixed_dictionaries(
        {
            "seq_no": st.integers(1, 1 << 62),
            "data": st.binary(max_size=20) | st.integers(100, 300).map(bytes),
            "uncompressed_size": st.integers(0, 1 << 40),
            "metadata_items": st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.binary(max_size=3)}), max_size=3
            ),
        },
        optional={
            "created_at": st.fixed_dictionaries(
                {"seconds": st.integers(-5, 1 << 36), "nanos": st.integers(0, 999_999_999)}
            ),
            "message_group_id": st.text(max_size=3),
        },
    ),
    min_size=1,
    max_size=8,
)


def batch_of(request: Any, producer: bytes = b"producer", meta: bytes = b"", codec: int = 2) -> bytes:
    return encode_batch(
        Head(False, codec, len(request.messages), 1, 9, -1, producer, meta), request.SerializeToString()
    )


def read(reader: BatchReader, max_bytes: int = NEVER, max_messages: int = 1000) -> Any:
    builder = ResponseBuilder(7)
    parts: list[Buffer] = []
    size = reader.take(parts, max_bytes, max_messages)
    builder.batch(size, parts, reader.tail)
    raw, credit = at_once(builder.finish())
    message = StreamReadFromServer.FromString(raw)
    assert message.status == 400000
    response = message.read_response
    assert response.bytes_size == credit > 0
    assert len(raw) - credit < 30, "the credit is about what is sent"
    (data,) = response.partition_data
    assert data.partition_session_id == 7
    (batch,) = data.batches
    return batch


def expected(request: Any, group: str) -> list[dict[str, Any]]:
    return [
        {
            "offset": offset,
            "seq_no": one.seq_no,
            "created_at": (one.HasField("created_at"), one.created_at.seconds, one.created_at.nanos),
            "data": one.data,
            "size": one.uncompressed_size,
            "group": group,
            "items": [(item.key, item.value) for item in one.metadata_items],
        }
        for offset, one in enumerate(request.messages, BASE)
    ]


def found(batch: Any) -> list[dict[str, Any]]:
    return [
        {
            "offset": one.offset,
            "seq_no": one.seq_no,
            "created_at": (one.HasField("created_at"), one.created_at.seconds, one.created_at.nanos),
            "data": one.data,
            "size": one.uncompressed_size,
            "group": one.message_group_id,
            "items": [(item.key, item.value) for item in one.metadata_items],
        }
        for one in batch.message_data
    ]


@pytest.mark.parametrize("large", [read_data.LARGE_BYTES, 3])
@given(WRITTEN, st.integers(BASE - 2, BASE + 9))
def test_a_reader_gets_what_was_written(large: int, written: list[dict[str, Any]], start: int) -> None:
    """Whether data is copied at once or left where it is for the time being."""
    request = WriteRequest(messages=written)
    end = BASE + len(written)
    reader = BatchReader(batch_of(request), BASE, end, 12_345, Place(start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_data, "LARGE_BYTES", large)
        batch = read(reader)
    assert reader.taken == len(batch.message_data)
    assert found(batch) == [one for one in expected(request, "producer") if one["offset"] >= start]
    assert (batch.producer_id, batch.codec, batch.written_at.seconds, batch.written_at.nanos) == (
        "producer",
        2,
        12,
        345_000_000,
    )


RUN = st.tuples(
    st.integers(1, 1 << 62),
    st.integers(1, 70),
    st.integers(0, 20) | st.integers(100, 200),
    st.none() | st.integers(0, 1 << 33),
    st.none() | st.integers(1, 1 << 40),
)


@given(
    st.lists(RUN, min_size=1, max_size=4),
    st.integers(0, 1 << 50),
    st.integers(0, 100),
    st.integers(500, 20_000),
    st.integers(1, 40),
)
def test_messages_laid_out_alike_are_read_at_once(
    runs: list[tuple[Any, ...]], base: int, skipped: int, max_bytes: int, max_messages: int
) -> None:
    """In parts of any size, and it is what was written."""
    written: list[dict[str, Any]] = []
    for seq_no, count, size, seconds, uncompressed in runs:
        for number in range(count):
            one: dict[str, Any] = {"seq_no": max(1, seq_no - number), "data": bytes([number]) * size}
            if seconds is not None:
                one["created_at"] = {"seconds": seconds, "nanos": 1 + number}
            if uncompressed is not None:
                one["uncompressed_size"] = uncompressed
            written.append(one)
    request = WriteRequest(messages=written)
    payload, end = batch_of(request), base + len(written)
    reader = BatchReader(payload, base, end, 1, Place(base + skipped))
    got: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_data, "FEW", 4)
        while not reader.ended:
            parts: list[Buffer] = []
            size = reader.take(parts, max_bytes, max_messages)
            assert size == sum(map(len, parts))
            if size:
                builder = ResponseBuilder(7)
                builder.batch(size, parts, reader.tail)
                raw, _ = at_once(builder.finish())
                assert size <= max_bytes + 300
                got += found(StreamReadFromServer.FromString(raw).read_response.partition_data[0].batches[0])
            if reader.full:
                reader = BatchReader(payload, base, end, 1, reader.place)
    assert got == [{**one, "offset": one["offset"] - BASE + base} for one in expected(request, "producer")[skipped:]]


@given(WRITTEN, st.integers(0, 400), st.integers(1, 4))
def test_a_batch_is_read_in_parts(written: list[dict[str, Any]], max_bytes: int, max_messages: int) -> None:
    request = WriteRequest(messages=written)
    payload, end = batch_of(request), BASE + len(written)
    place = Place(BASE)
    seen: list[dict[str, Any]] = []
    for _ in range(3 * len(written) + 3):
        # Each time anew: what is known is only the place.
        reader = BatchReader(payload, BASE, end, -1, place)
        part = found(read(reader, max_bytes, max_messages))
        assert part or reader.ended
        seen += part
        assert reader.offset == BASE + len(seen)
        place = reader.place
        if reader.ended:
            break
    assert reader.ended
    assert seen == expected(request, "producer")


def test_the_session_of_the_writer_and_its_absence() -> None:
    meta = _Meta(write_session_meta={"a": "1", "ключ": "значение"}).SerializeToString()
    request = WriteRequest(messages=[{"seq_no": 1}])
    batch = read(BatchReader(batch_of(request, b"p", meta), 0, 1, 5, Place(0)))
    assert dict(batch.write_session_meta) == {"a": "1", "ключ": "значение"}
    nobody = read(BatchReader(batch_of(request, b"", codec=10_007), 0, 1, -1, Place(0)))
    assert (nobody.producer_id, nobody.codec, nobody.HasField("written_at")) == ("", 10_007, False)
    assert nobody.message_data[0].message_group_id == ""
    other = read(BatchReader(batch_of(request), 0, 1, -1, Place(0), "kafka:7"))
    assert (other.producer_id, other.message_data[0].message_group_id) == ("kafka:7", "kafka:7")


def test_unusual_encodings_are_read_as_protobuf_does() -> None:
    # Other orders, and fields of requests that readers do not get.
    one = b"\x1a\x03abc" + b"\x20\x03" + b"\x08\x05" + b"\x30\x09" + b"\x42\x02\x08\x01" + b"\x3a\x03\x0a\x01k"
    raw = b"\x0a%c" % len(one) + one + b"\x10\x02"
    request = WriteRequest.FromString(raw)
    payload = encode_batch(Head(False, 2, 1, 1, 9, -1, b"producer", b""), raw)
    assert found(read(BatchReader(payload, BASE, BASE + 1, -1, Place(BASE)))) == expected(request, "producer")


def test_a_turn_goes_over_a_bounded_number_of_metadata_items() -> None:
    messages = [
        {"seq_no": number, "metadata_items": [{"key": "k"}] * (4000 if number % 2 else 1)} for number in range(1, 9)
    ]
    request = WriteRequest(messages=messages, codec=1)
    reader = BatchReader(batch_of(request), BASE, BASE + 8, -1, Place(BASE))
    steps = []
    while not reader.ended:
        before = reader.taken
        reader.take([], 1 << 20, 500)
        steps.append(reader.taken - before)
    assert sum(steps) == 8
    assert max(steps) == 2, "one that is long ends the turn"


def test_what_others_wrote_has_gaps() -> None:
    builder = FORMATS[FormatId.YDB].builder(BASE, BASE + 20)
    for offset in (3, 7, 15):
        builder.add(Record(b"key", b"value", [("h", b"x")], 5000, BASE + offset))
    payload = builder.finish()
    for start, left in ((0, [3, 7, 15]), (4, [7, 15]), (15, [15]), (16, [])):
        reader = BatchReader(payload, BASE, BASE + 20, 1, Place(BASE + start))
        batch = read(reader)
        assert [one.offset - BASE for one in batch.message_data] == left
        assert reader.ended
    assert [
        (one.key, one.value)
        for one in read(BatchReader(payload, BASE, BASE + 20, 1, Place(BASE))).message_data[0].metadata_items
    ] == [
        ("__key", b"key"),
        ("h", b"x"),
    ]


@pytest.mark.parametrize("raw", [b"\x0a\x05\x08\x01", b"\x0a\x03\x1a\x05a", b"\x0a\x01\x08", b"\x0a\x02\x0b\x0b", b""])
def test_a_damaged_message_is_an_error(raw: bytes) -> None:
    reader = BatchReader(
        encode_batch(Head(False, 1, min(1, len(raw)), 1, 1, -1, b"p", b""), raw), 0, min(1, len(raw)), -1, Place(0)
    )
    if not raw:
        assert reader.take([], 100, 100) == 0
        assert reader.ended
        return
    with pytest.raises(BatchInvalid):
        reader.take([], 100, 100)
    with pytest.raises(BatchInvalid):
        BatchReader(raw, 0, 1, -1, Place(0))


def test_the_tables_of_the_wire_agree() -> None:
    """Every field of a written message that readers get has the tag that this module believes."""
    init = StreamWriteFromClient()
    init.write_request.messages.add(seq_no=1, data=b"x")
    assert init.SerializeToString().startswith(b"\x12")
