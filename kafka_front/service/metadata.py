"""Metadata: brokers, topics and leaders as the listener's clients see them (docs/protocols/kafka.md, rules 13-18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.run.turns import Turns, in_turns
from bridges.auth import Operation
from bridges.catalog.topics.names import InvalidTopicName, check_topic_name
from bridges.catalog.topics.topic import NameCollision, Topic, TopicExists, TopicKind
from bridges.errors import LogError
from kafka_front.dispatch import Registry
from kafka_front.service.access import NO_OPERATIONS
from kafka_front.service.brokers import NOBODY
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_AUTO_CREATE_FLAG_SINCE = 4
_EMPTY_MEANS_NONE_SINCE = 1
_NO_ID = bytes(16)
_SLICE = 200
"""Partitions described before the event loop may serve others."""
_TopicAnswer = MetadataResponse.MetadataResponseTopic


class Metadata:
    """The handler of Metadata requests."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._catalog = service.catalog
        self._logs = service.logs
        self._access = service.access

    async def handle(self, ctx: Context, request: MetadataRequest) -> MetadataResponse:
        service = self._service
        await service.brokers.await_known()
        brokers = service.brokers.all(ctx.connection)
        response = MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(*broker) for broker in brokers],
            cluster_id=self._catalog.cluster_id,
            controller_id=brokers[0].node_id,
            cluster_authorized_operations=(
                self._access.node_operations(ctx) if request.include_cluster_authorized_operations else NO_OPERATIONS
            ),
        )
        operations = request.include_topic_authorized_operations
        asked = request.topics
        if asked is None or (not asked and ctx.version < _EMPTY_MEANS_NONE_SINCE):
            async for topic in in_turns(list(self._catalog.topics.values())):
                if self._access.topic(ctx, Operation.DESCRIBE, topic.name):
                    response.topics.append(await self._describe(ctx, topic, operations))
            return response
        may_create = service.auto_create_topics and (
            ctx.version < _AUTO_CREATE_FLAG_SINCE or request.allow_auto_topic_creation
        )
        seen: set[tuple[str | None, bytes]] = set()
        async for wanted in in_turns(asked):
            if (key := (wanted.name, wanted.topic_id)) not in seen:  # a broker treats the topics as a set, too
                seen.add(key)
                response.topics.append(await self._describe_topic(ctx, wanted, may_create, operations))
        return response

    async def _describe_topic(
        self, ctx: Context, wanted: MetadataRequest.MetadataRequestTopic, may_create: bool, operations: bool
    ) -> MetadataResponse.MetadataResponseTopic:
        name = wanted.name
        if name is None or wanted.topic_id != _NO_ID:  # Java's clients leave the name empty then, and not null
            topic = self._catalog.by_id.get(wanted.topic_id)
            if topic is None:
                return _failed(None, ErrorCode.UNKNOWN_TOPIC_ID, wanted.topic_id)
            if not self._access.topic(ctx, Operation.DESCRIBE, topic.name):
                return _failed(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.topic_id)
            return await self._describe(ctx, topic, operations)
        if not self._access.topic(ctx, Operation.DESCRIBE, name):
            return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = self._catalog.topics.get(name)
        if topic is None and (internal := self._service.internal_topics.get(name)) is not None:
            topic = await internal.find()
            if topic is None:
                return _failed(name, ErrorCode.LEADER_NOT_AVAILABLE)
        if topic is not None:
            return await self._describe(ctx, topic, operations)
        if may_create and not self._access.topic(ctx, Operation.CREATE, name):
            return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if not may_create:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            try:
                check_topic_name(name)  # other obstacles to its creation do not matter: it is unknown
            except InvalidTopicName:
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            answer = _failed(name, code)
            if operations:
                answer.topic_authorized_operations = self._access.topic_operations(ctx, name)
            return answer
        try:
            created = await self._catalog.create_topic(name, self._service.default_partitions())
            return await self._describe(ctx, created, operations)
        except TopicExists:
            # Another request is creating it, or just has.
            topic = self._catalog.topics.get(name)
            if topic is None:
                return _failed(name, ErrorCode.LEADER_NOT_AVAILABLE)
            return await self._describe(ctx, topic, operations)
        except (InvalidTopicName, NameCollision):
            return _failed(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        except LogError as error:
            self._service.log.warning("topic not created", topic=name, error=str(error))
            return _failed(name, ErrorCode.LEADER_NOT_AVAILABLE)

    async def _describe(self, ctx: Context, topic: Topic, operations: bool) -> MetadataResponse.MetadataResponseTopic:
        epoch, replicas = self._logs.leader_epoch, self._service.brokers.replicas
        answer = _TopicAnswer(
            name=topic.name,
            topic_id=topic.topic_id.bytes,
            is_internal=topic.kind is TopicKind.INTERNAL,
            partitions=[],
            topic_authorized_operations=(
                self._access.topic_operations(ctx, topic.name) if operations else NO_OPERATIONS
            ),
        )
        turns = Turns()
        for start in range(0, len(topic.partitions), _SLICE):
            answer.partitions += [
                MetadataResponse.MetadataResponsePartition(
                    error_code=int(ErrorCode.NONE if nodes else ErrorCode.LEADER_NOT_AVAILABLE),
                    partition_index=partition.index,
                    leader_id=nodes[0] if nodes else NOBODY,
                    leader_epoch=epoch(topic.name, partition.index),
                    replica_nodes=nodes,
                    isr_nodes=nodes,
                )
                for partition in topic.partitions[start : start + _SLICE]
                for nodes in (replicas(topic.name, partition.index),)
            ]
            await turns.rest()
        return answer


def _failed(name: str | None, code: ErrorCode, topic_id: bytes = _NO_ID) -> MetadataResponse.MetadataResponseTopic:
    return _TopicAnswer(error_code=code, name=name, topic_id=topic_id, topic_authorized_operations=NO_OPERATIONS)


def register(registry: Registry, service: KafkaService) -> None:
    registry.register(ApiKey.METADATA, Metadata(service).handle)
