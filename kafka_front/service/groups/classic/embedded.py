"""The consumer protocol: the content of the opaque bytes that consumers put into JoinGroup and SyncGroup.

The coordinator runs groups without it. It is decoded to know a group's topics (they protect committed offsets from
deletion and expiry) and to show assignments to people. Layout: int16 version, then for a subscription an array of topic
names, for an assignment an array of (topic name, array of int32 partitions); arrays have an int32 length and strings an
int16 length, all big-endian. Later versions only append fields, so the prefix is the same in all of them (KIP-429,
KIP-792).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class EmbeddedFormatError(Exception):
    """The bytes are not a consumer protocol subscription or assignment."""


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Return the topics of a member's subscription. Raises EmbeddedFormatError."""
    position = _after_version(metadata)
    count, position = _length(metadata, position, 2)
    topics = set()
    for _ in range(count):
        topic, position = _string(metadata, position)
        topics.add(topic)
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> dict[str, list[int]]:
    """Return the partitions by topic of an assignment; empty bytes stand for no partitions. Raises
    EmbeddedFormatError."""
    if not assignment:
        return {}
    return _places(assignment, _after_version(assignment))[0]


def has_user_data(assignment: bytes) -> bool:
    """Return whether an assignment carries bytes of its assignor's own. Raises EmbeddedFormatError."""
    if not assignment:
        return False
    _, position = _places(assignment, _after_version(assignment))
    return position + 4 <= len(assignment) and _INT32.unpack_from(assignment, position)[0] > 0


def _places(data: bytes, position: int) -> tuple[dict[str, list[int]], int]:
    count, position = _length(data, position, 6)
    partitions: dict[str, list[int]] = {}
    for _ in range(count):
        topic, position = _string(data, position)
        indexes, position = _length(data, position, 4)
        end = position + 4 * indexes
        partitions.setdefault(topic, []).extend(n for (n,) in _INT32.iter_unpack(data[position:end]))
        position = end
    return partitions, position


def subscription_version(metadata: bytes) -> int:
    """Return the version of a member's subscription, 0 if it has none."""
    return max(_INT16.unpack_from(metadata)[0], 0) if len(metadata) >= 2 else 0


def owned_partitions(metadata: bytes) -> dict[str, list[int]]:
    """Return the partitions that a member owns by its subscription (version 1 and later). Raises
    EmbeddedFormatError."""
    position = _after_version(metadata)
    count, position = _length(metadata, position, 2)
    for _ in range(count):
        _, position = _string(metadata, position)
    if position + 4 > len(metadata):
        return {}
    size = _INT32.unpack_from(metadata, position)[0]  # user data; -1: none
    position += 4 + max(size, 0)
    if subscription_version(metadata) < 1 or position >= len(metadata):
        return {}
    return _places(metadata, position)[0]


def encode_assignment(version: int, partitions: Mapping[str, Sequence[int]]) -> bytes:
    """Return the bytes of a member's assignment without user data of an assignor."""
    parts = [_INT16.pack(version), _INT32.pack(len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join([*parts, _INT32.pack(-1)])


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
