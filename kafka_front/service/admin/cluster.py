"""Answers to admin tools about the cluster: nodes, disk use, leaders, reassignments, partitions, producers, quorum.

Each partition has one visible replica: the node that leads it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import Turns, by_name, gathered, in_order, in_turns
from bridges.auth import Operation
from bridges.catalog.topics.topic import TopicKind
from bridges.errors import LogError
from bridges.formats.producer import LedgerKind
from bridges.log.ledger.rules import kafka_producer
from bridges.log.partition.partition_log import PartitionLog
from kafka_front.dispatch import Registry
from kafka_front.service.access import NO_OPERATIONS
from kafka_front.service.api_versions import finalized_features
from kafka_front.service.brokers import NOBODY
from kafka_front.service.log_errors import failure_of
from kafka_front.service.once import Once
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_BROKERS = 1
_CONTROLLERS = 2
METADATA_TOPIC = "__cluster_metadata"
_MAX_PAGE = 2000
"""Most partitions in one page of DescribeTopicPartitions, whatever the client allows (KIP-966)."""

_PageTopic = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_PagePartition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


class Cluster:
    """Handlers of requests about the cluster."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._catalog = service.catalog
        self._logs = service.logs
        self._access = service.access

    async def describe(self, ctx: Context, request: m.DescribeClusterRequest) -> m.DescribeClusterResponse:
        if request.endpoint_type == _CONTROLLERS:
            return m.DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="this listener is for clients of brokers, not of controllers",
                endpoint_type=request.endpoint_type,
            )
        if request.endpoint_type != _BROKERS:
            return m.DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"endpoint type {request.endpoint_type} is unknown",
                endpoint_type=request.endpoint_type,
            )
        await self._service.brokers.await_known()
        brokers = self._service.brokers.all(ctx.connection)
        return m.DescribeClusterResponse(
            cluster_id=self._service.cluster_id,
            controller_id=brokers[0].node_id,
            brokers=[
                m.DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in brokers
            ],
            cluster_authorized_operations=(
                self._access.node_operations(ctx) if request.include_cluster_authorized_operations else NO_OPERATIONS
            ),
        )

    async def update_features(self, ctx: Context, request: m.UpdateFeaturesRequest) -> m.UpdateFeaturesResponse:
        """Accept a feature level that is in force already, as a broker does, and refuse any other (UpdateFeatures,
        KIP-584)."""
        levels = finalized_features(self._service.settings.transaction_version)
        async for wanted in in_turns(request.feature_updates):
            name, level = wanted.feature, levels.get(wanted.feature)
            if wanted.max_version_level != level:
                has = "there is no such feature here" if level is None else f"it has level {level}"
                setting = " (kafka.transaction_version)" if name == "transaction.version" else ""
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"feature {name[:100]!r} cannot have level {wanted.max_version_level}: {has}{setting}",
                )
        row = m.UpdateFeaturesResponse.UpdatableFeatureResult
        return m.UpdateFeaturesResponse(results=[row(wanted.feature) for wanted in request.feature_updates])

    # --- disk -------------------------------------------------------------------------------------------------------

    async def log_dirs(self, ctx: Context, request: m.DescribeLogDirsRequest) -> m.DescribeLogDirsResponse:
        wanted: Iterable[tuple[str, Iterable[int]]]
        if request.topics is None:
            wanted = ((topic.name, range(len(topic.partitions))) for topic in list(self._catalog.topics.values()))
        else:
            named, _ = await by_name(request.topics, lambda one: one.topic)
            wanted = ((one.topic, one.partitions) for one in named.values())
        path = self._service.node.data_dir.resolve()
        disk = await asyncio.to_thread(os.statvfs, path)
        result = m.DescribeLogDirsResponse.DescribeLogDirsResult(
            log_dir=str(path),
            total_bytes=disk.f_blocks * disk.f_frsize,
            usable_bytes=disk.f_bavail * disk.f_frsize,
        )
        async for name, partitions in in_turns(wanted):
            logs = await self._opened(self._logs.get(name, index) for index in dict.fromkeys(partitions))
            rows = [
                m.DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=log.partition, partition_size=log.size_bytes
                )
                for log in logs
            ]
            if rows:
                result.topics.append(m.DescribeLogDirsResponse.DescribeLogDirsTopic(name, rows))
        return m.DescribeLogDirsResponse(results=[result])

    async def alter_log_dirs(
        self, ctx: Context, request: m.AlterReplicaLogDirsRequest
    ) -> m.AlterReplicaLogDirsResponse:
        """Accept replicas in the directory that they are in already: a node has one."""
        own = str(self._service.node.data_dir.resolve())
        topics: dict[str, m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = {}
        async for wanted in in_turns(request.dirs):
            async for topic in in_turns(wanted.topics):
                of = m.AlterReplicaLogDirsResponse
                result = topics.setdefault(topic.name, of.AlterReplicaLogDirTopicResult(topic.name))
                async for index in in_turns(topic.partitions):
                    code = ErrorCode.NONE
                    if wanted.path != own:
                        code = ErrorCode.LOG_DIR_NOT_FOUND
                    elif self._catalog.stream_of(topic.name, index) is None:
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    elif self._service.brokers.leader(topic.name, index) != self._service.node_id:
                        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    result.partitions.append(of.AlterReplicaLogDirPartitionResult(index, code))
        return m.AlterReplicaLogDirsResponse(results=list(topics.values()))

    async def _opened(self, logs: Iterable[PartitionLog | None]) -> list[PartitionLog]:
        """Open ``logs``; return those that exist and could be opened."""

        async def opened(log: PartitionLog) -> bool:
            try:
                await log.ready()
            except LogError:
                return False
            return True

        found = [log async for log in in_turns(logs) if log is not None]
        return [log for log, is_open in zip(found, await gathered(map(opened, found)), strict=True) if is_open]

    # --- leaders and replicas -----------------------------------------------------------------------------------------

    async def elect_leaders(self, ctx: Context, request: m.ElectLeadersRequest) -> m.ElectLeadersResponse:
        response = m.ElectLeadersResponse()
        # Asked about all partitions, a broker lists only those whose leader changed: here none ever does.
        async for one in in_turns(request.topic_partitions or []):
            result = m.ElectLeadersResponse.ReplicaElectionResult(one.topic)
            response.replica_election_results.append(result)
            async for index in in_turns(one.partitions):
                if self._catalog.stream_of(one.topic, index) is None:
                    code, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
                else:
                    code, text = ErrorCode.ELECTION_NOT_NEEDED, "the preferred replica leads already"
                result.partition_result.append(m.ElectLeadersResponse.PartitionResult(index, code, text))
        return response

    def reassignments(
        self, ctx: Context, request: m.ListPartitionReassignmentsRequest
    ) -> m.ListPartitionReassignmentsResponse:
        return m.ListPartitionReassignmentsResponse()

    async def reassign(
        self, ctx: Context, request: m.AlterPartitionReassignmentsRequest
    ) -> m.AlterPartitionReassignmentsResponse:
        # The flag makes no difference where there is one replica.
        response = m.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change
        )
        async for topic in in_turns(request.topics):
            answer = m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(topic.name)
            response.responses.append(answer)
            async for partition in in_turns(topic.partitions):
                code, text = self._reassigned(topic.name, partition.partition_index, partition.replicas)
                answer.partitions.append(
                    m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                        partition.partition_index, code, text
                    )
                )
        return response

    def _reassigned(self, topic: str, index: int, replicas: list[int] | None) -> tuple[ErrorCode, str | None]:
        if self._catalog.stream_of(topic, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
        if replicas is None:
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "nothing is being reassigned"
        has = self._service.brokers.replicas(topic, index)
        if replicas and replicas in (has, has[:1]):
            return ErrorCode.NONE, None
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"its replicas are {has}, the first of which is its leader"

    # --- partitions and producers ------------------------------------------------------------------------------------

    async def topic_partitions(
        self, ctx: Context, request: m.DescribeTopicPartitionsRequest
    ) -> m.DescribeTopicPartitionsResponse:
        """Return partitions in the order of topic names, from the cursor on, as many as fit a page."""
        response = m.DescribeTopicPartitionsResponse()
        named, _ = await by_name(request.topics, lambda topic: topic.name)
        cursor = request.cursor
        room = min(max(request.response_partition_limit, 1), _MAX_PAGE)
        async for name in in_order([*(named or self._catalog.topics)]):
            if cursor is not None and name < cursor.topic_name:
                continue
            topic = self._catalog.topics.get(name)
            if not self._access.topic(ctx, Operation.DESCRIBE, name):
                if request.topics:
                    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    response.topics.append(_PageTopic(code, name, topic_authorized_operations=NO_OPERATIONS))
                continue
            if topic is None and (internal := self._service.internal_topics.get(name)) is not None:
                topic = await internal.find()
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                response.topics.append(_PageTopic(code, name, topic_authorized_operations=NO_OPERATIONS))
                continue
            start = max(cursor.partition_index, 0) if cursor is not None and name == cursor.topic_name else 0
            if not room:
                response.next_cursor = m.DescribeTopicPartitionsResponse.Cursor(name, start)
                break
            end = min(start + room, len(topic.partitions))
            response.topics.append(
                _PageTopic(
                    name=name,
                    topic_id=topic.topic_id.bytes,
                    is_internal=topic.kind is TopicKind.INTERNAL,
                    partitions=[self._page_partition(name, index) for index in range(start, end)],
                    topic_authorized_operations=self._access.topic_operations(ctx, name),
                )
            )
            room -= max(end - start, 0)
            if end < len(topic.partitions):
                response.next_cursor = m.DescribeTopicPartitionsResponse.Cursor(name, end)
                break
        return response

    def _page_partition(self, topic: str, index: int) -> _PagePartition:
        replicas = self._service.brokers.replicas(topic, index)
        return _PagePartition(
            error_code=int(ErrorCode.NONE if replicas else ErrorCode.LEADER_NOT_AVAILABLE),
            partition_index=index,
            leader_id=replicas[0] if replicas else NOBODY,
            leader_epoch=self._logs.leader_epoch(topic, index),
            replica_nodes=replicas,
            isr_nodes=replicas,
            eligible_leader_replicas=[],
            last_known_elr=[],
        )

    async def producers(self, ctx: Context, request: m.DescribeProducersRequest) -> m.DescribeProducersResponse:
        response = m.DescribeProducersResponse()
        once = Once()
        async for topic in in_turns(request.topics):
            answer = m.DescribeProducersResponse.TopicResponse(topic.name)
            response.topics.append(answer)
            async for index in in_turns(topic.partition_indexes):
                result = m.DescribeProducersResponse.PartitionResponse(index)
                answer.partitions.append(result)
                try:
                    once.name((topic.name, index))
                    self._access.require_topic(ctx, Operation.READ, topic.name)
                    await self._find_producers(topic.name, result)
                except (KafkaError, LogError) as error:
                    result.error_code, result.error_message = failure_of(ctx.key, error)
                once.rows(len(result.active_producers))
        return response

    async def _find_producers(self, topic: str, result: m.DescribeProducersResponse.PartitionResponse) -> None:
        """Add the producers of a partition to its part of the answer. Raises KafkaError, LogError."""
        log = self._logs.get(topic, result.partition_index)
        if log is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
        await log.ready()
        producers = log.state.ledger.table(LedgerKind.KAFKA)
        async for key in in_turns(producers.writers()):
            row = producers.row(key)
            if row is not None:
                state = kafka_producer(key, row)
                result.active_producers.append(
                    m.DescribeProducersResponse.ProducerState(
                        producer_id=state.producer_id,
                        producer_epoch=state.epoch,
                        last_sequence=state.batches[-1].last_sequence,
                        last_timestamp=state.last_ms,
                        coordinator_epoch=0,
                        current_txn_start_offset=log.state.transactions.open.get(state.producer_id, -1),
                    )
                )

    # --- nodes ------------------------------------------------------------------------------------------------------

    async def unregister(self, ctx: Context, request: m.UnregisterBrokerRequest) -> m.UnregisterBrokerResponse:
        """Refuse to forget a node that serves (UnregisterBroker); one that has stopped is forgotten by itself."""
        await self._service.brokers.await_known()
        if self._service.brokers.find(request.broker_id, ctx.connection) is None:
            text = f"Broker ID {request.broker_id} is not currently registered"
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
        text = f"node {request.broker_id} serves: stop it, and the others forget it"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)

    # --- quorum -----------------------------------------------------------------------------------------------------

    async def quorum(self, ctx: Context, request: m.DescribeQuorumRequest) -> m.DescribeQuorumResponse:
        """Answer DescribeQuorum (KIP-595): this node is the only voter, and its database is the metadata log."""
        first = request.topics[:2]
        asked = [(topic.topic_name, [p.partition_index for p in topic.partitions[:2]]) for topic in first]
        known = asked == [(METADATA_TOPIC, [0])]
        response = m.DescribeQuorumResponse(error_message="")
        turns = Turns()
        for topic in request.topics:
            rows: list[m.DescribeQuorumResponse.PartitionData] = []
            for partition in topic.partitions:
                await turns.rest()
                rows.append(self._quorum_of(partition.partition_index, known))
            response.topics.append(m.DescribeQuorumResponse.TopicData(topic.topic_name, rows))
        if known:
            host, port = ctx.connection.advertised
            listener = m.DescribeQuorumResponse.Listener("PLAINTEXT", host, port)
            response.nodes.append(m.DescribeQuorumResponse.Node(self._service.node_id, [listener]))
        return response

    def _quorum_of(self, partition: int, known: bool) -> m.DescribeQuorumResponse.PartitionData:
        row = m.DescribeQuorumResponse.PartitionData(partition_index=partition, error_message="")
        if not known:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            row.error_message = f"the quorum is that of partition 0 of {METADATA_TOPIC}"
            return row
        end, now = self._service.node.db.commits, now_ms()
        row.leader_id, row.high_watermark = self._service.node_id, end
        row.leader_epoch = self._service.node.owners.epoch(0)
        row.current_voters = [
            m.DescribeQuorumResponse.ReplicaState(
                replica_id=self._service.node_id,
                log_end_offset=end,
                last_fetch_timestamp=now,
                last_caught_up_timestamp=now,
            )
        ]
        return row


