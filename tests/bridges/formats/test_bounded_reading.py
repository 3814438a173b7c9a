"""Reading the records of a batch costs no more than a slice at a time, whatever its bytes are."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Iterator
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.errors import BatchInvalid, DecompressedTooLarge
from bridges.formats import kafka
from bridges.formats.codecs import compression
from bridges.formats.codecs.compression import PIECE, Compression, compress, decompress, inflate
from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, encode, heads, iterate, slices
from bridges.formats.records import LOSSY_HEADER, Buffer, Record
from tests.depth import examples
from tests.fuzz import fuzz_records

LIMIT = 1 << 20

RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=60) | st.integers(0, 200_000).map(bytes),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        timestamp=st.integers(0, 1 << 45),
    ),
    min_size=1,
    max_size=12,
)


def batch_of(body: bytes, codec: int, count: int) -> bytearray:
    """A batch that says its body holds ``count`` records."""
    batch = encode([Record(None, b"x", timestamp=1)])[:HEADER_SIZE] + body
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return batch


class Meter:
    """What comes out of the decompressor between two times that the reader lets go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes = self.pieces = self.total = 0
        self.most_bytes = self.most_pieces = self.pauses = 0
        patch.setattr(kafka, "inflate", self._inflate)

    def _inflate(self, *args: Any) -> Iterator[Buffer | None]:
        for piece in inflate(*args):
            if piece is not None:
                self.pieces += 1
                self.bytes += len(piece)
                self.total += len(piece)
                self.most_bytes = max(self.most_bytes, self.bytes)
                self.most_pieces = max(self.most_pieces, self.pieces)
            yield piece

    def watch(self, items: Iterator[Any]) -> list[Any]:
        found = []
        for item in items:
            self.bytes = self.pieces = 0
            self.pauses += item is None
            if item is not None:
                found.append(item)
        return found


@settings(deadline=None)
@given(RECORDS, st.sampled_from(Compression))
def test_heads_are_those_of_the_records(given_records: list[Record], codec: int) -> None:
    batch = encode(given_records, 40, codec=codec)
    whole = [(record.timestamp, record.key is not None) for record in iterate(batch)]
    assert [head for head in heads(batch) if head is not None] == whole
    assert len(whole) == len(given_records)


