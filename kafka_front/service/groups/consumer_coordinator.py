"""The coordinator of KIP-848's consumer groups as a pure state machine.

It has no clock, no sockets and no tasks: every call carries ``now_ms`` of a clock that never goes back, answers leave
through callbacks, and whoever drives it calls :meth:`ConsumerCoordinator.advance` when
:attr:`ConsumerCoordinator.next_deadline_ms` is reached. Whatever an answer tells is durable before it is given. The
rules and the order in which errors are decided are those of KIP-848 as Apache Kafka 4.2 carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from msgspec import Struct

from bridges.barrier import Barrier
from bridges.deadlines import DeadlineQueue

from . import codes
from .admission import rebalance_timeout
from .answers import Answers
from .assignors import ASSIGNORS, DEFAULT_ASSIGNOR, AssignedMember, Targets
from .consumer_group import (
    NOTHING,
    STATIC_LEFT,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    is_within,
)
from .consumer_requests import Compute, ConsumerJournal, HeartbeatCallback, HeartbeatReply, HeartbeatRequest, TopicIndex
from .consumer_snapshot import encode_group
from .directory import Directory
from .group import GroupState
from .settings import GroupSettings

_AFTER_DEFECT_MS = 1_000
_SAYS_TOO_MUCH = "the members of the group say more of themselves than they may"


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, error: int, message: str) -> None:
        super().__init__(message)
        self.error = error


class _Timer(Enum):
    SESSION = 0
    REBALANCE = 1


class _Waiting(Struct, frozen=True):
    """A heartbeat that waits for a target assignment in which its member is."""

    epoch: int
    member: ConsumerMember
    request: HeartbeatRequest
    reply: HeartbeatCallback


class ConsumerCoordinator:
    """All groups of the new kind of one directory."""

    def __init__(
        self,
        settings: GroupSettings,
        directory: Directory,
        journal: ConsumerJournal,
        topics: TopicIndex,
        compute: Compute,
        barrier: Barrier | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._journal = journal
        self._topics = topics
        self._compute = compute
        self._barrier = barrier or Barrier()
        self._answers = Answers(self._barrier)
        #: In milliseconds.
        self._timers: DeadlineQueue[tuple[_Timer, str, str]] = DeadlineQueue()
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        self._resigned = False

    @property
    def groups(self) -> dict[str, ConsumerGroup]:
        return self._directory.consumer

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When :meth:`advance` has work next; it may turn out that the work is gone by then."""
        return self._timers.next

    def advance(self, now_ms: int) -> int:
        """Let everything happen that was due at ``now_ms`` or before; returns how many deadlines that were."""
        steps = 0
        for _ in range(len(self._timers)):
            key = self._timers.pop_due(now_ms)
            if key is None:
                break
            steps += 1
            if not self._barrier.call("deadline of a group", self._over, now_ms, *key, group=key[1]):
                self._timers.set(key, now_ms, _AFTER_DEFECT_MS)
        self._answers.deliver()
        return steps

    def _over(self, now_ms: int, kind: _Timer, group_id: str, member_id: str) -> None:
        # Its session is over, or it has not given back in time what it was told to: others wait for that.
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is not None and member is not None:
            self._remove(now_ms, group, member)
            self._save(group)

    # --- requests ------------------------------------------------------------------------------------------------

    def heartbeat(self, now_ms: int, request: HeartbeatRequest, reply: HeartbeatCallback) -> None:
        """ConsumerGroupHeartbeat. ``reply`` is called exactly once, when what it tells is durable."""
        try:
            self._heartbeat(now_ms, request, reply)
        except Refused as refused:
            self._answers.post(reply, HeartbeatReply(refused.error, str(refused)))
        self._answers.deliver()

    def check_commit(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, epoch: int, *, transactional: bool = False
    ) -> int:
        """Whether this member may commit positions now; returns the error code.

        Who is no member may as long as the group has none, or in a transaction (KIP-447).
        """
        if epoch < 0 and not group.members:
            return codes.NONE
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return codes.NONE
        member = group.members.get(member_id)
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        if epoch != member.epoch:
            return codes.STALE_MEMBER_EPOCH if member.classic is None else codes.ILLEGAL_GENERATION
        return codes.NONE

    def check_fetch(self, group: ConsumerGroup, member_id: str | None, epoch: int) -> int:
        """Whether who asks for positions, as this member in this epoch, is still that."""
        if not member_id and epoch < 0:
            return codes.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return codes.UNKNOWN_MEMBER_ID
        if epoch != member.epoch:
            return codes.STALE_MEMBER_EPOCH if member.classic is None else codes.ILLEGAL_GENERATION
        return codes.NONE

    def delete(self, group_id: str) -> int:
        """Forget an empty group; returns the error code. The caller removes what is stored of it."""
        group = self.groups.get(group_id)
        if group is None:
            return codes.GROUP_ID_NOT_FOUND
        if group.members:
            return codes.NON_EMPTY_GROUP
        del self.groups[group_id]
        return codes.NONE

    # --- life of the node ----------------------------------------------------------------------------------------

    def restore(self, now_ms: int, group: ConsumerGroup) -> None:
        """Bring back a group after a restart: members get a full session, and a full time to give partitions back."""
        self.groups[group.group_id] = group
        for member in group.members.values():
            self._renew_session(now_ms, group, member)
            if member.state is MemberState.UNREVOKED:
                self._set_rebalance_timer(now_ms, group, member)

    def resign(self) -> None:
        """Answer what waits with NOT_COORDINATOR, because this node is going away."""
        self._resigned = True
        for waiting in self._waiting.values():
            for one in waiting.values():
                self._answers.post(one.reply, HeartbeatReply(codes.NOT_COORDINATOR))
        self._waiting.clear()
        self._answers.deliver()

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def _heartbeat(self, now_ms: int, request: HeartbeatRequest, reply: HeartbeatCallback) -> None:
        _check_form(request)
        if request.epoch < 0:
            self._leave(now_ms, request, reply)
            return
        group = self._group(now_ms, request)
        is_member = request.member_id in group.members
        if not is_member and len(group.members) >= self._settings.max_size and not _returns(group, request):
            most = self._settings.max_size
            raise Refused(codes.GROUP_MAX_SIZE_REACHED, f"the group has {most} members, which is all it may")
        member = self._member(now_ms, group, request)
        retried = request.epoch < member.epoch
        self._take_over(group, member, request)
        self._renew_session(now_ms, group, member)
        self._refresh(now_ms, group)
        if request.epoch == 0 and group.target_epoch < group.epoch:
            displaced = self._waiting.setdefault(group.group_id, {}).pop(member.member_id, None)
            if displaced is not None:
                self._answers.post(displaced.reply, HeartbeatReply(codes.COORDINATOR_LOAD_IN_PROGRESS))
            waiting = _Waiting(group.epoch, member, request, reply)
            self._waiting[group.group_id][member.member_id] = waiting
            self._assign(now_ms, group)
            return
        self._assign(now_ms, group)
        self._finish(now_ms, group, member, request, reply, retried=retried)

    def _finish(
        self,
        now_ms: int,
        group: ConsumerGroup,
        member: ConsumerMember,
        request: HeartbeatRequest,
        reply: HeartbeatCallback,
        *,
        retried: bool,
    ) -> None:
        before = member.assigned
        if group.reconcile(member, request.owned):
            self._set_rebalance_timer(now_ms, group, member)
        tell = request.epoch == 0 or request.is_full or retried or member.assigned != before
        answer = HeartbeatReply(
            member_id=member.member_id,
            epoch=member.epoch,
            interval_ms=self._settings.consumer_heartbeat_interval_ms,
            assignment=member.assigned if tell else None,
        )
        self._answer_saved(group, reply, answer)

    def _group(self, now_ms: int, request: HeartbeatRequest) -> ConsumerGroup:
        group = self.groups.get(request.group_id)
        if group is not None:
            return group
        if request.epoch != 0:
            raise Refused(codes.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id!r}")
        if _said_bytes(request) > self._settings.max_bytes:
            raise Refused(codes.GROUP_MAX_SIZE_REACHED, _SAYS_TOO_MUCH)
        classic = self._directory.classic.get(request.group_id)
        if classic is None and len(self._directory) >= self._settings.max_groups:
            raise Refused(codes.COORDINATOR_NOT_AVAILABLE, "this node has all the groups it may")
        if classic is not None and not (classic.state is GroupState.EMPTY and not classic.pending):
            raise Refused(codes.GROUP_ID_NOT_FOUND, f"group {request.group_id!r} is a classic group with members")
        group = ConsumerGroup(request.group_id, now_ms)
        self._directory.become_consumer(group)
        return group

    def _member(self, now_ms: int, group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember:
        """The member that a request speaks for, made if it joins. Raises Refused."""
        if request.instance_id is not None:
            return self._static_member(now_ms, group, request)
        member = group.members.get(request.member_id)
        if member is None:
            if request.epoch != 0:
                raise Refused(codes.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
            return self._new_member(now_ms, group, request)
        if member.instance_id is not None:
            raise Refused(codes.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is a static member")
        if request.epoch != 0:
            _check_epoch(member, request)
        return member

    def _static_member(self, now_ms: int, group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember:
        instance_id = request.instance_id or ""
        holder = group.static_members.get(instance_id)
        member = None if holder is None else group.members[holder]
        if request.epoch != 0:
            if member is None:
                raise Refused(codes.UNKNOWN_MEMBER_ID, f"there is no static member {instance_id!r}")
            if member.member_id != request.member_id:
                raise Refused(codes.FENCED_INSTANCE_ID, f"another member is {instance_id!r} now")
            _check_epoch(member, request)
            return member
        if member is None:
            if request.member_id in group.members:
                raise Refused(codes.INVALID_REQUEST, f"{request.member_id!r} is a member by another name")
            return self._new_member(now_ms, group, request)
        if member.member_id == request.member_id:
            return member
        if member.epoch != STATIC_LEFT:
            raise Refused(codes.UNRELEASED_INSTANCE_ID, f"static member {instance_id!r} has not left")
        return self._replace_static(group, member, request.member_id)

    def _new_member(self, now_ms: int, group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember:
        member = ConsumerMember(request.member_id, request.instance_id)
        if group.said_bytes + _said_bytes(request) > self._settings.max_bytes:
            raise Refused(codes.GROUP_MAX_SIZE_REACHED, _SAYS_TOO_MUCH)
        group.add(member)
        # A member whose subscription changes nothing is one more all the same.
        self._bump(group)
        return member

    def _replace_static(self, group: ConsumerGroup, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member came back under a new id: it has what the old one had, and nobody rebalances for that."""
        if member_id in group.members:
            raise Refused(codes.INVALID_REQUEST, f"{member_id!r} is a member by another name")
        self._drop_timers(group, old)
        group.remove(old)
        new = ConsumerMember(
            member_id,
            old.instance_id,
            old.rack_id,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            assignor=old.assignor,
            topics=old.topics,
            pattern=old.pattern,
            assigned=old.assigned,
            target=old.target,
        )
        group.add(new)
        if group.computing:
            group.renamed[old.member_id] = member_id
        return new

    def _take_over(self, group: ConsumerGroup, member: ConsumerMember, request: HeartbeatRequest) -> None:
        """What a request says of its member, unless the group may not keep that much."""
        more = _said_bytes(request) - member.said_bytes
        if more > 0 and group.said_bytes + more > self._settings.max_bytes:
            raise Refused(codes.GROUP_MAX_SIZE_REACHED, _SAYS_TOO_MUCH)
        said = (member.rack_id, member.rebalance_timeout_ms, member.assignor, member.client_id, member.client_host)
        if request.rack_id is not None:
            group.said_bytes += len(request.rack_id) - len(member.rack_id or "")
            member.rack_id = request.rack_id
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = rebalance_timeout(self._settings, request.rebalance_timeout_ms)
        if request.assignor is not None:
            member.assignor = request.assignor or None
        member.client_id, member.client_host = request.client_id, request.client_host
        if said != (member.rack_id, member.rebalance_timeout_ms, member.assignor, member.client_id, member.client_host):
            group.changed(member)
        topics = member.topics if request.topics is None else request.topics
        pattern = member.pattern if request.pattern is None else request.pattern or None
        if group.subscribe(member, topics, pattern):
            self._bump(group)
        group.speaks_classic(member, None)

    # --- leaving -------------------------------------------------------------------------------------------------

    def _leave(self, now_ms: int, request: HeartbeatRequest, reply: HeartbeatCallback) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            raise Refused(codes.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id!r}")
        if request.instance_id is None:
            member = group.members.get(request.member_id)
        else:
            holder = group.static_members.get(request.instance_id)
            member = None if holder is None else group.members[holder]
            if member is not None and member.member_id != request.member_id:
                raise Refused(codes.FENCED_INSTANCE_ID, f"another member is {request.instance_id!r} now")
        if member is None:
            raise Refused(codes.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
        if request.epoch == STATIC_LEFT:
            # It keeps what it has until its session ends, and owes nothing: its process has stopped reading.
            member.epoch = STATIC_LEFT
            group.hold(member, MemberState.STABLE, STATIC_LEFT, member.assigned, NOTHING)
            group.changed(member)
            self._timers.remove((_Timer.REBALANCE, group.group_id, member.member_id))
        else:
            self._remove(now_ms, group, member)
        answer = HeartbeatReply(member_id=request.member_id, epoch=request.epoch)
        self._answer_saved(group, reply, answer)

    def _remove(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Take a member out; what it had goes to others when they ask next."""
        self._drop_timers(group, member)
        waiting = self._waiting.get(group.group_id, {}).pop(member.member_id, None)
        if waiting is not None:
            self._answers.post(waiting.reply, HeartbeatReply(codes.UNKNOWN_MEMBER_ID))
        group.remove(member)
        self._bump(group)
        if not group.members:
            group.since_ms = now_ms
            group.topics = {}
            if not group.computing:
                group.target_epoch = group.epoch

    def _drop_timers(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        for kind in _Timer:
            self._timers.remove((kind, group.group_id, member.member_id))

    # --- target assignments --------------------------------------------------------------------------------------

    def _bump(self, group: ConsumerGroup) -> None:
        """A new epoch, unless there is one already for which nobody computes a target yet."""
        if group.computing or group.epoch == group.target_epoch:
            group.epoch += 1
        group.changed()

    def _refresh(self, now_ms: int, group: ConsumerGroup) -> None:
        """Look the topics up that members read, if they may have changed; a new epoch if they have."""
        version = self._topics.version
        if group.seen_version == version:
            return
        topics: dict[str, tuple[bytes, int]] = {}
        for names in (group.names, *(self._topics.matching(pattern) for pattern in group.patterns)):
            for name in names:
                found = self._topics.find(name)
                if found is not None:
                    topics[name] = found
        if topics != group.topics:
            group.topics = topics
            digest = group.digest()
            if digest != group.topics_hash:
                group.topics_hash = digest
                self._bump(group)
        group.seen_version = version

    def _assign(self, now_ms: int, group: ConsumerGroup) -> None:
        """Have a target computed if the one there is is of an earlier epoch."""
        if group.computing or group.target_epoch >= group.epoch or not group.members:
            return
        topics = group.topics or {}
        ids = {name: topic_id for name, (topic_id, _) in topics.items()}
        by_pattern = {
            pattern: frozenset(ids[name] for name in self._topics.matching(pattern) if name in ids)
            for pattern in group.patterns
        }
        by_names: dict[frozenset[str], frozenset[bytes]] = {}
        members = []
        for member in group.members.values():
            named = by_names.get(member.topics)
            if named is None:
                named = by_names[member.topics] = frozenset(ids[name] for name in member.topics if name in ids)
            reads = named | by_pattern[member.pattern] if member.pattern else named
            members.append(AssignedMember(member.member_id, member.instance_id, reads, member.target))
        group.assignor = group.preferred_assignor or DEFAULT_ASSIGNOR
        group.computing = True
        group.renamed.clear()
        begin = partial(ASSIGNORS[group.assignor], members, dict(topics.values()))
        self._compute(begin, partial(self._computed, group, group.epoch))

    def _computed(self, group: ConsumerGroup, epoch: int, now_ms: int, targets: Targets | None) -> None:
        group.computing = False
        if self.groups.get(group.group_id) is not group or self._resigned:
            return
        waiting = self._waiting.pop(group.group_id, {})
        if targets is None:
            for one in waiting.values():
                self._answers.post(one.reply, HeartbeatReply(codes.UNKNOWN_SERVER_ERROR))
            self._answers.deliver()
            return
        for old, new in group.renamed.items():
            if old in targets:
                targets[new] = targets.pop(old)
        for member in group.members.values():
            target = targets.get(member.member_id, NOTHING)
            if target != member.target:
                member.target = target
                group.changed(member)
        group.target_epoch = epoch
        group.changed()
        if not group.members:
            group.target_epoch = group.epoch
        still = {member_id: one for member_id, one in waiting.items() if one.epoch > epoch}
        if still:
            self._waiting[group.group_id] = still
        for member_id, one in waiting.items():
            if one.epoch <= epoch and group.members.get(member_id) is one.member:
                self._finish(now_ms, group, one.member, one.request, one.reply, retried=False)
            elif one.epoch <= epoch:
                self._answers.post(one.reply, HeartbeatReply(codes.UNKNOWN_MEMBER_ID))
        if still:
            self._assign(now_ms, group)
        self._answers.deliver()

    # --- durability ----------------------------------------------------------------------------------------------

    def _answer_saved(self, group: ConsumerGroup, reply: HeartbeatCallback, answer: HeartbeatReply) -> None:
        """Give an answer when all that is true of the group now is durable."""
        if group.saved_version >= group.version:
            self._answers.post(reply, answer)
            return

        def stored(error: int) -> None:
            self._answers.post(reply, HeartbeatReply(error) if error else answer)

        self._save(group, stored)

    def _save(self, group: ConsumerGroup, then: Callable[[int], None] = lambda error: None) -> None:
        version = group.version

        def done(now_ms: int, error: int) -> None:
            if not error:
                group.saved_version = max(group.saved_version, version)
            then(error)
            self._answers.deliver()

        self._journal.put(group.group_id, partial(encode_group, group), done)

    # --- timers --------------------------------------------------------------------------------------------------

    def _renew_session(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        timeout = self._settings.consumer_session_timeout_ms
        if member.classic is not None:
            timeout = member.classic.session_timeout_ms
        self._timers.set((_Timer.SESSION, group.group_id, member.member_id), now_ms, timeout)

    def _set_rebalance_timer(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        key = (_Timer.REBALANCE, group.group_id, member.member_id)
        if member.state is MemberState.UNREVOKED:
            self._timers.set(key, now_ms, member.rebalance_timeout_ms)
        else:
            self._timers.remove(key)


def _check_form(request: HeartbeatRequest) -> None:
    """Raise Refused for a request that makes no sense whatever the state of its group."""
    problem = ""
    if not request.group_id:
        problem = "GroupId can't be empty."
    elif not request.member_id:
        problem = "MemberId can't be empty."
    elif request.instance_id == "":
        problem = "InstanceId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif request.epoch < STATIC_LEFT:
        problem = f"MemberEpoch is {request.epoch}, but must be at least -2."
    elif request.epoch == STATIC_LEFT and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif request.epoch == 0:
        if request.rebalance_timeout_ms == -1:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif request.owned is None or request.owned:
            problem = "TopicPartitions must be empty when (re-)joining."
        elif request.topics is None and request.pattern is None:
            problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if problem:
        raise Refused(codes.INVALID_REQUEST, problem)
    if request.assignor and request.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        raise Refused(
            codes.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {known}.",
        )


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Raise Refused unless the member is in this epoch, or repeats a request whose answer it did not get."""
    if request.epoch == member.epoch:
        return
    repeats = request.epoch < member.epoch and request.epoch == member.previous_epoch
    if not (repeats and request.owned is not None and is_within(request.owned, member.assigned)):
        raise Refused(
            codes.FENCED_MEMBER_EPOCH,
            f"the member is in epoch {member.epoch}, not {request.epoch}: it must join again",
        )


def _returns(group: ConsumerGroup, request: HeartbeatRequest) -> bool:
    """Whether a static member takes its own place again."""
    return request.instance_id is not None and request.instance_id in group.static_members


def _said_bytes(request: HeartbeatRequest) -> int:
    return (
        sum(len(name) + 60 for name in request.topics or ())
        + len(request.member_id)
        + len(request.instance_id or "")
        + len(request.rack_id or "")
        + len(request.pattern or "")
    )
