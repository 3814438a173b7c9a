"""Requests to the coordinator of classic groups."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

SavedCallback = Callable[[int, int], None]
"""Called once with (now_ms, error code) when a snapshot is durable or could not be stored."""

LeaveCallback = Callable[[int, list[int]], None]
"""Called with the request's error code and one for each leaver."""


class JoinRequest(Struct, frozen=True):
    """A JoinGroup. ``require_known_id`` and ``can_skip_assignment`` follow from the request's version (v4+, v9+)."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    require_known_id: bool = False
    can_skip_assignment: bool = False


class SyncRequest(Struct, frozen=True):
    """A SyncGroup; protocol type and name are None below v5 and then not compared."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Leaver(Struct, frozen=True):
    """A member to remove: by member id, or by instance id alone when an administrator asks (KIP-345)."""

    member_id: str
    instance_id: str | None = None
