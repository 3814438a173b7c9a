"""Admission of members to groups, and their timeouts, by the settings of groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from kafka_front.service.groups.classic.group import Group, GroupState, bytes_of
from kafka_front.service.groups.classic.requests import JoinRequest
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError


def rebalance_timeout(settings: KafkaGroupSettings, asked_ms: int) -> int:
    """Return the timeout asked for within bounds: Kafka takes any number, here it is at least 1 ms and at most the
    setting."""
    return min(max(asked_ms, 1), settings.max_rebalance_timeout_ms)


def admit(settings: KafkaGroupSettings, request: JoinRequest) -> JoinRequest:
    """Return a request to join, with a rebalance timeout within bounds. Raises KafkaError for one that no group
    takes."""
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        bounds = f"{settings.min_session_timeout_ms} to {settings.max_session_timeout_ms}"
        text = f"session.timeout.ms is {request.session_timeout_ms}, not {bounds} (kafka.group.*_session_timeout_ms)"
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, text)
    if len(request.protocols) > _MOST_PROTOCOLS:
        text = f"the member names {len(request.protocols)} protocols, above {_MOST_PROTOCOLS}: name fewer"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    return replace(request, rebalance_timeout_ms=rebalance_timeout(settings, request.rebalance_timeout_ms))


def session_timeout(settings: KafkaGroupSettings, stored_ms: int) -> int:
    """Return a stored timeout within today's bounds. Requests with a timeout out of bounds are refused instead."""
    return min(max(stored_ms, settings.min_session_timeout_ms), settings.max_session_timeout_ms)


_MOST_PROTOCOLS = 1_000
"""Most protocols of a member: clients know two or three, and Kafka bounds only the request's size."""
MOST_TOPICS = 50_000
"""Most topics that one member may name: they are worked on in one step of the event loop."""


def require_few_topics(named: Collection[object]) -> None:
    """Raise KafkaError if a member names more than MOST_TOPICS topics."""
    if len(named) > MOST_TOPICS:
        text = f"the member names {len(named)} topics, above {MOST_TOPICS}: have it subscribe to a pattern"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def said_bytes(topics: Iterable[str], *texts: str | None) -> int:
    """Return the approximate bytes of a member's metadata in a group without a leader: its topics and its names."""
    return sum(len(name) + 60 for name in topics) + sum(len(text or "") for text in texts)


def describe_full(settings: KafkaGroupSettings) -> str:
    """Return why a group lets no more members in, and what its operator can do."""
    return f"the group has {settings.max_size} members: raise kafka.group.max_size to let more in"


def has_room(settings: KafkaGroupSettings, group: Group, request: JoinRequest) -> bool:
    """Return whether the group has room for the client that joins."""
    limit = settings.max_size
    member_id = request.member_id
    if not member_id and request.instance_id is not None:
        # A restarted static member takes its own place, also in a full group.
        member_id = group.static_members.get(request.instance_id, "")
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # Count the waiting members, not the listed ones: after the limit was lowered, the last to rejoin are refused.
        return (member is not None and member.join is not None) or group.waiting < limit
    return member is not None or len(group.members) < limit


def has_memory(settings: KafkaGroupSettings, group: Group, request: JoinRequest) -> bool:
    """Return whether the group may keep the member's new metadata in place of the old."""
    member = group.members.get(request.member_id)
    if member is None and request.instance_id is not None:
        member = group.members.get(group.static_members.get(request.instance_id, ""))
    before = 0 if member is None else bytes_of(member.protocols.items())
    return group.metadata_bytes - before + bytes_of(request.protocols) <= settings.max_bytes
