"""Payloads of other formats in record batches of sbp-v0.1: wrapped by a writer, found again by any reader."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_back.errors import DecodeError
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry
from sbp_document.wire.record_batch import (
    FORMAT_FLAG,
    DocumentRecord,
    count_records,
    encode_batch,
    parse_batch,
    parse_head,
    set_base_offset,
    split_batches,
)
from sbp_document.wire.wrapped import Payload, as_batch, entries_of, token_of, unwrap, wrap, wrapped_bytes
from tests.depth import examples

FLAGS = st.integers(0, 2**15 - 1).filter(lambda flags: flags & 0x0F != FORMAT_FLAG)
PAYLOADS = st.lists(
    st.builds(Payload, st.binary(max_size=40), st.integers(1, 300), st.integers(1_000_000, 2_000_000)),
    min_size=1,
    max_size=5,
)


def facts(entry: Entry) -> tuple[int, int, int, int, int, bytes]:
    return (
        entry.stream_id,
        entry.base_offset,
        entry.count,
        entry.flags,
        entry.timestamp,
        bytes(entry.payload),
    )


@settings(deadline=None)
@given(FLAGS, PAYLOADS, st.integers(0, 2**60), st.text("0123456789abcdef-", max_size=40))
def test_what_is_wrapped_is_found_again(flags: int, payloads: list[Payload], base: int, token: str) -> None:
    batch = wrap(7, flags, payloads, token)
    total = sum(payload.count for payload in payloads)
    # The server counts records one by one, and so does any other reader of the document.
    assert count_records(batch) == total
    assert len(batch) <= sum(wrapped_bytes(payload.data, payload.count) for payload in payloads)
    set_base_offset(batch, base)
    records = parse_batch(batch).records
    assert [record.offset for record in records] == list(range(base, base + total))
    (entry,) = entries_of(batch, 7)
    assert facts(entry)[:4] == (7, base, total, FORMAT_FLAG)
    assert token_of(entry) == token
    offset = base
    expected = []
    for payload in payloads:
        expected.append((7, offset, payload.count, flags, payload.timestamp, payload.data))
        offset += payload.count
    assert [facts(inner) for inner in unwrap(entry)] == expected


@settings(deadline=None)
@given(FLAGS, st.integers(1, 2**31 - 1), st.binary(max_size=40), st.integers(0, 2**60))
def test_what_the_server_wrapped_is_found_again(flags: int, count: int, payload: bytes, base: int) -> None:
    stored = pack_entry(7, 3, flags, base, count, 1_700_000_000_000, payload)
    (entry,) = entries_of(b"".join(as_batch(stored)), 7)
    assert [facts(inner) for inner in unwrap(entry)] == [facts(stored)]


def test_batches_of_all_kinds_one_after_the_other() -> None:
    own = encode_batch([DocumentRecord(b"", timestamp=5), DocumentRecord(b"two", timestamp=5)])
    merged = wrap(7, 1, [Payload(b"\x22" * 30, 9, 5), Payload(b"\0" * 64, 1, 6)])
    set_base_offset(merged, 2)
    foreign = b"".join(as_batch(pack_entry(7, 0, 1, 12, 50, 7, b"kafka")))
    data = bytes(own + merged + foreign)
    assert [bytes(one) for one in split_batches(data)] == [bytes(own), bytes(merged), foreign]
    entries = entries_of(data, 7)
    assert [(one.base_offset, one.end_offset) for one in entries] == [(0, 2), (2, 12), (12, 62)]
    inner = [unwrapped for entry in entries for unwrapped in unwrap(entry)]
    assert [(one.base_offset, one.end_offset, one.flags) for one in inner] == [
        (0, 2, FORMAT_FLAG),
        (2, 11, 1),
        (11, 12, 1),
        (12, 62, 1),
    ]
    assert bytes(inner[2].payload) == b"\0" * 64


def test_empty_records_of_the_document_are_records() -> None:
    """Ten million of them are counted without a look at each."""
    head = struct.pack(">bqi", 0x22, 0, 0)
    assert count_records(head + bytes(8 * 10_000_000)) == 10_000_000
    assert count_records(head + bytes(8)) == 1
    with pytest.raises(DecodeError):
        count_records(head + bytes(12))
    (entry,) = entries_of(head + bytes(24), 1)
    assert unwrap(entry) == [entry]
    assert entry.count == 3


@pytest.mark.parametrize("mark", ["16", "99999999999", "", "-1", "one", "4"])
def test_a_mark_that_means_nothing_hides_nothing(mark: str) -> None:
    """Anybody may write any property: the batch is then one like any other."""
    batch = encode_batch([DocumentRecord(b"a"), DocumentRecord(b"b")], properties=[("anabranch.wrapped", mark)])
    (entry,) = entries_of(batch, 1)
    inner = unwrap(entry)
    assert sum(one.count for one in inner) == 2
    assert (inner == [entry]) == (mark != "4")


def test_a_mark_over_records_that_do_not_fit_it_hides_nothing() -> None:
    batch = wrap(1, 1, [Payload(b"payload", 3, 5)]) + bytes(8)
    (entry,) = entries_of(batch, 1)
    assert entry.count == 4
    assert unwrap(entry) == [entry], "a record behind the last payload belongs to none"


def test_a_mark_over_nothing_but_empty_records_hides_nothing() -> None:
    head = wrap(1, 1, [Payload(b"", 1, 5)])
    records_at = parse_head(memoryview(head))[2]
    for count in (1, 3):
        (entry,) = entries_of(head[:records_at] + bytes(8 * count), 1)
        assert entry.count == count
        assert unwrap(entry) == [entry]


@settings(deadline=None, max_examples=examples(100))
@given(FLAGS, PAYLOADS, st.data())
def test_damage_only_raises_decode_errors(flags: int, payloads: list[Payload], data: st.DataObject) -> None:
    batch = bytearray(wrap(7, flags, payloads))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    batch = batch[: data.draw(st.integers(0, len(batch)))]
    try:
        entries = entries_of(batch, 7)
    except DecodeError:
        return
    for entry in entries:
        inner = unwrap(entry)
        assert [one.base_offset for one in inner] == [entry.base_offset, *(one.end_offset for one in inner[:-1])]
        assert inner[-1].end_offset == entry.end_offset
