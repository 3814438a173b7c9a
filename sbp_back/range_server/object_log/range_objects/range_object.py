"""An object of one range: consecutive entries as they came, and a sparse index of their positions. Big-endian, the
layout of elastic-stream's objects::

    entries | 0x66 | sparse index | footer of 48 bytes

    sparse index: for every 16 MiB of entries, u32 end of the entries before, relative to the first offset; u32 position
    footer: u32 position and u32 bytes of the sparse index | i64 stream | i32 range | i64 first offset
            i64 number of offsets | u32 CRC-32 of these and the sparse index | u64 magic

What is between position and magic is zeros there. A reader needs none of it: each row of the log's index has length and
CRC-32 of its entry, and the index has a CRC-32 for each 4 MiB of the entries, which tells what was damaged on the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from struct import Struct

from msgspec import Struct as Value

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.content import UNIQUE_BYTES
from sbp_back.wire.frame import crc32

PREFIX = "ranges/"
"""Prefix of all objects of ranges in a log."""
SPARSE_BYTES = 16 << 20
_BEGIN = b"\x66"
_POINT = Struct(">II")
_FACTS = Struct(">IIqiqq")
_END = Struct(">IQ")
_MAGIC = 0x88E241B785F4CFF7
FOOTER_BYTES = _FACTS.size + _END.size


class RangeObject(Value, frozen=True, array_like=True):
    """An object of a range. ``key``: below the log. Offsets ``[first, end)``; ``size`` bytes of entries."""

    key: str
    stream_id: int
    index: int
    first: int
    end: int
    size: int
    sparse: bytes

    @property
    def is_plain(self) -> bool:
        """Return whether messages of sbp-0.2, which have 31 bits for its offsets, can describe it."""
        return max(self.end - self.first, self.size) < 1 << 31


def new_key(stream_id: int, index: int, first: int, origin: str = "") -> str:
    """Return a name that no other object has, or will have; ``origin`` names its writer."""
    return f"{PREFIX}{stream_id:016x}-{index:08x}/{first:016x}-{origin}{os.urandom(UNIQUE_BYTES).hex()}"


def sparse_index(first: int, points: Iterable[tuple[int, int]]) -> bytes:
    """Encode the sparse index of an object that begins at offset ``first``; ``points``: (base, position) of entries."""
    return b"".join([_POINT.pack(base - first, position) for base, position in points if base - first < 1 << 32])


def encode_end(what: RangeObject) -> bytes:
    """Encode the part behind the entries: sparse index and footer."""
    facts = _FACTS.pack(what.size + 1, len(what.sparse), what.stream_id, what.index, what.first, what.end - what.first)
    return _BEGIN + what.sparse + facts + _END.pack(crc32(what.sparse, crc32(facts)), _MAGIC)


def decode_end(key: str, data: Buffer) -> RangeObject:
    """Decode the end of a whole object. Raises DecodeError."""
    if len(data) <= FOOTER_BYTES:
        raise DecodeError(f"{key} is cut short")
    footer = bytes(memoryview(data)[-FOOTER_BYTES:])
    at, size, stream_id, index, first, count = _FACTS.unpack_from(footer)
    crc, magic = _END.unpack_from(footer, _FACTS.size)
    if magic != _MAGIC:
        raise DecodeError(f"{key} is no object of a range")
    sparse = bytes(memoryview(data)[at : at + size])
    if at + size + FOOTER_BYTES != len(data) or crc != crc32(sparse, crc32(footer[: _FACTS.size])):
        raise DecodeError(f"the end of {key} is damaged")
    return RangeObject(key, stream_id, index, first, first + count, at - 1, sparse)
