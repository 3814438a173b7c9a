"""Encoding of stored batches of any format in a node's answer to a reader: heads of fixed size, then the batches'
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bridges.formats.records import Buffer, StoredBatch

MOST_BATCHES = 5_000
"""Most batches of one answer, because their heads are made in one step."""
_COUNT = struct.Struct(">I")
_HEAD = struct.Struct(">qqIqI")
"""Base offset, end offset, flags of the format, time of the append, bytes."""


def packed(batches: Sequence[StoredBatch]) -> list[Buffer]:
    """Return the pieces of an answer: all heads, then the batches' own bytes, which are not copied."""
    heads = bytearray(_COUNT.pack(len(batches)))
    for base, end, flags, payload, written_ms in batches:
        heads += _HEAD.pack(base, end, flags, written_ms, len(payload))
    return [heads, *(batch.payload for batch in batches)]


def unpacked(data: bytes) -> list[StoredBatch]:
    """Return the batches of an answer, whose bytes are views on it. Raises ValueError for an invalid answer."""
    view = memoryview(data)
    try:
        (count,) = _COUNT.unpack_from(view)
        at = _COUNT.size + count * _HEAD.size
        found = []
        for base, end, flags, written_ms, size in _HEAD.iter_unpack(view[_COUNT.size : at]):
            found.append(StoredBatch(base, end, flags, view[at : at + size], written_ms))
            at += size
    except struct.error as error:
        raise ValueError(f"these are no batches: {error}") from None
    if len(found) != count or at != len(view):
        raise ValueError(f"an answer of {len(view)} bytes tells of {at}, with {len(found)} of {count} batches")
    return found
