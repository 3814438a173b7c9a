"""Pravega's stored format: what foreign readers see of an append, and what a segment's readers do."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats import FORMATS, FormatId, decode, format_of
from bridges.formats.pravega import (
    HEADER_SIZE,
    OPAQUE,
    Shape,
    byte_count,
    encode,
    gathered,
    parse_header,
    segment_bytes,
    shape_of,
)
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.records import Record, StoredBatch

WRITER = UUID("11111111-2222-3333-4444-555555555555")
BASE = 50


def events(*values: bytes) -> bytes:
    return b"".join(struct.pack(">ii", 0, len(value)) + value for value in values)


def stored(data: bytes, claimed: int, **more: object) -> StoredBatch:
    shape, records = shape_of(claimed, len(data), 1000)
    settings: dict[str, object] = {"writer_id": WRITER.bytes, "last_number": 9, "events": claimed, "time_ms": 5}
    payload = encode([data], len(data), shape, records, **{**settings, **more})  # type: ignore[arg-type]
    return StoredBatch(BASE, BASE + records, FormatId.PRAVEGA, payload, 7)


def together(*appends: tuple[bytes, int], most: int = 1000) -> StoredBatch:
    """Appends that were gathered into one batch: (bytes, events claimed) of each."""
    shape, records, front = gathered([(claimed, len(data)) for data, claimed in appends], most)
    claimed = sum(claimed for _, claimed in appends)
    parts = [front, *(data for data, _ in appends)]
    size = sum(len(data) for data, _ in appends)
    payload = encode(parts, size, shape, records, writer_id=WRITER.bytes, last_number=100, events=claimed, time_ms=5)
    return StoredBatch(BASE, BASE + records, FormatId.PRAVEGA, payload, 7)


def told(batch: StoredBatch) -> list[tuple[int, bytes | None, bool, int]]:
    """Of each record its place in the batch, its value, whether it is an event, and its number."""
    return [(one.offset - BASE, one.value, one.codec is None, one.sequence) for one in decode(batch)]


@pytest.mark.parametrize("claimed", [3, 4, 30, 999])
def test_fewer_events_than_claimed_have_the_first_offsets_and_the_rest_are_gaps(claimed: int) -> None:
    batch = stored(events(b"one", b"", b"three"), claimed)
    numbers = [7, 8, 9] if claimed == 3 else [-1] * 3
    assert [one[:3] for one in told(batch)] == [(0, b"one", True), (1, b"", True), (2, b"three", True)]
    assert [one[3] for one in told(batch)] == numbers
    assert batch.end_offset - BASE == min(claimed, 4)


def test_an_event_whose_writer_claimed_more_than_fit_is_one_also_where_it_was_stored_as_bytes() -> None:
    data = events(b"event")
    assert told(stored(data, 2)) == [(0, b"event", True, -1)]
    for claimed, event in ((2, True), (1, False)):
        payload = encode([data], len(data), Shape.BYTES, 1, writer_id=WRITER.bytes, last_number=9, events=claimed)
        batch = StoredBatch(BASE, BASE + 1, FormatId.PRAVEGA, payload, 7)
        assert told(batch) == [(0, b"event" if event else data, event, -1)]


def test_a_wrong_claim_costs_its_own_append_and_no_other() -> None:
    one, two, raw = events(b"one"), events(b"two", b"three"), b"of a byte stream"
    many = [(one, 1), (two, 2), (two, 3), (two, 1), (b"", 1), (raw, 2), (b"!", 1), (one, 1)]
    batch = together(*many)
    assert told(batch) == [
        (0, b"one", True, -1),
        (1, b"two", True, -1),
        (2, b"three", True, -1),
        (3, b"two", True, -1),  # claims three
        (4, b"three", True, -1),
        (6, two, False, -1),  # claims one
        (7, raw, False, -1),
        (9, b"!", False, -1),
        (10, b"one", True, -1),
    ]
    assert bytes(segment_bytes(batch.payload)) == b"".join(data for data, _ in many)
    assert [one.offset - BASE for one in FORMATS[FormatId.PRAVEGA].records(batch, start=BASE + 8) if one] == [9, 10]
    # Claims that are right together, and wrong each.
    assert [place for place, *_ in told(together((two, 1), (one, 2)))] == [0, 1]
    assert told(together((one, 1), (two, 2))) == [
        (0, b"one", True, 98),
        (1, b"two", True, 99),
        (2, b"three", True, 100),
    ]


def test_of_appends_one_of_which_has_bytes_nothing_more_is_stored() -> None:
    data = events(b"one")
    assert gathered([(1, 0), (1, len(data)), (1, 0)], 10) == (Shape.EVENTS, 1, b"")
    assert told(together((b"", 1), (data, 1))) == [(0, b"one", True, -1)]


def test_claims_that_are_not_what_the_header_says_are_damage() -> None:
    front = struct.pack(">5I", 2, 1, 8, 1, 9)
    data = events(b"", b"")
    for records, table in ((2, front), (3, struct.pack(">5I", 2, 1, 8, 1, 8))):
        payload = encode([table, data], len(data), Shape.GATHERED, records)
        with pytest.raises(BatchInvalid, match="not what its header says"):
            decode(StoredBatch(BASE, BASE + 3, FormatId.PRAVEGA, payload))
    payload = encode([struct.pack(">I", 1 << 31), data], len(data), Shape.GATHERED, 2)
    with pytest.raises(BatchInvalid, match="another length"):
        parse_header(payload)


def test_events_are_records_with_their_writers_numbers() -> None:
    batch = stored(events(b"one", b"", b"three"), 3)
    assert decode(batch) == [
        Record(None, value, timestamp=5, offset=BASE + n, producer=str(WRITER), sequence=7 + n, written=7)
        for n, value in enumerate((b"one", b"", b"three"))
    ]
    assert bytes(segment_bytes(batch.payload)) == events(b"one", b"", b"three")
    assert byte_count(batch.payload) == 8 * 3 + 8


def test_the_header_tells_the_ledger_and_the_transaction() -> None:
    info = format_of(FormatId.PRAVEGA).describe(stored(events(b"one", b"two"), 2).payload)
    assert info.producer == EventStamp(WRITER.bytes, 9, 2)
    assert (info.max_timestamp, info.transaction, info.control) == (5, None, False)
    part = InTransaction(77, 3)
    assert format_of(FormatId.PRAVEGA).describe(stored(b"", 1, part=part).payload).transaction == part


@pytest.mark.parametrize(
    ("data", "claimed"),
    [
        (b"raw bytes of a byte stream", 1),
        (events(b"one", b"two"), 1),  # two events in an append that says one
        (events(b"one") + b"\0\0\0\0\0\0\0\x0a", 2),  # the second event is cut short
        (struct.pack(">ii", 1, 8) + bytes(8), 1),  # of an unknown type
        (struct.pack(">iI", 0, 1 << 31) + bytes(8), 1),
        (b"short", 3),
        (events(b"one") + b"behind", 2),  # one event, and bytes that are none
    ],
)
def test_bytes_that_are_not_the_events_claimed_are_one_record(data: bytes, claimed: int) -> None:
    batch = stored(data, claimed)
    (record,) = decode(batch)
    assert (record.value, record.offset, record.codec) == (data, BASE, OPAQUE)
    assert bytes(segment_bytes(batch.payload)) == data
    assert [one for one in FORMATS[FormatId.PRAVEGA].records(batch, start=BASE + 1) if one is not None] == []


def test_no_offsets_are_given_for_what_the_bytes_cannot_hold() -> None:
    assert shape_of(3, 24, 10) == (Shape.EVENTS, 3)
    assert shape_of(3, 23, 10) == (Shape.EVENTS, 2)
    assert shape_of(3, 7, 10) == (Shape.BYTES, 1)
    assert shape_of(11, 1000, 10) == (Shape.BYTES, 1)
    assert shape_of((1 << 31) - 1, 1000, 1 << 31) == (Shape.EVENTS, 125)
    assert shape_of((1 << 31) - 1, 1000, 10) == (Shape.BYTES, 1)
    assert shape_of(0, 0, 10) == (Shape.BYTES, 1)


@given(st.lists(st.tuples(st.binary(max_size=30), st.integers(1, 4)), max_size=12))
def test_records_of_other_protocols_become_events_and_keep_their_offsets(values: list[tuple[bytes, int]]) -> None:
    offset = BASE - 1
    records = []
    for value, step in values:
        offset += step
        records.append(Record(None, value, timestamp=offset, offset=offset))
    builder = FORMATS[FormatId.PRAVEGA].builder(BASE, offset + 1)
    for record in records:
        builder.add(record)
    payload = builder.finish()
    found = decode(StoredBatch(BASE, offset + 1, FormatId.PRAVEGA, payload))
    assert [(one.offset, one.value) for one in found] == [(one.offset, one.value) for one in records]
    assert bytes(segment_bytes(payload)) == events(*(value for value, _ in values))
    assert byte_count(payload) == sum(8 + len(value) for value, _ in values)


def test_damage_is_found() -> None:
    good = bytearray(stored(events(b"one", b"two"), 2).payload)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x41
        with pytest.raises(BatchInvalid):
            decode(StoredBatch(BASE, BASE + 2, FormatId.PRAVEGA, bytes(bad)))
    with pytest.raises(BatchCorrupt):
        decode(StoredBatch(BASE, BASE + 2, FormatId.PRAVEGA, bytes(good[:-1]) + b"?"))
    for cut in range(HEADER_SIZE + 4):
        with pytest.raises(BatchInvalid):
            parse_header(bytes(good[:cut]))


def test_others_have_their_turn_while_many_events_are_read() -> None:
    batch = stored(events(*[b"x"] * 1000), 1000)
    items = list(FORMATS[FormatId.PRAVEGA].records(batch))
    assert items.count(None) >= 10
    assert sum(item is not None for item in items) == 1000
