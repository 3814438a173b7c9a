"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import Operation
from kafka_front.service.groups.admission import require_few_topics
from kafka_front.service.groups.requests.describing import describe_groups
from kafka_front.service.groups.share.group import ShareHeartbeat, ShareMember
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.dispatch import Registry
    from kafka_front.service.access import Access
    from kafka_front.service.groups.share.service import ShareService


class ShareMembership:
    """Handlers of ShareGroupHeartbeat and ShareGroupDescribe."""

    def __init__(self, access: Access, share: ShareService) -> None:
        self._access = access
        self._share = share
        self._topics = share.topics

    async def heartbeat(self, ctx: Context, request: m.ShareGroupHeartbeatRequest) -> m.ShareGroupHeartbeatResponse:
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
        reply = await self._share.heartbeat(asked)
        assignment = reply.assignment
        row = m.ShareGroupHeartbeatResponse.TopicPartitions
        return m.ShareGroupHeartbeatResponse(
            member_id=reply.member_id,
            member_epoch=reply.epoch,
            heartbeat_interval_ms=self._share.heartbeat_ms(request.group_id),
            assignment=None
            if assignment is None
            else m.ShareGroupHeartbeatResponse.Assignment(
                [row(topic_id, sorted(numbers)) for topic_id, numbers in assignment.items()]
            ),
        )

    async def describe(self, ctx: Context, request: m.ShareGroupDescribeRequest) -> m.ShareGroupDescribeResponse:
        """Answer ShareGroupDescribe."""
        response = m.ShareGroupDescribeResponse()
        return await describe_groups(ctx, self._access, request, response, self._share.find, self._member)

    def _member(self, member: ShareMember) -> m.ShareGroupDescribeResponse.Member:
        return m.ShareGroupDescribeResponse.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
            assignment=m.ShareGroupDescribeResponse.Assignment(
                [
                    m.ShareGroupDescribeResponse.TopicPartitions(*one)
                    for one in self._topics.name_partitions(member.assigned)
                ]
            ),
        )


def register(registry: Registry, access: Access, share: ShareService) -> None:
    """Serve keys 76 and 77."""
    membership = ShareMembership(access, share)
    registry.register(ApiKey.SHARE_GROUP_HEARTBEAT, access.of_group(Operation.READ, membership.heartbeat))
    registry.register(ApiKey.SHARE_GROUP_DESCRIBE, membership.describe)
