"""Compression codecs of record batches, which decompress piece by piece up to a limit.

Numbers are Kafka's (attributes bits 0-2): 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd. Snappy comes in two forms: a raw
block (librdkafka, franz-go) and the framing of the Java library (a 16-byte header, then length-prefixed raw blocks).

A few hundred bytes may decompress to hundreds of megabytes, and every size written in them is a claim. So no memory is
allocated for a claim that the input cannot justify. Output comes in small pieces. Where a codec has only larger ones,
None comes before such a piece, so that a caller in a hurry can continue off the event loop.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum

import cramjam
import zstandard

from bridges.errors import BatchInvalid, CompressionUnsupported, DecompressedTooLarge
from bridges.formats.pieces import STEP, room
from bridges.formats.records import Buffer

DEFAULT_LIMIT = 128 * 1024 * 1024
"""Bytes that one batch may decompress to, unless the caller sets another limit."""

PIECE = 64 * 1024
"""Bytes decompressed at a time where the codec allows it."""

_GZIP_INPUT = 16 * 1024
_JAVA_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
JAVA_SNAPPY_HEADER = _JAVA_SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_JAVA_SNAPPY_BLOCK = 32 * 1024
_SNAPPY_RATIO = 22
"""A copy of three bytes gives 64, so no snappy block grows by more."""
_LZ4_MAGIC = 0x184D2204
_LZ4_SKIPPABLE = 0x184D2A50
_LZ4_UNCOMPRESSED = 1 << 31


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def inflate(codec: int, data: Buffer, limit: int = DEFAULT_LIMIT) -> Iterator[Buffer | None]:
    """Yield the pieces that ``data`` decompresses to, empty ones included. None comes before a piece of more than
    ``PIECE`` bytes. The time for a piece is proportional to its bytes.

    A truncated stream ends early, so its last records are missing. Raises CompressionUnsupported, DecompressedTooLarge
    (more than ``limit`` bytes came out, or must) or BatchInvalid.
    """
    if codec == Compression.NONE:
        return iter((memoryview(data),))
    try:
        pieces = _INFLATERS[codec](memoryview(data), limit)
    except KeyError:
        raise CompressionUnsupported(
            f"compression codec {codec} is unknown: Kafka's are 0 (none) to 4 (zstd)"
        ) from None
    return bounded(pieces, limit)


def decompress(codec: int, data: Buffer, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return all of :func:`inflate` at once, with its errors; for data whose size is known to be small."""
    return b"".join(piece for piece in inflate(codec, data, limit) if piece is not None)


def bounded(
    pieces: Iterator[Buffer | None],
    limit: int,
    more: str = "records decompress",
    broken: str = "records do not decompress",
) -> Iterator[Buffer | None]:
    """Yield ``pieces``, up to ``limit`` bytes. Raises DecompressedTooLarge, worded with ``more``, instead of the piece
    that exceeds the limit, and BatchInvalid, worded with ``broken``, for errors of the codecs' libraries."""
    left = limit
    try:
        for piece in pieces:
            if piece is not None:
                left -= len(piece)
                if left < 0:
                    raise _too_large(limit, more)
            yield piece
    except (cramjam.DecompressionError, zlib.error, zstandard.ZstdError, MemoryError) as error:
        raise BatchInvalid(f"{broken}: {error}") from error


def _too_large(limit: int, more: str = "records decompress") -> DecompressedTooLarge:
    return DecompressedTooLarge(f"{more} to more than {limit} bytes")


