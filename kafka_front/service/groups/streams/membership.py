"""StreamsGroupHeartbeat, StreamsGroupDescribe and StreamsGroupTopologyDescriptionUpdate (KIP-1071, KIP-1331)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from bridges.auth import Operation
from bridges.errors import GroupHeld
from kafka_front.context import DEFERRED, Outcome
from kafka_front.service.groups.consumer.group import ConsumerMember, Partitions
from kafka_front.service.groups.consumer.requests import HeartbeatCallback, HeartbeatReply
from kafka_front.service.groups.requests.describing import describe_groups
from kafka_front.service.groups.streams.group import Role, StreamsGroup, tasks_key, tasks_of
from kafka_front.service.groups.streams.requests import StreamsHeartbeat, StreamsReply
from kafka_front.service.groups.streams.topology import InternalTopic, Status, Subtopology, Topology
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.dispatch import Registry
    from kafka_front.service.groups.group_service import GroupService

_Heartbeat = m.StreamsGroupHeartbeatRequest
_Answer = m.StreamsGroupHeartbeatResponse
_Described = m.StreamsGroupDescribeResponse
Create = Callable[["Context", m.CreateTopicsRequest], Awaitable[m.CreateTopicsResponse]]
"""The handler of CreateTopics."""

_MOST_NAMES = 10_000
"""Most names in a topology: they are worked on in one step of the event loop."""
_TASK_OFFSET_INTERVAL_MS = 60_000
_ACCEPTABLE_LAG = 10_000
_NO_DESCRIPTION_STORED = 1
_DEFAULT_FACTOR = -1


class StreamsMembership:
    """Handlers of the requests for streams groups alone; ``create`` creates internal topics, with the rights of the
    member that needs them."""

    def __init__(self, service: GroupService, create: Create) -> None:
        self._service = service
        self._runtime = service.runtime
        self._create = create

    async def heartbeat(self, ctx: Context, request: _Heartbeat) -> Outcome:
        """Handle StreamsGroupHeartbeat; it is answered when the answer's content is durable."""
        refusals: list[str] = []

        def answer(reply: HeartbeatReply) -> None:
            if request.member_epoch >= 0:
                self._service.refusals.note(ctx, request.group_id, reply.error, reply.message)
            ctx.respond(_response(ctx.version, reply, refusals))

        try:
            await self._heartbeat(ctx, request, answer, refusals)
        except KafkaError as refused:
            answer(HeartbeatReply(refused.code, str(refused)))
        self._runtime.touched()
        return DEFERRED

    async def _heartbeat(
        self, ctx: Context, request: _Heartbeat, answer: HeartbeatCallback, refusals: list[str]
    ) -> None:
        asked = _request(ctx, request)
        if asked.epoch >= 0:
            if asked.topology is not None:
                await self._service.access.require_topics(ctx, Operation.DESCRIBE, asked.topology.names())
            refusals += await self._create_missing(ctx, asked)
        if asked.epoch == 0:
            try:
                self._service.progress.require_free(asked.group_id)
            except GroupHeld as held:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(held)) from held
        self._runtime.streams.heartbeat(self._runtime.now_ms(), asked, answer)

    async def _create_missing(self, ctx: Context, asked: StreamsHeartbeat) -> list[str]:
        """Create the internal topics that the group lacks, as if the member had; return why some were not created."""
        group = self._runtime.directory.streams.get(asked.group_id)
        if asked.topology is not None and (group is None or group.topology in (None, asked.topology)):
            missing = self._runtime.streams.plan(asked.topology).missing
        else:
            missing = () if group is None else group.plan.missing
        if not missing:
            return []
        topic, config = m.CreateTopicsRequest.CreatableTopic, m.CreateTopicsRequest.CreatableTopicConfig
        wanted = [
            topic(
                one.name,
                one.partitions,
                one.replication_factor or _DEFAULT_FACTOR,
                configs=[config(*pair) for pair in one.configs],
            )
            for one in missing
        ]
        made = await self._create(ctx, m.CreateTopicsRequest(topics=wanted))
        there = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        return [f"{one.name}: {one.error_message}" for one in made.topics if one.error_code not in there]

    async def describe(self, ctx: Context, request: m.StreamsGroupDescribeRequest) -> _Described:
        """Answer StreamsGroupDescribe."""

        def topics(group: StreamsGroup) -> Iterable[str]:
            return () if group.topology is None else group.topology.names()

        def more(group: StreamsGroup) -> Mapping[str, _Described.Topology]:
            return {} if group.topology is None else {"topology": _describe(group, group.topology)}

        answer = _Described()
        return await describe_groups(ctx, self._service.access, request, answer, self._find, _member, topics, more)

    def _find(self, group_id: str) -> StreamsGroup:
        group = self._runtime.directory.streams.get(group_id)
        if group is None:
            other = self._service.find(group_id)
            text = (
                f"Streams group {group_id} not found." if other is None else f"Group {group_id} is not a streams group."
            )
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return group


def _request(ctx: Context, request: _Heartbeat) -> StreamsHeartbeat:
    endpoint, tags = request.user_endpoint, request.client_tags
    by_role = {
        Role.ACTIVE: request.active_tasks,
        Role.STANDBY: request.standby_tasks,
        Role.WARMUP: request.warmup_tasks,
    }
    given = [tasks is not None for tasks in by_role.values()]
    if any(given) and not all(given):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "If one task-type is non-null, all must be non-null.")
    owned: Partitions = {
        tasks_key(role, one.subtopology_id): frozenset(one.partitions)
        for role, tasks in by_role.items()
        for one in tasks or ()
    }
    return StreamsHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        owned=owned if all(given) else None,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.connection.peer[0]}",
        topology=None if request.topology is None else _topology(request.topology),
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags=None if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
        endpoints_epoch=request.endpoint_information_epoch,
        stops_all=request.shutdown_application,
    )


