"""Who may join a group, and with which timeouts: the limits of :class:`.settings.GroupSettings`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kafka_front.service.groups import codes
from kafka_front.service.groups.classic.group import Group, GroupState, bytes_of
from kafka_front.service.groups.classic.requests import JoinRequest
from kafka_front.service.groups.settings import GroupSettings
from kafka_front.wire.errors import KafkaError


def rebalance_timeout(settings: GroupSettings, asked_ms: int) -> int:
    """Kafka takes any number; here nobody is waited for less than a millisecond or longer than the setting."""
    return min(max(asked_ms, 1), settings.max_rebalance_timeout_ms)


def session_timeout(settings: GroupSettings, stored_ms: int) -> int:
    """A stored timeout within today's settings; those in requests are refused instead."""
    return min(max(stored_ms, settings.min_session_timeout_ms), settings.max_session_timeout_ms)


MOST_TOPICS = 50_000
"""Most topics that one member may name: what is done with them is one step of the event loop."""


def require_few_topics(named: Collection[object]) -> None:
    """Raise KafkaError where a member names more topics than one may."""
    if len(named) > MOST_TOPICS:
        text = f"the member names {len(named)} topics, above {MOST_TOPICS}: have it subscribe to a pattern"
        raise KafkaError(codes.GROUP_MAX_SIZE_REACHED, text)


def said_bytes(topics: Iterable[str], *texts: str | None) -> int:
    """What a member of a group without a leader says of itself takes, about: the topics it reads, and its names."""
    return sum(len(name) + 60 for name in topics) + sum(len(text or "") for text in texts)


def has_room(settings: GroupSettings, group: Group, request: JoinRequest) -> bool:
    """Whether the group may have one more member, if it is one."""
    limit = settings.max_size
    member_id = request.member_id
    if not member_id and request.instance_id is not None:
        # A static member that restarted takes its own place, also in a full group.
        member_id = group.static_members.get(request.instance_id, "")
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # Counted by who waits, not by who is listed: that lets a lowered limit push out the last to rejoin.
        return (member is not None and member.join is not None) or group.waiting < limit
    return member is not None or len(group.members) < limit


def has_memory(settings: GroupSettings, group: Group, request: JoinRequest) -> bool:
    """Whether the group may keep what the member says of itself; what it said before goes."""
    member = group.members.get(request.member_id)
    if member is None and request.instance_id is not None:
        member = group.members.get(group.static_members.get(request.instance_id, ""))
    before = 0 if member is None else bytes_of(member.protocols.items())
    return group.metadata_bytes - before + bytes_of(request.protocols) <= settings.max_bytes
