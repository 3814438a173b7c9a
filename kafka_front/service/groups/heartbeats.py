"""The coordinator of groups whose members follow a target assignment by heartbeats, as a pure state machine: what
consumer groups (KIP-848) and streams groups (KIP-1071) have in common.

It has no clock, no sockets and no tasks. Every call carries ``now_ms`` of a clock that never goes back, answers leave
through callbacks, and the runtime calls :meth:`HeartbeatCoordinator.advance` at
:attr:`HeartbeatCoordinator.next_deadline_ms`. An answer's content is durable before it is given. The rules and the
order of errors are those of Apache Kafka 4.2 and 4.4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence, Set
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.sliced import Sliced
from bridges.catalog.views.groups import Place
from kafka_front.group_config import Configured, nothing_configured
from kafka_front.service.groups.admission import describe_full, rebalance_timeout
from kafka_front.service.groups.classic.coordinator import Coordinator
from kafka_front.service.groups.classic.group import Group, describe_taken_over
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.group import (
    NOTHING,
    STATIC_LEFT,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    is_within,
)
from kafka_front.service.groups.consumer.requests import (
    Compute,
    Encode,
    HeartbeatCallback,
    HeartbeatReply,
    HeartbeatRequest,
)
from kafka_front.service.groups.directory import Directory
from kafka_front.service.groups.requests.answers import Answers
from kafka_front.service.groups.timers import GroupTimers
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.service.groups.journal import GroupJournal
    from kafka_front.service.groups.topic_index import TopicIndex

A = TypeVar("A")
G = TypeVar("G", bound=ConsumerGroup)
Q = TypeVar("Q", bound=HeartbeatRequest)

SAYS_TOO_MUCH = "the group's member metadata would exceed kafka.group.max_bytes: raise that, or name fewer topics"


class Timer(Enum):
    """Deadlines of members, and of groups (with an empty member id)."""

    SESSION = 0
    REBALANCE = 1  # to confirm that it has given up revoked partitions
    REJOIN = 2  # for a member of the classic protocol to join again, and then to sync
    FIRST = 3  # of a group: the first target of a streams group


class _Waiting(Struct, frozen=True):
    """A member that waits for a target assignment that includes it."""

    epoch: int
    member: ConsumerMember
    finish: Callable[[int], None]
    fail: Callable[[int], None]


class HeartbeatCoordinator(ABC, Generic[G, Q]):
    """The groups of one kind in one directory. A subclass knows what members read and how that is assigned."""

    kind: ClassVar[str]
    """The kind's name in messages and in the keys of a group's configuration."""

    def __init__(
        self,
        settings: KafkaGroupSettings,
        directory: Directory,
        journal: GroupJournal,
        topics: TopicIndex,
        compute: Compute,
        classic: Coordinator,
        barrier: Barrier | None = None,
        configured: Configured = nothing_configured,
    ) -> None:
        """Start without groups. ``classic`` is the coordinator of the same directory's classic groups."""
        self._configured = configured
        self._classic = classic
        self._settings = settings
        self._directory = directory
        self._journal = journal
        self._topics = topics
        self._compute = compute
        self._barrier = barrier or Barrier()
        self._answers = Answers(self._barrier)
        #: In milliseconds.
        self._timers: GroupTimers[Timer] = GroupTimers()
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        self._resigned = False
        self.partitions = 0
        """Partitions of the topics that each group reads, summed over all groups."""

    # --- what differs by kind -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def groups(self) -> MutableMapping[str, G]:
        """The groups by name."""

    @abstractmethod
    def _find_fault(self, request: Q) -> str:
        """Return what is wrong with a request in any state of its group, beyond what all kinds check; "" if nothing
        is. Raises KafkaError."""

    @abstractmethod
    def _make_group(self, now_ms: int, request: Q, classic: Group | None) -> G:
        """Return a new group for a member that joins, in place of an empty classic group at most. Raises KafkaError."""

    @abstractmethod
    def _subscribe(self, group: G, member: ConsumerMember, request: Q) -> None:
        """Take over what a member reads from its request. Raises KafkaError."""

    @abstractmethod
    def _look_up(self, group: G) -> str | None:
        """Look up the topics that members read (:meth:`_read`); return their digest, None if it cannot have changed."""

    @abstractmethod
    def _begin(self, group: G) -> Callable[[], Sliced[Targets]]:
        """Return the computation of a target assignment."""

    @abstractmethod
    def _encode(self, group: G) -> Encode:
        """Return what makes the group's stored form."""

    def _reply(self, group: G, member: ConsumerMember, request: Q, answer: HeartbeatReply) -> HeartbeatReply:
        """Return the answer to a heartbeat, given what is common to all kinds."""
        return answer

    def goes_back(self, now_ms: int, group: G, then: Callable[[int], None] = lambda error: None) -> bool:
        """Turn a group into one of another kind if its members left demand it; return whether it was turned."""
        return False

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when :meth:`advance` has work next; the work may be gone by then."""
        return self._timers.next

    def advance(self, now_ms: int) -> int:
        """Do all that was due at ``now_ms`` or before; return the number of deadlines."""
        steps = self._timers.work_off(now_ms, self._over, self._barrier)
        self._answers.deliver()
        return steps

    def _over(self, now_ms: int, kind: Timer, group_id: str, member_id: str) -> None:
        # The member's session is over, or it held up the group for too long.
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is not None and member is not None:
            self.remove_all(now_ms, group, [member])

    # --- requests ------------------------------------------------------------------------------------------------

    def heartbeat(self, now_ms: int, request: Q, reply: HeartbeatCallback) -> None:
        """Handle a heartbeat. ``reply`` is called exactly once, when the answer's content is durable."""
        try:
            self._heartbeat(now_ms, request, reply)
        except KafkaError as refused:
            self._answers.post(reply, HeartbeatReply(refused.code, str(refused)))
        self._answers.deliver()

    def check_commit(
        self,
        group: G,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        places: Set[Place] = frozenset(),
        *,
        transactional: bool = False,
    ) -> None:
        """Raise KafkaError unless this member may commit positions in these partitions.

        A client that is not a member may commit while the group has no members, or in a transaction (KIP-447).
        """
        if epoch < 0 and not group.members:
            return
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return
        self._check_epoch_of(group, member_id, epoch, places)

    def check_fetch(self, group: G, member_id: str | None, epoch: int) -> None:
        """Raise KafkaError unless this member may read positions in this epoch."""
        if member_id or epoch >= 0:
            self._check_epoch_of(group, member_id or "", epoch)

    def _check_epoch_of(self, group: G, member_id: str, epoch: int, places: Set[Place] = frozenset()) -> None:
        member = group.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
        if epoch != member.epoch and not group.has_kept(member, epoch, places):
            code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
            raise KafkaError(code, f"the member is in epoch {member.epoch}, not {epoch}")

    def delete(self, group_id: str) -> None:
        """Forget an empty group; the caller removes its stored state. Raises KafkaError."""
        if self.groups[group_id].members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        del self.groups[group_id]

    def make_way(self, group_id: str) -> None:
        """Drop an empty group: a classic member joins, so its name is free for a classic group."""
        group = self.groups.get(group_id)
        if group is not None and not group.members:
            del self.groups[group_id]

    def post(self, reply: Callable[[A], None], answer: A) -> None:
        """Queue an answer for :meth:`deliver`."""
        self._answers.post(reply, answer)

    def deliver(self) -> None:
        """Give the queued answers, once the groups are consistent."""
        self._answers.deliver()

    # --- life of the node ----------------------------------------------------------------------------------------

    def restore(self, now_ms: int, group: G) -> None:
        """Bring back a group after a restart: members get a full session, and the full time to give up revoked
        partitions."""
        self.groups[group.group_id] = group
        for member in group.members.values():
            self.renew_session(now_ms, group, member)
            if member.state is MemberState.UNREVOKED:
                self._set_rebalance_timer(now_ms, group, member)

    def surrender(self, group: G) -> None:
        """Give up a group that another node coordinates from now on."""
        del self.groups[group.group_id]
        for member in group.members.values():
            self._drop_timers(group, member)
        for one in self._waiting.pop(group.group_id, {}).values():
            one.fail(ErrorCode.NOT_COORDINATOR)
        self._answers.deliver()

    def resign(self) -> None:
        """Answer waiting requests with NOT_COORDINATOR, because this node is going away."""
        self._resigned = True
        for waiting in self._waiting.values():
            for one in waiting.values():
                one.fail(ErrorCode.NOT_COORDINATOR)
        self._waiting.clear()
        self._answers.deliver()

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def _heartbeat(self, now_ms: int, request: Q, reply: HeartbeatCallback) -> None:
        problem = _find_fault(request) or self._find_fault(request)
        if problem:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        if request.epoch < 0:
            self._leave(now_ms, request, reply)
            return
        group = self._group(now_ms, request)
        is_member = request.member_id in group.members
        returns = request.instance_id is not None and request.instance_id in group.static_members
        if not (is_member or returns) and len(group.members) >= self._settings.max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, describe_full(self._settings))
        member = self._member(now_ms, group, request)
        retried = request.epoch < member.epoch
        self._take_over(group, member, request)
        self.renew_session(now_ms, group, member)
        finish = partial(self._finish, group, member, request, reply, retried)
        if request.epoch == 0:
            self.when_assigned(
                now_ms, group, member, finish, lambda error: self._answers.post(reply, HeartbeatReply(error))
            )
        else:
            self.look_again(now_ms, group)
            finish(now_ms)

    def _finish(
        self,
        group: G,
        member: ConsumerMember,
        request: Q,
        reply: HeartbeatCallback,
        retried: bool,
        now_ms: int,
    ) -> None:
        before = member.assigned
        self.reconcile(now_ms, group, member, request.owned)
        tell = request.epoch == 0 or request.is_full or retried or member.assigned != before
        answer = HeartbeatReply(
            member_id=member.member_id,
            epoch=member.epoch,
            interval_ms=self._configured(group.group_id, f"{self.kind}.heartbeat.interval.ms")
            or self._settings.consumer_heartbeat_interval_ms,
            assignment=member.assigned if tell else None,
        )
        self.answer_saved(group, reply, self._reply(group, member, request, answer), HeartbeatReply)

    def when_assigned(
        self,
        now_ms: int,
        group: G,
        member: ConsumerMember,
        finish: Callable[[int], None],
        fail: Callable[[int], None],
    ) -> None:
        """Call ``finish`` with the time when a target assignment includes this member, or ``fail`` with an error
        code."""
        self._refresh(group)
        if group.target_epoch >= group.epoch:
            finish(now_ms)
            return
        waiting = self._waiting.setdefault(group.group_id, {})
        displaced = waiting.pop(member.member_id, None)
        if displaced is not None:
            displaced.fail(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        waiting[member.member_id] = _Waiting(group.epoch, member, finish, fail)
        self._assign(group)

    def look_again(self, now_ms: int, group: G) -> None:
        """Check whether the topics that members read have changed, and begin a new target if so."""
        self._refresh(group)
        self._assign(group)

    def reconcile(self, now_ms: int, group: G, member: ConsumerMember, owned: Partitions | None) -> None:
        """Bring a member nearer to its target; see :meth:`ConsumerGroup.reconcile`."""
        if group.reconcile(member, owned):
            self._set_rebalance_timer(now_ms, group, member)

    def _group(self, now_ms: int, request: Q) -> G:
        group = self.groups.get(request.group_id)
        if group is not None:
            return group
        if request.epoch != 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no {self.kind} group {request.group_id!r}")
        other = self._directory.new_kind(request.group_id)
        if other is not None:
            text = f"{request.group_id!r} is a {other} group: give this member another group.id"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if request.said_bytes > self._settings.max_bytes:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, SAYS_TOO_MUCH)
        classic = self._directory.classic.get(request.group_id)
        if classic is None and len(self._directory) >= self._settings.max_groups:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node has all the groups it may")
        group = self._make_group(now_ms, request, classic)
        if classic is not None:
            self._classic.surrender(classic)
            self._directory.classic.pop(request.group_id, None)
        self.groups[request.group_id] = group
        for member in group.members.values():
            self.renew_session(now_ms, group, member)
        return group

    def _member(self, now_ms: int, group: G, request: Q) -> ConsumerMember:
        """Return the member that sent the request, a new one if it joins. Raises KafkaError."""
        if request.instance_id is not None:
            return self._static_member(now_ms, group, request)
        member = group.members.get(request.member_id)
        if member is None:
            if request.epoch != 0:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
            return self._new_member(group, request.member_id, None, request.said_bytes)
        if request.epoch != 0:
            _check_epoch(member, request)
        return member

    def _static_member(self, now_ms: int, group: G, request: Q) -> ConsumerMember:
        instance_id = request.instance_id or ""
        holder = group.static_members.get(instance_id)
        member = None if holder is None else group.members[holder]
        if request.epoch != 0:
            if member is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member of group.instance.id {instance_id!r}"
                )
            if member.member_id != request.member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, describe_taken_over(instance_id))
            _check_epoch(member, request)
            return member
        if member is None:
            if request.member_id in group.members:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{request.member_id!r} is a member by another name")
            return self._new_member(group, request.member_id, request.instance_id, request.said_bytes)
        if member.member_id == request.member_id:
            return member
        if member.epoch != STATIC_LEFT:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"group.instance.id {instance_id!r} belongs to a member that has not left: close it first",
            )
        return self._replace_static(group, member, request.member_id)

    def _new_member(self, group: G, member_id: str, instance_id: str | None, says: int) -> ConsumerMember:
        member = ConsumerMember(member_id, instance_id)
        if self.partitions >= self._settings.max_consumer_partitions:
            text = f"groups read {self.partitions} partitions here, as many as they may: subscribe to fewer topics"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        if group.said_bytes + says > self._settings.max_bytes:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, SAYS_TOO_MUCH)
        group.add(member)
        # A new member needs a new epoch even if its subscription adds no topic.
        self._bump(group)
        return member

    def _replace_static(self, group: G, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give a static member that returned under a new id the old one's assignment, without a rebalance."""
        if member_id in group.members:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{member_id!r} is a member by another name")
        self._drop_timers(group, old)
        group.remove(old)
        new = ConsumerMember(
            member_id,
            old.instance_id,
            old.rack_id,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            assignor=old.assignor,
            topics=old.topics,
            view=old.view,
            assigned=old.assigned,
            target=old.target,
            process=old.process,
        )
        group.add(new)
        if group.computing:
            group.renamed[old.member_id] = member_id
        return new

    def _take_over(self, group: G, member: ConsumerMember, request: Q) -> None:
        """Take over a member's metadata from its request. Raises KafkaError if the group may not keep that much."""
        more = request.said_bytes - member.said_bytes
        if more > 0 and group.said_bytes + more > self._settings.max_bytes:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, SAYS_TOO_MUCH)
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
        self._subscribe(group, member, request)

    # --- leaving -------------------------------------------------------------------------------------------------

    def _leave(self, now_ms: int, request: Q, reply: HeartbeatCallback) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no {self.kind} group {request.group_id!r}")
        if request.instance_id is None:
            member = group.members.get(request.member_id)
        else:
            holder = group.static_members.get(request.instance_id)
            member = None if holder is None else group.members[holder]
            if member is not None and member.member_id != request.member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, describe_taken_over(request.instance_id))
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group")
        if request.epoch == STATIC_LEFT:
            # It keeps its partitions until its session ends, and has none to give up: its process has stopped reading.
            member.epoch = STATIC_LEFT
            group.hold(member, MemberState.STABLE, STATIC_LEFT, member.assigned, NOTHING)
            group.changed(member)
            self._timers.remove((Timer.REBALANCE, group.group_id, member.member_id))
        else:
            answer = HeartbeatReply(member_id=request.member_id, epoch=request.epoch)
            self.remove_all(
                now_ms,
                group,
                [member],
                lambda error: self._answers.post(reply, HeartbeatReply(error) if error else answer),
            )
            return
        answer = HeartbeatReply(member_id=request.member_id, epoch=request.epoch)
        self.answer_saved(group, reply, answer, HeartbeatReply)

    def remove_all(
        self,
        now_ms: int,
        group: G,
        members: Sequence[ConsumerMember],
        then: Callable[[int], None] = lambda error: None,
    ) -> None:
        """Remove members; ``then`` is called with an error code when that is durable."""
        for member in members:
            self._remove(now_ms, group, member)
        if self.goes_back(now_ms, group, then):
            return
        if members:
            self._bump(group)
        if not group.members:
            group.since_ms = now_ms
            self._read(group, {})
            if not group.computing:
                group.target_epoch = group.epoch
        self._save(group, then)

    def _remove(self, now_ms: int, group: G, member: ConsumerMember) -> None:
        """Remove a member; other members get its partitions with their next requests."""
        self._drop_timers(group, member)
        waiting = self._waiting.get(group.group_id, {}).pop(member.member_id, None)
        if waiting is not None:
            waiting.fail(ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def _drop_timers(self, group: G, member: ConsumerMember) -> None:
        for kind in Timer:
            self._timers.remove((kind, group.group_id, member.member_id))

    # --- target assignments --------------------------------------------------------------------------------------

    def _bump(self, group: G) -> None:
        """Begin a new epoch, unless the present one has no target yet and none is being computed."""
        if group.computing or group.epoch == group.target_epoch:
            group.epoch += 1
        group.changed()

    def _read(self, group: G, topics: dict[str, tuple[bytes, int]]) -> None:
        """Set the topics that members read, and count their partitions, which take most of a group's memory."""
        self.partitions -= sum(count for _, count in (group.topics or {}).values())
        group.topics = topics
        self.partitions += sum(count for _, count in topics.values())

    def _refresh(self, group: G) -> None:
        """Look up the topics that members read, if they may have changed, and begin a new epoch if they have."""
        version = self._topics.version
        if group.seen_version == version:
            return
        digest = self._look_up(group)
        if digest is not None and digest != group.topics_hash:
            group.topics_hash = digest
            self._bump(group)
        group.seen_version = version

    def _assign(self, group: G) -> None:
        """Begin to compute a target if the present one is of an earlier epoch."""
        if group.computing or group.target_epoch >= group.epoch or not group.members:
            return
        group.computing = True
        group.renamed.clear()
        self._compute(self._begin(group), partial(self._computed, group, group.epoch))

    def _computed(self, group: G, epoch: int, now_ms: int, targets: Targets | None) -> None:
        group.computing = False
        if self.groups.get(group.group_id) is not group or self._resigned:
            return
        waiting = self._waiting.pop(group.group_id, {})
        if targets is None:
            for one in waiting.values():
                one.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
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
                one.finish(now_ms)
            elif one.epoch <= epoch:
                one.fail(ErrorCode.UNKNOWN_MEMBER_ID)
        if still:
            self._assign(group)
        self._answers.deliver()

    # --- durability ----------------------------------------------------------------------------------------------

    def answer_saved(self, group: G, reply: Callable[[A], None], answer: A, failed: Callable[[int], A]) -> None:
        """Give ``answer`` when the group's present state is durable, or the answer that ``failed`` makes of an error
        code."""
        if group.saved_version >= group.version:
            self._answers.post(reply, answer)
            return

        def stored(error: int) -> None:
            self._answers.post(reply, failed(error) if error else answer)

        self._save(group, stored)

    def _save(self, group: G, then: Callable[[int], None] = lambda error: None) -> None:
        version = group.version
        if self.groups.get(group.group_id) is not group:
            then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # it has become a classic group meanwhile
            return

        def done(now_ms: int, error: int) -> None:
            if not error:
                group.saved_version = max(group.saved_version, version)
            then(error)
            self._answers.deliver()

        self._journal.put(group.group_id, self._encode(group), done)

    # --- timers --------------------------------------------------------------------------------------------------

    def renew_session(self, now_ms: int, group: G, member: ConsumerMember) -> None:
        """Restart the session timer of a member that has sent a request."""
        if member.classic is not None:
            timeout = member.classic.session_timeout_ms
        else:
            own = self._configured(group.group_id, f"{self.kind}.session.timeout.ms")
            timeout = own or self._settings.consumer_session_timeout_ms
        self._timers.set((Timer.SESSION, group.group_id, member.member_id), now_ms, timeout)

    def _set_rebalance_timer(self, now_ms: int, group: G, member: ConsumerMember) -> None:
        key = (Timer.REBALANCE, group.group_id, member.member_id)
        if member.state is MemberState.UNREVOKED:
            self._timers.set(key, now_ms, member.rebalance_timeout_ms)
        else:
            self._timers.remove(key)


def _find_fault(request: HeartbeatRequest) -> str:
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
    elif request.epoch == 0 and request.rebalance_timeout_ms == -1:
        problem = "RebalanceTimeoutMs must be provided in first request."
    return problem


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Raise KafkaError unless the member is in this epoch, or repeats a request whose answer it did not get."""
    if request.epoch == member.epoch:
        return
    repeats = request.epoch < member.epoch and request.epoch == member.previous_epoch
    if not (repeats and request.owned is not None and is_within(request.owned, member.assigned)):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"the member is in epoch {member.epoch}, not {request.epoch}: it must join again",
        )
