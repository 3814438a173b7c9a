"""One classic consumer group: its members, its state, and its rules.

It knows nothing of time or requests; :mod:`.coordinator` drives it. The rules are those of docs/protocols/kafka.md,
rules 50-57, and of KIP-345 (static members) and KIP-394 (pending members).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TypeVar

from msgspec import Struct, field

from kafka_front.service.groups.classic.embedded import PROTOCOL_TYPE, EmbeddedFormatError, subscribed_topics
from kafka_front.wire.errors import ErrorCode, KafkaError

M = TypeVar("M")


class GroupState(Enum):
    """States of a classic group; the values are the names clients see in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_ALLOWED_FROM = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: {GroupState.EMPTY},
}


class JoinedMember(Struct, frozen=True):
    """A member as the leader sees it in its JoinGroup answer."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(Struct, frozen=True):
    """The answer to one JoinGroup."""

    member_id: str
    error: int = ErrorCode.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    message: str | None = None
    """The reason of an error, for the node's log: the protocol has no room for it."""


class SyncReply(Struct, frozen=True):
    """The answer to one SyncGroup."""

    error: int = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


JoinCallback = Callable[[JoinReply], None]
SyncCallback = Callable[[SyncReply], None]


class Member(Struct):
    """A member that has joined; times in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]  # in the member's order of preference
    assignment: bytes = b""
    # True until the first join phase with this member completes: until then its session may end with a JoinGroup
    # parked.
    is_new: bool = False
    join: JoinCallback | None = None
    sync: SyncCallback | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def keeps_session(self) -> bool:
        """Return whether a parked request proves the member alive, so that it needs no heartbeat."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def matches(self, protocols: dict[str, bytes]) -> bool:
        """Return whether these are the member's protocols, with the same metadata and in the same order of
        preference."""
        return list(self.protocols.items()) == list(protocols.items())


