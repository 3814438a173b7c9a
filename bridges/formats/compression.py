"""Compression codecs of record batches, with a bound on what decompression may produce.

Numbers are Kafka's (attributes bits 0-2): 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd. Snappy comes in two forms: a raw
block (librdkafka, franz-go) and the framing of the Java library (a 16-byte header, then length-prefixed raw blocks).
"""

from __future__ import annotations

import struct
from enum import IntEnum

import cramjam

from bridges.errors import BatchInvalid, CompressionUnsupported, DecompressedTooLarge
from bridges.records import Buffer

DEFAULT_LIMIT = 128 * 1024 * 1024
"""Bytes one batch may decompress to, unless the caller says otherwise."""

_JAVA_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_JAVA_SNAPPY_HEADER = _JAVA_SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_JAVA_SNAPPY_BLOCK = 32 * 1024


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_MODULES = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}


def decompress(codec: int, data: Buffer, limit: int = DEFAULT_LIMIT) -> bytes | memoryview:
    """Undo ``codec``.

    Raises CompressionUnsupported, DecompressedTooLarge (the output would exceed ``limit`` bytes) or BatchInvalid.
    """
    if codec == Compression.NONE:
        return memoryview(data)
    if codec == Compression.SNAPPY:
        return _snappy(data, limit)
    try:
        module = _MODULES[codec]
    except KeyError:
        raise CompressionUnsupported(f"compression codec {codec} is not known") from None
    # The output size is not known beforehand: grow the buffer, never past the limit, so that a small bomb costs little.
    size = min(limit, max(4 * len(data), 4096))
    while True:
        room = bytearray(size)
        try:
            written = module.decompress_into(data, room)
        except cramjam.DecompressionError as error:
            if not _is_short_output(error):
                raise BatchInvalid(f"records do not decompress: {error}") from error
            if size >= limit:
                raise DecompressedTooLarge(f"records decompress to more than {limit} bytes") from error
            size = min(limit, size * 4)
            continue
        return memoryview(room)[:written]


def _is_short_output(error: Exception) -> bool:
    # The library reports a full output buffer as a failed write; every other message is about the input.
    return "whole buffer" in str(error)


def _snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _JAVA_SNAPPY_MAGIC:
        return _snappy_block(view, limit)
    blocks: list[bytes] = []
    total = 0
    position = len(_JAVA_SNAPPY_HEADER)
    while position < len(view):
        if len(view) - position < 4:
            raise BatchInvalid("a snappy stream ends within a block length")
        (length,) = struct.unpack_from(">i", view, position)
        position += 4
        if length < 0 or length > len(view) - position:
            raise BatchInvalid("a snappy block is longer than its stream")
        block = _snappy_block(view[position : position + length], limit - total)
        total += len(block)
        blocks.append(block)
        position += length
    return b"".join(blocks)


def _snappy_block(block: memoryview, limit: int) -> bytes:
    # A raw block announces its size in a leading varint, so the bound is checked before anything is allocated.
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > limit:
        raise DecompressedTooLarge(f"records decompress to more than {limit} bytes")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise BatchInvalid(f"records do not decompress: {error}") from error


def compress(codec: int, data: Buffer) -> bytes:
    """Apply ``codec``; snappy in the Java framing, which every client reads. Raises CompressionUnsupported."""
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == Compression.LZ4:
        return bytes(cramjam.lz4.compress(data))
    if codec == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    if codec == Compression.SNAPPY:
        view = memoryview(data)
        parts = [_JAVA_SNAPPY_HEADER]
        for position in range(0, len(view), _JAVA_SNAPPY_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(view[position : position + _JAVA_SNAPPY_BLOCK]))
            parts += (struct.pack(">i", len(block)), block)
        return b"".join(parts)
    raise CompressionUnsupported(f"compression codec {codec} is not known")