def register(registry: Registry, service: KafkaService) -> None:
    cluster = Cluster(service)
    registry.register(ApiKey.DESCRIBE_CLUSTER, cluster.describe)
    of_node = service.access.of_node
    registry.register(ApiKey.UPDATE_FEATURES, of_node(Operation.ALTER, cluster.update_features))
    registry.register(ApiKey.UNREGISTER_BROKER, of_node(Operation.ALTER, cluster.unregister))
    registry.register(ApiKey.ALTER_REPLICA_LOG_DIRS, of_node(Operation.ALTER, cluster.alter_log_dirs))
    registry.register(ApiKey.DESCRIBE_LOG_DIRS, of_node(Operation.DESCRIBE, cluster.log_dirs))
    registry.register(ApiKey.ELECT_LEADERS, of_node(Operation.ALTER, cluster.elect_leaders))
    registry.register(ApiKey.LIST_PARTITION_REASSIGNMENTS, of_node(Operation.DESCRIBE, cluster.reassignments))
    registry.register(ApiKey.ALTER_PARTITION_REASSIGNMENTS, of_node(Operation.ALTER, cluster.reassign))
    registry.register(ApiKey.DESCRIBE_TOPIC_PARTITIONS, cluster.topic_partitions)
    registry.register(ApiKey.DESCRIBE_PRODUCERS, cluster.producers)
    registry.register(ApiKey.DESCRIBE_QUORUM, of_node(Operation.DESCRIBE, cluster.quorum))
