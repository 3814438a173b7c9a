"""YDB's message codecs, which decompress up to a limit (docs/protocols/ydb.md, "Codecs").

A request names one codec, and each body is compressed by itself. RAW, GZIP, LZOP and ZSTD are standard; numbers from
10000 on are private to their users. A truncated body is an error here, not a shorter body: readers of another protocol
must get a body whole, or as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial

import zstandard

from bridges.errors import BatchInvalid, CompressionUnsupported
from bridges.formats.codecs import lzop
from bridges.formats.codecs.compression import PIECE, bounded, gunzip
from bridges.formats.records import Buffer

FIRST_CUSTOM = 10_000
"""The first custom codec; the node cannot decode these."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = 0x184D2A5
_BLOCKS_AT_ONCE = 500


class Codec(IntEnum):
    """Ydb.Topic.Codec."""

    RAW = 1
    GZIP = 2
    LZOP = 3
    ZSTD = 4


def codec_name(codec: int) -> str:
    """Return the codec's name for readers of other protocols: ``gzip``, ``custom-10007``."""
    try:
        return Codec(codec).name.lower()
    except ValueError:
        return f"custom-{codec}"


def undo(codec: int, data: memoryview, limit: int) -> Iterator[Buffer | None]:
    """Yield the pieces that a body decodes to, empty ones included; None comes where much was done, or is about to be.

    Raises BatchInvalid for a truncated or damaged body, DecompressedTooLarge before more than ``limit`` bytes come out,
    CompressionUnsupported for an unknown codec.
    """
    if codec == Codec.RAW:
        return iter((data,))
    if codec == Codec.GZIP:
        return _bounded(gunzip(data, "a message's gzip stream is cut short"), limit)
    if codec == Codec.ZSTD:
        return _bounded(_zstd(data), limit)
    if codec == Codec.LZOP:
        return lzop.undo(data, limit)
    raise CompressionUnsupported(f"YDB's codec {codec} is not known here")


Inflate = Callable[[memoryview], bytes | None]
"""Returns the plain body if it is of one gzip member or one zstd frame, and at most a piece long in both forms; None
for all others. Most bodies are such."""


def short_inflater(codec: int) -> Inflate:
    """Return the function for bodies of ``codec``."""
    if codec == Codec.GZIP:
        return _gunzip_short
    if codec == Codec.ZSTD:
        return partial(_unzstd_short, zstandard.ZstdDecompressor())  # making one takes longer than most bodies
    return lambda body: None


def _gunzip_short(body: memoryview) -> bytes | None:
    if len(body) > PIECE:
        return None
    member = zlib.decompressobj(31)
    try:
        plain = member.decompress(body, PIECE)
    except zlib.error:
        return None
    return plain if member.eof and not member.unused_data else None


def _unzstd_short(inflater: zstandard.ZstdDecompressor, body: memoryview) -> bytes | None:
    try:
        # Of a frame that does not tell its size (-1) the library would not report what lies behind it.
        if len(body) <= PIECE and 0 < zstandard.frame_content_size(body) <= PIECE:
            return inflater.decompress(body, allow_extra_data=False)
    except zstandard.ZstdError:
        pass
    return None


def _bounded(pieces: Iterator[Buffer | None], limit: int) -> Iterator[Buffer | None]:
    return bounded(pieces, limit, "a message decompresses", "a message does not decompress")


def _zstd(data: memoryview) -> Iterator[Buffer | None]:
    yield from _check_frames(data)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(PIECE):
            yield piece


def _check_frames(data: memoryview) -> Iterator[None]:
    """Follow the frames from block to block to the end, because the library does not report a missing last block."""
    position = blocks = 0
    while position < len(data) or not position:
        head = data[position : position + 18]
        if len(head) >= 8 and int.from_bytes(head[:4], "little") >> 4 == _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(head[4:8], "little")
            if position > len(data):
                raise BatchInvalid("a message's zstd frame is cut short")
            yield None
            continue
        if bytes(head[:4]) != _ZSTD_MAGIC:
            raise BatchInvalid("a message is no zstd frame")
        position += zstandard.frame_header_size(head)
        checksum = zstandard.get_frame_parameters(head).has_checksum
        last = False
        while not last:
            block = int.from_bytes(data[position : position + 3], "little")
            position += 3
            last = bool(block & 1)
            position += 1 if block >> 1 & 3 == 1 else block >> 3
            if position > len(data):
                raise BatchInvalid("a message's zstd frame is cut short")
            blocks += 1
            if not blocks % _BLOCKS_AT_ONCE:
                yield None
        position += 4 if checksum else 0
        if position > len(data):
            raise BatchInvalid("a message's zstd frame is cut short")
