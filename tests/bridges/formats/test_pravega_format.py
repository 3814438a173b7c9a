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
    assert shape_of(3, 23, 10) == (Shape.BYTES, 1)
    assert shape_of(11, 1000, 10) == (Shape.BYTES, 1)
    assert shape_of((1 << 31) - 1, 1000, 1 << 31) == (Shape.BYTES, 1)
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
