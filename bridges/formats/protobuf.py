"""A reader of protocol buffers' wire format, field by field, without a schema and without objects.

A field is a varint of its number and wire type, then a varint (type 0), 8 bytes (1), a length and as many bytes (2), a
group (3 up to 4) or 4 bytes (5). Whatever the bytes are, these functions raise nothing but BatchInvalid and IndexError,
which means that the bytes end too early.
"""

from __future__ import annotations

from bridges.errors import BatchInvalid
from bridges.formats.records import Buffer

VARINT = 0
FIXED64 = 1
BYTES = 2
GROUP = 3
END_GROUP = 4
FIXED32 = 5

_MOST_GROUPS = 100
"""Depth of nested groups, as in other implementations."""


def varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned number of up to 64 bits at ``position``, and the position after it."""
    result = data[position]
    position += 1
    if result < 0x80:
        return result, position
    result &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise BatchInvalid("a variable-length number is too long")


def signed(value: int) -> int:
    """Return the value of an int64 field with the varint ``value``."""
    return value - (1 << 64) if value >> 63 else value


def length(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the beginning and end of the bytes in a field of type BYTES whose length lies at ``position``."""
    size, position = varint(data, position)
    if size > end - position:
        raise BatchInvalid("a field is longer than its message")
    return position, position + size


def skip(data: Buffer, tag: int, position: int, end: int) -> int:
    """Return the end of the field whose ``tag`` ends at ``position``."""
    groups: list[int] = []
    while True:
        kind = tag & 7
        if kind == VARINT:
            _, position = varint(data, position)
        elif kind == BYTES:
            _, position = length(data, position, end)
        elif kind == FIXED64:
            position += 8
        elif kind == FIXED32:
            position += 4
        elif kind == GROUP and len(groups) < _MOST_GROUPS:
            groups.append(tag >> 3)
        elif kind != END_GROUP or not groups or groups.pop() != tag >> 3:
            raise BatchInvalid(f"field {tag >> 3} has wire type {kind}, which cannot be there")
        if position > end:
            raise BatchInvalid("a field is longer than its message")
        if not groups:
            return position
        tag, position = varint(data, position)


def put_varint(out: bytearray, value: int) -> None:
    """Append ``value``, which may be negative, as an int64 field encodes it."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_bytes(out: bytearray, tag: int, value: Buffer) -> None:
    """Append a field of type BYTES."""
    put_varint(out, tag)
    put_varint(out, len(value))
    out += value
