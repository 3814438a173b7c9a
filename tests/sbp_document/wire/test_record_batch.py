"""Record batches of sbp-v0.1: walked, numbered, read back, and made of entries of other formats."""

from __future__ import annotations

import struct
from typing import Any

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_back.errors import DecodeError
from sbp_back.wire.entry import pack_entry
from sbp_document.wire.record_batch import (
    BATCH_MAGIC,
    FORMAT_FLAG,
    WRAPPED,
    DocumentRecord,
    count_records,
    encode_batch,
    parse_batch,
    parse_batches,
    set_base_offset,
    split_batches,
)
from sbp_document.wire.wrapped import as_batch
from tests.depth import examples

TEXT = st.text(max_size=8)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3)
RECORDS = st.lists(
    st.builds(DocumentRecord, st.binary(max_size=30), PAIRS, PAIRS, st.integers(1_000_000, 2_000_000)),
    min_size=1,
    max_size=6,
)
OFFSETS = st.integers(0, 2**62)


def plain(record: DocumentRecord) -> Any:
    return bytes(record.body), record.headers, record.properties, record.timestamp


def raw(*records: tuple[bytes, bytes], meta: bytes = b"", base: int = 0) -> bytes:
    """A batch by hand; of records the meta and the body."""
    parts = [struct.pack(">bqi", 0x22, base, len(meta)), meta]
    for of_record, body in records:
        parts += [struct.pack(">ii", len(of_record), len(body)), of_record, body]
    return b"".join(parts)


def builder_meta(kind: str, delta: int, pairs: list[tuple[str, str]]) -> bytes:
    """A meta as the ``flatbuffers`` package makes it: of a batch or of a record (docs/protocols/sbp.md, "Record batches
    of the document")."""
    builder = flatbuffers.Builder(64)
    tables = []
    for key, value in pairs:
        key_at, value_at = builder.CreateString(key), builder.CreateString(value)
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key_at, 0)
        builder.PrependUOffsetTRelativeSlot(1, value_at, 0)
        tables.append(builder.EndObject())
    builder.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    vector = builder.EndVector()
    if kind == "batch":
        builder.StartObject(6)
        builder.PrependInt64Slot(0, 5, 0)
        builder.PrependInt32Slot(3, delta, 0)
        builder.PrependInt64Slot(4, 1000, 0)
        builder.PrependUOffsetTRelativeSlot(5, vector, 0)
    else:
        builder.StartObject(4)
        builder.PrependInt32Slot(0, delta, 0)
        builder.PrependInt32Slot(1, delta, 0)
        builder.PrependUOffsetTRelativeSlot(2, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


@settings(deadline=None)
@given(RECORDS, OFFSETS, PAIRS)
def test_a_batch_is_read_back(records: list[DocumentRecord], base: int, properties: list[tuple[str, str]]) -> None:
    batch = encode_batch(records, stream_id=9, flags=3, properties=[(f"p{key}", value) for key, value in properties])
    assert count_records(batch) == len(records)
    before = bytes(batch)
    set_base_offset(batch, base)
    assert bytes(batch[9:]) == before[9:], "nothing but the eight bytes of the offset is touched"
    parsed = parse_batch(batch)
    assert [plain(one) for one in parsed.records] == [plain(one) for one in records]
    assert [one.offset for one in parsed.records] == list(range(base, base + len(records)))
    assert (parsed.base_offset, parsed.end_offset, parsed.wrapped) == (base, base + len(records), -1)
    assert (parsed.meta.stream_id, parsed.meta.flags, parsed.meta.last_offset_delta) == (9, 3, len(records) - 1)


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=4))
def test_batches_one_after_the_other_are_told_apart(many: list[list[DocumentRecord]]) -> None:
    batches = []
    base = 0
    for records in many:
        batch = encode_batch(records)
        set_base_offset(batch, base)
        base += len(records)
        batches.append(bytes(batch))
    data = b"".join(batches)
    assert [bytes(batch) for batch in split_batches(data)] == batches
    assert [one.offset for batch in parse_batches(data) for one in batch.records] == list(range(base))


