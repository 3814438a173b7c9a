"""Handlers of JoinGroup, SyncGroup, Heartbeat and LeaveGroup, between the messages and the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import Operation
from bridges.errors import GroupHeld
from kafka_front.context import DEFERRED, Outcome
from kafka_front.dispatch import Registry
from kafka_front.service.groups.classic.coordinator import Coordinator
from kafka_front.service.groups.classic.group import JoinReply, SyncReply
from kafka_front.service.groups.classic.requests import JoinRequest, Leaver, SyncRequest
from kafka_front.service.groups.consumer.classic_members import ClassicMembers
from kafka_front.service.groups.group_service import GroupService
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context

_KNOWN_ID_SINCE = 4
_REBALANCE_TIMEOUT_SINCE = 1
_NULL_PROTOCOL_SINCE = 7
_SKIP_ASSIGNMENT_SINCE = 9
_PROTOCOL_NAMED_SINCE = 5
_BATCH_LEAVE_SINCE = 3


class Membership:
    """Handlers of the four requests that members send."""

    def __init__(self, service: GroupService) -> None:
        self._runtime = service.runtime
        self._progress = service.progress
        self._refusals = service.refusals

    def _coordinator(self, group_id: str) -> Coordinator | ClassicMembers:
        """Return the coordinator of a group's members that speak the classic protocol."""
        group = self._runtime.directory.consumer.get(group_id)
        return self._runtime.coordinator if group is None or not group.members else self._runtime.classic_members

    def join(self, ctx: Context, request: m.JoinGroupRequest) -> Outcome:
        """Handle JoinGroup; it is answered when the join phase ends."""
        version = ctx.version

        def reply(answer: JoinReply) -> None:
            self._refusals.note(ctx, request.group_id, answer.error, answer.message)
            name = answer.protocol_name
            ctx.respond(
                m.JoinGroupResponse(
                    error_code=answer.error,
                    generation_id=answer.generation,
                    protocol_type=answer.protocol_type,
                    protocol_name="" if name is None and version < _NULL_PROTOCOL_SINCE else name,
                    leader=answer.leader,
                    skip_assignment=answer.skip_assignment,
                    member_id=answer.member_id,
                    members=[
                        m.JoinGroupResponse.JoinGroupResponseMember(
                            member.member_id, member.instance_id, member.metadata
                        )
                        for member in answer.members
                    ],
                )
            )

        try:
            self._progress.require_free(request.group_id)
        except GroupHeld as held:
            reply(JoinReply(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message=str(held)))
            return DEFERRED
        has_rebalance_timeout = version >= _REBALANCE_TIMEOUT_SINCE
        decides = self._coordinator(request.group_id)
        if decides is self._runtime.coordinator:
            self._runtime.consumers.make_way(request.group_id)
            self._runtime.streams.make_way(request.group_id)
        decides.join(
            self._runtime.now_ms(),
            JoinRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                ctx.client_id or "",
                f"/{ctx.connection.peer[0]}",
                request.session_timeout_ms,
                request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
                request.protocol_type,
                # Copied: they live far longer than the request's frame, and a view would keep all of it in memory.
                tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
                require_known_id=version >= _KNOWN_ID_SINCE,
                can_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
            ),
            reply,
        )
        self._runtime.touched()
        return DEFERRED

    def sync(self, ctx: Context, request: m.SyncGroupRequest) -> Outcome:
        """Handle SyncGroup; it is answered when the leader's assignment is durable."""
        if ctx.version >= _PROTOCOL_NAMED_SINCE and (request.protocol_type is None or request.protocol_name is None):
            # Null is legal on the wire, yet a broker requires both names (KIP-559) before it checks anything else.
            ctx.respond(m.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return DEFERRED

        def reply(answer: SyncReply) -> None:
            ctx.respond(
                m.SyncGroupResponse(
                    error_code=answer.error,
                    protocol_type=answer.protocol_type,
                    protocol_name=answer.protocol_name,
                    assignment=answer.assignment,
                )
            )

        self._coordinator(request.group_id).sync(
            self._runtime.now_ms(),
            SyncRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                request.protocol_type,
                request.protocol_name,
                tuple((item.member_id, bytes(item.assignment)) for item in request.assignments),
            ),
            reply,
        )
        self._runtime.touched()
        return DEFERRED

    def heartbeat(self, ctx: Context, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
        """Answer Heartbeat. Raises KafkaError."""
        try:
            self._coordinator(request.group_id).heartbeat(
                self._runtime.now_ms(),
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
            )
        except KafkaError as refused:
            self._refusals.note(ctx, request.group_id, refused.code, str(refused))
            raise
        finally:
            self._runtime.touched()
        return m.HeartbeatResponse()

    def leave(self, ctx: Context, request: m.LeaveGroupRequest) -> Outcome:
        """Handle LeaveGroup: of one member before version 3, of many since."""
        batched = ctx.version >= _BATCH_LEAVE_SINCE
        leavers = (
            [Leaver(member.member_id, member.group_instance_id) for member in request.members]
            if batched
            else [Leaver(request.member_id)]
        )

        def reply(error: int, errors: list[int]) -> None:
            if error or not batched:
                ctx.respond(m.LeaveGroupResponse(error_code=error or errors[0]))
                return
            ctx.respond(
                m.LeaveGroupResponse(
                    members=[
                        m.LeaveGroupResponse.MemberResponse(
                            member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=code
                        )
                        for leaver, code in zip(leavers, errors, strict=True)
                    ]
                )
            )

        self._coordinator(request.group_id).leave(self._runtime.now_ms(), request.group_id, leavers, reply)
        self._runtime.touched()
        return DEFERRED


def register(registry: Registry, service: GroupService) -> None:
    """Serve keys 11-14."""
    membership, of_group = Membership(service), service.access.of_group
    registry.register(ApiKey.JOIN_GROUP, of_group(Operation.READ, membership.join))
    registry.register(ApiKey.HEARTBEAT, of_group(Operation.READ, membership.heartbeat))
    registry.register(ApiKey.LEAVE_GROUP, of_group(Operation.READ, membership.leave))
    registry.register(ApiKey.SYNC_GROUP, of_group(Operation.READ, membership.sync))
