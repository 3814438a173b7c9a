"""The consumer protocol: what consumers put into the opaque bytes of JoinGroup and SyncGroup.

The coordinator does not need it to run a group. It is read to know which topics a group subscribes to (they protect
committed offsets from deletion and expiry) and to show assignments to people. Layout: int16 version, then for a
subscription an array of topic names, for an assignment an array of (topic name, array of int32 partitions); arrays
have an int32 length and strings an int16 length, all big-endian. Later versions only append fields, so the prefix
is the same in all of them (KIP-429, KIP-792).
"""

from __future__ import annotations

import struct

PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class EmbeddedFormatError(Exception):
    """The bytes are not a consumer protocol subscription or assignment."""


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Topics named by a member's subscription. Raises EmbeddedFormatError."""
    position = _after_version(metadata)
    count, position = _length(metadata, position, 2)
    topics = set()
    for _ in range(count):
        topic, position = _string(metadata, position)
        topics.add(topic)
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> dict[str, list[int]]:
    """Partitions by topic of a member's assignment; empty bytes stand for no partitions. Raises EmbeddedFormatError."""
    if not assignment:
        return {}
    position = _after_version(assignment)
    count, position = _length(assignment, position, 6)
    partitions: dict[str, list[int]] = {}
    for _ in range(count):
        topic, position = _string(assignment, position)
        indexes, position = _length(assignment, position, 4)
        end = position + 4 * indexes
        partitions.setdefault(topic, []).extend(n for (n,) in _INT32.iter_unpack(assignment[position:end]))
        position = end
    return partitions


def _after_version(data: bytes) -> int:
    if len(data) < 2:
        raise EmbeddedFormatError("no version")
    if _INT16.unpack_from(data)[0] < 0:
        raise EmbeddedFormatError("negative version")
    return 2


def _length(data: bytes, position: int, smallest_item: int) -> tuple[int, int]:
    if position + 4 > len(data):
        raise EmbeddedFormatError("array length is cut off")
    count: int = _INT32.unpack_from(data, position)[0]
    position += 4
    if count < 0 or count * smallest_item > len(data) - position:
        raise EmbeddedFormatError(f"array of {count} items in {len(data) - position} bytes")
    return count, position


def _string(data: bytes, position: int) -> tuple[str, int]:
    if position + 2 > len(data):
        raise EmbeddedFormatError("string length is cut off")
    size: int = _INT16.unpack_from(data, position)[0]
    position += 2
    if size < 0 or size > len(data) - position:
        raise EmbeddedFormatError(f"string of {size} bytes in {len(data) - position} bytes")
    try:
        return data[position : position + size].decode(), position + size
    except UnicodeDecodeError as error:
        raise EmbeddedFormatError("topic name is not UTF-8") from error
