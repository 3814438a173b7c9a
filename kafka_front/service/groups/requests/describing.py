"""The answers to ConsumerGroupDescribe (KIP-848), StreamsGroupDescribe (KIP-1071) and ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from kafka_front.service.access import NO_OPERATIONS, Access
from kafka_front.service.groups.consumer.group import ConsumerGroup
from kafka_front.service.groups.share.group import ShareGroup
from kafka_front.wire import messages as m
from kafka_front.wire.errors import KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context

R = TypeVar("R", m.ConsumerGroupDescribeResponse, m.ShareGroupDescribeResponse, m.StreamsGroupDescribeResponse)


async def describe_groups(
    ctx: Context,
    access: Access,
    request: m.ConsumerGroupDescribeRequest | m.ShareGroupDescribeRequest | m.StreamsGroupDescribeRequest,
    response: R,
    find: Callable[[str], ConsumerGroup | ShareGroup],
    row: Callable[[Any], Any],
    topics_of: Callable[[Any], Iterable[str]] = lambda group: (),
    more: Callable[[Any], Mapping[str, Any]] = lambda group: {},
) -> R:
    """Add each group that the request names to ``response``, once. ``find`` returns a group or raises KafkaError;
    ``row`` returns the description of a member, ``more`` further fields of a group, and ``topics_of`` topics that it
    is about.

    A group whose members read a topic that the client may not describe is answered with an error.
    """

    async def described(group_id: str) -> Any:
        access.require_group(ctx, Operation.DESCRIBE, group_id)
        group = find(group_id)
        rows = []
        topics = set(topics_of(group))
        async for member in in_turns(list(group.members.values())):
            shown = row(member)
            rows.append(shown)
            for assigned in (shown.assignment, getattr(shown, "target_assignment", shown.assignment)):
                topics.update(one.topic_name for one in getattr(assigned, "topic_partitions", ()))
        await access.require_topics(ctx, Operation.DESCRIBE, topics)
        return response.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor,
            members=rows,
            authorized_operations=access.group_operations(ctx, group_id)
            if request.include_authorized_operations
            else NO_OPERATIONS,
            **more(group),
        )

    async for group_id in in_turns(dict.fromkeys(request.group_ids)):
        try:
            response.groups.append(await described(group_id))
        except KafkaError as error:
            response.groups.append(response.DescribedGroup(error.code, error.message, group_id))
    return response
