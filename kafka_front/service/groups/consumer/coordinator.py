"""The coordinator of KIP-848's consumer groups, and of members of the classic protocol in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial

from anabranch_kit.run.sliced import Sliced
from kafka_front.service.groups.admission import describe_full, said_bytes
from kafka_front.service.groups.classic.group import Group, JoinCallback, bytes_of
from kafka_front.service.groups.classic.requests import JoinRequest
from kafka_front.service.groups.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, AssignedMember, Targets
from kafka_front.service.groups.consumer.group import (
    ClassicPart,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    View,
)
from kafka_front.service.groups.consumer.requests import Encode, HeartbeatCallback, HeartbeatRequest
from kafka_front.service.groups.consumer.snapshot import encode_group
from kafka_front.service.groups.heartbeats import SAYS_TOO_MUCH, HeartbeatCoordinator, Timer
from kafka_front.service.groups.migration import downgraded, upgraded
from kafka_front.wire.errors import ErrorCode, KafkaError


class ConsumerCoordinator(HeartbeatCoordinator[ConsumerGroup, HeartbeatRequest]):
    """The groups of KIP-848 in one directory."""

    kind = "consumer"

    @property
    def groups(self) -> MutableMapping[str, ConsumerGroup]:
        return self._directory.consumer

    def _heartbeat(self, now_ms: int, request: HeartbeatRequest, reply: HeartbeatCallback) -> None:
        was_there = request.group_id in self.groups
        try:
            super()._heartbeat(now_ms, request, reply)
        except KafkaError:
            group = self.groups.get(request.group_id)
            if not was_there and group is not None and group.members:
                self._downgrade(now_ms, group)  # it was upgraded for this member
            raise

    def _find_fault(self, request: HeartbeatRequest) -> str:
        if request.assignor and request.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.assignor} is not supported. Supported assignors: {known}.",
            )
        if request.epoch != 0:
            return ""
        if request.owned is None or request.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if request.topics is None and request.pattern is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        return ""

    def _make_group(self, now_ms: int, request: HeartbeatRequest, classic: Group | None) -> ConsumerGroup:
        if classic is None or not classic.members:
            return ConsumerGroup(request.group_id, now_ms)
        if len(classic.members) >= self._settings.max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, describe_full(self._settings))
        if request.instance_id in classic.static_members:
            # Its session has to end first: unlike one of the new protocol, a classic static member does not announce
            # that it leaves.
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"group.instance.id {request.instance_id!r} belongs to a member that has not left: close it first",
            )
        try:
            if self._settings.consumer_migration_policy not in ("bidirectional", "upgrade"):
                policy = self._settings.consumer_migration_policy
                raise ValueError(f"kafka.group.consumer_migration_policy is {policy}")
            return upgraded(classic, self._topics)
        except ValueError as error:
            message = f"Cannot upgrade classic group {request.group_id} to consumer group because {error}."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message) from error

    def _subscribe(self, group: ConsumerGroup, member: ConsumerMember, request: HeartbeatRequest) -> None:
        topics = member.topics if request.topics is None else request.topics
        pattern = request.pattern
        if pattern is None and member.view is not None:
            pattern = member.view.pattern
        if group.subscribe(member, topics, View(pattern, request.viewer) if pattern else None):
            self._bump(group)
        group.speaks_classic(member, None)

    def _look_up(self, group: ConsumerGroup) -> str | None:
        topics: dict[str, tuple[bytes, int]] = {}
        for names in (group.names, *(self._topics.seen(view) for view in group.views)):
            for name in names:
                found = self._topics.find(name)
                if found is not None:
                    topics[name] = found
        seen = {view: self._topics.seen(view) for view in group.views if view.viewer is not None}
        if topics == group.topics and not seen:
            return None
        self._read(group, topics)
        return group.digest(seen)

    def _begin(self, group: ConsumerGroup) -> Callable[[], Sliced[Targets]]:
        topics = group.topics or {}
        ids = {name: topic_id for name, (topic_id, _) in topics.items()}
        by_view = {
            view: frozenset(ids[name] for name in self._topics.seen(view) if name in ids) for view in group.views
        }
        by_names: dict[frozenset[str], frozenset[bytes]] = {}
        members = []
        for member in group.members.values():
            named = by_names.get(member.topics)
            if named is None:
                named = by_names[member.topics] = frozenset(map(ids.__getitem__, ids.keys() & member.topics))
            reads = named if member.view is None else named | by_view[member.view]
            members.append(AssignedMember(member.member_id, member.instance_id, reads, member.target))
        group.assignor = group.preferred_assignor or DEFAULT_ASSIGNOR
        return partial(ASSIGNORS[group.assignor], members, dict(topics.values()))

    def _encode(self, group: ConsumerGroup) -> Encode:
        return partial(encode_group, group)

    def goes_back(self, now_ms: int, group: ConsumerGroup, then: Callable[[int], None] = lambda error: None) -> bool:
        """Turn a group into a classic one if no member speaks the new protocol any more and the settings allow it.
        Return whether it was turned."""
        if not self.may_go_back(group):
            return False
        self._downgrade(now_ms, group, then)
        return True

    def may_go_back(self, group: ConsumerGroup) -> bool:
        """Return whether no member speaks the new protocol any more, and the settings allow a classic group."""
        if self._settings.consumer_migration_policy not in ("bidirectional", "downgrade"):
            return False
        return 0 < len(group.members) == group.classic_count

    def goes_back_stable(self, now_ms: int, group: ConsumerGroup, member_id: str, reply: JoinCallback) -> bool:
        """Turn a group into a classic one without a rebalance if all members have their targets; then the member that
        joined is answered. Return whether it was turned."""
        self._refresh(group)
        if any(one.state is not MemberState.STABLE or one.epoch != group.epoch for one in group.members.values()):
            return False
        self._classic.take_stable(now_ms, self._downgraded(now_ms, group), member_id, reply)
        return True

    def _downgrade(self, now_ms: int, group: ConsumerGroup, then: Callable[[int], None] = lambda error: None) -> None:
        """Turn a group into a classic one: no member speaks the new protocol any more."""

        def stored(error: int) -> None:
            then(error)
            self._answers.deliver()  # the leaving member waits, and no later request may reach this coordinator

        self._classic.take(now_ms, self._downgraded(now_ms, group), stored)

    def _downgraded(self, now_ms: int, group: ConsumerGroup) -> Group:
        for member in group.members.values():
            self._drop_timers(group, member)
        for one in self._waiting.pop(group.group_id, {}).values():
            one.fail(ErrorCode.REBALANCE_IN_PROGRESS)
        generation, names = group.epoch, self.names(group)
        self._read(group, {})
        return downgraded(group, now_ms, generation, names)

    # --- members that speak the classic protocol (see .classic_members) --------------------------------------------

    def classic_joins(
        self,
        now_ms: int,
        group: ConsumerGroup,
        request: JoinRequest,
        topics: frozenset[str],
        classic: ClassicPart,
        *,
        may_be_new: bool,
    ) -> ConsumerMember:
        """Return the member that sent a JoinGroup, with its new metadata. Raises KafkaError."""
        holder = None if request.instance_id is None else group.static_members.get(request.instance_id)
        member = group.members.get(request.member_id)
        says = bytes_of(request.protocols) + said_bytes(topics)
        if says - (member.said_bytes if member is not None else 0) + group.said_bytes > self._settings.max_bytes:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, SAYS_TOO_MUCH)
        if member is None and holder is not None:
            # A classic static member does not announce that it leaves, so the new one just takes its place (KIP-345).
            old = group.members[holder]
            waiting = self._waiting.get(group.group_id, {}).pop(holder, None)
            if waiting is not None:
                waiting.fail(ErrorCode.FENCED_INSTANCE_ID)
            member = self._replace_static(group, old, request.member_id)
        elif member is None:
            if not may_be_new:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
            if len(group.members) >= self._settings.max_size:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, describe_full(self._settings))
            member = self._new_member(group, request.member_id, request.instance_id, says)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        group.changed(member)
        if group.subscribe(member, topics, None):
            self._bump(group)
        group.speaks_classic(member, classic)
        self.renew_session(now_ms, group, member)
        self.has_come(now_ms, group, member)
        return member

    def await_rejoin(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the timer of a member that must join again, unless it runs already; it lasts one rebalance timeout."""
        key = (Timer.REJOIN, group.group_id, member.member_id)
        if self._timers.get(key) is None:
            self._timers.set(key, now_ms, member.rebalance_timeout_ms)

    def await_sync(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the timer of a member that has joined and must ask for its assignment."""
        self._timers.set((Timer.REJOIN, group.group_id, member.member_id), now_ms, member.rebalance_timeout_ms)

    def has_come(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Stop the timer of a member that has joined or synced, and renew its session."""
        self._timers.remove((Timer.REJOIN, group.group_id, member.member_id))
        self.renew_session(now_ms, group, member)

    def by_id(self, named: Mapping[str, Iterable[int]]) -> Partitions:
        """Return the partitions by the ids of their topics; unknown topics are left out."""
        found = {name: self._topics.find(name) for name in named}
        return {topic[0]: frozenset(named[name]) for name, topic in found.items() if topic is not None}

    def names(self, group: ConsumerGroup) -> dict[bytes, str]:
        """Return the names of the topics that members read, by id."""
        self._refresh(group)
        return {topic_id: name for name, (topic_id, _) in (group.topics or {}).items()}
