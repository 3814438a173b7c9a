"""A message is read in several ways, each for the sake of speed, and all must find what protobuf's library finds.

What a client writes is looked at in columns (``alike``), through a smaller schema, or in slices (``write_request``);
what is stored is given to readers in columns, one message by another, or with its data left in place (``read_data``),
and to other protocols field by field (``bridges.formats.ydb``). One property feeds all of them with the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from bridges.formats.protobuf import put_varint
from bridges.formats.records import Buffer, StoredBatch
from bridges.formats.ydb import Head, YdbFormat, created_ms, encode_batch
from ydb_topic_front.session import alike, read_data, write_request
from ydb_topic_front.session.read_data import BatchReader, Place
from ydb_topic_front.session.read_response import ResponseBuilder
from ydb_topic_front.session.write_request import WriteParts, parts_at_once, parts_in_slices, write_body
from ydb_topic_front.wire.messages import StreamReadFromServer, WriteRequest
from ydb_topic_front.wire.statuses import YdbError

CODEC, BASE, NEVER = 300, (1 << 20) - 20, 1 << 40


def varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value & (1 << 64) - 1)
    return bytes(out)


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


TWINS = ["seq_no", "seconds", "nanos", "created_at", "data", "size"]
"""From some message of a run on this field has a tag that nobody knows, and everything else stays where it is."""
TWINS += ["shuffled", "fat", "fatter", "thin", "longer", "reversed"]


def tagged(tag: bytes, odd: str | None, name: str) -> bytes:
    """The tag of the field called ``name``, or one of the same type that nobody knows."""
    return tag if odd != name else bytes((tag[0] & 7 | (0x18 if name in ("seconds", "nanos") else 0x70),))


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """Messages as clients encode them: runs of some that have the same fields, with values that take the same bytes or
    a few others, and single ones that are different in every way that the protocol allows."""
    found: list[bytes] = []
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        number += draw(st.integers(1, 3) | st.sampled_from([100, 1 << 14, 1 << 40]))
        step = draw(st.sampled_from([1, 1, 1, 2, 50, 0, -1]))
        created = draw(st.none() | st.integers(0, 1 << 33) | st.sampled_from([-1, 1 << 62]))
        nanos = draw(st.none() | st.integers(1, 999_999_999))
        data = draw(st.none() | st.integers(0, 40) | st.integers(120, 140))
        size = draw(st.none() | st.integers(0, 300) | st.just(1 << 40))
        kind = draw(st.sampled_from(["alike", "alike", "alike", "alike", "items", "unknown", "twice", "backwards"]))
        count = draw(st.integers(1, 40)) if kind == "alike" else draw(st.integers(1, 3))
        drift = draw(st.sampled_from([0, 0, 1, 3]))
        twin = draw(st.none() | st.sampled_from(TWINS))
        turn = draw(st.integers(0, count))
        numbers = [number + step * place for place in range(count)]
        if twin == "shuffled" and count > 3:
            numbers[1], numbers[2] = numbers[2], numbers[1]
        for place in range(count):
            odd = twin if place >= turn else None
            fields = [tagged(b"\x08", odd, "seq_no") + varint(numbers[place])]
            length = data
            if created is not None:
                time = tagged(b"\x08", odd, "seconds") + varint(created + drift * place)
                if nanos is not None:
                    now = min(nanos + (drift << 20) * (count - place), (1 << 31) - 1)
                    time += tagged(b"\x10", odd, "nanos") + varint(now)
                if twin == "fat" or (odd == "fatter" and length is not None and length > 2):
                    time += b"\x18\x01"
                    length = length and max(0, length - 2)
                fields.append(tagged(b"\x12", odd, "created_at") + field(2, time)[1:])
            if odd == "thin" and length is not None and length > 2:
                length -= 2
            if length is not None:
                fields.append(tagged(b"\x1a", odd, "data") + field(3, bytes([place]) * length)[1:])
            if size is not None:
                fields.append(tagged(b"\x20", odd, "size") + varint(size + drift * place))
            if odd == "longer" or (odd == "thin" and length != data):
                fields.append(b"\x70\x01")
            if odd == "reversed":
                fields.reverse()
            if kind == "items":
                fields += [field(7, field(1, b"k%d" % item) + field(2, b"value")) for item in range(place + 1)]
            elif kind == "unknown":
                fields.insert(place % len(fields), field(100, b"what nobody knows"))
            elif kind == "twice":
                fields.append(fields[-1])
            elif kind == "backwards":
                fields.reverse()
            found.append(b"".join(fields))
        number += step * count
    return found


@contextmanager
def patched(module: Any, **values: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(module, name, value)
        yield


def taken(work: Any) -> WriteParts | None:
    """What a request was found to ask for; None if it was refused."""
    try:
        found = work()
    except YdbError:
        return None
    assert found is not None
    assert isinstance(found, WriteParts)
    return found


def looked_at(raw: bytes) -> dict[str, WriteParts | None]:
    """What the ways of looking at a request say of it."""
    body = write_body(raw)
    assert body is not None
    found = {}
    with patched(write_request, FEW=1 << 40):
        found["one by one"] = taken(lambda: parts_at_once(raw, body, NEVER))
    with patched(write_request, FEW=1), patched(alike, FIRST_WINDOW=3):
        found["in columns"] = taken(lambda: parts_at_once(raw, body, NEVER))
    found["as usual"] = taken(lambda: parts_at_once(raw, body, NEVER))
    with patched(write_request, SLICE_BYTES=100, SLICE_MESSAGES=3, MAX_BATCH_BYTES=400):
        found["in slices"] = taken(lambda: at_once(parts_in_slices(body, 7)))
    return found


def encoded_as_protobuf(parts: list[Buffer]) -> list[Any]:
    return [one for part in parts for one in WriteRequest.FromString(bytes(part)).messages]


def as_read(payload: bytes, count: int, start: int, max_bytes: int, max_messages: int) -> list[Any]:
    """What a reader gets of a stored batch from the offset ``start`` on, in answers of some size."""
    place = Place(start)
    found: list[Any] = []
    ended = False
    while not ended:
        reader = BatchReader(payload, BASE, BASE + count, 12_345, place)
        parts: list[Buffer] = []
        size = reader.take(parts, max_bytes, max_messages)
        assert size == sum(map(len, parts))
        builder = ResponseBuilder(7)
        builder.batch(size, parts, reader.tail)
        raw, _ = at_once(builder.finish())
        (batch,) = StreamReadFromServer.FromString(raw).read_response.partition_data[0].batches
        assert reader.taken == len(batch.message_data)
        assert reader.ended or reader.place != place, "it goes on"
        if batch.message_data:
            assert reader.offset == batch.message_data[-1].offset + 1
        found += batch.message_data
        place, ended = reader.place, reader.ended
    return found


WAYS_TO_READ = {
    "one by one": {"FEW": 1 << 40},
    "in columns": {"FEW": 2, "AT_ONCE": 9},
    "as usual": {},
    "with data left in place": {"FEW": 1 << 40, "LARGE_BYTES": 3},
}


def those(*parts: tuple[str, range]) -> list[bytes]:
    """Messages of each layout (hexadecimal) with the numbers of a range, which stand where it says ``n``."""
    return [bytes.fromhex(layout.replace("n", f"{number:02x}")) for layout, numbers in parts for number in numbers]


@given(messages(), st.integers(0, 50), st.integers(200, 5000), st.integers(1, 60))
@example(those(("08n", range(1, 4)), ("08n", range(5, 6)), ("08n", range(4, 5)), ("08n", range(6, 9))), 0, 5000, 60)
@example(
    those(("08n 12 02 08 05 1a 02 61 62", range(1, 9)), ("08n 12 06 08 05 1a 02 61 62", range(9, 20))), 0, 5000, 60
)
@example(those(("08n 12 04 08 05 10 07", range(1, 9)), ("08n 12 04 08 05 18 09", range(9, 20))), 0, 5000, 60)
@example(those(("08n 1a 04 61 62 70 01", range(1, 9)), ("08n 1a 02 61 62 70 01", range(9, 20))), 0, 5000, 60)
@example(
    those(("08n 12 06 08 05 10 07 18 01", range(1, 9)), ("08n 12 06 08 05 10 07 08 09", range(9, 20))), 0, 5000, 60
)
@example(those(("08n 1a 01 61", range(1, 9)), ("70n 1a 01 61", range(9, 20))), 0, 5000, 60)
@example(those(("08n 1a 01 61", range(1, 9)), ("08n 1a 01 61 70 01", range(9, 20))), 0, 5000, 60)
@example(those(("08n 20 05", range(1, 9)), ("08n 70 05", range(9, 20))), 0, 5000, 60)
@example(those(("08n 12 02 08 09", range(1, 9)), ("08n 12 02 08 05", range(9, 12))), 0, 5000, 60)
@example(those(("08n 12 06 08 05 10 c0 84 3d", range(1, 3)), ("08n 12 06 08 05 10 80 89 7a", range(3, 5))), 0, 5000, 60)
@example(those(("08n", range(1, 4)), ("08n 20 05", range(3, 5)), ("08n", range(6, 9))), 0, 5000, 60)
def test_every_way_of_reading_finds_what_protobuf_finds(
    written: list[bytes], skipped: int, max_bytes: int, max_messages: int
) -> None:
    lengths = [field(1, one) for one in written]
    request = b"".join(lengths)
    expected = list(WriteRequest.FromString(request).messages)
    numbers = [one.seq_no for one in expected]
    in_order = numbers[0] > 0 and all(one < other for one, other in pairwise(numbers))
    stamps = [one.created_at for one in expected if one.HasField("created_at")]
    latest = max(-1, *(created_ms(stamp.seconds, stamp.nanos) for stamp in stamps), -1)

    # What the columns say of the first messages, as many as are alike.
    run = alike.find(request, 0, len(request), NEVER, 1)
    if run is not None:
        these = expected[: run.number]
        assert request[: run.end] == b"".join(lengths[: run.number])
        assert list(run.numbers(request)) == numbers[: run.number]
        if these[0].HasField("created_at"):
            assert run.latest(request) == max((one.created_at.seconds, one.created_at.nanos) for one in these)
        else:
            assert run.latest(request) == (-1, 0)

    # What a writer asks for.
    body = request + b"\x10" + varint(CODEC)
    for way, found in looked_at(field(2, body)).items():
        assert (found is not None) == in_order, way
        if found is not None:
            assert found.codec == CODEC, way
            assert [number for part in found.parts for number in part.seq_nos] == numbers, way
            assert max(part.max_created_ms for part in found.parts) == latest, way
            assert encoded_as_protobuf([part.messages for part in found.parts]) == expected, way

    # What is read of it again: by YDB's readers, and by those of other protocols.
    count = len(written)
    payload = encode_batch(Head(False, CODEC, count, 1, count, -1, b"p", b""), request)
    start = BASE + skipped
    for way, values in WAYS_TO_READ.items():
        with patched(read_data, **values):
            got = as_read(payload, count, start, max_bytes, max_messages)
        assert [one.offset for one in got] == [*range(start, BASE + count)], way
        for one, other in zip(got, expected[skipped:], strict=True):
            assert (one.seq_no, one.data, one.uncompressed_size) == (
                other.seq_no,
                other.data,
                other.uncompressed_size,
            ), way
            assert one.HasField("created_at") == other.HasField("created_at"), way
            assert one.created_at == other.created_at, way
            assert list(map(str, one.metadata_items)) == list(map(str, other.metadata_items)), way
            assert one.message_group_id == "p", way
    records = [one for one in YdbFormat().records(StoredBatch(BASE, BASE + count, 3, payload), start=start) if one]
    assert [(one.offset, one.sequence, one.value, one.timestamp) for one in records] == [
        (
            BASE + place,
            one.seq_no,
            one.data,
            created_ms(one.created_at.seconds, one.created_at.nanos) if one.HasField("created_at") else -1,
        )
        for place, one in enumerate(expected)
        if place >= skipped
    ]