@settings(max_examples=examples(100), deadline=None)
@given(RECORDS, st.sampled_from(Compression), st.randoms(use_true_random=False), st.integers(1, 4))
def test_damage_is_a_batch_that_is_invalid_or_read_the_same_by_both(
    given_records: list[Record], codec: int, rng: random.Random, times: int
) -> None:
    batch = encode(given_records, codec=codec)
    for _ in range(times):
        batch[rng.randrange(LOG_OVERHEAD, len(batch))] = rng.randrange(256)
    if rng.random() < 0.3:
        del batch[rng.randrange(HEADER_SIZE, len(batch)) :]
    with pytest.MonkeyPatch.context() as patch:
        meter = Meter(patch)
        try:
            whole = [(r.timestamp, r.key is not None) for r in meter.watch(slices(batch, LIMIT))]
        except BatchInvalid:
            whole = None
        assert meter.total <= LIMIT + PIECE or codec in (Compression.LZ4, Compression.SNAPPY)
        if whole is not None:
            assert meter.watch(heads(batch, LIMIT)) == whole


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300), st.sampled_from([c for c in Compression if c]), st.integers(1, 50))
def test_noise_is_a_batch_that_is_invalid(noise: bytes, codec: int, count: int) -> None:
    starts = {1: b"\x1f\x8b\x08\x00", 2: b"\x82SNAPPY\x00", 3: struct.pack("<I", 0x184D2204) + b"\x60\x40\x82"}
    for body in (noise, starts.get(codec, struct.pack("<I", 0xFD2FB528)) + noise):
        for reader in (slices, heads):
            try:
                items = [item for item in reader(batch_of(body, codec, count), LIMIT) if item is not None]
            except BatchInvalid:
                continue
            assert len(items) == count


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])
def test_one_step_inflates_one_piece_however_large_the_record(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = encode([Record(b"k", bytes(3_000_000), timestamp=5), Record(None, b"last", timestamp=6)], codec=codec)
    meter = Meter(monkeypatch)
    assert meter.watch(heads(batch)) == [(5, True), (6, False)]
    assert meter.most_bytes <= 2 * PIECE
    meter.most_bytes = 0
    assert [len(record.value) for record in meter.watch(slices(batch))] == [3_000_000, 4]
    assert meter.most_bytes <= 2 * PIECE


EMPTY = {
    Compression.GZIP: gzip.compress(b""),
    Compression.LZ4: lz4.frame.compress(b"", block_linked=False),
    Compression.SNAPPY: struct.pack(">i", 1) + bytes(cramjam.snappy.compress_raw(b"")),
}


@pytest.mark.parametrize("codec", list(EMPTY))
def test_any_number_of_empty_parts_is_taken_some_at_a_time(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    head = compression.JAVA_SNAPPY_HEADER if codec is Compression.SNAPPY else b""
    last = compress(codec, encode([Record(b"k", b"v", timestamp=1)])[HEADER_SIZE:])
    batch = batch_of(head + EMPTY[codec] * 10_000 + last.removeprefix(head), codec, 1)
    meter = Meter(monkeypatch)
    assert meter.watch(heads(batch)) == [(1, True)]
    assert meter.pauses >= 100
    assert meter.most_pieces <= 100


@pytest.mark.parametrize("codec", [c for c in Compression if c])
def test_a_bomb_stops_at_the_limit(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode([Record(b"k", bytes(40_000_000), timestamp=5)], codec=codec)
    meter = Meter(monkeypatch)
    for reader in (slices, heads):
        with pytest.raises(DecompressedTooLarge):
            meter.watch(reader(batch, LIMIT))
    assert meter.total <= 2 * (LIMIT + PIECE)


def test_claims_of_size_that_the_bytes_cannot_bear_out_are_not_believed() -> None:
    huge = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    with pytest.raises(BatchInvalid, match="cannot decompress"):
        decompress(Compression.SNAPPY, huge)
    # A content size of an exabyte, and nothing behind it.
    zstd = zstandard.FRAME_HEADER + b"\xc0\x00" + struct.pack("<Q", 1 << 60)
    with pytest.raises(BatchInvalid):
        list(slices(batch_of(zstd, Compression.ZSTD, 1), LIMIT))


def test_linked_lz4_blocks_are_read_within_the_limit() -> None:
    body = bytes(encode([Record(b"k", bytes(500_000), timestamp=5)])[HEADER_SIZE:])
    linked = lz4.frame.compress(body, block_linked=True, block_size=4)
    assert not linked[4] & 0x20
    assert [len(record.value or b"") for record in iterate(batch_of(linked, Compression.LZ4, 1))] == [500_000]
    with pytest.raises(DecompressedTooLarge):
        list(iterate(batch_of(linked, Compression.LZ4, 1), 400_000))


def test_of_countless_headers_a_record_keeps_the_first_and_says_which_are_left_out() -> None:
    most = [("", None)] * 10_000
    one = next(iterate(encode([Record(None, None, most * 3, 5)])))
    assert one.headers == [*most, (LOSSY_HEADER, b"10000-29999")]
    assert next(iterate(encode([Record(None, None, list(most), 5)]))).headers == most


def test_a_record_outside_its_batch_is_refused() -> None:
    batch = encode([Record(b"k", b"v", timestamp=5, offset=9)], count=5)
    for reader in (slices, heads):
        with pytest.raises(BatchInvalid, match="claims offset 9 of 5"):
            list(reader(batch))


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(sorted(fuzz_records.seeds().values())), st.randoms(use_true_random=False), st.integers(0, 4))
def test_the_fuzz_target_holds_for_damaged_seeds(seed: bytes, rng: random.Random, times: int) -> None:
    data = bytearray(seed)
    for _ in range(times):
        data[rng.randrange(len(data))] = rng.randrange(256)
    fuzz_records.one_input(bytes(data))