def _gzip(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    return gunzip(data)


def gunzip(data: memoryview, cut_short: str = "") -> Iterator[Buffer | None]:
    """Yield decompressed gzip data in pieces of at most :data:`PIECE`. A truncated stream raises BatchInvalid with the
    text ``cut_short``, or just ends if that is empty. Raises zlib.error."""
    position = 0
    while position < len(data) or not position:  # a stream may have several members
        member = zlib.decompressobj(31)
        while not member.eof:
            # Feed small portions: the unconsumed input is copied every time.
            rest: Buffer = data[position : position + _GZIP_INPUT]
            if not len(rest):
                if cut_short:
                    raise BatchInvalid(cut_short)
                return
            position += len(rest)
            while len(rest) and not member.eof:
                yield member.decompress(rest, PIECE)
                rest = member.unconsumed_tail
            while not member.eof and (piece := member.decompress(b"", PIECE)):
                yield piece
        position -= len(member.unused_data)


def _zstd(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(PIECE):
            yield piece


def _lz4(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    """Decompress block by block frames of independent blocks; Kafka's own clients write and read no others."""
    position = 0
    block_room = bytearray()
    try:
        while position < len(data):
            (magic,) = struct.unpack_from("<I", data, position)
            if magic & ~0xF == _LZ4_SKIPPABLE:
                position += 8 + int(struct.unpack_from("<I", data, position + 4)[0])
                yield b""
                continue
            flags, sizes = data[position + 4], data[position + 5]
            if magic != _LZ4_MAGIC or flags >> 6 != 1 or not 4 <= sizes >> 4 & 7 <= 7:
                raise BatchInvalid("records do not decompress: this is no lz4 frame")
            if not flags & 0x20:
                yield from _linked_lz4(data[position:], limit)
                return
            largest = 1 << 8 + 2 * (sizes >> 4 & 7)
            trailer = 4 if flags & 0x10 else 0
            position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
            if len(block_room) < largest:
                block_room = bytearray(largest)
            while True:
                (size,) = struct.unpack_from("<I", data, position)
                position += 4
                if not size:
                    position += 4 if flags & 0x04 else 0
                    yield b""
                    break
                length = size & ~_LZ4_UNCOMPRESSED
                block = data[position : position + length]
                if len(block) < length or length > largest:
                    raise BatchInvalid("records do not decompress: an lz4 block is longer than it may be")
                position += length + trailer
                if largest > PIECE:
                    yield None
                if size & _LZ4_UNCOMPRESSED:
                    yield block
                else:
                    written = cramjam.lz4.decompress_block_into(block, block_room, output_len=largest)
                    yield bytes(memoryview(block_room)[:written])
    except (struct.error, IndexError):
        return  # cut short


def _linked_lz4(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    # Blocks that refer to earlier ones can only be read together. The size is not known beforehand: grow the buffer,
    # never past the limit, so that a small bomb costs little.
    yield None
    size = min(limit, max(4 * len(data), PIECE))
    while True:
        whole = room(size)
        try:
            written = cramjam.lz4.decompress_into(data, whole)
        except cramjam.DecompressionError as error:
            # The library reports a full output buffer as a failed write; every other message is about the input.
            if "whole buffer" not in str(error):
                raise
            if size >= limit:
                raise _too_large(limit) from error
            size = min(limit, size * 4)
            continue
        yield whole[:written]
        return


def _snappy(data: memoryview, limit: int) -> Iterator[Buffer | None]:
    if bytes(data[:8]) != _JAVA_SNAPPY_MAGIC:
        yield from _snappy_block(data, limit)
        return
    position = len(JAVA_SNAPPY_HEADER)
    while position < len(data):
        if len(data) - position < 4:
            raise BatchInvalid("a snappy stream ends within a block length")
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if length < 0 or length > len(data) - position:
            raise BatchInvalid("a snappy block is longer than its stream")
        yield from _snappy_block(data[position : position + length], limit)
        position += length


def _snappy_block(block: memoryview, limit: int) -> Iterator[Buffer | None]:
    # A raw block announces its size in a leading varint, so the bound is checked before anything is allocated.
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > _SNAPPY_RATIO * len(block):
        raise BatchInvalid(f"{len(block)} bytes of snappy cannot decompress to {size}")
    if size > limit:
        raise _too_large(limit)
    if size > PIECE:
        yield None
    plain = cramjam.snappy.decompress_raw(block)
    yield bytes(plain) if size <= PIECE else memoryview(plain)


_INFLATERS: dict[int, Callable[[memoryview, int], Iterator[Buffer | None]]] = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}


def compress(codec: int, data: Buffer) -> bytes:
    """Compress with ``codec``; snappy in the Java framing, which every client reads. Raises CompressionUnsupported."""
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == Compression.LZ4:
        frame = cramjam.lz4.Compressor(block_linked=False)  # Kafka's clients read no other
        view = memoryview(data)
        for position in range(0, len(view), STEP):  # unlike the other codecs it holds the interpreter
            frame.compress(bytes(view[position : position + STEP]))
        return bytes(frame.finish())
    if codec == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    if codec == Compression.SNAPPY:
        view = memoryview(data)
        parts = [JAVA_SNAPPY_HEADER]
        for position in range(0, len(view), _JAVA_SNAPPY_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(view[position : position + _JAVA_SNAPPY_BLOCK]))
            parts += (struct.pack(">i", len(block)), block)
        return b"".join(parts)
    raise CompressionUnsupported(f"compression codec {codec} is unknown: Kafka's are 0 (none) to 4 (zstd)")
