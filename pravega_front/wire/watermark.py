"""Codec of watermarks: one event each in the watermark segment of a stream, as Java's readers expect.

Objects are encoded as Pravega's client serialises them: versions, then the length of the rest. A count has one, two or
four bytes; its first two bits say how many.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

_VERSIONS = b"\0\0\1\0"
"""Format 0, object version 0, one revision with number 0."""
_LENGTH = struct.Struct(">i")
_BOUNDS = struct.Struct(">qq")
_SEGMENT = struct.Struct(">4siqddq")
"""A segment with its key range, encoded as an object of its own, and a position in it."""
_SEGMENT_BYTES = 24
_EVENT = struct.Struct(">iI")


class Ranged(NamedTuple):
    """A segment's id and its key range."""

    segment_id: int
    low: float
    high: float


class Watermark(NamedTuple):
    """Time bounds at a stream cut: events after ``cut`` have times of ``lower`` or later, events before it of ``upper``
    or earlier. Times are the writers' own."""

    lower: int
    upper: int
    cut: Mapping[Ranged, int]


def encode(watermark: Watermark) -> bytes:
    """Encode a watermark as an event, with the event's head."""
    parts = [_BOUNDS.pack(watermark.lower, watermark.upper), _count(len(watermark.cut))]
    for (segment_id, low, high), position in watermark.cut.items():
        parts.append(_SEGMENT.pack(_VERSIONS, _SEGMENT_BYTES, segment_id, low, high, position))
    size = sum(map(len, parts))
    head = _EVENT.pack(0, len(_VERSIONS) + _LENGTH.size + size)
    return b"".join((head, _VERSIONS, _LENGTH.pack(size), *parts))


def _count(number: int) -> bytes:
    if number < 1 << 7:
        return number.to_bytes(1, "big")
    if number < 1 << 14:
        return (number | 1 << 15).to_bytes(2, "big")
    return (number | 3 << 30).to_bytes(4, "big")


def decode(event: bytes | memoryview) -> Watermark:
    """Decode an event of :func:`encode`. Raises ValueError for anything else."""
    try:
        return _decode(event)
    except (struct.error, IndexError) as error:
        raise ValueError(f"unreadable watermark: {error}") from error


def _decode(event: bytes | memoryview) -> Watermark:
    at = _EVENT.size + len(_VERSIONS) + _LENGTH.size
    lower, upper = _BOUNDS.unpack_from(event, at)
    at += _BOUNDS.size
    width = (1, 1, 2, 4)[event[at] >> 6]
    count = int.from_bytes(event[at : at + width], "big") & (1 << 8 * width - (1 if width == 1 else 2)) - 1
    at += width
    cut: dict[Ranged, int] = {}
    for _ in range(count):
        _, _, segment_id, low, high, position = _SEGMENT.unpack_from(event, at)
        at += _SEGMENT.size
        cut[Ranged(segment_id, low, high)] = position
    return Watermark(lower, upper, cut)


def places(data: bytes | memoryview) -> list[int]:
    """Return the positions of the events in ``data``, which consists of whole events."""
    found, at = [], 0
    while at + _EVENT.size <= len(data):
        found.append(at)
        at += _EVENT.size + _EVENT.unpack_from(data, at)[1]
    return found
