"""One consumer group of KIP-848: its members, the holder of each partition, and the steps from one assignment to the
next.

It knows nothing of time or requests; :mod:`.coordinator` drives it. Three numbers rule a group: its *epoch* rises when
members, subscriptions or topics change; the *target epoch* is the epoch for which the target assignment was computed; a
*member's epoch* is the target epoch it has reached. A partition is held by the member it is assigned to, or by the
member that must give it up and has not confirmed that: until then no other member gets it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Set
from enum import Enum
from typing import NamedTuple, TypeVar

from msgspec import Struct, field

from bridges.auth import Principal
from bridges.catalog.views.groups import Place
from kafka_front.service.groups.admission import said_bytes
from kafka_front.service.groups.classic.group import bytes_of

K = TypeVar("K")

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id; never changed in place, so members and computations share them."""

NOTHING: Partitions = {}

STATIC_LEFT = -2
"""Epoch of a static member that left and keeps its place; such a member sends it when it leaves."""
LEFT = -1
"""Epoch with which a member leaves for good."""


class View(NamedTuple):
    """The subscription of a member to a pattern: the matching topics that ``viewer`` may describe. None may describe
    all."""

    pattern: str
    viewer: Principal | None = None


class MemberState(Enum):
    """The state of a member on its way to the target assignment."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # must give up partitions
    UNRELEASED = "unreleased"  # waits for partitions that other members hold


class ConsumerGroupState(Enum):
    """States of a group as clients see them in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"  # of a streams group whose topics do not fit its topology
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ClassicPart(Struct, frozen=True):
    """The metadata of a member that speaks the classic protocol in a group of the new one."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Process(Struct, frozen=True):
    """The place of a member of a streams group: the application's process, its endpoint for queries and its tags.
    ``topology_epoch`` is the epoch of the topology that it processes."""

    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] = ()
    topology_epoch: int = 0

    @property
    def said_bytes(self) -> int:
        """Return the approximate bytes of what the member says of its process."""
        host = self.endpoint[0] if self.endpoint else ""
        return said_bytes((key + value for key, value in self.tags), self.process_id, host)


NO_PROCESS = Process()


class ConsumerMember(Struct):
    """A member; times in milliseconds."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 1
    assignor: str | None = None
    topics: frozenset[str] = frozenset()
    view: View | None = None
    classic: ClassicPart | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    target: Partitions = NOTHING
    process: Process = NO_PROCESS
    stored: bytes | None = None
    """The member's line in the stored group; None after a change."""

    @property
    def said_bytes(self) -> int:
        """Return the approximate bytes of the member's metadata."""
        pattern = None if self.view is None else self.view.pattern
        protocols = 0 if self.classic is None else bytes_of(self.classic.protocols)
        return (
            protocols
            + self.process.said_bytes
            + said_bytes(self.topics, self.member_id, self.instance_id, self.rack_id, pattern)
        )

    def advance_to(self, epoch: int) -> None:
        """Enter an epoch; a repeated request may still carry the previous one."""
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch


