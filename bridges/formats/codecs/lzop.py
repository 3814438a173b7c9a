"""The container of lzop(1): a header and blocks of LZO1X, which YDB calls the codec LZOP.

Layout (lzop 1.x; also what the Java library that YDB's SDK uses writes): magic, version, library version, from version
0.940 on the version needed, method, level from 0.940 on, flags, a filter if flagged, mode, time (two words from 0.940
on), name, checksum; perhaps an extra field; then blocks of plain length, stored length, checksums by the flags, bytes.
A plain length of 0 ends it. All numbers are big-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from lzallright import InputNotConsumed, LZOCompressor, LZOError

from bridges.errors import BatchInvalid, CompressionUnsupported, DecompressedTooLarge
from bridges.formats.records import Buffer

MAGIC = b"\x89LZO\x00\r\n\x1a\n"
LARGEST_BLOCK = 256 * 1024
"""Plain bytes of a block, as every writer makes them. A block with a false length may expand to 255 times this in one
piece before the node detects it, so larger ones are refused."""

_ADLER_PLAIN = 0x1
_ADLER_STORED = 0x2
_EXTRA_FIELD = 0x40
_CRC_PLAIN = 0x100
_CRC_STORED = 0x200
_MULTIPART = 0x400
_FILTER = 0x800
_WITH_LEVEL = 0x0940
_LZO1X = (1, 2, 3)

_WORD = struct.Struct(">I")
_BLOCK = struct.Struct(">II")


def undo(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    """Yield the plain blocks, in order. None comes before each, because its cost is known only afterwards.

    Raises BatchInvalid for a truncated or damaged stream, DecompressedTooLarge before more than ``limit`` bytes come
    out, and CompressionUnsupported for parts that no writer puts into a message.
    """
    try:
        yield from _blocks(data, limit)
    except struct.error as error:
        raise BatchInvalid("an lzop stream is cut short") from error


def _blocks(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    flags, position = _header(data)
    left = limit
    while True:
        (plain,) = _WORD.unpack_from(data, position)
        if not plain:
            if position + _WORD.size != len(data):
                raise BatchInvalid("there is something behind the end of an lzop stream")
            return
        plain, stored = _BLOCK.unpack_from(data, position)
        position += _BLOCK.size
        if stored > plain:
            raise BatchInvalid(f"an lzop block of {plain} bytes claims to be stored in {stored}")
        if plain > LARGEST_BLOCK:
            raise CompressionUnsupported(f"an lzop block of {plain} bytes is longer than {LARGEST_BLOCK}")
        left -= plain
        if left < 0:
            raise DecompressedTooLarge(f"an lzop stream decompresses to more than {limit} bytes")
        adler = crc = None
        if flags & _ADLER_PLAIN:
            (adler,) = _WORD.unpack_from(data, position)
            position += _WORD.size
        if flags & _CRC_PLAIN:
            (crc,) = _WORD.unpack_from(data, position)
            position += _WORD.size
        if stored < plain:
            position += _WORD.size * (bool(flags & _ADLER_STORED) + bool(flags & _CRC_STORED))
        block = data[position : position + stored]
        if len(block) < stored:
            raise BatchInvalid("an lzop block is longer than its stream")
        position += stored
        yield None
        piece = _plain(block, plain)
        if (adler is not None and zlib.adler32(piece) != adler) or (crc is not None and zlib.crc32(piece) != crc):
            raise BatchInvalid("an lzop block does not match its checksum")
        yield piece


def _plain(block: memoryview, size: int) -> Buffer:
    if len(block) == size:
        return block
    try:
        piece = LZOCompressor.decompress(block, size)
    except InputNotConsumed as error:
        raise BatchInvalid("an lzop block holds more than it says") from error
    except LZOError as error:
        raise BatchInvalid(f"an lzop block does not decompress: {error}") from error
    if len(piece) != size:
        raise BatchInvalid(f"an lzop block of {size} bytes decompresses to {len(piece)}")
    return piece


def _header(data: memoryview) -> tuple[int, int]:
    """Return the flags, and the position of the first block."""
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise BatchInvalid("this is no lzop stream")
    (version,) = struct.unpack_from(">H", data, len(MAGIC))
    position = len(MAGIC) + 4
    newer = version >= _WITH_LEVEL
    position += 2 if newer else 0
    (method,) = struct.unpack_from(">B", data, position)
    if method not in _LZO1X:
        raise CompressionUnsupported(f"lzop's method {method} is not known")
    position += 2 if newer else 1
    (flags,) = _WORD.unpack_from(data, position)
    if flags & (_MULTIPART | _FILTER):
        raise CompressionUnsupported("an lzop stream with filters, or of several parts, is not supported")
    position += 4 + (12 if newer else 8)
    (name,) = struct.unpack_from(">B", data, position)
    position += 1 + name + 4
    if flags & _EXTRA_FIELD:
        (extra,) = _WORD.unpack_from(data, position)
        position += 4 + extra + 4
    return flags, position
