"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import Operation
from bridges.errors import LogError
from bridges.turns import in_turns
from kafka_front.service.access import NO_OPERATIONS
from kafka_front.service.groups import codes
from kafka_front.service.share.group import ASSIGNOR, ShareHeartbeat
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
    from kafka_front.service.share.service import ShareService


class ShareMembership:
    """Handlers of the two requests."""

    def __init__(self, access: Access, share: ShareService) -> None:
        self._access = access
        self._share = share

    async def heartbeat(self, ctx: Context, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        """ShareGroupHeartbeat."""
        topics = request.subscribed_topic_names
        async for name in in_turns(topics or ()):
            if not self._access.topic(ctx, Operation.DESCRIBE, name):
                raise KafkaError(codes.TOPIC_AUTHORIZATION_FAILED, "not authorized to a topic of the list")
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
        """ShareGroupDescribe: each group once, however often it is named."""
        access, asked = self._access, request.include_authorized_operations
        response = ShareGroupDescribeResponse()
        async for group_id in in_turns(dict.fromkeys(request.group_ids)):
            described = ShareGroupDescribeResponse.DescribedGroup(group_id=group_id)
            response.groups.append(described)
            try:
                access.require_group(ctx, Operation.DESCRIBE, group_id)
                group = self._share.find(group_id)
            except KafkaError as error:
                described.error_code, described.error_message = error.code, error.message
                continue
            described.group_state = group.state
            described.group_epoch = described.assignment_epoch = group.epoch
            described.assignor_name = ASSIGNOR
            described.authorized_operations = access.group_operations(ctx, group_id) if asked else NO_OPERATIONS
            async for member in in_turns(list(group.members.values())):
                described.members.append(
                    ShareGroupDescribeResponse.Member(
                        member_id=member.member_id,
                        rack_id=member.rack_id,
                        member_epoch=member.epoch,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        subscribed_topic_names=list(member.topics),
                        assignment=ShareGroupDescribeResponse.Assignment(
                            [ShareGroupDescribeResponse.TopicPartitions(*one) for one in self._share.described(member)]
                        ),
                    )
                )
        return response


def register(registry: Registry, access: Access, share: ShareService) -> None:
    """Serve keys 76 and 77."""
    membership = ShareMembership(access, share)
    registry.register(ApiKey.SHARE_GROUP_HEARTBEAT, access.of_group(Operation.READ, membership.heartbeat))
    registry.register(ApiKey.SHARE_GROUP_DESCRIBE, membership.describe)