class ConsumerGroup(Struct):
    """The state of one group. ``since_ms`` is when it was created or became empty, in the coordinator's clock."""

    group_id: str
    since_ms: int
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    #: Topics subscribed to that exist: name -> (id, number of partitions); None: not looked up since the start.
    topics: dict[str, tuple[bytes, int]] | None = None
    #: Digest of ``topics`` when the epoch last rose.
    topics_hash: str = ""
    names: Counter[str] = field(default_factory=Counter)
    views: Counter[View] = field(default_factory=Counter)
    seen_version: int = -1
    """Version of the topic index from which ``topics`` was made."""
    said_bytes: int = 0
    version: int = 0
    """Rises with every change that must survive a restart."""
    saved_version: int = 0
    computing: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    """Static members that were replaced while a target was being computed: old id -> new id."""
    classic_count: int = 0
    holders: dict[bytes, dict[int, str]] = field(default_factory=dict)
    _behind: set[str] = field(default_factory=set)

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.has_arrived(member) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def has_arrived(self, member: ConsumerMember) -> bool:
        """Return whether the member has exactly its target assignment."""
        return member.state is MemberState.STABLE and member.epoch == self.target_epoch

    def is_subscribed(self, topic: str) -> bool:
        """Return whether members read ``topic``, by name or by pattern."""
        if self.topics is None and self.views:
            return True  # restored, and not looked up yet
        return topic in self.names or topic in (self.topics or ())

    def has_kept(self, member: ConsumerMember, epoch: int, places: Set[Place]) -> bool:
        """Return whether a commit of a member in an earlier epoch is as good as one in its present epoch."""
        return False

    def locks(self, member: ConsumerMember, topic_id: bytes) -> Collection[bytes]:
        """Return what a member locks, by partition, while it holds partitions of a topic."""
        return (topic_id,)

    def holder(self, topic_id: bytes, partition: int) -> str | None:
        """Return the member that has a partition or has not yet confirmed that it gave it up."""
        return self.holders.get(topic_id, {}).get(partition)

    @property
    def preferred_assignor(self) -> str | None:
        """Return the assignor that most members ask for; a tie goes to the first."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(votes, key=lambda name: votes[name]) if votes else None

    # --- members -------------------------------------------------------------------------------------------------

    def changed(self, member: ConsumerMember | None = None) -> None:
        """Note a change, of the group or of one member, that must survive a restart."""
        self.version += 1
        if member is not None:
            member.stored = None

    def add(self, member: ConsumerMember) -> None:
        """Add a member with the partitions that it holds."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count(member, 1)
        self._hold(member)
        self.changed(member)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member; its partitions are free."""
        del self.members[member.member_id]
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]
        self._count(member, -1)
        self._let_go(member)
        self.changed()

    def subscribe(self, member: ConsumerMember, topics: frozenset[str], view: View | None) -> bool:
        """Replace a member's subscription; return False if it is the same."""
        if topics == member.topics and view == member.view:
            return False
        self._count(member, -1)
        member.topics, member.view = topics, view
        self._count(member, 1)
        self.changed(member)
        return True

    def hold(
        self, member: ConsumerMember, state: MemberState, epoch: int, assigned: Partitions, revoking: Partitions
    ) -> bool:
        """Set a member's assigned partitions and those to give up; return False if nothing changes."""
        if (
            (state, epoch) == (member.state, member.epoch)
            and assigned == member.assigned
            and revoking == member.revoking
        ):
            return False
        self._let_go(member)
        member.state = state
        member.advance_to(epoch)
        member.assigned, member.revoking = assigned, revoking
        self._hold(member)
        self.changed(member)
        return True

    def _count(self, member: ConsumerMember, change: int) -> None:
        self.said_bytes += change * member.said_bytes
        self.classic_count += change * (member.classic is not None)
        if change == 1:
            self.names.update(member.topics)  # a tenth of the loop's time for very many
        else:
            for name in member.topics:
                _add(self.names, name, change)
        if member.view is not None:
            _add(self.views, member.view, change)
        self.seen_version = -1

    def speaks_classic(self, member: ConsumerMember, classic: ClassicPart | None) -> None:
        """Set a member's classic metadata; None: it speaks the new protocol."""
        if classic == member.classic:
            return
        self._count(member, -1)
        member.classic = classic
        self._count(member, 1)
        self.changed(member)

    def _hold(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic_id, numbers in partitions.items():
                for lock in self.locks(member, topic_id):
                    held = self.holders.setdefault(lock, {})
                    for number in numbers:
                        assert held.setdefault(number, member.member_id) == member.member_id, "held by two members"

    def _let_go(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic_id, numbers in partitions.items():
                for lock in self.locks(member, topic_id):
                    held = self.holders.get(lock, {})
                    for number in numbers:
                        held.pop(number, None)
                    if not held:
                        self.holders.pop(lock, None)

    # --- reconciliation ------------------------------------------------------------------------------------------

    def reconcile(self, member: ConsumerMember, owned: Partitions | None) -> bool:
        """Bring a member nearer to its target; ``owned`` are the partitions that it reports, None if it reports none.

        First, partitions that it must give up leave its assignment, and it stays in its epoch until it reports none of
        them any more. Then it enters the target epoch and gets the free partitions of its target; the rest follows as
        other members release them. Return whether the member changed.
        """
        if member.state is MemberState.UNREVOKED:
            if owned is None or _meet(owned, member.revoking):
                return False
            # It leaves the epoch in which it had more: later commits concern the partitions that it kept.
            return self._towards_target(member, member.epoch + 1, owned)
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return False
        return self._towards_target(member, member.epoch, owned)

    def _towards_target(self, member: ConsumerMember, epoch: int, owned: Partitions | None) -> bool:
        kept = _common(member.assigned, member.target)
        revoking = _without(member.assigned, kept)
        if revoking and (owned is None or _meet(owned, revoking)):
            return self.hold(member, MemberState.UNREVOKED, epoch, kept, revoking)
        free, unreleased = self._free_for(member, _without(member.target, kept))
        state = MemberState.UNRELEASED if unreleased else MemberState.STABLE
        return self.hold(member, state, self.target_epoch, _joined(kept, free), NOTHING)

    def _free_for(self, member: ConsumerMember, wanted: Partitions) -> tuple[Partitions, bool]:
        """Return the partitions of ``wanted`` that no other member holds, and whether any are missing."""
        free: dict[bytes, frozenset[int]] = {}
        unreleased = False
        for topic_id, numbers in wanted.items():
            some = numbers
            for lock in self.locks(member, topic_id):
                if held := self.holders.get(lock):
                    some = frozenset(one for one in some if held.get(one, member.member_id) == member.member_id)
            unreleased |= len(some) < len(numbers)
            if some:
                free[topic_id] = some
        return free, unreleased

    def all_released(self, member: ConsumerMember) -> bool:
        """Return whether no other member holds a partition that this one waits for."""
        return not self._free_for(member, _without(member.target, member.assigned))[1]

    # --- subscriptions -------------------------------------------------------------------------------------------

    def digest(self, seen: Mapping[View, Collection[str]]) -> str:
        """Return a digest of the group's topics, their ids and partition counts, and the topics ``seen`` in views."""
        hashed = hashlib.blake2b(digest_size=12)
        for name, (topic_id, count) in sorted((self.topics or {}).items()):
            hashed.update(b"%d %s %d\n" % (len(name), name.encode() + topic_id, count))
        for view, names in sorted((repr(view), names) for view, names in seen.items()):
            hashed.update(f"{view} {' '.join(sorted(names))}\n".encode())
        return hashed.hexdigest()


def _add(counter: Counter[K], key: K, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def _common(one: Partitions, other: Partitions) -> Partitions:
    if one == other:
        return one
    return {topic: both for topic, numbers in one.items() if (both := numbers & other.get(topic, frozenset()))}


def _without(one: Partitions, other: Partitions) -> Partitions:
    if one is other:
        return NOTHING
    return {topic: rest for topic, numbers in one.items() if (rest := numbers - other.get(topic, frozenset()))}


def _joined(one: Partitions, other: Partitions) -> Partitions:
    if not other:
        return one
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in {**one, **other}}


def _meet(one: Partitions, other: Partitions) -> bool:
    return any(not numbers.isdisjoint(other.get(topic, frozenset())) for topic, numbers in one.items())


def is_within(one: Partitions, other: Partitions) -> bool:
    return all(numbers <= other.get(topic, frozenset()) for topic, numbers in one.items())
