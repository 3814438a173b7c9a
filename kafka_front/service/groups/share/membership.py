"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.errors import LogError
from kafka_front.service.access import NO_OPERATIONS
from kafka_front.service.groups import codes
from kafka_front.service.groups.admission import require_few_topics
from kafka_front.service.groups.share.group import ASSIGNOR, ShareHeartbeat
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import KafkaError
from kafka_front.wire.messages import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.dispatch import Registry
    from kafka_front.service.access import Access
    from kafka_front.service.groups.share.service import ShareService

_Described = ShareGroupDescribeResponse.DescribedGroup


class ShareMembership:
    """Handlers of ShareGroupHeartbeat and ShareGroupDescribe."""

    def __init__(self, access: Access, share: ShareService) -> None:
        self._access = access
        self._share = share

    async def heartbeat(self, ctx: Context, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        """Answer ShareGroupHeartbeat."""
        topics = request.subscribed_topic_names
        require_few_topics(topics or ())
        await self._access.require_topics(ctx, Operation.DESCRIBE, topics or ())
        asked = ShareHeartbeat(
            request.group_id,
            request.member_id,
            request.member_epoch,
            None if topics is None else tuple(topics),
            request.rack_id,
            ctx.client_id or "",
            f"/{ctx.connection.peer[0]}",
        )
        try:
            reply = await self._share.heartbeat(asked)
        except LogError as error:
            raise KafkaError(codes.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        assignment = reply.assignment
        row = ShareGroupHeartbeatResponse.TopicPartitions
        return ShareGroupHeartbeatResponse(
            member_id=reply.member_id,
            member_epoch=reply.epoch,
            heartbeat_interval_ms=self._share.heartbeat_ms(request.group_id),
            assignment=None
            if assignment is None
            else ShareGroupHeartbeatResponse.Assignment(
                [row(topic_id, sorted(numbers)) for topic_id, numbers in assignment.items()]
            ),
        )

    async def describe(self, ctx: Context, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
        """Answer ShareGroupDescribe: each group once, however often it is named."""
        response = ShareGroupDescribeResponse()
        async for group_id in in_turns(dict.fromkeys(request.group_ids)):
            try:
                response.groups.append(await self._described(ctx, group_id, request.include_authorized_operations))
            except KafkaError as error:
                response.groups.append(_Described(error.code, error.message, group_id))
        return response

    async def _described(self, ctx: Context, group_id: str, operations: bool) -> _Described:
        """Return a group's description. Raises KafkaError, also if members read a topic that the client may not
        describe."""
        self._access.require_group(ctx, Operation.DESCRIBE, group_id)
        group = self._share.find(group_id)
        described = _Described(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.epoch,
            assignor_name=ASSIGNOR,
            authorized_operations=self._access.group_operations(ctx, group_id) if operations else NO_OPERATIONS,
        )
        topics: set[str] = set()
        async for member in in_turns(list(group.members.values())):
            assigned = self._share.described(member)
            topics.update(name for _, name, _ in assigned)
            described.members.append(
                ShareGroupDescribeResponse.Member(
                    member_id=member.member_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=list(member.topics),
                    assignment=ShareGroupDescribeResponse.Assignment(
                        [ShareGroupDescribeResponse.TopicPartitions(*one) for one in assigned]
                    ),
                )
            )
        await self._access.require_topics(ctx, Operation.DESCRIBE, topics)
        return described


def register(registry: Registry, access: Access, share: ShareService) -> None:
    """Serve keys 76 and 77."""
    membership = ShareMembership(access, share)
    registry.register(ApiKey.SHARE_GROUP_HEARTBEAT, access.of_group(Operation.READ, membership.heartbeat))
    registry.register(ApiKey.SHARE_GROUP_DESCRIBE, membership.describe)
