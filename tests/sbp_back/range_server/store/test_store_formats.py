"""The pure parts: bytes of segments, groups, indexes and checkpoints."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.errors import StoreVersionError
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.layout import checkpoint as checkpoints
from sbp_back.range_server.store.layout.format import (
    BLOCK,
    RECORD,
    RecordType,
    SegmentHeader,
    decode_group_header,
    decode_records,
    decode_segment_header,
    encode_group,
    encode_segment_header,
    group_size,
)
from sbp_back.range_server.store.layout.idxfile import SegmentIndex, encode_index
from sbp_back.wire.frame import crc32

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
U64 = st.integers(0, (1 << 64) - 1)
LSN = st.integers(0, 1 << 50).map(lambda n: n * BLOCK)

records = st.lists(
    st.tuples(st.sampled_from(list(RecordType)), I64, I64, I64, I64, I32, I32, st.binary(max_size=3000)),
    min_size=1,
    max_size=20,
)


def build(seq: int, salt: int, lsn: int, rows: list[tuple[RecordType, int, int, int, int, int, int, bytes]]) -> bytes:
    heads = [
        RECORD.pack(int(kind), crc32(body), stream, epoch, base, stamp, index, count, len(body))
        for kind, stream, epoch, base, stamp, index, count, body in rows
    ]
    return b"".join(encode_group(seq, salt, lsn, heads, [row[-1] for row in rows]))


@given(U64, U64, LSN, records)
def test_groups_survive_a_round_trip(
    seq: int, salt: int, lsn: int, rows: list[tuple[RecordType, int, int, int, int, int, int, bytes]]
) -> None:
    data = build(seq, salt, lsn, rows)
    assert len(data) % BLOCK == 0
    assert len(data) == group_size(len(rows), sum(len(row[-1]) for row in rows))
    buffer = b"x" * 100 + data
    header = decode_group_header(buffer, 100, salt, lsn)
    assert header is not None
    assert (header.seq, header.size) == (seq, len(data))
    got = decode_records(buffer, 100, header)
    assert got is not None
    at = 100 + header.body_at
    for record, (kind, stream, epoch, base, stamp, index, count, body) in zip(got, rows, strict=True):
        assert record == (kind, crc32(body), stream, epoch, base, stamp, index, count, len(body))
        assert buffer[at : at + len(body)] == body
        at += len(body)


@given(records, st.data())
def test_a_changed_byte_never_passes(
    rows: list[tuple[RecordType, int, int, int, int, int, int, bytes]], data: st.DataObject
) -> None:
    group = bytearray(build(5, 77, BLOCK, rows))
    used = BLOCK * 0 + 48 + 56 * len(rows) + sum(len(row[-1]) for row in rows)
    at = data.draw(st.integers(0, used - 1))
    group[at] ^= data.draw(st.integers(1, 255))
    header = decode_group_header(group, 0, 77, BLOCK)
    whole = False
    if header is not None and header.size <= len(group):
        whole = decode_records(group, 0, header) is not None
    assert not whole


@given(records)
def test_a_group_is_only_valid_in_its_place(
    rows: list[tuple[RecordType, int, int, int, int, int, int, bytes]],
) -> None:
    group = build(5, 77, BLOCK, rows)
    assert decode_group_header(group, 0, 77, BLOCK) is not None
    assert decode_group_header(group, 0, 78, BLOCK) is None
    assert decode_group_header(group, 0, 77, 2 * BLOCK) is None


@given(st.binary(max_size=9000), U64)
def test_garbage_is_no_group(data: bytes, salt: int) -> None:
    assert decode_group_header(data, 0, salt, 0) is None


@given(st.text(max_size=9), I64, LSN, st.integers(2, 1 << 20).map(lambda n: n * BLOCK), U64)
def test_segment_headers_survive_a_round_trip(cluster: str, server: int, base: int, size: int, salt: int) -> None:
    cluster = cluster.replace("\0", "")
    header = SegmentHeader(cluster, server, base, size, salt)
    block = encode_segment_header(header)
    assert len(block) == BLOCK
    assert decode_segment_header(block) == header


@given(st.integers(0, 87), st.integers(1, 255))
def test_damaged_segment_headers_are_refused(at: int, flip: int) -> None:
    block = bytearray(encode_segment_header(SegmentHeader("c", 1, 0, 1 << 20, 5)))
    block[at] ^= flip
    with pytest.raises(DecodeError):
        decode_segment_header(block)


def test_segment_of_another_version_is_named() -> None:
    with pytest.raises(StoreVersionError, match="version 7"):
        decode_segment_header(encode_segment_header(SegmentHeader("c", 1, 0, 1 << 20, 5, version=7)))


@given(
    st.lists(
        st.tuples(I64, I32, st.integers(0, 1 << 40), st.lists(st.integers(1, 9), min_size=1, max_size=9)),
        max_size=8,
        unique_by=lambda run: run[:2],
    )
)
def test_indexes_survive_a_round_trip(runs: list[tuple[int, int, int, list[int]]]) -> None:
    columns = []
    for stream, index, first, counts in runs:
        bases = array("q")
        at = first
        for count in counts:
            bases.append(at)
            at += count
        meta = array("I", range(3 * len(counts)))
        columns.append((stream, index, first, at, 10, bases, meta))
    data = b"".join(encode_index(4096, 99, 8192, columns))
    got = SegmentIndex(data)
    assert (got.base, got.salt, got.covers) == (4096, 99, 8192)
    assert len(got.runs) == len(columns)
    for stream, index, first, end, _live, bases, meta in columns:
        rows = got.rows(stream, index, first, len(bases))
        assert rows is not None
        assert (rows[0].tolist(), rows[1].tolist()) == (bases.tolist(), meta.tolist())
        assert got.rows(stream, index, end, 1) is None
        assert got.rows(stream, index, first, len(bases) + 1) is None
        part = got.rows(stream, index, bases[-1], 1)
        assert part is not None
        assert part[1].tolist() == meta[-3:].tolist()


@given(st.binary(max_size=300))
def test_garbage_is_neither_index_nor_checkpoint(data: bytes) -> None:
    with pytest.raises(DecodeError):
        SegmentIndex(data)
    with pytest.raises(DecodeError):
        checkpoints.decode(data)


checkpoint = st.builds(
    checkpoints.Checkpoint,
    U64,
    U64,
    st.lists(st.tuples(I64, I64, I64, I64, I64, I64, I64, U64), max_size=5),
    st.lists(st.tuples(I64, I64, I64), max_size=5),
    st.lists(U64, max_size=5),
)


@given(checkpoint, st.data())
def test_checkpoints_survive_a_round_trip_and_no_damage(value: checkpoints.Checkpoint, data: st.DataObject) -> None:
    encoded = bytearray(checkpoints.encode(value))
    assert checkpoints.decode(encoded) == value
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DecodeError):
        checkpoints.decode(encoded[:cut])
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        checkpoints.decode(encoded)
