"""One object of a log: its writer, its number, and its body. Big-endian::

    "ANBO" | u8 version 1 | u8 kind | u16 reserved | u64 incarnation | u64 number | 16 bytes unique id
    u32 length of the body | u32 CRC-32 of the body | u32 CRC-32 of everything before | body

The unique id distinguishes an object that was put twice, because the first answer was lost, from another writer's at
its number. The server defines the body of a group, which is never empty; that of a fence is empty, so a listing tells
them apart.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from msgspec import Struct as Value

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.wire.frame import crc32

_MAGIC = b"ANBO"
_VERSION = 1
_HEAD = Struct(">4sBBHQQ16sII")
_CRC = Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size
UNIQUE_BYTES = 16


class ObjectKind(IntEnum):
    """Kind of an object."""

    GROUP = 1
    FENCE = 2


class ObjectHead(Value, frozen=True):
    """Head of an object. ``length``: bytes of the body."""

    kind: ObjectKind
    incarnation: int
    number: int
    unique: bytes
    length: int
    body_crc: int


def key_of(prefix: str, incarnation: int, number: int) -> str:
    """Return the name of an object. A listing shows the objects of one incarnation in the order of their numbers."""
    return f"{prefix}log/{incarnation:016x}/{number:016x}"


def encode(kind: ObjectKind, incarnation: int, number: int, unique: bytes, body: Buffer = b"") -> bytes:
    """Return the head of an object, to be followed by ``body``."""
    if len(unique) != UNIQUE_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_BYTES} bytes, not {len(unique)}")
    if (kind is ObjectKind.FENCE) != (len(body) == 0):
        raise ValueError("a fence has no body, and nothing else has none")
    head = _HEAD.pack(_MAGIC, _VERSION, kind, 0, incarnation, number, unique, len(body), crc32(body))
    return head + _CRC.pack(crc32(head))


def decode_head(data: Buffer, incarnation: int, number: int) -> ObjectHead:
    """Return the head at the beginning of ``data``, an object read at ``number`` of ``incarnation``.

    Raises DecodeError: cut off, damaged, of another version, or another object than its name says.
    """
    where = f"object {number} of incarnation {incarnation}"
    if len(data) < HEAD_BYTES:
        raise DecodeError(f"{where} has {len(data)} bytes, fewer than a head")
    magic, version, kind, _, told, told_number, unique, length, body_crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError(f"{where} is none of Anabranch's")
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32(memoryview(data)[: _HEAD.size]):
        raise DecodeError(f"the head of {where} is damaged")
    if version != _VERSION:
        raise DecodeError(f"{where} is of version {version}, this release reads {_VERSION}")
    if (told, told_number) != (incarnation, number):
        raise DecodeError(f"{where} says that it is object {told_number} of incarnation {told}")
    try:
        return ObjectHead(ObjectKind(kind), told, told_number, unique, length, body_crc)
    except ValueError:
        raise DecodeError(f"{where} is of an unknown kind, {kind}") from None


def decode(data: Buffer, incarnation: int, number: int) -> tuple[ObjectHead, memoryview]:
    """Decode a whole object: its head, and its body as a view of ``data``. Raises DecodeError."""
    head = decode_head(data, incarnation, number)
    body = memoryview(data)[HEAD_BYTES:]
    if len(body) != head.length:
        raise DecodeError(f"object {number} of incarnation {incarnation} has {len(body)} of {head.length} bytes")
    if crc32(body) != head.body_crc:
        raise DecodeError(f"the body of object {number} of incarnation {incarnation} is damaged")
    return head, body
