"""The fields of records in Kafka's internal topics: as in its messages, compact ones in flexible versions."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kafka_front.wire.primitives import uvarint

NO_TAGS = b"\0"
_INT16 = struct.Struct(">h")


def text(value: str | None) -> bytes:
    """Return a string; None where it may be null."""
    if value is None:
        return b"\xff\xff"
    raw = value.encode()
    return _INT16.pack(len(raw)) + raw


def read_text(raw: bytes, position: int) -> str:
    """Return the string at a position."""
    (length,) = _INT16.unpack_from(raw, position)
    return raw[position + 2 : position + 2 + length].decode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def array(items: Iterable[bytes]) -> bytes:
    found = list(items)
    return struct.pack(">i", len(found)) + b"".join(found)


def compact(value: str | bytes | None) -> bytes:
    """Return a compact string, or compact bytes; None where they may be null."""
    if value is None:
        return b"\0"
    raw = value.encode() if isinstance(value, str) else value
    return uvarint(len(raw) + 1) + raw


def compact_array(items: Iterable[bytes]) -> bytes:
    found = list(items)
    return uvarint(len(found) + 1) + b"".join(found)


def numbers(values: Iterable[int]) -> bytes:
    """Return a compact array of int32."""
    return compact_array(struct.pack(">i", value) for value in sorted(values))


def tags(fields: dict[int, bytes]) -> bytes:
    """Return a section of tagged fields, by tag."""
    parts = [uvarint(tag) + uvarint(len(raw)) + raw for tag, raw in sorted(fields.items())]
    return uvarint(len(parts)) + b"".join(parts)
