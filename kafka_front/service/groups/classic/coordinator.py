"""The coordinator of classic groups as a pure state machine.

It has no clock, no sockets and no tasks. Every call carries ``now_ms`` of a clock that never goes back, answers leave
through the requests' callbacks, and the runtime calls :meth:`Coordinator.advance` at
:attr:`Coordinator.next_deadline_ms`. The rules and the order of errors are those of a Kafka broker
(docs/protocols/kafka.md, rules 50-57; KIP-62, KIP-134, KIP-345, KIP-394, KIP-814).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.run.barrier import Barrier
from kafka_front.service.groups.admission import admit, describe_full, has_memory, has_room
from kafka_front.service.groups.classic.group import (
    Group,
    GroupState,
    JoinCallback,
    JoinReply,
    Member,
    SyncCallback,
    SyncReply,
    bytes_of,
    describe_taken_over,
)
from kafka_front.service.groups.classic.requests import JoinRequest, LeaveCallback, Leaver, SyncRequest
from kafka_front.service.groups.classic.snapshot import GroupSnapshot
from kafka_front.service.groups.directory import Directory
from kafka_front.service.groups.requests.answers import Answers, joined, synced
from kafka_front.service.groups.restoring import restored, snapshot_of
from kafka_front.service.groups.timers import GroupTimers
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.service.groups.journal import GroupJournal

_NO_NAME = "a group needs a name: set group.id"
_NO_PROTOCOL = "the member names no protocol: it needs a protocol type and at least one assignor"
_TOO_MANY = "this node has all the groups it may"
_NEW_MEMBER_JOIN_MS = 300_000
"""How long a member's very first join may stay unanswered, as in Kafka: the client does not know its id yet, so it can
neither send heartbeats nor leave. If it gave up and retried, its first member would stay in the group for ever."""


class _Timer(Enum):
    SESSION = 0
    JOIN = 1
    SYNC = 2


class Coordinator:
    """All classic groups of one node."""

    def __init__(
        self,
        settings: KafkaGroupSettings,
        journal: GroupJournal,
        new_member_id: Callable[[str], str],
        barrier: Barrier | None = None,
        directory: Directory | None = None,
    ) -> None:
        """Start without groups. ``new_member_id`` returns a unique member id that starts with the given client or
        instance id.

        ``barrier`` counts exceptions of answers and of deadlines: each costs its own request or group only.
        """
        self._barrier = barrier or Barrier()
        self._directory = Directory() if directory is None else directory
        self.settings = settings
        self._journal = journal
        self._new_member_id = new_member_id
        #: In milliseconds.
        self.timers: GroupTimers[_Timer] = GroupTimers()
        self._answers = Answers(self._barrier)

    @property
    def groups(self) -> MutableMapping[str, Group]:
        """Return the classic groups by name."""
        return self._directory.classic

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when :meth:`advance` has work next; the work may be gone by then."""
        return self.timers.next

    def advance(self, now_ms: int) -> int:
        """Do all that was due at ``now_ms`` or before; return the number of deadlines.

        They are at most as many as there were before the call: a step sets deadlines after ``now_ms`` only.
        """
        steps = self.timers.work_off(now_ms, self._step, self._barrier)
        self._answers.deliver()
        return steps

    def _step(self, now_ms: int, kind: _Timer, group_id: str, member_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        if kind is _Timer.SESSION:
            self._session_over(now_ms, group, member_id)
        elif kind is _Timer.JOIN:
            self._join_phase_over(now_ms, group)
        else:
            self._sync_phase_over(now_ms, group)

    # --- requests ------------------------------------------------------------------------------------------------

    def join(self, now_ms: int, request: JoinRequest, reply: JoinCallback) -> None:
        """Handle JoinGroup. ``reply`` is called exactly once, perhaps much later."""
        try:
            self._join(now_ms, request, reply)
        except KafkaError as refused:
            self._answers.refuse_join(reply, request.member_id, refused.code, str(refused))
        self._answers.deliver()

    def sync(self, now_ms: int, request: SyncRequest, reply: SyncCallback) -> None:
        """Handle SyncGroup. ``reply`` is called exactly once, perhaps much later."""
        try:
            self._sync(now_ms, request, reply)
        except KafkaError as refused:
            self._answers.post(reply, SyncReply(refused.code))
        self._answers.deliver()

    def heartbeat(self, now_ms: int, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Handle Heartbeat. Raises KafkaError."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, _NO_NAME)
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        member = _member_in(group, member_id, instance_id, generation)
        self._renew_session(now_ms, group, member)
        # Members may send heartbeats between their join and the leader's sync, so only the join phase makes them
        # rejoin.
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must join again")

    def leave(self, now_ms: int, group_id: str, leavers: Sequence[Leaver], reply: LeaveCallback) -> None:
        """Handle LeaveGroup. ``reply`` gets the error of the whole request and, if that is NONE, one error per leaver.

        It is called once: at once, or, if these were the last members, when that is durable, so that after the answer
        the group is empty even after a restart.
        """
        group = self.groups.get(group_id)
        if not group_id:
            self._answers.post_all([partial(reply, ErrorCode.INVALID_GROUP_ID, [])])
        elif len(leavers) > self.settings.max_size:
            self._answers.post_all([partial(reply, ErrorCode.INVALID_REQUEST, [])])
        elif group is None:
            self._answers.post_all([partial(reply, ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers))])
        else:
            size = len(group.members)
            group.leaving.append(partial(reply, ErrorCode.NONE, [self._leave(group, leaver) for leaver in leavers]))
            if group.state is GroupState.PREPARING_REBALANCE:
                self._maybe_complete_join(now_ms, group)
            elif len(group.members) < size:
                self._prepare_rebalance(now_ms, group)
            self._answers.post_all(group.leaving)  # unless the group was emptied: then _emptied does
            group.leaving.clear()
        self._answers.deliver()

    def check_commit(
        self,
        now_ms: int,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        unknown_group_error: int = ErrorCode.ILLEGAL_GENERATION,
        transactional: bool = False,
    ) -> None:
        """Raise KafkaError unless this member may commit. A valid commit also renews the member's session (rules 53 and
        57).

        A commit from outside the group's membership (generation below 0) creates an unknown group, a so-called simple
        group. ``unknown_group_error`` answers a commit with a generation to an unknown group: it differs by request
        version. Transactional commits do not depend on the group's state (KIP-447).
        """
        group = self.groups.get(group_id)
        if group is None:
            if generation >= 0 or group_id in self._directory.share:
                raise KafkaError(unknown_group_error, f"there is no group {group_id!r}")
            if len(self._directory) >= self.settings.max_groups:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, _TOO_MANY)
            group = self.adopt(now_ms, group_id)
        if generation < 0 and group.state is GroupState.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            _member_in(group, member_id, instance_id, generation)
        elif not transactional:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "only members commit while the group has any")
        if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must sync first")
        member = group.members.get(member_id)
        if member is not None:
            self._renew_session(now_ms, group, member)

    def find(self, group_id: str) -> Group:
        """Return the group of that name. Raises KafkaError."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        return group

    def check_offset_delete(self, group_id: str) -> None:
        """Raise KafkaError unless offsets of the group may be deleted; each topic is checked with the group afterwards
        (rule 60)."""
        group = self.find(group_id)
        if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members that are no consumers")

    def delete(self, now_ms: int, group_id: str) -> None:
        """Forget an empty group (rule 60); the caller removes its stored state. Raises KafkaError."""
        group = self.find(group_id)
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        for member_id in group.pending:
            self.timers.remove((_Timer.SESSION, group_id, member_id))
        group.become(GroupState.DEAD, now_ms)
        del self.groups[group_id]

    # --- life of the node ----------------------------------------------------------------------------------------

    def adopt(self, now_ms: int, group_id: str) -> Group:
        """Return the group of that name; create an empty one without protocol if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, now_ms)
        return group

    def restore(self, now_ms: int, group_id: str, snapshot: GroupSnapshot) -> None:
        """Bring back a group after a restart: its members get a full session in which to send a heartbeat."""
        group = self.groups[group_id] = restored(group_id, snapshot, self.settings)
        for member in group.members.values():
            self._renew_session(now_ms, group, member)

    def surrender(self, group: Group, code: int = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        """Give up a group that becomes one of KIP-848 or moves to another node. ``code`` answers its parked requests,
        so that the members join again, here or there."""
        for member in group.members.values():
            self._answers.answer_join(group, member, JoinReply(member.member_id, code))
            self._answers.answer_sync(member, SyncReply(code))
        for member_id in (*group.members, *group.pending):
            self.timers.remove((_Timer.SESSION, group.group_id, member_id))
        for kind in (_Timer.JOIN, _Timer.SYNC):
            self.timers.remove((kind, group.group_id, ""))
        group.state = GroupState.DEAD
        self._answers.deliver()

    def take(self, now_ms: int, group: Group, then: Callable[[int], None]) -> None:
        """Take over a stable group that was one of KIP-848; its members must join again.

        ``then`` is called with an error code when the group is durable.
        """
        self._directory.become_classic(group)
        self._journal.save(group.group_id, snapshot_of(group, {}), lambda _, error: then(error))
        for member in group.members.values():
            self._renew_session(now_ms, group, member)
        self._prepare_rebalance(now_ms, group)
        self._answers.deliver()

    def take_stable(self, now_ms: int, group: Group, member_id: str, reply: JoinCallback) -> None:
        """Take over a group that was one of KIP-848 until a static member came back with the classic protocol.

        Nothing changes for the other members, so none has to rejoin. The member that came back is the leader, which
        watches the topics: to the others the KIP-848 group had another one.
        """
        self._directory.become_classic(group)
        member, group.leader = group.members[member_id], member_id
        self._answers.park_join(group, member, reply)
        for one in group.members.values():
            self._renew_session(now_ms, group, one)
        done = partial(self._static_saved, group, member, member_id, True, member_id)
        self._journal.save(group.group_id, snapshot_of(group, {}), done)

    def resign(self) -> None:
        """Answer every parked request with NOT_COORDINATOR, because this node is going away."""
        for group in self.groups.values():
            for member in group.members.values():
                self._answers.answer_join(group, member, JoinReply(member.member_id, ErrorCode.NOT_COORDINATOR))
                self._answers.answer_sync(member, SyncReply(ErrorCode.NOT_COORDINATOR))
        self._answers.deliver()

    # --- joining -------------------------------------------------------------------------------------------------

    def _join(self, now_ms: int, request: JoinRequest, reply: JoinCallback) -> None:
        settings = self.settings
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, _NO_NAME)
        request = admit(settings, request)
        protocols = dict(request.protocols)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id!r}")
            # A request that could never join a group does not create one.
            other = self._directory.new_kind(request.group_id)
            if other is not None:
                text = f"{request.group_id!r} is a {other} group: give this member another group.id"
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
            if not request.protocol_type or not protocols:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, _NO_PROTOCOL)
            if len(self._directory) >= settings.max_groups:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, _TOO_MANY)
            group = self.adopt(now_ms, request.group_id)
        if not has_memory(settings, group, request):
            # A member keeps its old metadata until its session ends.
            text = f"the group's member metadata would exceed kafka.group.max_bytes ({settings.max_bytes})"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{text}: raise that, or name fewer topics")
        if not has_room(settings, group, request):
            self.timers.remove((_Timer.SESSION, group.group_id, request.member_id))
            group.remove(request.member_id)
            self._answers.refuse_join(reply, "", ErrorCode.GROUP_MAX_SIZE_REACHED, describe_full(settings))
            self._maybe_complete_join(now_ms, group)
        elif not group.supports(request.protocol_type, protocols):
            text = group.describe_unsupported(request.protocol_type) if protocols else _NO_PROTOCOL
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        elif not request.member_id:
            self._join_unknown(now_ms, group, request, protocols, reply)
        elif request.member_id in group.pending:
            if request.instance_id is not None:
                text = "a pending id was given to a dynamic member (KIP-394), so no static one can have it"
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
            self._add_member(now_ms, group, request, protocols, request.member_id, reply)
        else:
            self._join_known(now_ms, group, request, protocols, reply)

    def _join_unknown(
        self, now_ms: int, group: Group, request: JoinRequest, protocols: dict[str, bytes], reply: JoinCallback
    ) -> None:
        if request.instance_id is not None:
            new_id = self._new_member_id(request.instance_id)
            holder = group.static_members.get(request.instance_id)
            if holder is None:
                self._add_member(now_ms, group, request, protocols, new_id, reply)
            else:
                self._replace_static(now_ms, group, request, protocols, group.members[holder], new_id, reply)
            return
        new_id = self._new_member_id(request.client_id)
        if not request.require_known_id:
            self._add_member(now_ms, group, request, protocols, new_id, reply)
            return
        if len(group.pending) >= self.settings.max_size:
            text = "new members have to use the ids that were given out, or their sessions to end"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        group.pending.add(new_id)
        self.timers.set((_Timer.SESSION, group.group_id, new_id), now_ms, request.session_timeout_ms)
        self._answers.refuse_join(reply, new_id, ErrorCode.MEMBER_ID_REQUIRED)

    def _join_known(
        self, now_ms: int, group: Group, request: JoinRequest, protocols: dict[str, bytes], reply: JoinCallback
    ) -> None:
        member = group.member(request.member_id, request.instance_id)
        unchanged = member.matches(protocols)
        is_leader = group.leader == member.member_id
        # An unchanged member that joins again during the sync phase has lost its answer, and gets it again. In a stable
        # group that holds for followers only: by rejoining, the leader asks for a rebalance (rule 54).
        if unchanged and (
            group.state is GroupState.COMPLETING_REBALANCE or (group.state is GroupState.STABLE and not is_leader)
        ):
            self._renew_session(now_ms, group, member)
            self._answers.post(reply, joined(group, member, with_members=is_leader))
            return
        group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self._answers.park_join(group, member, reply)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(now_ms, group)
        else:
            self._prepare_rebalance(now_ms, group)

    def _add_member(
        self,
        now_ms: int,
        group: Group,
        request: JoinRequest,
        protocols: dict[str, bytes],
        member_id: str,
        reply: JoinCallback,
    ) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            protocols,
            is_new=True,
            join=reply,
        )
        group.add(member, request.protocol_type)
        self.timers.set((_Timer.SESSION, group.group_id, member_id), now_ms, _NEW_MEMBER_JOIN_MS)
        if group.initial_delay is not None:
            group.new_member_added = True
        if group.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(now_ms, group)
        else:
            self._prepare_rebalance(now_ms, group)

    def _replace_static(
        self,
        now_ms: int,
        group: Group,
        request: JoinRequest,
        protocols: dict[str, bytes],
        member: Member,
        new_id: str,
        reply: JoinCallback,
    ) -> None:
        """Let the new incarnation of a static member, which came back without its id, take the old one's place
        (KIP-345)."""
        old_id = member.member_id
        old_leader = group.leader
        fenced = JoinReply(old_id, ErrorCode.FENCED_INSTANCE_ID, message=describe_taken_over(member.instance_id))
        self._answers.answer_join(group, member, fenced)
        self._answers.answer_sync(member, SyncReply(ErrorCode.FENCED_INSTANCE_ID))
        self.timers.remove((_Timer.SESSION, group.group_id, old_id))
        group.rename_static(member, new_id)
        group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        member.client_id = request.client_id
        member.client_host = request.client_host
        member.is_new = False
        self._answers.park_join(group, member, reply)
        self._renew_session(now_ms, group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(now_ms, group)
        elif group.state is GroupState.STABLE and group.choose_protocol() == group.protocol_name:
            # Nothing changes for the other members, so none has to rejoin. The new id must be durable before its client
            # learns it, else a restart would bring back the old id and fence the live member.
            done = partial(self._static_saved, group, member, new_id, request.can_skip_assignment, old_leader or "")
            self._journal.save(group.group_id, snapshot_of(group, {}), done)
        else:
            # Between join and sync the leader may already be assigning to the old id, so it must start over.
            self._prepare_rebalance(now_ms, group)

    def _static_saved(
        self, group: Group, member: Member, new_id: str, can_skip: bool, old_leader: str, now_ms: int, error: int
    ) -> None:
        if group.state is not GroupState.STABLE or member.join is None or member.member_id != new_id:
            return  # a rebalance answers this request, or the member is gone or was replaced again
        if error:
            # The new id stays in memory: the client comes back without an id and gets another one.
            self._answers.answer_join(group, member, JoinReply("", error))
        elif can_skip:
            # v9 clients understand "leader, but do not assign": they get the members and keep the old assignment.
            is_leader = group.leader == member.member_id
            self._answers.answer_join(
                group, member, joined(group, member, with_members=is_leader, skip_assignment=is_leader)
            )
        else:
            # An older client that is named leader would assign anew in a generation that has its assignment, so the
            # answer names the former leader's id.
            self._answers.answer_join(group, member, joined(group, member, with_members=False, leader=old_leader))
        self._renew_session(now_ms, group, member)
        self._answers.deliver()

    # --- rebalancing ---------------------------------------------------------------------------------------------

    def _prepare_rebalance(self, now_ms: int, group: Group) -> None:
        """Open the join phase from any state but its own."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                self._withdraw_sync(now_ms, group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        self.timers.remove((_Timer.SYNC, group.group_id, ""))
        if group.state is GroupState.EMPTY:
            # A first rebalance waits for more members, and longer when more join (KIP-134).
            delay = self.settings.initial_rebalance_delay_ms
            group.initial_delay = (delay, max(group.rebalance_timeout_ms - delay, 0))
            group.new_member_added = False
            group.become(GroupState.PREPARING_REBALANCE, now_ms)
            self.timers.set((_Timer.JOIN, group.group_id, ""), now_ms, delay)
            return
        group.become(GroupState.PREPARING_REBALANCE, now_ms)
        if group.all_joined:
            self._complete_join(now_ms, group)
        else:
            self.timers.set((_Timer.JOIN, group.group_id, ""), now_ms, group.rebalance_timeout_ms)

    def _maybe_complete_join(self, now_ms: int, group: Group) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE or group.initial_delay is not None:
            return
        if group.all_joined:
            self._complete_join(now_ms, group)
        elif group.waiting and self.timers.get((_Timer.JOIN, group.group_id, "")) is None:
            # Only static members were left and none had joined (see _complete_join): now the first one waits.
            self.timers.set((_Timer.JOIN, group.group_id, ""), now_ms, group.rebalance_timeout_ms)

    def _join_phase_over(self, now_ms: int, group: Group) -> None:
        if group.initial_delay is not None and group.new_member_added:
            delay, remaining = group.initial_delay
            next_delay = min(self.settings.initial_rebalance_delay_ms, remaining)
            if next_delay > 0:
                group.initial_delay = (next_delay, max(remaining - delay, 0))
                group.new_member_added = False
                self.timers.set((_Timer.JOIN, group.group_id, ""), now_ms, next_delay)
                return
        self._complete_join(now_ms, group)

    def _complete_join(self, now_ms: int, group: Group) -> None:
        """Close the join phase: remove dynamic members that did not join; all other members form the next
        generation."""
        self.timers.remove((_Timer.JOIN, group.group_id, ""))
        group.initial_delay = None
        for member in [m for m in group.members.values() if m.join is None and not m.is_static]:
            self._drop(group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none joined. Their sessions decide how long they may stay away, and the
            # first to join starts the wait for the others, so a timer now would be useless.
            return
        group.start_generation(now_ms)
        if group.state is GroupState.EMPTY:
            leaving, group.leaving = group.leaving, []
            self._journal.save(group.group_id, snapshot_of(group, {}), partial(self._emptied, leaving))
            return
        for member in group.members.values():
            member.is_new = False
            is_leader = group.leader == member.member_id
            self._answers.answer_join(group, member, joined(group, member, with_members=is_leader))
            self._renew_session(now_ms, group, member)
            group.pending_sync.add(member.member_id)
        self.timers.set((_Timer.SYNC, group.group_id, ""), now_ms, group.rebalance_timeout_ms)

    def _emptied(self, leaving: list[Callable[[], None]], now_ms: int, error: int) -> None:
        # An error does not matter to the members that left: at worst, after a restart they are members until their
        # sessions end.
        self._answers.post_all(leaving)
        self._answers.deliver()

    def _sync_phase_over(self, now_ms: int, group: Group) -> None:
        if not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            self._drop(group, group.members[member_id])
        self._prepare_rebalance(now_ms, group)

    # --- syncing -------------------------------------------------------------------------------------------------

    def _sync(self, now_ms: int, request: SyncRequest, reply: SyncCallback) -> None:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, _NO_NAME)
        if len(request.assignments) > self.settings.max_size:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "assignments for more members than a group may have")
        group = self.groups.get(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id!r} has no members")
        member = _member_in(group, request.member_id, request.instance_id, request.generation)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member joined with another protocol")
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must join again")
        self._renew_session(now_ms, group, member)
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.timers.remove((_Timer.SYNC, group.group_id, ""))
        if group.state is GroupState.STABLE:
            self._answers.post(reply, synced(group, member))
            return
        # A member that syncs again has given up its earlier request, but that request's connection still needs an
        # answer.
        self._answers.answer_sync(member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = reply
        if group.leader == member.member_id and group.saving_generation != group.generation:
            if bytes_of(request.assignments) > self.settings.max_bytes:
                # The same code as from a broker whose log refuses a record of that size.
                for one in group.members.values():
                    self._withdraw_sync(now_ms, group, one, ErrorCode.UNKNOWN_SERVER_ERROR)
                self._prepare_rebalance(now_ms, group)
                return
            given = dict(request.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
            group.saving_generation = group.generation
            done = partial(self._assignments_saved, group, group.generation, assignments)
            self._journal.save(group.group_id, snapshot_of(group, assignments), done)

    def _assignments_saved(
        self, group: Group, generation: int, assignments: dict[str, bytes], now_ms: int, error: int
    ) -> None:
        if group.saving_generation == generation:
            group.saving_generation = -1
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
            return  # a new rebalance began while the assignment was being written
        if error:
            for member in group.members.values():
                self._withdraw_sync(now_ms, group, member, error)
            self._prepare_rebalance(now_ms, group)
        else:
            group.become(GroupState.STABLE, now_ms)
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if member.sync is not None:
                    self._answers.answer_sync(member, synced(group, member))
                    # Its session may have run out unnoticed while the request was parked.
                    self._renew_session(now_ms, group, member)
        self._answers.deliver()

    def _withdraw_sync(self, now_ms: int, group: Group, member: Member, error: int) -> None:
        """Drop the member's assignment, since this generation will have none, and answer its parked SyncGroup."""
        member.assignment = b""
        if member.sync is not None:
            self._answers.answer_sync(member, SyncReply(error))
            # Its session may have run out unnoticed while the request was parked.
            self._renew_session(now_ms, group, member)

    # --- leaving -------------------------------------------------------------------------------------------------

    def _leave(self, group: Group, leaver: Leaver) -> int:
        member_id = leaver.member_id
        if member_id in group.pending:
            group.remove(member_id)
            self.timers.remove((_Timer.SESSION, group.group_id, member_id))
            return ErrorCode.NONE
        if not member_id and leaver.instance_id is not None:
            member_id = group.static_members.get(leaver.instance_id, "")
        try:
            self._drop(group, group.member(member_id, leaver.instance_id))
        except KafkaError as refused:
            return refused.code
        return ErrorCode.NONE

    def _session_over(self, now_ms: int, group: Group, member_id: str) -> None:
        if member_id in group.pending:
            group.remove(member_id)
            self._maybe_complete_join(now_ms, group)
            return
        member = group.members[member_id]
        if member.keeps_session:
            return  # the answer of the parked request starts a new session
        self._drop(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            if group.all_joined:
                self._complete_join(now_ms, group)
        else:
            self._prepare_rebalance(now_ms, group)

    def _drop(self, group: Group, member: Member) -> None:
        """Remove a member. Its parked requests get UNKNOWN_MEMBER_ID, so that a living client joins afresh."""
        self._answers.answer_join(group, member, JoinReply("", ErrorCode.UNKNOWN_MEMBER_ID))
        self._answers.answer_sync(member, SyncReply(ErrorCode.UNKNOWN_MEMBER_ID))
        self.timers.remove((_Timer.SESSION, group.group_id, member.member_id))
        group.remove(member.member_id)

    # --- sessions ------------------------------------------------------------------------------------------------

    def _renew_session(self, now_ms: int, group: Group, member: Member) -> None:
        self.timers.set((_Timer.SESSION, group.group_id, member.member_id), now_ms, member.session_timeout_ms)


def _member_in(group: Group, member_id: str, instance_id: str | None, generation: int) -> Member:
    member = group.member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the group is in generation {group.generation}")
    return member


def _differs(given: str | None, own: str | None) -> bool:
    return given is not None and own is not None and given != own
