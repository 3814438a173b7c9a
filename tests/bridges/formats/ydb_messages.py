"""YDB's WriteRequests for tests, encoded by hand, and bodies in each of YDB's codecs."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence

import zstandard
from lzallright import LZOCompressor

from bridges.formats import FormatId
from bridges.formats.codecs.lzop import LARGEST_BLOCK, MAGIC
from bridges.formats.codecs.ydb import Codec
from bridges.formats.protobuf import put_bytes, put_varint
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import Head, encode_batch


def message(
    seq_no: int, data: bytes, items: Sequence[tuple[str, bytes]] = (), created: tuple[int, int] | None = None
) -> bytes:
    """One MessageData."""
    out = bytearray(b"\x08")
    put_varint(out, seq_no)
    if created is not None:
        stamp = bytearray(b"\x08")
        put_varint(stamp, created[0])
        stamp.append(0x10)
        put_varint(stamp, created[1])
        put_bytes(out, 0x12, stamp)
    put_bytes(out, 0x1A, data)
    out.append(0x20)
    put_varint(out, len(data))
    for key, value in items:
        item = bytearray()
        put_bytes(item, 0x0A, key.encode())
        put_bytes(item, 0x12, value)
        put_bytes(out, 0x3A, item)
    return bytes(out)


def request(*messages: bytes) -> bytes:
    """The messages of a WriteRequest."""
    out = bytearray()
    for one in messages:
        put_bytes(out, 0x0A, one)
    return bytes(out)


def stored(
    *messages: bytes,
    base: int = 0,
    codec: int = Codec.RAW,
    producer: bytes = b"producer",
    first: int = 1,
    last: int = 0,
) -> StoredBatch:
    payload = encode_batch(
        Head(False, codec, len(messages), first, last or first + len(messages) - 1, 5, producer, b""),
        request(*messages),
    )
    return StoredBatch(base, base + len(messages), int(FormatId.YDB), payload, 77)


def lzop(data: bytes) -> bytes:
    """What lzop(1) writes, without checksums."""
    out = bytearray(MAGIC + struct.pack(">HHHBBIIIIB", 0x1040, 0x20A0, 0x0940, 1, 5, 0, 0, 0, 0, 0) + bytes(4))
    for position in range(0, len(data), LARGEST_BLOCK):
        block = data[position : position + LARGEST_BLOCK]
        stored = LZOCompressor().compress(block)
        if len(stored) >= len(block):
            stored = block
        out += struct.pack(">II", len(block), len(stored)) + stored
    return bytes(out + bytes(4))


def encoded(codec: int, data: bytes) -> bytes:
    if codec == Codec.GZIP:
        return gzip.compress(data, mtime=0)
    if codec == Codec.ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    return lzop(data) if codec == Codec.LZOP else data
