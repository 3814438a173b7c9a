"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets (KIP-932, KIP-1226)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import Turns, in_turns
from bridges.auth import Operation
from bridges.errors import LogError
from kafka_front.service.groups.share import tables
from kafka_front.service.groups.share.partition import SharePartition
from kafka_front.service.log_errors import failure_of
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from kafka_front.context import Context
    from kafka_front.dispatch import Registry
    from kafka_front.service.core import KafkaService
    from kafka_front.service.groups.share.service import ShareService

_AskedGroup = m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
_Group = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
_Topic = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
_Partition = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
_Altered = m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition


class ShareOffsets:
    """Handlers of the requests about offsets of share groups."""

    def __init__(self, service: KafkaService, share: ShareService) -> None:
        self._share = share
        self._access = service.access
        self._catalog = service.catalog
        self._logs = service.logs
        self._db = service.node.db

    async def describe(
        self, ctx: Context, request: m.DescribeShareGroupOffsetsRequest
    ) -> m.DescribeShareGroupOffsetsResponse:
        """Answer DescribeShareGroupOffsets: the offsets from which groups would go on after a restart."""
        response = m.DescribeShareGroupOffsetsResponse()
        async for asked in in_turns(request.groups):
            answer = _Group(group_id=asked.group_id)
            response.groups.append(answer)
            try:
                self._access.require_group(ctx, Operation.DESCRIBE, asked.group_id)
                self._share.find(asked.group_id)
                await self._describe(ctx, asked, answer)
            except (KafkaError, LogError) as error:
                answer.error_code, answer.error_message = failure_of(ctx.key, error)
        return response

    async def _describe(self, ctx: Context, asked: _AskedGroup, answer: _Group) -> None:
        rows = await self._db.run(partial(tables.of_group, group=asked.group_id))
        kept = {
            (topic_id, number): SharePartition(start, self._share.most_deliveries(asked.group_id), spans)
            for topic_id, number, start, spans in rows
        }
        wanted: list[tuple[str, list[int]]] = [(one.topic_name, list(one.partitions)) for one in asked.topics or ()]
        if asked.topics is None:
            named: dict[str, list[int]] = {}
            for topic_id, number in sorted(kept):
                topic = self._catalog.by_id.get(topic_id)
                if topic is not None and self._access.topic(ctx, Operation.DESCRIBE, topic.name):
                    named.setdefault(topic.name, []).append(number)
            wanted = sorted(named.items())
        turns = Turns()
        for name, numbers in wanted:
            topic = self._catalog.topics.get(name)
            told = _Topic(topic_name=name)
            answer.topics.append(told)
            allowed = self._access.topic(ctx, Operation.DESCRIBE, name)
            if topic is not None and allowed:
                told.topic_id = topic.topic_id.bytes
            for number in numbers:
                await turns.rest()
                row = _Partition(partition_index=number, start_offset=-1, lag=-1)
                told.partitions.append(row)
                log = None if topic is None else self._logs.get(name, number)
                if not allowed:
                    row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif log is None:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif (state := kept.get((told.topic_id, number))) is not None:
                    row.start_offset = state.start
                    if log.is_open:
                        row.lag = state.lag(log.high_watermark)

    async def alter(self, ctx: Context, request: m.AlterShareGroupOffsetsRequest) -> m.AlterShareGroupOffsetsResponse:
        """Answer AlterShareGroupOffsets, for a group without members; an unknown group is created, as by a broker."""
        group_id = request.group_id
        await self._share.find_or_make_empty(group_id)
        response = m.AlterShareGroupOffsetsResponse()
        turns = Turns()
        for asked in request.topics:
            topic = self._topic(ctx, asked.topic_name)
            answer = m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            response.responses.append(answer)
            if not isinstance(topic, KafkaError):
                answer.topic_id = topic.topic_id.bytes
            for one in asked.partitions:
                await turns.rest()
                row = _Altered(partition_index=one.partition_index)
                answer.partitions.append(row)
                try:
                    if isinstance(topic, KafkaError):
                        raise topic
                    await self._alter(group_id, topic, one.partition_index, one.start_offset)
                except (KafkaError, LogError) as error:
                    row.error_code, row.error_message = failure_of(ctx.key, error)
        return response

    async def _alter(self, group_id: str, topic: Topic, number: int, start: int) -> None:
        if self._logs.get(topic.name, number) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {number}")
        if start < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{start} is no offset")
        place = (topic.topic_id.bytes, number)
        await self._db.run(
            partial(tables.put, group=group_id, place=place, topic=topic.name, start=start),
            then=lambda _: self._share.fence([(group_id, *place)]),
        )
        self._share.changed(group_id, *place)

    def _topic(self, ctx: Context, name: str) -> Topic | KafkaError:
        if not self._access.topic(ctx, Operation.READ, name):
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"you may not read topic {name!r}")
        topic = self._catalog.topics.get(name)
        if topic is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    async def delete(
        self, ctx: Context, request: m.DeleteShareGroupOffsetsRequest
    ) -> m.DeleteShareGroupOffsetsResponse:
        """Answer DeleteShareGroupOffsets: a group without members will begin the topics anew."""
        group_id = request.group_id
        self._share.find_empty(group_id)
        response = m.DeleteShareGroupOffsetsResponse()
        async for asked in in_turns(request.topics):
            answer = m.DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            response.responses.append(answer)
            try:
                topic = self._topic(ctx, asked.topic_name)
                if isinstance(topic, KafkaError):
                    raise topic
                answer.topic_id = topic.topic_id.bytes
                if not await self._forget(group_id, answer.topic_id):
                    text = f"group {group_id!r} has no offsets of topic {topic.name!r}"
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            except (KafkaError, LogError) as error:
                answer.error_code, answer.error_message = failure_of(ctx.key, error)
        return response

    async def _forget(self, group_id: str, topic_id: bytes) -> bool:
        """Delete a group's offsets of a topic; return whether there were any."""
        gone = await self._db.run(
            partial(tables.forget_topic, group=group_id, topic_id=topic_id),
            then=lambda _: self._share.fence(
                live.key for live in self._share.live_of(group_id) if live.key[1] == topic_id
            ),
        )
        for place in gone:
            self._share.changed(group_id, *place)
        return bool(gone)


def register(registry: Registry, service: KafkaService, share: ShareService) -> None:
    """Serve keys 90 to 92."""
    offsets, of_group = ShareOffsets(service, share), service.access.of_group
    registry.register(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, offsets.describe)
    registry.register(ApiKey.ALTER_SHARE_GROUP_OFFSETS, of_group(Operation.READ, offsets.alter))
    registry.register(ApiKey.DELETE_SHARE_GROUP_OFFSETS, of_group(Operation.DELETE, offsets.delete))
