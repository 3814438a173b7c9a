"""Share groups as a pure state machine: their members, and each member's partitions (KIP-932).

It has no clock and no sockets: every call carries ``now_ms``. Members share partitions, so a rebalance needs no steps:
a heartbeat's answer names the member's partitions, which follow from the present members.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct, field

from kafka_front.service.groups.admission import said_bytes
from kafka_front.service.groups.consumer.group import ConsumerGroupState, Partitions
from kafka_front.wire.errors import ErrorCode, KafkaError

LEAVING = -1

TopicFinder = Callable[[str], "tuple[bytes, int] | None"]
"""Returns id and number of partitions of a topic."""


class ShareMember(Struct):
    """One member; ``epoch`` is the group epoch for which ``assigned`` was computed."""

    member_id: str
    client_id: str
    client_host: str
    rack_id: str | None = None
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    deadline_ms: int = 0
    assigned: Partitions = field(default_factory=dict)
    said_bytes: int = 0
    """Bytes of the member's metadata."""


class ShareGroup(Struct):
    """One group. It is stored without its members: after a restart they join again, at no cost."""

    group_id: str
    epoch: int = 0
    reached: int = 0
    """The highest epoch that a member has reached."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)
    """Ids of a topic's readers in order, by topic."""
    seen: int = -1
    """Version of the topics from which ``layout`` was made."""
    layout: dict[str, tuple[bytes, int] | None] = field(default_factory=dict)
    said_bytes: int = 0
    """Bytes of the members' metadata."""

    assignor: ClassVar[str] = "simple"

    @property
    def state(self) -> ConsumerGroupState:
        return ConsumerGroupState.STABLE if self.members else ConsumerGroupState.EMPTY

    @property
    def target_epoch(self) -> int:
        """Return the epoch of the assignment: a share group needs no steps to reach it."""
        return self.epoch

    def bump(self) -> None:
        """Begin a new epoch, unless no member has reached the present one."""
        self.epoch = self.reached + 1


class ShareHeartbeat(Struct, frozen=True):
    """A ShareGroupHeartbeat; None means unchanged since the member's last request."""

    group_id: str
    member_id: str
    epoch: int
    topics: tuple[str, ...] | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


class ShareReply(Struct, frozen=True):
    """The answer to one ShareGroupHeartbeat; ``assignment`` is None if the member knows it already."""

    member_id: str
    epoch: int
    assignment: Partitions | None = None


def check_form(request: ShareHeartbeat) -> None:
    """Raise KafkaError for a request that is invalid in any state of its group."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a share group needs a name")
    if not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a member of a share group chooses an id")
    if request.epoch < LEAVING:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{request.epoch} is no epoch of a member")
    if request.epoch == 0 and not request.topics:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "who joins a share group names the topics it reads")


def heartbeat(
    group: ShareGroup, now_ms: int, request: ShareHeartbeat, *, session_ms: int, max_size: int, max_bytes: int
) -> ShareMember | None:
    """Apply a member's heartbeat, and return the member; None if it has left. Raises KafkaError."""
    member = group.members.get(request.member_id)
    if request.epoch == LEAVING:
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
        _remove(group, member)
        return None
    if member is None:
        if request.epoch != 0:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
        if len(group.members) >= max_size:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has {max_size} members: kafka.group.share_max_size lets no more in",
            )
    elif request.epoch > member.epoch or request.epoch not in (0, member.epoch, member.previous_epoch):
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f"the member is in epoch {member.epoch}, not {request.epoch}")
    had = member or ShareMember(request.member_id, request.client_id, request.client_host)
    topics = had.topics if request.topics is None else tuple(sorted(set(request.topics)))
    rack_id = had.rack_id if request.rack_id is None else request.rack_id
    says = said_bytes(topics, request.member_id, rack_id)
    more = says - had.said_bytes
    if more > 0 and group.said_bytes + more > max_bytes:
        text = f"the group's member metadata exceeds kafka.group.max_bytes ({max_bytes})"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
    if member is None:
        member = group.members[request.member_id] = had
        group.bump()
    group.said_bytes += more
    member.said_bytes, member.rack_id, member.deadline_ms = says, rack_id, now_ms + session_ms
    if topics != member.topics:
        _unsubscribe(group, member)
        member.topics = topics
        for topic in topics:
            insort(group.readers.setdefault(topic, []), member.member_id)
        group.seen = -1
        group.bump()
    return member


def follow_topics(group: ShareGroup, version: int, find: TopicFinder) -> None:
    """Take over topics that were created, deleted or extended; ``version`` rises with every such change."""
    if group.seen == version:
        return
    layout = {topic: find(topic) for topic in group.readers}
    if layout != group.layout:
        group.layout = layout
        group.bump()
    group.seen = version


def assign(group: ShareGroup, member: ShareMember) -> bool:
    """Bring a member to the group's epoch; return whether its assignment has changed.

    If a topic has more partitions than readers, each reader has a part of them; if it has fewer, each reader has one.
    """
    if member.epoch == group.epoch:
        return False
    assigned: dict[bytes, frozenset[int]] = {}
    for topic in member.topics:
        found = group.layout.get(topic)
        if found is None or not found[1]:
            continue
        readers = group.readers[topic]
        rank = bisect_left(readers, member.member_id)
        topic_id, count = found
        assigned[topic_id] = frozenset(range(rank, count, len(readers)) if count > rank else [rank % count])
    changed = assigned != member.assigned
    member.assigned = assigned
    member.previous_epoch, member.epoch = member.epoch, group.epoch
    group.reached = group.epoch
    return changed


def expire(group: ShareGroup, now_ms: int) -> list[str]:
    """Remove members whose heartbeat is overdue; return their ids."""
    gone = [member for member in group.members.values() if member.deadline_ms <= now_ms]
    for member in gone:
        _remove(group, member)
    return [member.member_id for member in gone]


def _remove(group: ShareGroup, member: ShareMember) -> None:
    del group.members[member.member_id]
    group.said_bytes -= member.said_bytes
    _unsubscribe(group, member)
    group.seen = -1
    group.bump()


def _unsubscribe(group: ShareGroup, member: ShareMember) -> None:
    for topic in member.topics:
        readers = group.readers[topic]
        readers.remove(member.member_id)
        if not readers:
            del group.readers[topic]
