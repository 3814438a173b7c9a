"""Helpers of the generated codec functions: the errors they raise, variable-length integers, tagged fields."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview

#: Most array elements in one message. A frame of the largest legal size could otherwise ask for tens of millions of
#: objects, each a hundred times the size of its two bytes on the wire.
MAX_ELEMENTS = 1 << 17

#: Kafka's limit of a string's length, in either encoding of lengths.
MAX_STRING_BYTES = 0x7FFF


class WireError(Exception):
    """Bytes are not the message they claim to be, or a message cannot be encoded in the version asked for."""


class TooManyElements(WireError):
    """A message has more array elements than it may."""


class UnsupportedVersion(WireError):
    """The layout of this API key and version is unknown."""


def read_uvarint(buf: bytes | bytearray, pos: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits and the position after it. Raises WireError, IndexError at the
    end."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    return rest_of_uvarint(buf, pos, byte)


def rest_of_uvarint(buf: bytes | bytearray, pos: int, first: int) -> tuple[int, int]:
    """Continue :func:`read_uvarint` when the ``first`` byte (>= 0x80) is consumed and ``pos`` is after it."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise WireError("varint exceeds 32 bits")
            return value, pos
        shift += 7
        if shift > 28:
            raise WireError("varint is longer than five bytes")


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buf: bytes | bytearray, pos: int, first: int) -> int:
    """Skip a section of tagged fields, all of them unknown (KIP-482: unknown ones are never an error).

    ``first`` is the first byte of the section's field count (not zero), ``pos`` the position after that byte.
    """
    count = first
    if count >= 0x80:
        count, pos = rest_of_uvarint(buf, pos, count)
    size = len(buf)
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        length, pos = read_uvarint(buf, pos)
        pos += length
        if pos > size:
            raise WireError("tagged field exceeds the message")
    return pos


def text_length(length: int) -> bytes:
    """Return the length prefix of a compact string whose length + 1 (``length``) does not fit one byte. Raises
    WireError."""
    if length > MAX_STRING_BYTES + 1:
        raise WireError(f"string of {length - 1} bytes, at most {MAX_STRING_BYTES} are allowed")
    return uvarint(length)
