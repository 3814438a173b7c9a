"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords (docs/protocols/kafka.md, rules 10, 16, 63 and 64)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import by_name, gathered, in_turns, portions
from bridges.auth import Operation
from bridges.catalog.topics import config as topic_config
from bridges.catalog.topics.topic import Topic
from bridges.errors import LogError, OffsetOutOfRange
from kafka_front.dispatch import Registry
from kafka_front.service.admin.cluster import METADATA_TOPIC
from kafka_front.service.log_errors import code_of, failure_of
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_USE_DEFAULT = -1
_PARTITIONS_PER_REQUEST = 10_000
"""Most partitions of all topics that one request creates, as at a broker; or the most of one topic, if that is more."""
_HIGH_WATERMARK = -1
_NO_ID = bytes(16)

_NewTopic = m.CreateTopicsRequest.CreatableTopic
_CreateResult = m.CreateTopicsResponse.CreatableTopicResult
_DeleteResult = m.DeleteTopicsResponse.DeletableTopicResult
_PartitionsResult = m.CreatePartitionsResponse.CreatePartitionsTopicResult


class Topics:
    """Handlers of requests that change topics."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._catalog = service.catalog
        self._logs = service.logs
        self._access = service.access
        self._mutations = service.node.quotas.mutation
        self._at_once = max(_PARTITIONS_PER_REQUEST, service.catalog.options.max_partitions_per_topic)

    def _charge(self, ctx: Context, partitions: int) -> None:
        """Charge the client's quota for created or deleted partitions (KIP-599). One request may exceed the quota of a
        second; the client's next one then waits."""
        if self._mutations.in_force:
            ctx.connection.charge(self._mutations, partitions)

    # --- creating ---------------------------------------------------------------------------------------------------

    async def create(self, ctx: Context, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
        first, twice = await by_name(request.topics, lambda topic: topic.name)
        too_many = await self._too_many(first.values())
        results = await gathered(
            self._create_one(ctx, topic, topic.name in twice, request.validate_only, too_many)
            for topic in first.values()
        )
        _tell_retriable(results)
        return m.CreateTopicsResponse(topics=results)

    async def _too_many(self, wanted: Iterable[_NewTopic]) -> bool:
        """Return whether the request asks for more partitions than a broker creates at once."""
        default = self._service.default_partitions()
        total = 0
        async for some in portions(wanted):
            for topic in some:
                asked = len(topic.assignments) or topic.num_partitions
                total += default if asked == _USE_DEFAULT else max(asked, 1)
        return total > self._at_once

    async def _create_one(
        self, ctx: Context, wanted: _NewTopic, twice: bool, validate_only: bool, too_many: bool
    ) -> _CreateResult:
        try:
            self._access.require_topic(ctx, Operation.CREATE, wanted.name)
            if too_many:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"a request may ask for {self._at_once} partitions in all")
            if twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} occurs twice in the request")
            if wanted.name == METADATA_TOPIC:
                # A broker's words and code, which differ from those for its other internal topics.
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {wanted.name} is prohibited.")
            partitions = self._partitions_of(wanted)
            config = _config_of(wanted)
            if validate_only:
                self._catalog.check_new_topic(wanted.name, partitions, config)
                return self._created(ctx, wanted.name, _NO_ID, partitions, topic_config.validate(config))
            topic = await self._catalog.create_topic(wanted.name, partitions, config)
            self._charge(ctx, partitions)
            return self._created(ctx, topic.name, topic.topic_id.bytes, partitions, topic.config)
        except (KafkaError, LogError) as error:
            return _CreateResult(wanted.name, _NO_ID, *failure_of(ctx.key, error))

    def _partitions_of(self, wanted: _NewTopic) -> int:
        """Return the number of partitions asked for. Raises KafkaError."""
        factor = wanted.replication_factor
        if wanted.assignments:
            if wanted.num_partitions != _USE_DEFAULT or factor != _USE_DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "with replica assignments, partitions and replication factor must be -1",
                )
            indexes = sorted(one.partition_index for one in wanted.assignments)
            if indexes != list(range(len(indexes))):
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assigned partitions must be numbered from 0 without gaps"
                )
            self._check_brokers([one.broker_ids for one in wanted.assignments])
            return len(indexes)
        # Any replication factor is accepted: the backend decides how often data is stored (rule 63).
        if factor != _USE_DEFAULT and factor <= 0:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {factor} is not positive")
        return self._service.default_partitions() if wanted.num_partitions == _USE_DEFAULT else wanted.num_partitions

    def _check_brokers(self, assignments: Sequence[list[int]]) -> None:
        for brokers in assignments:
            if brokers != [self._service.node_id]:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"partitions can be assigned to node {self._service.node_id} only, not to {brokers}",
                )

    def _created(
        self, ctx: Context, name: str, topic_id: bytes, partitions: int, config: dict[str, str]
    ) -> _CreateResult:
        if not self._access.topic(ctx, Operation.DESCRIBE_CONFIGS, name):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _CreateResult(
                name=name,
                topic_id=topic_id,
                topic_config_error_code=denied,
                num_partitions=-1,
                replication_factor=-1,
            )
        catalog = self._catalog
        rows = []
        for key in topic_config.TOPIC_CONFIGS:
            value = topic_config.resolve(key, config, catalog.node_config, catalog.options.static)
            rows.append(
                m.CreateTopicsResponse.CreatableTopicConfigs(
                    name=key,
                    value=None if value.definition.sensitive else value.value,
                    read_only=value.read_only,
                    config_source=int(value.source),
                    is_sensitive=value.definition.sensitive,
                )
            )
        return _CreateResult(
            name=name, topic_id=topic_id, num_partitions=partitions, replication_factor=1, configs=rows
        )

    async def create_partitions(self, ctx: Context, request: m.CreatePartitionsRequest) -> m.CreatePartitionsResponse:
        first, twice = await by_name(request.topics, lambda topic: topic.name)
        results = await gathered(
            self._add_partitions(ctx, topic, topic.name in twice, request.validate_only) for topic in first.values()
        )
        _tell_retriable(results)
        return m.CreatePartitionsResponse(results=results)

    async def _add_partitions(
        self, ctx: Context, wanted: m.CreatePartitionsRequest.CreatePartitionsTopic, twice: bool, validate_only: bool
    ) -> _PartitionsResult:
        try:
            if twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} occurs twice in the request")
            self._access.require_topic(ctx, Operation.ALTER, wanted.name)
            self._catalog.check_partitions(wanted.name, wanted.count)
            more = wanted.count - len(self._catalog.topic(wanted.name).partitions)
            if wanted.assignments is not None:
                if len(wanted.assignments) != more:
                    raise KafkaError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"assignments for {len(wanted.assignments)} partitions, but {more} are to be added: give each "
                        "new partition one",
                    )
                self._check_brokers([one.broker_ids for one in wanted.assignments])
            if not validate_only:
                await self._catalog.add_partitions(wanted.name, wanted.count)
                self._charge(ctx, more)
        except (KafkaError, LogError) as error:
            return _PartitionsResult(wanted.name, *failure_of(ctx.key, error))
        return _PartitionsResult(wanted.name)

    # --- deleting ---------------------------------------------------------------------------------------------------

    async def delete(self, ctx: Context, request: m.DeleteTopicsRequest) -> m.DeleteTopicsResponse:
        state = m.DeleteTopicsRequest.DeleteTopicState
        wanted = request.topics
        if ctx.version < 6:
            wanted = [state(name=name) async for name in in_turns(request.topic_names)]
        _, twice = await by_name(wanted, self._identity)
        results = await gathered(self._delete_one(ctx, one, self._identity(one) in twice) for one in wanted)
        _tell_retriable(results)
        return m.DeleteTopicsResponse(responses=results)

    def _identity(self, wanted: m.DeleteTopicsRequest.DeleteTopicState) -> object:
        """Return the same value for a topic's name and its id."""
        if wanted.name is not None:
            return wanted.name
        found = self._catalog.by_id.get(wanted.topic_id)
        return wanted.topic_id if found is None else found.name

    async def _delete_one(
        self, ctx: Context, wanted: m.DeleteTopicsRequest.DeleteTopicState, twice: bool
    ) -> _DeleteResult:
        result = _DeleteResult(name=wanted.name, topic_id=wanted.topic_id)
        topic: Topic | None
        try:
            if twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic occurs twice in the request")
            if wanted.name is None:
                if wanted.topic_id == _NO_ID:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "neither name nor id of the topic is given")
                topic = self._catalog.by_id.get(wanted.topic_id)
                if topic is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
                if self._access.topic(ctx, Operation.DESCRIBE, topic.name):
                    result.name = topic.name
            else:
                if wanted.topic_id != _NO_ID:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "both name and id of the topic are given")
                self._access.require_topic(ctx, Operation.DELETE, wanted.name)
                topic = self._catalog.topic(wanted.name)
            self._access.require_topic(ctx, Operation.DELETE, topic.name)
            partitions = len(topic.partitions)
            await self._catalog.delete_topic(topic.name)
            self._charge(ctx, partitions)
        except (KafkaError, LogError) as error:
            result.error_code, result.error_message = failure_of(ctx.key, error)
        else:
            result.name, result.topic_id = topic.name, topic.topic_id.bytes
        return result

    async def delete_records(self, ctx: Context, request: m.DeleteRecordsRequest) -> m.DeleteRecordsResponse:
        response = m.DeleteRecordsResponse()
        work = []
        async for topic in in_turns(request.topics):
            answer = m.DeleteRecordsResponse.DeleteRecordsTopicResult(topic.name)
            response.topics.append(answer)
            async for partition in in_turns(topic.partitions):
                result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult(partition.partition_index, -1)
                answer.partitions.append(result)
                if not self._access.topic(ctx, Operation.DELETE, topic.name):
                    result.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                work.append((topic.name, partition.offset, result))
        await gathered(self._trim(*one) for one in work)
        return response

    async def _trim(
        self, topic: str, offset: int, result: m.DeleteRecordsResponse.DeleteRecordsPartitionResult
    ) -> None:
        log = self._logs.get(topic, result.partition_index)
        if log is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        try:
            if "delete" not in self._catalog.effective(topic, "cleanup.policy"):
                result.error_code = ErrorCode.POLICY_VIOLATION
                return
            await log.ready()
            target = log.high_watermark if offset == _HIGH_WATERMARK else offset
            if target < 0:
                raise OffsetOutOfRange(f"offset {offset} is negative")
            result.low_watermark = await log.trim(target)
        except LogError as error:
            result.error_code = code_of(error)


def _tell_retriable(results: Sequence[_CreateResult | _PartitionsResult | _DeleteResult]) -> None:
    """Replace NOT_CONTROLLER where a part of the request is done: clients would repeat all of it, and see that part
    fail."""
    if any(not one.error_code for one in results):
        for one in results:
            if one.error_code == ErrorCode.NOT_CONTROLLER:
                one.error_code = ErrorCode.REQUEST_TIMED_OUT


def _config_of(wanted: _NewTopic) -> dict[str, str]:
    """Return the topic's own configuration. Raises KafkaError for a key without a value."""
    config: dict[str, str] = {}
    for row in wanted.configs:
        if row.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"configuration {row.name!r} has no value")
        config[row.name] = row.value
    return config


def register(registry: Registry, service: KafkaService) -> None:
    topics = Topics(service)
    registry.register(ApiKey.CREATE_TOPICS, topics.create)
    registry.register(ApiKey.DELETE_TOPICS, topics.delete)
    registry.register(ApiKey.CREATE_PARTITIONS, topics.create_partitions)
    registry.register(ApiKey.DELETE_RECORDS, topics.delete_records)
