"""The snapshot of a classic group, which survives a restart, and its stored form.

Stored form: a line that names the kind of group, since other kinds are stored in the same place, then UTF-8 JSON with a
version number; byte strings are base64. A group is written once per generation, so readability matters more than size.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

_MARK = b"kafka classic group\n"
_VERSION = 1


class SnapshotError(Exception):
    """A stored group cannot be read: another version, or not what was written."""


class MemberSnapshot(Struct, frozen=True, rename={"member_id": "id"}):
    """One member; times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupSnapshot(Struct, frozen=True, rename={"protocol_name": "protocol"}, tag_field="version", tag=_VERSION):
    """One group: stable if it has members, else empty.

    ``since_ms`` is when it came into that state, in the coordinator's clock in memory and in Unix time when stored.
    """

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    since_ms: int
    members: tuple[MemberSnapshot, ...]


def encode_snapshot(snapshot: GroupSnapshot) -> bytes:
    """Return the stored form of a group."""
    return _MARK + msgspec.json.encode(snapshot)


def decode_snapshot(blob: bytes) -> GroupSnapshot | None:
    """Read a stored group; None if it is of another kind. Raises SnapshotError."""
    if not blob.startswith(_MARK):
        return None
    try:
        return msgspec.json.decode(blob[len(_MARK) :], type=GroupSnapshot)
    except msgspec.DecodeError as error:
        raise SnapshotError(f"unreadable as group metadata of version {_VERSION}: {error}") from error
