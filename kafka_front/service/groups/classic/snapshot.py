"""The snapshot of a classic group, which survives a restart, and its stored form.

Stored form: a line that names the kind of group, since other kinds are stored in the same place, then UTF-8 JSON with a
version number; byte strings are base64. A group is written once per generation, so readability matters more than size.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from msgspec import Struct

_MARK = b"kafka classic group\n"
_VERSION = 1


class SnapshotError(Exception):
    """A stored group cannot be read: another version, or not what was written."""


class MemberSnapshot(Struct, frozen=True):
    """One member; times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupSnapshot(Struct, frozen=True):
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
    return (
        _MARK
        + json.dumps(
            {
                "version": _VERSION,
                "generation": snapshot.generation,
                "protocol_type": snapshot.protocol_type,
                "protocol": snapshot.protocol_name,
                "leader": snapshot.leader,
                "since_ms": snapshot.since_ms,
                "members": [
                    {
                        "id": member.member_id,
                        "instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "client_host": member.client_host,
                        "rebalance_timeout_ms": member.rebalance_timeout_ms,
                        "session_timeout_ms": member.session_timeout_ms,
                        "protocols": [[name, _text(metadata)] for name, metadata in member.protocols],
                        "assignment": _text(member.assignment),
                    }
                    for member in snapshot.members
                ],
            },
            separators=(",", ":"),
        ).encode()
    )


def decode_snapshot(blob: bytes) -> GroupSnapshot | None:
    """Read a stored group; None if it is of another kind. Raises SnapshotError."""
    if not blob.startswith(_MARK):
        return None
    try:
        data: dict[str, Any] = json.loads(blob[len(_MARK) :])
        if data["version"] != _VERSION:
            raise SnapshotError(f"group metadata of version {data['version']!r}; this program reads {_VERSION}")
        return GroupSnapshot(
            data["generation"],
            data["protocol_type"],
            data["protocol"],
            data["leader"],
            data["since_ms"],
            tuple(
                MemberSnapshot(
                    member["id"],
                    member["instance_id"],
                    member["client_id"],
                    member["client_host"],
                    member["rebalance_timeout_ms"],
                    member["session_timeout_ms"],
                    tuple((name, _bytes(metadata)) for name, metadata in member["protocols"]),
                    _bytes(member["assignment"]),
                )
                for member in data["members"]
            ),
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise SnapshotError(f"unreadable group metadata: {error!r}") from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