class Group(Struct):
    """The state of one group. ``since_ms`` is in the coordinator's clock."""

    group_id: str
    since_ms: int
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending: set[str] = field(default_factory=set)  # ids handed out with MEMBER_ID_REQUIRED and not used yet
    pending_sync: set[str] = field(default_factory=set)
    subscribed: frozenset[str] | None = None  # None: unknown
    # The present initial delay and the time by which it may still be extended, in ms; None outside a first rebalance.
    initial_delay: tuple[int, int] | None = None
    new_member_added: bool = False
    # Answers to LeaveGroup that wait until their members' leaving is completed.
    leaving: list[Callable[[], None]] = field(default_factory=list)
    # Generation whose assignment is being made durable, or -1.
    saving_generation: int = -1
    _support: dict[str, int] = field(default_factory=dict)  # protocol -> how many members know it
    _waiting: int = 0  # members with a parked JoinGroup
    _bytes: int = 0  # of the members' protocols

    # --- state ---------------------------------------------------------------------------------------------------

    def become(self, state: GroupState, now_ms: int) -> None:
        """Change state. Raises ValueError for a transition that no group may make."""
        if self.state not in _ALLOWED_FROM[state]:
            raise ValueError(f"group {self.group_id}: {self.state.value} -> {state.value}")
        self.state = state
        self.since_ms = now_ms

    def start_generation(self, now_ms: int) -> None:
        """End the join phase: begin a generation that awaits its assignment, or be empty without members."""
        self.generation = 1 if self.generation == 2**31 - 1 else self.generation + 1
        self.protocol_name = self.choose_protocol() if self.members else None
        self.subscribed = self._compute_subscribed()
        self.become(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_sync.clear()

    # --- members -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Return the number of members with a parked JoinGroup."""
        return self._waiting

    @property
    def metadata_bytes(self) -> int:
        """Return the bytes of the members' protocols, names included."""
        return self._bytes

    @property
    def all_joined(self) -> bool:
        return self._waiting == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member that is not there yet; the first one gives the group its protocol type and is its leader."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member.protocols, 1)
        self.pending.discard(member.member_id)
        if member.join is not None:
            self._waiting += 1

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending id; the caller has answered its parked requests."""
        self.pending.discard(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member.protocols, -1)
        if member.join is not None:
            self._waiting -= 1
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename_static(self, member: Member, new_id: str) -> None:
        """Give a static member the id of its new incarnation; it keeps its place, assignment and leadership."""
        old_id = member.member_id
        member.member_id = new_id
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        assert member.instance_id is not None
        self.static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)

    def update(
        self, member: Member, protocols: dict[str, bytes], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Take over the member's new protocols and timeouts from its JoinGroup."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: Member, reply: JoinCallback) -> JoinCallback | None:
        """Keep a JoinGroup, to be answered later; return the one that it displaces, if any."""
        displaced = member.join
        member.join = reply
        if displaced is None:
            self._waiting += 1
        return displaced

    def take_join(self, member: Member) -> JoinCallback | None:
        """Take the parked JoinGroup of a member, if it has one, to answer it now."""
        reply = member.join
        if reply is not None:
            member.join = None
            self._waiting -= 1
        return reply

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """Return a member (rule 55). Raises KafkaError, FENCED_INSTANCE_ID if another member holds the instance id."""
        return find_member(self.members, self.static_members, member_id, instance_id)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first member that has. Return False if none has."""
        if self.leader is None:
            return False
        if self.members[self.leader].join is not None:
            return True
        for member in self.members.values():
            if member.join is not None:
                self.leader = member.member_id
                return True
        return False

    # --- protocols -----------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Return whether a member with these protocols can be in the group: all members must know at least one of
        them."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._support.get(name, 0) == len(self.members) for name in protocols)

    def describe_unsupported(self, protocol_type: str) -> str:
        """Return why a member of this type cannot be in the group, and what its user can do."""
        if self.members and protocol_type != self.protocol_type:
            text = f"its members are of type {self.protocol_type!r}, this one is of type {protocol_type!r}"
            return f"{text}: give this one a group.id of its own"
        common = [name for name, members in self._support.items() if members == len(self.members)]
        text = f"all its members know {', '.join(common)}, this one does not"
        return f"{text}: give all members of a group the same partition.assignment.strategy"

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all know; a tie goes to the first with a
        vote."""
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(name for name in member.protocols if self._support[name] == everybody)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return all members with their metadata for the chosen protocol."""
        name = self.protocol_name or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.protocols.get(name, b""))
            for member in self.members.values()
        )

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Return whether members read ``topic``. If a consumer group's subscriptions are unknown, it reads all
        topics."""
        if self.subscribed is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed

    def restore_subscribed(self) -> None:
        """Derive the subscriptions again after members were loaded."""
        self.subscribed = self._compute_subscribed()

    def _compute_subscribed(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics |= subscribed_topics(member.protocols.get(self.protocol_name or "", b""))
        except EmbeddedFormatError:
            # Any bytes are legal metadata; a group whose own are unreadable simply has unknown subscriptions.
            return None
        return frozenset(topics)

    def _count(self, protocols: dict[str, bytes], change: int) -> None:
        self._bytes += change * bytes_of(protocols.items())
        for name in protocols:
            count = self._support.get(name, 0) + change
            if count:
                self._support[name] = count
            else:
                self._support.pop(name, None)


def describe_taken_over(instance_id: str | None) -> str:
    """Return why a static member is refused, and what its user can do."""
    text = f"another member has taken over group.instance.id {instance_id!r}"
    return f"{text}: if both are to run, give each an id of its own"


def find_member(members: Mapping[str, M], static: Mapping[str, str], member_id: str, instance_id: str | None) -> M:
    """Return a member of a group; ``static`` has the ids of its static members by instance id. Raises KafkaError."""
    if instance_id is not None:
        holder = static.get(instance_id)
        if holder is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member of group.instance.id {instance_id!r}"
            )
        if holder != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, describe_taken_over(instance_id))
    member = members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
    return member


def bytes_of(named: Iterable[tuple[str, bytes]]) -> int:
    """Return the approximate bytes of protocols or assignments."""
    return sum(len(name) + len(blob) for name, blob in named)
