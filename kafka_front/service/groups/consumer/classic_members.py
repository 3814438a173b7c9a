"""Members that speak the classic protocol in groups of KIP-848 ("Upgrade and Downgrade").

To them the group looks as if another member led it. They join with their topics and owned partitions, sync to get their
assignment, and heartbeats make them join again for each step of a rebalance. Their epoch is their generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from kafka_front.service.groups.admission import admit
from kafka_front.service.groups.classic.embedded import (
    PROTOCOL_TYPE,
    EmbeddedFormatError,
    owned_partitions,
    subscribed_topics,
)
from kafka_front.service.groups.classic.group import JoinCallback, JoinReply, SyncCallback, SyncReply, find_member
from kafka_front.service.groups.classic.requests import JoinRequest, LeaveCallback, Leaver, SyncRequest
from kafka_front.service.groups.consumer.coordinator import ConsumerCoordinator
from kafka_front.service.groups.consumer.group import (
    ClassicPart,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
)
from kafka_front.service.groups.migration import assignment_of
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError


class ClassicMembers:
    """Handlers of the classic protocol's requests to groups of KIP-848, with the interface of the classic
    coordinator."""

    def __init__(
        self, consumers: ConsumerCoordinator, settings: KafkaGroupSettings, new_member_id: Callable[[str], str]
    ) -> None:
        self._consumers = consumers
        self._settings = settings
        self._new_member_id = new_member_id

    # --- requests ------------------------------------------------------------------------------------------------

    def join(self, now_ms: int, request: JoinRequest, reply: JoinCallback) -> None:
        """Handle JoinGroup; it is answered when the member's part of a target assignment is known and durable."""
        try:
            self._join(now_ms, request, reply)
        except KafkaError as refused:
            self._consumers.post(reply, JoinReply("", refused.code, message=str(refused)))
        self._consumers.deliver()

    def sync(self, now_ms: int, request: SyncRequest, reply: SyncCallback) -> None:
        """Handle SyncGroup; the answer is the assignment that the member's join has decided."""
        group = self._consumers.groups[request.group_id]
        try:
            member = _member(group, request.member_id, request.instance_id, request.generation)
            classic = _classic(member)
            if request.protocol_type not in (None, PROTOCOL_TYPE) or (
                request.protocol_name is not None and request.protocol_name != classic.protocols[0][0]
            ):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member joined with another protocol")
            self._consumers.has_come(now_ms, group, member)
            if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
                self._consumers.await_rejoin(now_ms, group, member)
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must join again")
        except KafkaError as refused:
            self._consumers.post(reply, SyncReply(refused.code))
        else:
            assignment = assignment_of(member, self._consumers.names(group))
            answer = SyncReply(ErrorCode.NONE, PROTOCOL_TYPE, classic.protocols[0][0], assignment)
            self._consumers.answer_saved(group, reply, answer, SyncReply)
        self._consumers.deliver()

    def heartbeat(self, now_ms: int, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Handle Heartbeat. Raises KafkaError."""
        group = self._consumers.groups[group_id]
        member = _member(group, member_id, instance_id, generation)
        self._consumers.renew_session(now_ms, group, member)
        self._consumers.look_again(now_ms, group)
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and group.all_released(member))
        ):
            self._consumers.await_rejoin(now_ms, group, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member must join again")

    def leave(self, now_ms: int, group_id: str, leavers: Sequence[Leaver], reply: LeaveCallback) -> None:
        """Handle LeaveGroup for members of either protocol: administrators remove both with it."""
        group = self._consumers.groups[group_id]
        if len(leavers) > self._settings.max_size:
            self._consumers.post(lambda _: reply(ErrorCode.INVALID_REQUEST, []), None)
        else:
            errors = [self._leave(group, leaver) for leaver in leavers]
            gone = [one for one in errors if isinstance(one, ConsumerMember)]
            answers = [ErrorCode.NONE if isinstance(one, ConsumerMember) else one for one in errors]
            self._consumers.remove_all(now_ms, group, gone, partial(_answer_leave, reply, answers))
        self._consumers.deliver()

    def _leave(self, group: ConsumerGroup, leaver: Leaver) -> ConsumerMember | int:
        try:
            member_id = leaver.member_id
            if not member_id and leaver.instance_id is not None:
                member_id = group.static_members.get(leaver.instance_id, "")
            return _member(group, member_id, leaver.instance_id, None)
        except KafkaError as refused:
            return refused.code

    # --- joining -------------------------------------------------------------------------------------------------

    def _join(self, now_ms: int, request: JoinRequest, reply: JoinCallback) -> None:
        group = self._consumers.groups[request.group_id]
        request = admit(self._settings, request)
        if not _fits(group, request):
            text = "no assignor that all members know: give all of them the same partition.assignment.strategy"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        new_id = request.member_id or self._new_member_id(request.instance_id or request.client_id)
        if not request.member_id and request.instance_id is None and request.require_known_id:
            self._consumers.post(reply, JoinReply(new_id, ErrorCode.MEMBER_ID_REQUIRED))
            return
        try:
            topics = subscribed_topics(request.protocols[0][1])
            owned = self._consumers.by_id(owned_partitions(request.protocols[0][1]))
        except EmbeddedFormatError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"unreadable subscription: {error}") from error
        is_new = not request.member_id
        if not is_new:
            # A client with a new id owns nothing yet. One that owns partitions was a member, and must learn that it no
            # longer is.
            is_new = request.instance_id is None and not owned
            if request.instance_id is not None:
                _member(group, request.member_id, request.instance_id, None)
        request = replace(request, member_id=new_id)
        classic = ClassicPart(request.session_timeout_ms, request.protocols)
        member = self._consumers.classic_joins(now_ms, group, request, topics, classic, may_be_new=is_new)
        if self._consumers.may_go_back(group):
            # The replacement of the last member of the new protocol has its partitions already.
            self._consumers.reconcile(now_ms, group, member, owned)
            # Older clients that are named leader would assign anew.
            if request.can_skip_assignment and self._consumers.goes_back_stable(now_ms, group, new_id, reply):
                return
            self._consumers.goes_back(now_ms, group)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "it is a classic group now")
        self._consumers.when_assigned(
            now_ms,
            group,
            member,
            partial(self._joined, group, member, owned, reply),
            lambda error: self._consumers.post(reply, JoinReply(new_id, error)),
        )

    def _joined(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions, reply: JoinCallback, now_ms: int
    ) -> None:
        self._consumers.reconcile(now_ms, group, member, owned)
        self._consumers.await_sync(now_ms, group, member)
        answer = JoinReply(
            member.member_id, ErrorCode.NONE, member.epoch, PROTOCOL_TYPE, _classic(member).protocols[0][0], ""
        )
        self._consumers.answer_saved(group, reply, answer, lambda error: JoinReply(member.member_id, error))


def _answer_leave(reply: LeaveCallback, answers: list[int], error: int) -> None:
    reply(error, [] if error else answers)


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int | None) -> ConsumerMember:
    member = find_member(group.members, group.static_members, member_id, instance_id)
    if generation is None:
        return member
    _classic(member)  # before its generation: a client of the classic protocol is no member, whatever it says
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"the member is in generation {member.epoch}")
    return member


def _classic(member: ConsumerMember) -> ClassicPart:
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the member speaks the new protocol")
    return member.classic


def _fits(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Return whether all members that speak the classic protocol know one of the protocols, as a downgrade needs."""
    if request.protocol_type != PROTOCOL_TYPE or not request.protocols:
        return False
    common = {name for name, _ in request.protocols}
    for member in group.members.values():
        if member.classic is not None and member.member_id != request.member_id:
            common &= {name for name, _ in member.classic.protocols}
    return bool(common)