@pytest.mark.parametrize("delta", [0, 1, 2, 3, -7, 2**31 - 1, -(2**31)])
def test_the_writers_claim_about_its_offsets_is_not_believed(delta: int) -> None:
    """Java counts from 0, Rust from 1, others may write anything (docs/protocols/sbp.md, "Record batches of the
    document")."""
    meta = builder_meta("batch", delta, [("k", "v")])
    batch = raw((builder_meta("record", delta, [("h", "1")]), b"a"), (b"", b"b"), meta=meta, base=40)
    assert count_records(batch) == 2
    parsed = parse_batch(batch)
    assert [(bytes(one.body), one.offset) for one in parsed.records] == [(b"a", 40), (b"b", 41)]
    assert parsed.records[0].headers == [("h", "1")]
    assert parsed.records[0].timestamp == 1000 + delta
    assert parsed.end_offset == 42


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x22",
        bytes(13),  # another magic
        raw(),  # no records
        raw((b"", b"x")) + b"1234567",  # a record that is cut
        raw((b"", b"x"))[:-1],
        struct.pack(">bqi", 0x22, 0, 1),  # a meta that is not there
        struct.pack(">bqi", 0x22, 0, -1),
        raw() + struct.pack(">ii", 0, -1),
        raw() + struct.pack(">ii", -1, 0) + b"x",
        raw() + struct.pack(">ii", 2**31 - 1, 2**31 - 1) + b"x" * 20,
    ],
)
def test_what_is_no_batch_is_refused(bad: bytes) -> None:
    with pytest.raises(DecodeError):
        count_records(bad)


@settings(max_examples=examples(100), deadline=None)
@given(RECORDS, st.data())
def test_damaged_batches_only_raise_decode_errors(records: list[DocumentRecord], data: st.DataObject) -> None:
    bad = encode_batch(records)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(bad[: data.draw(st.integers(0, len(bad)))])
    for run in (count_records, parse_batch, parse_batches, split_batches):
        try:
            run(cut)
        except DecodeError:
            continue
    try:
        count = count_records(cut)
    except DecodeError:
        return
    assert len(parse_batch(cut, lenient=True).records) == count, "what is counted can be read"


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_no_batch(noise: bytes) -> None:
    for run in (count_records, parse_batch, parse_batches):
        try:
            run(noise)
        except DecodeError:
            continue


def test_a_meta_that_is_no_table_hides_no_record() -> None:
    batch = raw((b"nonsense", b"body"), meta=b"more nonsense", base=3)
    assert count_records(batch) == 1
    with pytest.raises(DecodeError):
        parse_batch(batch)
    (record,) = parse_batch(batch, lenient=True).records
    assert (bytes(record.body), record.offset, record.headers) == (b"body", 3, [])


def test_a_batch_has_records() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


# --- entries of other formats ---------------------------------------------------------------------------------------


def test_an_entry_that_is_a_batch_is_that_batch() -> None:
    batch = encode_batch([DocumentRecord(b"x")])
    set_base_offset(batch, 12)
    entry = pack_entry(1, 0, FORMAT_FLAG, 12, 1, 5, batch)
    (part,) = as_batch(entry)
    assert part is batch


@pytest.mark.parametrize("payload", [b"", b"\x22", encode_batch([DocumentRecord(b"other base")]), b"y" * 40])
def test_flags_alone_make_no_batch(payload: bytes) -> None:
    """Any writer of sbp-0.2 can set them."""
    entry = pack_entry(1, 0, FORMAT_FLAG, 12, 2, 5, payload)
    parsed = parse_batch(b"".join(as_batch(entry)))
    assert parsed.wrapped == FORMAT_FLAG
    assert bytes(parsed.records[0].body) == payload


@settings(deadline=None)
@given(OFFSETS, st.integers(1, 2**31 - 1), st.integers(0, 2**15 - 1), OFFSETS, st.binary(max_size=50))
def test_a_foreign_entry_becomes_a_batch_over_the_same_offsets(
    base: int, count: int, flags: int, timestamp: int, payload: bytes
) -> None:
    if flags & 0x0F == FORMAT_FLAG:
        flags ^= 1
    data = b"".join(as_batch(pack_entry(7, 0, flags, base, count, timestamp, payload)))
    assert data[0] == BATCH_MAGIC
    assert count_records(data) == 1
    parsed = parse_batch(data)
    assert (parsed.base_offset, parsed.end_offset, parsed.wrapped) == (base, base + count, flags & 0x0F)
    (record,) = parsed.records
    assert (bytes(record.body), record.timestamp) == (payload, timestamp)
    # A reader that goes on behind the last record it saw must not meet this entry again.
    assert record.offset + 1 == base + count
    assert (parsed.meta.last_offset_delta, parsed.meta.base_offset, parsed.meta.flags) == (count - 1, base, flags)
    assert [(pair.key, pair.value) for pair in parsed.meta.properties] == [(WRAPPED, str(flags & 0x0F))]
