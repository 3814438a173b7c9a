"""What batches and their offsets take of a position in bytes, for formats that tell it from the header and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import Sliced, advance
from bridges.formats import FORMATS, FormatId
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.kafka import encode, marker
from bridges.formats.ledger_note import encode_note
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.records import Record, StoredBatch
from bridges.log.byte_positions.column import BytePlace
from bridges.log.byte_positions.event_bytes import bytes_of, record_at, told_bytes
from tests.bridges.log.self_counted import SELF_COUNTED, self_counted, self_counted_known

T = TypeVar("T")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with self_counted_known():
        yield


def run(work: Sliced[T]) -> T:
    while True:
        ended, value = advance(work)
        if ended:
            return value


def of(batch: StoredBatch, start: int, end: int) -> int:
    return run(bytes_of(batch, start, end, DEFAULT_LIMIT))


def test_headers_tell_what_they_can() -> None:
    assert told_bytes(FormatId.RAW, b"12345") == 13
    assert told_bytes(FormatId.LEDGER_NOTE, encode_note(EventStamp(bytes(16), 5))) == 0
    assert told_bytes(FormatId.KAFKA, marker(InTransaction(1, 0, True), 0)) == 0
    assert told_bytes(FormatId.KAFKA, encode([], count=3)) == 0
    assert told_bytes(FormatId.KAFKA, encode([Record(None, b"x")])) is None
    assert told_bytes(SELF_COUNTED, self_counted([1, 2])) == 19
    assert told_bytes(FormatId.KAFKA, b"no header") == 0
    assert told_bytes(14, b"nobody knows this format") == 0


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.booleans(), st.data())
def test_parts_of_a_batch_make_up_the_whole(sizes: list[int], kafka: bool, data: st.DataObject) -> None:
    records = [Record(None, bytes(size)) for size in sizes]
    payload = encode(records, 100) if kafka else self_counted(sizes)
    flags = int(FormatId.KAFKA) if kafka else SELF_COUNTED
    batch = StoredBatch(100, 100 + len(sizes), flags, payload)
    whole = sum(8 + size for size in sizes)
    assert of(batch, 0, 1000) == of(batch, 100, 100 + len(sizes)) == whole
    cut = data.draw(st.integers(100, 100 + len(sizes)))
    assert of(batch, 100, cut) == sum(8 + size for size in sizes[: cut - 100])
    assert of(batch, 100, cut) + of(batch, cut, 200) == whole
    position = data.draw(st.integers(0, whole - 1))
    found = run(record_at(batch, 7, 7 + position, DEFAULT_LIMIT))
    begins = [7 + sum(8 + size for size in sizes[:number]) for number in range(len(sizes))]
    assert found.position == max(begin for begin in begins if begin <= 7 + position)
    assert begins[found.offset - 100] == found.position


@pytest.mark.parametrize("odd", [None, 0, 700, 1199], ids=str)
@pytest.mark.parametrize("number", [FormatId.KAFKA, FormatId.YDB], ids=lambda one: one.name)
def test_columns_count_what_the_long_way_does(number: FormatId, odd: int | None) -> None:
    """Of more records than one step looks at, all plain, or one with a header."""
    sizes = [number % 7 for number in range(1200)]
    builder = FORMATS[int(number)].builder(100, 100 + len(sizes))
    for place, size in enumerate(sizes):
        headers = [("name", b"value")] if place == odd else []
        builder.add(Record(None, bytes(size) if size else None, headers, 5, 100 + place))
    batch = StoredBatch(100, 100 + len(sizes), int(number), bytes(run(builder.finish_in_slices())))
    source = FORMATS[int(number)]
    begins = [0]
    for record in source.records(batch, DEFAULT_LIMIT):
        if record is not None:
            begins.append(begins[-1] + 8 + len(record.value or b""))
    assert of(batch, 100, 100 + len(sizes)) == begins[-1]
    for cut in (101, 599, 600, 601, 800, 1299):
        assert of(batch, 100, cut) == begins[cut - 100]
        assert of(batch, cut, 5000) == begins[-1] - begins[cut - 100]
        for past in (0, 7):
            found = run(record_at(batch, 50, 50 + begins[cut - 100] + past, DEFAULT_LIMIT))
            assert found == BytePlace(cut, 50 + begins[cut - 100])


@pytest.mark.parametrize("takes", [0, 5, 100])
def test_what_the_header_tells_holds_whatever_the_records_are(takes: int) -> None:
    batch = StoredBatch(0, 3, SELF_COUNTED, self_counted([2, 2], takes))
    assert of(batch, 0, 3) == takes
    assert [of(batch, 0, end) for end in (1, 2)] == [min(10, takes), min(20, takes)]
    assert of(batch, 2, 3) == max(0, takes - 20), "what is left over belongs to the end"
    assert run(record_at(batch, 50, 50 + takes, DEFAULT_LIMIT)).offset == min(takes // 10, 1)


def test_a_record_that_cannot_be_read_takes_a_place_and_those_behind_it_none() -> None:
    damaged = encode([Record(None, b"unreadable")] * 3)[:-1] + b"\x7f"
    batch = StoredBatch(0, 4, int(FormatId.KAFKA), damaged)
    assert [of(batch, 0, end) for end in range(5)] == [0, 18, 36, 44, 44]
    assert [of(batch, start, 4) for start in range(1, 4)] == [26, 8, 0]
    places = [run(record_at(batch, 9, 9 + at, DEFAULT_LIMIT)) for at in (0, 17, 18, 35, 36, 43)]
    assert places == [(0, 9), (0, 9), (1, 27), (1, 27), (2, 45), (2, 45)]
