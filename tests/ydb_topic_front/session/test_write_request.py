"""What a WriteRequest is taken for, whole and in slices, and what damaged bytes are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import advance
from bridges.formats.protobuf import put_varint
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import Head, YdbFormat, encode_batch
from ydb_topic_front.session import alike, write_request
from ydb_topic_front.session.write_request import WriteParts, parse_other, parts_at_once, parts_in_slices, write_body
from ydb_topic_front.wire.messages import StreamWriteFromClient
from ydb_topic_front.wire.statuses import YdbError

MOST = 1000


def message(seq_no: int, data: bytes = b"x", created: tuple[int, int] | None = None, items: int = 0) -> dict[str, Any]:
    fields: dict[str, Any] = {"seq_no": seq_no, "data": data}
    if created is not None:
        fields["created_at"] = {"seconds": created[0], "nanos": created[1]}
    if items:
        fields["metadata_items"] = [{"key": f"k{number}", "value": b"v"} for number in range(items)]
    return fields


def raw_of(*messages: dict[str, Any], codec: int = 1) -> bytes:
    raw: bytes = StreamWriteFromClient(write_request={"messages": messages, "codec": codec}).SerializeToString()
    return raw


def examined(raw: bytes, most: int = MOST) -> tuple[WriteParts, int]:
    """What it asks for, and after how many slices that was known."""
    body = write_body(raw)
    assert body is not None
    found_at_once = parts_at_once(raw, body, most)
    if found_at_once is not None:
        return found_at_once, 0
    work = parts_in_slices(body, most)
    steps = 1
    while True:
        ended, found = advance(work)
        if ended:
            assert isinstance(found, WriteParts)
            return found, steps
        steps += 1


def varint_of(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


MESSAGES = st.lists(
    st.tuples(
        st.integers(1, 2**40),
        st.binary(max_size=40),
        st.none() | st.tuples(st.integers(1, 2**33), st.integers(0, 999_999_999)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one[0],
).map(lambda found: [message(*one) for one in sorted(found, key=lambda one: one[0])])


@given(MESSAGES, st.integers(1, 20), st.integers(64, 400))
def test_slices_find_what_a_look_at_the_whole_finds(found: list[dict[str, Any]], most: int, bound: int) -> None:
    """And what is stored says the same again."""
    raw = raw_of(*found)
    whole, steps = examined(raw)
    (part,) = whole.parts
    assert steps == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_request, "UNCOUNTED_BYTES", 0)
        patch.setattr(write_request, "AT_ONCE_BYTES", 0)
        patch.setattr(write_request, "SLICE_BYTES", bound // 2)
        patch.setattr(write_request, "SLICE_MESSAGES", 3)
        patch.setattr(write_request, "MAX_BATCH_BYTES", bound)
        sliced, steps = examined(raw, most)
    assert steps > 0
    assert [number for one in sliced.parts for number in one.seq_nos] == list(part.seq_nos)
    assert max(one.max_created_ms for one in sliced.parts) == part.max_created_ms
    assert all(len(one.seq_nos) <= most for one in sliced.parts)
    records = []
    for one in sliced.parts:
        numbers = one.seq_nos
        batch = encode_batch(
            Head(False, sliced.codec, len(numbers), numbers[0], numbers[-1], one.max_created_ms, b"p", b""),
            one.messages,
        )
        stored = StoredBatch(0, len(numbers), 3, batch)
        records += [record for record in YdbFormat().records(stored) if record is not None]
    assert [(record.sequence, record.value) for record in records] == [(one["seq_no"], one["data"]) for one in found]


ALIKE = st.lists(
    st.tuples(
        st.integers(1, 5) | st.sampled_from([100, 2**14, 2**40]),  # from the last number to the next, at first
        st.integers(1, 1) | st.integers(2, 200),  # and then
        st.integers(1, 40),
        st.integers(0, 3),
        st.none() | st.tuples(st.integers(0, 2**33) | st.just(-1), st.integers(0, 999_999_999) | st.just(2**31 - 1)),
        st.none() | st.integers(1, 2**40),
    ),
    min_size=1,
    max_size=5,
)


@given(ALIKE, st.integers(1, 4))
def test_messages_laid_out_alike_are_found_to_be_what_they_are(runs: list[tuple[Any, ...]], few: int) -> None:
    """In whatever order their values come, and wherever the layout changes."""
    found: list[dict[str, Any]] = []
    last = 0
    for first, step, count, size, created, uncompressed in runs:
        for number in range(count):
            last += step if number else first
            one = message(last, bytes([number]) * size, created and (created[0], created[1] // (number + 1)))
            found.append(one if uncompressed is None else {**one, "uncompressed_size": uncompressed // (number + 1)})
    raw = raw_of(*found, codec=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_request, "FEW", 10**9)
        plain, _ = examined(raw)
        patch.setattr(write_request, "FEW", few)
        patch.setattr(alike, "FIRST_WINDOW", 3)
        columns, _ = examined(raw)
    (part,), (same,) = plain.parts, columns.parts
    assert (columns.codec, same.seq_nos, same.max_created_ms) == (plain.codec, part.seq_nos, part.max_created_ms)
    stored, rest = bytes(part.messages)[: len(same.messages)], bytes(part.messages)[len(same.messages) :]
    assert (bytes(same.messages), rest) in ((stored, b""), (stored, b"\x10\xac\x02")), "all but the codec"


@pytest.mark.parametrize("numbers", [[*range(1, 100), 99], [0, *range(2, 100)], [*range(1, 60), *range(30, 90)]])
def test_numbers_of_messages_laid_out_alike_must_rise(numbers: list[int]) -> None:
    with pytest.raises(YdbError, match=r"must rise|not positive"):
        examined(raw_of(*(message(number) for number in numbers)))


def test_numbers_without_gaps_are_a_range() -> None:
    found, _ = examined(raw_of(*(message(number) for number in range(5, 15))))
    assert found.parts[0].seq_nos == range(5, 15)


@pytest.mark.parametrize(
    ("created", "highest"),
    [
        ([], -1),
        ([(0, 0)], 0),
        ([(5, 1_000_000), (5, 999_000_000), (4, 0)], 5_999),
        ([(1, 0), (9, 5_000_000), (9, 1_000_000)], 9_005),
        ([(-5, 0)], -1),
        ([(2**60, 0)], -1),
    ],
)
def test_the_highest_time_is_told(created: list[tuple[int, int]], highest: int) -> None:
    messages = [message(number, created=time) for number, time in enumerate(created, 1)]
    found, _ = examined(raw_of(*(messages or [message(1)])))
    assert found.parts[0].max_created_ms == highest


def test_a_request_of_very_many_small_messages_is_gone_through_in_slices() -> None:
    found, steps = examined(raw_of(*(message(number) for number in range(1, 30_001))), 8_000)
    assert steps > 10
    assert [len(part.seq_nos) for part in found.parts] == [8_000, 8_000, 8_000, 6_000]


def test_of_a_large_message_only_what_comes_besides_its_data_is_looked_at() -> None:
    data = bytes(3 * 1024**2)
    found, steps = examined(raw_of(message(5, data, (9, 0), 3), message(7, data), message(8)))
    assert [list(part.seq_nos) for part in found.parts] == [[5, 7, 8]]
    assert (found.parts[0].max_created_ms, steps) == (9_000, 4)
    with pytest.raises(YdbError, match="more than 4096"):
        examined(raw_of({**message(5, data), "metadata_items": [{"key": "k", "value": bytes(5000)}]}))
    for item in ({"key": "k", "value": bytes(70_000)}, {}):
        with pytest.raises(YdbError, match="too much besides its data"):
            examined(raw_of({**message(5, data), "metadata_items": [item] * (1 if item else 10_000)}))


@pytest.mark.parametrize("size", [0, 3 * 1024**2])
def test_metadata_items_without_bytes_are_counted(size: int) -> None:
    """However little they take, somebody has to go over each."""
    many = {**message(1, bytes(size)), "metadata_items": [{}] * 5000}
    with pytest.raises(YdbError, match="metadata items, more than 4096"):
        examined(raw_of(many))
    found, steps = examined(raw_of(*(message(number, items=500) for number in range(1, 21))))
    assert [list(part.seq_nos) for part in found.parts] == [list(range(1, 21))]
    assert steps > 4
    last = {**message(21), "metadata_items": [{"key": "k", "value": bytes(5000)}]}
    raw = raw_of(*(message(number, items=500) for number in range(1, 21)), last)
    with pytest.raises(YdbError, match="is 5001 bytes, more than 4096"):
        examined(raw)


def test_a_large_message_has_little_besides_its_data_however_small_its_request() -> None:
    unknown = b"\xa0\x01\x00" * 50_000
    large = raw_of(message(1, bytes(100_000)))
    body = write_body(large)
    assert body is not None
    inner = bytes(body)[4:-2]  # behind the tag and length of its message, without the codec
    grown = b"\x0a" + varint_of(len(inner) + len(unknown)) + inner + unknown + b"\x10\x01"
    raw = b"\x12" + varint_of(len(grown)) + grown
    assert len(StreamWriteFromClient.FromString(raw).write_request.messages[0].data) == 100_000
    with pytest.raises(YdbError, match="too much besides its data"):
        examined(raw)


def test_fields_in_another_order_are_for_small_requests() -> None:
    for size, taken in ((1000, True), (100_000, False)):
        body = write_body(raw_of(message(1, bytes(size))))
        assert body is not None
        turned = b"\x10\x01" + bytes(body)[:-2]
        raw = b"\x12" + varint_of(len(turned)) + turned
        if taken:
            assert list(examined(raw)[0].parts[0].seq_nos) == [1]
        else:
            with pytest.raises(YdbError, match="must come first"):
                examined(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_taken(raw: bytes) -> None:
    body = write_body(raw)
    with pytest.MonkeyPatch.context() as patch:
        for small, slice_bytes in ((64 * 1024, 1024), (0, 1024), (0, 4)):
            patch.setattr(write_request, "UNCOUNTED_BYTES", small)
            patch.setattr(write_request, "AT_ONCE_BYTES", small)
            patch.setattr(write_request, "SLICE_BYTES", slice_bytes)
            with suppress(YdbError):
                parse_other(raw) if body is None else examined(raw)


@given(MESSAGES, st.data())
def test_damaged_requests_are_refused_or_can_be_read_again(found: list[dict[str, Any]], data: st.DataObject) -> None:
    raw = bytearray(raw_of(*found))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    body = write_body(bytes(raw))
    if body is None:
        return
    try:
        taken, _ = examined(bytes(raw))
    except YdbError:
        return
    for part in taken.parts:
        numbers = part.seq_nos
        batch = encode_batch(
            Head(False, taken.codec, len(numbers), numbers[0], numbers[-1], part.max_created_ms, b"", b""),
            part.messages,
        )
        stored = StoredBatch(0, len(numbers), 3, batch)
        got = [record for record in YdbFormat().records(stored) if record is not None]
        assert [record.sequence for record in got] == list(numbers)