def _topology(given: _Heartbeat.Topology) -> Topology:
    """Return the topology that a member names. Raises KafkaError."""

    def internal(topics: Iterable[_Heartbeat.TopicInfo]) -> tuple[InternalTopic, ...]:
        return tuple(
            InternalTopic(
                one.name,
                one.partitions,
                one.replication_factor,
                tuple(sorted((pair.key, pair.value) for pair in one.topic_configs)),
            )
            for one in topics
        )

    names = sum(
        len(one.source_topics)
        + len(one.repartition_sink_topics)
        + sum(1 + len(topic.topic_configs) for topic in (*one.repartition_source_topics, *one.state_changelog_topics))
        + sum(1 + len(group.source_topics) + len(group.repartition_source_topics) for group in one.copartition_groups)
        for one in given.subtopologies
    )
    if names > _MOST_NAMES:
        text = f"the topology has {names} names of topics and settings, above {_MOST_NAMES}: split the application"
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    found = []
    for one in sorted(given.subtopologies, key=lambda one: one.subtopology_id):
        if one.source_topic_regex:
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"subtopology {one.subtopology_id} reads topics by pattern: name them, or use the classic protocol",
            )
        if not (one.source_topics or one.repartition_source_topics):
            text = f"subtopology {one.subtopology_id} has no source topics"
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
        for changelog in one.state_changelog_topics:
            if changelog.partitions:
                text = f"Changelog topic {changelog.name} must have an undefined partition count, but it is set to "
                raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"{text}{changelog.partitions}.")
        repartitions = internal(one.repartition_source_topics)
        try:
            copartitions = tuple(
                (
                    *(one.source_topics[index] for index in group.source_topics),
                    *(repartitions[index].name for index in group.repartition_source_topics),
                )
                for group in one.copartition_groups
            )
        except IndexError:
            text = f"a copartition group of subtopology {one.subtopology_id} names topics that are not there"
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text) from None
        found.append(
            Subtopology(
                one.subtopology_id,
                tuple(one.source_topics),
                repartitions,
                tuple(one.repartition_sink_topics),
                internal(one.state_changelog_topics),
                copartitions,
            )
        )
    return Topology(given.epoch, tuple(found))


def _response(version: int, reply: HeartbeatReply, refusals: Iterable[str]) -> _Answer:
    answer = _Answer(
        error_code=reply.error,
        error_message=reply.message,
        member_id=reply.member_id or "",
        member_epoch=reply.epoch,
        heartbeat_interval_ms=reply.interval_ms,
    )
    if not isinstance(reply, StreamsReply):
        return answer
    answer.task_offset_interval_ms = _TASK_OFFSET_INTERVAL_MS
    answer.acceptable_recovery_lag = answer.acceptable_recovery_lag_legacy = _ACCEPTABLE_LAG
    for code, text in reply.statuses:
        why = f"; {'; '.join(refusals)}" if refusals and code == Status.MISSING_INTERNAL_TOPICS else ""
        assert answer.status is not None
        answer.status.append(_Answer.Status(code, text + why))
    if reply.assignment is not None:
        answer.active_tasks, answer.standby_tasks, answer.warmup_tasks = (
            [_Answer.TaskIds(one, sorted(numbers)) for one, numbers in tasks_of(reply.assignment, role)]
            for role in Role
        )
    answer.endpoint_information_epoch = reply.endpoints_epoch
    if reply.endpoints is not None:
        row = _Answer.TopicPartition
        answer.partitions_by_user_endpoint = [
            _Answer.EndpointToPartitions(
                _Answer.Endpoint(*endpoint), [row(*one) for one in active], [row(*one) for one in standby]
            )
            for endpoint, active, standby in reply.endpoints
        ]
    return answer


def _member(member: ConsumerMember) -> _Described.Member:
    process = member.process

    def assignment(tasks: Partitions) -> _Described.Assignment:
        row = _Described.TaskIds
        return _Described.Assignment(
            *([row(one, sorted(numbers)) for one, numbers in tasks_of(tasks, role)] for role in Role)
        )

    return _Described.Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=process.topology_epoch,
        process_id=process.process_id,
        user_endpoint=None if process.endpoint is None else _Described.Endpoint(*process.endpoint),
        client_tags=[_Described.KeyValue(*tag) for tag in process.tags],
        assignment=assignment(member.assigned),
        target_assignment=assignment(member.target),
    )


def _describe(group: StreamsGroup, topology: Topology) -> _Described.Topology:
    """Return a group's topology, with the numbers of partitions that its topics have."""
    there = group.topics or {}

    def internal(topics: Iterable[InternalTopic]) -> list[_Described.TopicInfo]:
        return [
            _Described.TopicInfo(
                one.name,
                there[one.name][1] if one.name in there else one.partitions,
                one.replication_factor,
                [_Described.KeyValue(*pair) for pair in one.configs],
            )
            for one in topics
        ]

    return _Described.Topology(
        topology.epoch,
        [
            _Described.Subtopology(
                one.subtopology_id,
                list(one.source_topics),
                list(one.repartition_sinks),
                internal(one.changelogs),
                internal(one.repartition_sources),
            )
            for one in topology.subtopologies
        ],
    )


def register(registry: Registry, service: GroupService, create: Create) -> None:
    """Serve keys 88 and 89."""
    membership, of_group = StreamsMembership(service, create), service.access.of_group
    registry.register(ApiKey.STREAMS_GROUP_HEARTBEAT, of_group(Operation.READ, membership.heartbeat))
    registry.register(ApiKey.STREAMS_GROUP_DESCRIBE, membership.describe)
