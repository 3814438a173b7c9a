"""YDB's codecs undone: whole bodies within a limit, and nothing of what is cut short or lies."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from lzallright import LZOCompressor

from bridges.errors import BatchInvalid, CompressionUnsupported, DecompressedTooLarge
from bridges.formats.codecs.compression import PIECE
from bridges.formats.codecs.lzop import LARGEST_BLOCK
from bridges.formats.codecs.ydb import Codec, codec_name, undo
from tests.bridges.formats.ydb_messages import encoded, lzop

PACKED = [Codec.GZIP, Codec.LZOP, Codec.ZSTD]

TEXT = b"hello lzop " * 40
#: TEXT as lzop 1.04 writes it, with a checksum of Adler, then with -9 --crc32, and as org.anarres.lzo 1.0.6 does, which
#: is the library of YDB's SDK for Java.
LZOP_STREAMS = [
    "894c5a4f000d0a1a0a104020a0094001050300000d000081a46b02532a00000000003263037f000001b800000026635fa3e908"
    "68656c6c6f206c7a6f702020007c28000e206c7a6f702068656c6c6f206c7a6f702011000000000000",
    "894c5a4f000d0a1a0a104020a0100103090300110c000081a46b02532a00000000009d76b8aa000001b800000014f1afe07b1c"
    "68656c6c6f206c7a6f702020008d280011000000000000",
    "894c5a4f000d0a1a0a101020500940010500000000000081a46b025348000000000026ce030d000001b80000002a08"
    "68656c6c6f206c7a6f7020200079280000026c6c6f206c7a6f702068656c6c6f206c7a6f702011000000000000",
]


def plain(codec: int, data: bytes, limit: int = 1 << 30) -> bytes:
    return b"".join(piece for piece in undo(codec, memoryview(data), limit) if piece is not None)


@pytest.mark.parametrize("stream", LZOP_STREAMS)
def test_what_others_wrote_as_lzop(stream: str) -> None:
    data = bytes.fromhex(stream)
    assert plain(Codec.LZOP, data) == TEXT
    for end in range(len(data)):
        with pytest.raises(BatchInvalid):
            plain(Codec.LZOP, data[:end])
    with pytest.raises(BatchInvalid):
        plain(Codec.LZOP, data + b"x")


@pytest.mark.parametrize("codec", PACKED)
@given(st.binary(max_size=300) | st.integers(0, 3 * LARGEST_BLOCK).map(bytes))
def test_every_codec_gives_back_what_was_encoded(codec: Codec, data: bytes) -> None:
    packed = encoded(codec, data)
    assert plain(codec, packed) == data
    assert plain(codec, packed, len(data)) == data
    if data:
        with pytest.raises(DecompressedTooLarge):
            plain(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", PACKED)
def test_what_is_cut_short_is_an_error_wherever_it_is_cut(codec: Codec) -> None:
    packed = encoded(codec, b"some text, some text" * 5)
    for end in range(len(packed)):
        with pytest.raises(BatchInvalid):
            plain(codec, packed[:end])


def test_streams_may_follow_one_another() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD):
        assert plain(codec, encoded(codec, b"one ") + encoded(codec, b"two")) == b"one two"
    skippable = struct.pack("<II", 0x184D2A51, 3) + b"abc"
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(b"two")
    assert plain(Codec.ZSTD, encoded(Codec.ZSTD, b"one ") + skippable + checked) == b"one two"
    with pytest.raises(BatchInvalid):
        plain(Codec.ZSTD, encoded(Codec.ZSTD, b"one ") + checked[:-1])


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_costs_no_more_than_the_limit_and_a_piece(codec: Codec) -> None:
    packed = encoded(codec, bytes(64 << 20))
    seen: list[int] = []
    with pytest.raises(DecompressedTooLarge):
        seen.extend(len(piece) for piece in undo(codec, memoryview(packed), 1 << 20) if piece is not None)
    assert sum(seen) <= 1 << 20
    assert max(seen) <= max(PIECE, LARGEST_BLOCK)


def test_an_lzop_block_is_what_it_says() -> None:
    good = lzop(b"a" * 1000)
    begin = len(lzop(b"")) - 4
    size, packed = struct.unpack_from(">II", good, begin)
    assert size == 1000
    for claim in (999, 1001, packed - 1, LARGEST_BLOCK + 1, 0xFFFF_FFFF):
        with pytest.raises(BatchInvalid):
            plain(Codec.LZOP, good[:begin] + struct.pack(">II", claim, packed) + good[begin + 8 :])
    # A checksum of what comes out (flag 1: Adler).
    block = LZOCompressor().compress(b"a" * 1000)
    for sum_of, right in ((zlib.adler32(b"a" * 1000), True), (1, False)):
        flagged = bytearray(good[:begin] + struct.pack(">III", 1000, packed, sum_of) + block + bytes(4))
        flagged[17 + 3] = 1
        if right:
            assert plain(Codec.LZOP, bytes(flagged)) == b"a" * 1000
        else:
            with pytest.raises(BatchInvalid):
                plain(Codec.LZOP, bytes(flagged))


def test_what_is_no_codec() -> None:
    with pytest.raises(CompressionUnsupported):
        plain(10_000, b"x")
    assert [codec_name(codec) for codec in (1, 2, 3, 4, 10_007, 77)] == [
        "raw",
        "gzip",
        "lzop",
        "zstd",
        "custom-10007",
        "custom-77",
    ]
    assert plain(Codec.RAW, b"x") == b"x"
    with pytest.raises(BatchInvalid):
        plain(Codec.GZIP, gzip.compress(b"x") + b"garbage")
