"""Handlers of ConsumerGroupHeartbeat and ConsumerGroupDescribe, between the messages and KIP-848's coordinator."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from bridges.auth import Operation, Principal
from bridges.errors import GroupHeld
from kafka_front.context import DEFERRED, Outcome
from kafka_front.dispatch import Registry
from kafka_front.service.groups.admission import require_few_topics
from kafka_front.service.groups.consumer.group import ConsumerGroup, ConsumerMember, Partitions, View
from kafka_front.service.groups.consumer.requests import HeartbeatCallback, HeartbeatReply, HeartbeatRequest
from kafka_front.service.groups.group_service import GroupService
from kafka_front.service.groups.requests.describing import describe_groups
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context

_MEMBER_TYPE_SINCE = 1
_OWN_MEMBER_ID_SINCE = 1
"""First version of the heartbeat whose clients make their member ids themselves (KIP-1082); before, the node does."""
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
_TOPIC = m.ConsumerGroupHeartbeatResponse.TopicPartitions


class ConsumerMembership:
    """Handlers of the two requests for groups of KIP-848 alone."""

    def __init__(self, service: GroupService) -> None:
        self._service = service
        self._runtime = service.runtime

    async def heartbeat(self, ctx: Context, request: m.ConsumerGroupHeartbeatRequest) -> Outcome:
        """Handle ConsumerGroupHeartbeat; it is answered when the answer's content is durable."""

        def answer(reply: HeartbeatReply) -> None:
            if request.member_epoch >= 0:
                self._service.refusals.note(ctx, request.group_id, reply.error, reply.message)
            ctx.respond(_response(reply))

        try:
            await self._heartbeat(ctx, request, answer)
        except KafkaError as refused:
            answer(HeartbeatReply(refused.code, str(refused)))
        self._runtime.touched()
        return DEFERRED

    async def _heartbeat(
        self, ctx: Context, request: m.ConsumerGroupHeartbeatRequest, answer: HeartbeatCallback
    ) -> None:
        access = self._service.access
        require_few_topics(request.subscribed_topic_names or ())
        require_few_topics(request.topic_partitions or ())
        await access.require_topics(ctx, Operation.DESCRIBE, request.subscribed_topic_names or ())
        asked = _request(ctx, request, access.viewer(ctx))
        pattern = asked.pattern
        if pattern is None:
            group = self._runtime.directory.consumer.get(asked.group_id)
            member = None if group is None else group.members.get(asked.member_id)
            pattern = None if member is None or member.view is None else member.view.pattern

        def go_on() -> None:
            if asked.epoch == 0:
                try:
                    self._service.progress.require_free(asked.group_id)
                except GroupHeld as held:
                    answer(HeartbeatReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(held)))
                    return
            self._runtime.consumers.heartbeat(self._runtime.now_ms(), asked, answer)

        if pattern and asked.epoch >= 0:
            await self._runtime.topics.learn(View(pattern, asked.viewer), go_on)
        else:
            go_on()

    async def describe(self, ctx: Context, request: m.ConsumerGroupDescribeRequest) -> m.ConsumerGroupDescribeResponse:
        """Answer ConsumerGroupDescribe."""
        row = partial(self._member, ctx.version)
        return await describe_groups(
            ctx, self._service.access, request, m.ConsumerGroupDescribeResponse(), self._find, row
        )

    def _find(self, group_id: str) -> ConsumerGroup:
        group = self._service.find(group_id)
        if self._service.read_elsewhere(group_id) is not None:
            message = f"group {group_id!r} is read through another protocol: DescribeGroups shows its members"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        found = self._runtime.directory.consumer.get(group_id)
        if found is None:
            kind = "there is no group" if group is None else "a group of another kind has the name"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind} {group_id!r}")
        return found

    def _member(self, version: int, member: ConsumerMember) -> m.ConsumerGroupDescribeResponse.Member:
        kind = _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER
        return m.ConsumerGroupDescribeResponse.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex="" if member.view is None else member.view.pattern,
            assignment=self._assignment(member.assigned),
            target_assignment=self._assignment(member.target),
            member_type=kind if version >= _MEMBER_TYPE_SINCE else -1,
        )

    def _assignment(self, partitions: Partitions) -> m.ConsumerGroupDescribeResponse.Assignment:
        named = self._runtime.topics.name_partitions(partitions)
        return m.ConsumerGroupDescribeResponse.Assignment(
            [m.ConsumerGroupDescribeResponse.TopicPartitions(*one) for one in named]
        )


def _request(ctx: Context, request: m.ConsumerGroupHeartbeatRequest, viewer: Principal | None) -> HeartbeatRequest:
    topics, owned = request.subscribed_topic_names, request.topic_partitions
    member_id = request.member_id
    if not member_id and request.member_epoch == 0 and ctx.version < _OWN_MEMBER_ID_SINCE:
        member_id = str(uuid.uuid4())
    return HeartbeatRequest(
        request.group_id,
        member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if topics is None else frozenset(topics),
        request.subscribed_topic_regex,
        viewer,
        request.server_assignor,
        None if owned is None else {bytes(one.topic_id): frozenset(one.partitions) for one in owned},
        ctx.client_id or "",
        f"/{ctx.connection.peer[0]}",
    )


def _response(answer: HeartbeatReply) -> m.ConsumerGroupHeartbeatResponse:
    assignment = answer.assignment
    return m.ConsumerGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=None
        if assignment is None
        else m.ConsumerGroupHeartbeatResponse.Assignment(
            [_TOPIC(topic_id, sorted(numbers)) for topic_id, numbers in assignment.items()]
        ),
    )


def register(registry: Registry, service: GroupService) -> None:
    """Serve keys 68 and 69."""
    membership, of_group = ConsumerMembership(service), service.access.of_group
    registry.register(ApiKey.CONSUMER_GROUP_HEARTBEAT, of_group(Operation.READ, membership.heartbeat))
    registry.register(ApiKey.CONSUMER_GROUP_DESCRIBE, membership.describe)
