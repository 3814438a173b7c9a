"""Messages of the Kafka protocol, one class per message for all of its versions. GENERATED, do not edit.

Written by ``python -m kafka_front.wire.make_messages``. Structures inside a message are classes nested in it. A field
that a version lacks has Kafka's default after decoding and is left out by encoding. Numbers are plain ints, topic ids
16 bytes (zero: none), names ending in ``_ms`` milliseconds. None in a structure-valued optional field means that all
of its fields have their defaults. Records decode to a memoryview of the frame, without a copy; a response may carry
them as a list of buffers, which are written one after the other.
"""

# ruff: noqa
# fmt: off

from __future__ import annotations

from typing import Any, ClassVar, Final

from kafka_front.wire.message import Message
from kafka_front.wire.primitives import Buffer

_NEW: Final[Any] = object()
_NO_ID: Final = bytes(16)

class ProduceRequest(Message):
    __slots__ = ("transactional_id", "acks", "timeout_ms", "topic_data")
    API_KEY: ClassVar[int] = 0

    def __init__(
        self,
        transactional_id: str | None = None,
        acks: int = 0,
        timeout_ms: int = 0,
        topic_data: list[ProduceRequest.TopicProduceData] = _NEW,
    ) -> None:
        self.transactional_id: str | None = transactional_id
        self.acks: int = acks
        self.timeout_ms: int = timeout_ms
        self.topic_data: list[ProduceRequest.TopicProduceData] = [] if topic_data is _NEW else topic_data

    class TopicProduceData(Message):
        __slots__ = ("topic_id", "partition_data", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partition_data: list[ProduceRequest.PartitionProduceData] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partition_data: list[ProduceRequest.PartitionProduceData] = [] if partition_data is _NEW else partition_data
            self.name: str = name

    class PartitionProduceData(Message):
        __slots__ = ("index", "records")

        def __init__(
            self,
            index: int = 0,
            records: memoryview | None = None,
        ) -> None:
            self.index: int = index
            self.records: memoryview | None = records

class ProduceResponse(Message):
    __slots__ = ("responses", "throttle_time_ms", "node_endpoints")
    API_KEY: ClassVar[int] = 0

    def __init__(
        self,
        responses: list[ProduceResponse.TopicProduceResponse] = _NEW,
        throttle_time_ms: int = 0,
        node_endpoints: list[ProduceResponse.NodeEndpoint] = _NEW,
    ) -> None:
        self.responses: list[ProduceResponse.TopicProduceResponse] = [] if responses is _NEW else responses
        self.throttle_time_ms: int = throttle_time_ms
        self.node_endpoints: list[ProduceResponse.NodeEndpoint] = [] if node_endpoints is _NEW else node_endpoints

    class TopicProduceResponse(Message):
        __slots__ = ("topic_id", "partition_responses", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partition_responses: list[ProduceResponse.PartitionProduceResponse] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partition_responses: list[ProduceResponse.PartitionProduceResponse] = [] if partition_responses is _NEW else partition_responses
            self.name: str = name

    class PartitionProduceResponse(Message):
        __slots__ = ("index", "error_code", "base_offset", "log_append_time_ms", "log_start_offset", "record_errors", "error_message", "current_leader")

        def __init__(
            self,
            index: int = 0,
            error_code: int = 0,
            base_offset: int = 0,
            log_append_time_ms: int = -1,
            log_start_offset: int = -1,
            record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = _NEW,
            error_message: str | None = None,
            current_leader: ProduceResponse.LeaderIdAndEpoch | None = None,
        ) -> None:
            self.index: int = index
            self.error_code: int = error_code
            self.base_offset: int = base_offset
            self.log_append_time_ms: int = log_append_time_ms
            self.log_start_offset: int = log_start_offset
            self.record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = [] if record_errors is _NEW else record_errors
            self.error_message: str | None = error_message
            self.current_leader: ProduceResponse.LeaderIdAndEpoch | None = current_leader

    class BatchIndexAndErrorMessage(Message):
        __slots__ = ("batch_index", "batch_index_error_message")

        def __init__(
            self,
            batch_index: int = 0,
            batch_index_error_message: str | None = None,
        ) -> None:
            self.batch_index: int = batch_index
            self.batch_index_error_message: str | None = batch_index_error_message

    class LeaderIdAndEpoch(Message):
        __slots__ = ("leader_id", "leader_epoch")

        def __init__(
            self,
            leader_id: int = -1,
            leader_epoch: int = -1,
        ) -> None:
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch

    class NodeEndpoint(Message):
        __slots__ = ("node_id", "host", "port", "rack")

        def __init__(
            self,
            node_id: int = 0,
            host: str = "",
            port: int = 0,
            rack: str | None = None,
        ) -> None:
            self.node_id: int = node_id
            self.host: str = host
            self.port: int = port
            self.rack: str | None = rack

class FetchRequest(Message):
    __slots__ = ("cluster_id", "replica_state", "max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch", "topics", "forgotten_topics_data", "rack_id", "replica_id")
    API_KEY: ClassVar[int] = 1

    def __init__(
        self,
        cluster_id: str | None = None,
        replica_state: FetchRequest.ReplicaState | None = None,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 2147483647,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        topics: list[FetchRequest.FetchTopic] = _NEW,
        forgotten_topics_data: list[FetchRequest.ForgottenTopic] = _NEW,
        rack_id: str = "",
        replica_id: int = -1,
    ) -> None:
        self.cluster_id: str | None = cluster_id
        self.replica_state: FetchRequest.ReplicaState | None = replica_state
        self.max_wait_ms: int = max_wait_ms
        self.min_bytes: int = min_bytes
        self.max_bytes: int = max_bytes
        self.isolation_level: int = isolation_level
        self.session_id: int = session_id
        self.session_epoch: int = session_epoch
        self.topics: list[FetchRequest.FetchTopic] = [] if topics is _NEW else topics
        self.forgotten_topics_data: list[FetchRequest.ForgottenTopic] = [] if forgotten_topics_data is _NEW else forgotten_topics_data
        self.rack_id: str = rack_id
        self.replica_id: int = replica_id

    class ReplicaState(Message):
        __slots__ = ("replica_id", "replica_epoch")

        def __init__(
            self,
            replica_id: int = -1,
            replica_epoch: int = -1,
        ) -> None:
            self.replica_id: int = replica_id
            self.replica_epoch: int = replica_epoch

    class FetchTopic(Message):
        __slots__ = ("topic_id", "partitions", "topic")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[FetchRequest.FetchPartition] = _NEW,
            topic: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[FetchRequest.FetchPartition] = [] if partitions is _NEW else partitions
            self.topic: str = topic

    class FetchPartition(Message):
        __slots__ = ("partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset", "partition_max_bytes", "replica_directory_id", "high_watermark")

        def __init__(
            self,
            partition: int = 0,
            current_leader_epoch: int = -1,
            fetch_offset: int = 0,
            last_fetched_epoch: int = -1,
            log_start_offset: int = -1,
            partition_max_bytes: int = 0,
            replica_directory_id: bytes = _NO_ID,
            high_watermark: int = 9223372036854775807,
        ) -> None:
            self.partition: int = partition
            self.current_leader_epoch: int = current_leader_epoch
            self.fetch_offset: int = fetch_offset
            self.last_fetched_epoch: int = last_fetched_epoch
            self.log_start_offset: int = log_start_offset
            self.partition_max_bytes: int = partition_max_bytes
            self.replica_directory_id: bytes = replica_directory_id
            self.high_watermark: int = high_watermark

    class ForgottenTopic(Message):
        __slots__ = ("topic_id", "partitions", "topic")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[int] = _NEW,
            topic: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions
            self.topic: str = topic

class FetchResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "session_id", "responses", "node_endpoints")
    API_KEY: ClassVar[int] = 1

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        session_id: int = 0,
        responses: list[FetchResponse.FetchableTopicResponse] = _NEW,
        node_endpoints: list[FetchResponse.NodeEndpoint] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.session_id: int = session_id
        self.responses: list[FetchResponse.FetchableTopicResponse] = [] if responses is _NEW else responses
        self.node_endpoints: list[FetchResponse.NodeEndpoint] = [] if node_endpoints is _NEW else node_endpoints

    class FetchableTopicResponse(Message):
        __slots__ = ("topic_id", "partitions", "topic")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[FetchResponse.PartitionData] = _NEW,
            topic: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[FetchResponse.PartitionData] = [] if partitions is _NEW else partitions
            self.topic: str = topic

    class PartitionData(Message):
        __slots__ = ("partition_index", "error_code", "high_watermark", "last_stable_offset", "log_start_offset", "diverging_epoch", "current_leader", "snapshot_id", "aborted_transactions", "preferred_read_replica", "records")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            high_watermark: int = 0,
            last_stable_offset: int = -1,
            log_start_offset: int = -1,
            diverging_epoch: FetchResponse.EpochEndOffset | None = None,
            current_leader: FetchResponse.LeaderIdAndEpoch | None = None,
            snapshot_id: FetchResponse.SnapshotId | None = None,
            aborted_transactions: list[FetchResponse.AbortedTransaction] | None = _NEW,
            preferred_read_replica: int = -1,
            records: Buffer | list[Buffer] | None = None,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.high_watermark: int = high_watermark
            self.last_stable_offset: int = last_stable_offset
            self.log_start_offset: int = log_start_offset
            self.diverging_epoch: FetchResponse.EpochEndOffset | None = diverging_epoch
            self.current_leader: FetchResponse.LeaderIdAndEpoch | None = current_leader
            self.snapshot_id: FetchResponse.SnapshotId | None = snapshot_id
            self.aborted_transactions: list[FetchResponse.AbortedTransaction] | None = [] if aborted_transactions is _NEW else aborted_transactions
            self.preferred_read_replica: int = preferred_read_replica
            self.records: Buffer | list[Buffer] | None = records

    class EpochEndOffset(Message):
        __slots__ = ("epoch", "end_offset")

        def __init__(
            self,
            epoch: int = -1,
            end_offset: int = -1,
        ) -> None:
            self.epoch: int = epoch
            self.end_offset: int = end_offset

    class LeaderIdAndEpoch(Message):
        __slots__ = ("leader_id", "leader_epoch")

        def __init__(
            self,
            leader_id: int = -1,
            leader_epoch: int = -1,
        ) -> None:
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch

    class SnapshotId(Message):
        __slots__ = ("end_offset", "epoch")

        def __init__(
            self,
            end_offset: int = -1,
            epoch: int = -1,
        ) -> None:
            self.end_offset: int = end_offset
            self.epoch: int = epoch

    class AbortedTransaction(Message):
        __slots__ = ("producer_id", "first_offset")

        def __init__(
            self,
            producer_id: int = 0,
            first_offset: int = 0,
        ) -> None:
            self.producer_id: int = producer_id
            self.first_offset: int = first_offset

    class NodeEndpoint(Message):
        __slots__ = ("node_id", "host", "port", "rack")

        def __init__(
            self,
            node_id: int = 0,
            host: str = "",
            port: int = 0,
            rack: str | None = None,
        ) -> None:
            self.node_id: int = node_id
            self.host: str = host
            self.port: int = port
            self.rack: str | None = rack

class ListOffsetsRequest(Message):
    __slots__ = ("replica_id", "isolation_level", "topics", "timeout_ms")
    API_KEY: ClassVar[int] = 2

    def __init__(
        self,
        replica_id: int = 0,
        isolation_level: int = 0,
        topics: list[ListOffsetsRequest.ListOffsetsTopic] = _NEW,
        timeout_ms: int = 0,
    ) -> None:
        self.replica_id: int = replica_id
        self.isolation_level: int = isolation_level
        self.topics: list[ListOffsetsRequest.ListOffsetsTopic] = [] if topics is _NEW else topics
        self.timeout_ms: int = timeout_ms

    class ListOffsetsTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[ListOffsetsRequest.ListOffsetsPartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[ListOffsetsRequest.ListOffsetsPartition] = [] if partitions is _NEW else partitions

    class ListOffsetsPartition(Message):
        __slots__ = ("partition_index", "current_leader_epoch", "timestamp")

        def __init__(
            self,
            partition_index: int = 0,
            current_leader_epoch: int = -1,
            timestamp: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.current_leader_epoch: int = current_leader_epoch
            self.timestamp: int = timestamp

class ListOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 2

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = [] if topics is _NEW else topics

    class ListOffsetsTopicResponse(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = [] if partitions is _NEW else partitions

    class ListOffsetsPartitionResponse(Message):
        __slots__ = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            timestamp: int = -1,
            offset: int = -1,
            leader_epoch: int = -1,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.timestamp: int = timestamp
            self.offset: int = offset
            self.leader_epoch: int = leader_epoch

class MetadataRequest(Message):
    __slots__ = ("topics", "allow_auto_topic_creation", "include_topic_authorized_operations", "include_cluster_authorized_operations")
    API_KEY: ClassVar[int] = 3

    def __init__(
        self,
        topics: list[MetadataRequest.MetadataRequestTopic] | None = _NEW,
        allow_auto_topic_creation: bool = True,
        include_topic_authorized_operations: bool = False,
        include_cluster_authorized_operations: bool = False,
    ) -> None:
        self.topics: list[MetadataRequest.MetadataRequestTopic] | None = [] if topics is _NEW else topics
        self.allow_auto_topic_creation: bool = allow_auto_topic_creation
        self.include_topic_authorized_operations: bool = include_topic_authorized_operations
        self.include_cluster_authorized_operations: bool = include_cluster_authorized_operations

    class MetadataRequestTopic(Message):
        __slots__ = ("topic_id", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            name: str | None = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.name: str | None = name

class MetadataResponse(Message):
    __slots__ = ("throttle_time_ms", "brokers", "cluster_id", "controller_id", "topics", "error_code", "cluster_authorized_operations")
    API_KEY: ClassVar[int] = 3

    def __init__(
        self,
        throttle_time_ms: int = 0,
        brokers: list[MetadataResponse.MetadataResponseBroker] = _NEW,
        cluster_id: str | None = None,
        controller_id: int = -1,
        topics: list[MetadataResponse.MetadataResponseTopic] = _NEW,
        error_code: int = 0,
        cluster_authorized_operations: int = -2147483648,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.brokers: list[MetadataResponse.MetadataResponseBroker] = [] if brokers is _NEW else brokers
        self.cluster_id: str | None = cluster_id
        self.controller_id: int = controller_id
        self.topics: list[MetadataResponse.MetadataResponseTopic] = [] if topics is _NEW else topics
        self.error_code: int = error_code
        self.cluster_authorized_operations: int = cluster_authorized_operations

    class MetadataResponseBroker(Message):
        __slots__ = ("node_id", "host", "port", "rack")

        def __init__(
            self,
            node_id: int = 0,
            host: str = "",
            port: int = 0,
            rack: str | None = None,
        ) -> None:
            self.node_id: int = node_id
            self.host: str = host
            self.port: int = port
            self.rack: str | None = rack

    class MetadataResponseTopic(Message):
        __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")

        def __init__(
            self,
            error_code: int = 0,
            name: str | None = "",
            topic_id: bytes = _NO_ID,
            is_internal: bool = False,
            partitions: list[MetadataResponse.MetadataResponsePartition] = _NEW,
            topic_authorized_operations: int = -2147483648,
        ) -> None:
            self.error_code: int = error_code
            self.name: str | None = name
            self.topic_id: bytes = topic_id
            self.is_internal: bool = is_internal
            self.partitions: list[MetadataResponse.MetadataResponsePartition] = [] if partitions is _NEW else partitions
            self.topic_authorized_operations: int = topic_authorized_operations

    class MetadataResponsePartition(Message):
        __slots__ = ("error_code", "partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas")

        def __init__(
            self,
            error_code: int = 0,
            partition_index: int = 0,
            leader_id: int = 0,
            leader_epoch: int = -1,
            replica_nodes: list[int] = _NEW,
            isr_nodes: list[int] = _NEW,
            offline_replicas: list[int] = _NEW,
        ) -> None:
            self.error_code: int = error_code
            self.partition_index: int = partition_index
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch
            self.replica_nodes: list[int] = [] if replica_nodes is _NEW else replica_nodes
            self.isr_nodes: list[int] = [] if isr_nodes is _NEW else isr_nodes
            self.offline_replicas: list[int] = [] if offline_replicas is _NEW else offline_replicas

class OffsetCommitRequest(Message):
    __slots__ = ("group_id", "generation_id_or_member_epoch", "member_id", "group_instance_id", "topics", "retention_time_ms")
    API_KEY: ClassVar[int] = 8

    def __init__(
        self,
        group_id: str = "",
        generation_id_or_member_epoch: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = _NEW,
        retention_time_ms: int = -1,
    ) -> None:
        self.group_id: str = group_id
        self.generation_id_or_member_epoch: int = generation_id_or_member_epoch
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id
        self.topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = [] if topics is _NEW else topics
        self.retention_time_ms: int = retention_time_ms

    class OffsetCommitRequestTopic(Message):
        __slots__ = ("topic_id", "partitions", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = [] if partitions is _NEW else partitions
            self.name: str = name

    class OffsetCommitRequestPartition(Message):
        __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")

        def __init__(
            self,
            partition_index: int = 0,
            committed_offset: int = 0,
            committed_leader_epoch: int = -1,
            committed_metadata: str | None = "",
        ) -> None:
            self.partition_index: int = partition_index
            self.committed_offset: int = committed_offset
            self.committed_leader_epoch: int = committed_leader_epoch
            self.committed_metadata: str | None = committed_metadata

class OffsetCommitResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 8

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = [] if topics is _NEW else topics

    class OffsetCommitResponseTopic(Message):
        __slots__ = ("topic_id", "partitions", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = [] if partitions is _NEW else partitions
            self.name: str = name

    class OffsetCommitResponsePartition(Message):
        __slots__ = ("partition_index", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code

class OffsetFetchRequest(Message):
    __slots__ = ("groups", "require_stable", "group_id", "topics")
    API_KEY: ClassVar[int] = 9

    def __init__(
        self,
        groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = _NEW,
        require_stable: bool = False,
        group_id: str = "",
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = _NEW,
    ) -> None:
        self.groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = [] if groups is _NEW else groups
        self.require_stable: bool = require_stable
        self.group_id: str = group_id
        self.topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = [] if topics is _NEW else topics

    class OffsetFetchRequestGroup(Message):
        __slots__ = ("group_id", "member_id", "member_epoch", "topics")

        def __init__(
            self,
            group_id: str = "",
            member_id: str | None = None,
            member_epoch: int = -1,
            topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = _NEW,
        ) -> None:
            self.group_id: str = group_id
            self.member_id: str | None = member_id
            self.member_epoch: int = member_epoch
            self.topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = [] if topics is _NEW else topics

    class OffsetFetchRequestTopics(Message):
        __slots__ = ("topic_id", "partition_indexes", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partition_indexes: list[int] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partition_indexes: list[int] = [] if partition_indexes is _NEW else partition_indexes
            self.name: str = name

    class OffsetFetchRequestTopic(Message):
        __slots__ = ("name", "partition_indexes")

        def __init__(
            self,
            name: str = "",
            partition_indexes: list[int] = _NEW,
        ) -> None:
            self.name: str = name
            self.partition_indexes: list[int] = [] if partition_indexes is _NEW else partition_indexes

class OffsetFetchResponse(Message):
    __slots__ = ("throttle_time_ms", "groups", "topics", "error_code")
    API_KEY: ClassVar[int] = 9

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = _NEW,
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = _NEW,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = [] if groups is _NEW else groups
        self.topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = [] if topics is _NEW else topics
        self.error_code: int = error_code

    class OffsetFetchResponseGroup(Message):
        __slots__ = ("group_id", "topics", "error_code")

        def __init__(
            self,
            group_id: str = "",
            topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = _NEW,
            error_code: int = 0,
        ) -> None:
            self.group_id: str = group_id
            self.topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = [] if topics is _NEW else topics
            self.error_code: int = error_code

    class OffsetFetchResponseTopics(Message):
        __slots__ = ("topic_id", "partitions", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = [] if partitions is _NEW else partitions
            self.name: str = name

    class OffsetFetchResponsePartitions(Message):
        __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            committed_offset: int = 0,
            committed_leader_epoch: int = -1,
            metadata: str | None = "",
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.committed_offset: int = committed_offset
            self.committed_leader_epoch: int = committed_leader_epoch
            self.metadata: str | None = metadata
            self.error_code: int = error_code

    class OffsetFetchResponseTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = [] if partitions is _NEW else partitions

    class OffsetFetchResponsePartition(Message):
        __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            committed_offset: int = 0,
            committed_leader_epoch: int = -1,
            metadata: str | None = "",
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.committed_offset: int = committed_offset
            self.committed_leader_epoch: int = committed_leader_epoch
            self.metadata: str | None = metadata
            self.error_code: int = error_code

class FindCoordinatorRequest(Message):
    __slots__ = ("key_type", "coordinator_keys", "key")
    API_KEY: ClassVar[int] = 10

    def __init__(
        self,
        key_type: int = 0,
        coordinator_keys: list[str] = _NEW,
        key: str = "",
    ) -> None:
        self.key_type: int = key_type
        self.coordinator_keys: list[str] = [] if coordinator_keys is _NEW else coordinator_keys
        self.key: str = key

class FindCoordinatorResponse(Message):
    __slots__ = ("throttle_time_ms", "coordinators", "error_code", "error_message", "node_id", "host", "port")
    API_KEY: ClassVar[int] = 10

    def __init__(
        self,
        throttle_time_ms: int = 0,
        coordinators: list[FindCoordinatorResponse.Coordinator] = _NEW,
        error_code: int = 0,
        error_message: str | None = None,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.coordinators: list[FindCoordinatorResponse.Coordinator] = [] if coordinators is _NEW else coordinators
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.node_id: int = node_id
        self.host: str = host
        self.port: int = port

    class Coordinator(Message):
        __slots__ = ("key", "node_id", "host", "port", "error_code", "error_message")

        def __init__(
            self,
            key: str = "",
            node_id: int = 0,
            host: str = "",
            port: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.key: str = key
            self.node_id: int = node_id
            self.host: str = host
            self.port: int = port
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class JoinGroupRequest(Message):
    __slots__ = ("group_id", "session_timeout_ms", "rebalance_timeout_ms", "member_id", "group_instance_id", "protocol_type", "protocols", "reason")
    API_KEY: ClassVar[int] = 11

    def __init__(
        self,
        group_id: str = "",
        session_timeout_ms: int = 0,
        rebalance_timeout_ms: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        protocol_type: str = "",
        protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = _NEW,
        reason: str | None = None,
    ) -> None:
        self.group_id: str = group_id
        self.session_timeout_ms: int = session_timeout_ms
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id
        self.protocol_type: str = protocol_type
        self.protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = [] if protocols is _NEW else protocols
        self.reason: str | None = reason

    class JoinGroupRequestProtocol(Message):
        __slots__ = ("name", "metadata")

        def __init__(
            self,
            name: str = "",
            metadata: bytes = b"",
        ) -> None:
            self.name: str = name
            self.metadata: bytes = metadata

class JoinGroupResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "generation_id", "protocol_type", "protocol_name", "leader", "skip_assignment", "member_id", "members")
    API_KEY: ClassVar[int] = 11

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        generation_id: int = -1,
        protocol_type: str | None = None,
        protocol_name: str | None = "",
        leader: str = "",
        skip_assignment: bool = False,
        member_id: str = "",
        members: list[JoinGroupResponse.JoinGroupResponseMember] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.generation_id: int = generation_id
        self.protocol_type: str | None = protocol_type
        self.protocol_name: str | None = protocol_name
        self.leader: str = leader
        self.skip_assignment: bool = skip_assignment
        self.member_id: str = member_id
        self.members: list[JoinGroupResponse.JoinGroupResponseMember] = [] if members is _NEW else members

    class JoinGroupResponseMember(Message):
        __slots__ = ("member_id", "group_instance_id", "metadata")

        def __init__(
            self,
            member_id: str = "",
            group_instance_id: str | None = None,
            metadata: bytes = b"",
        ) -> None:
            self.member_id: str = member_id
            self.group_instance_id: str | None = group_instance_id
            self.metadata: bytes = metadata

class HeartbeatRequest(Message):
    __slots__ = ("group_id", "generation_id", "member_id", "group_instance_id")
    API_KEY: ClassVar[int] = 12

    def __init__(
        self,
        group_id: str = "",
        generation_id: int = 0,
        member_id: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        self.group_id: str = group_id
        self.generation_id: int = generation_id
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id

class HeartbeatResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code")
    API_KEY: ClassVar[int] = 12

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code

class LeaveGroupRequest(Message):
    __slots__ = ("group_id", "members", "member_id")
    API_KEY: ClassVar[int] = 13

    def __init__(
        self,
        group_id: str = "",
        members: list[LeaveGroupRequest.MemberIdentity] = _NEW,
        member_id: str = "",
    ) -> None:
        self.group_id: str = group_id
        self.members: list[LeaveGroupRequest.MemberIdentity] = [] if members is _NEW else members
        self.member_id: str = member_id

    class MemberIdentity(Message):
        __slots__ = ("member_id", "group_instance_id", "reason")

        def __init__(
            self,
            member_id: str = "",
            group_instance_id: str | None = None,
            reason: str | None = None,
        ) -> None:
            self.member_id: str = member_id
            self.group_instance_id: str | None = group_instance_id
            self.reason: str | None = reason

class LeaveGroupResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "members")
    API_KEY: ClassVar[int] = 13

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        members: list[LeaveGroupResponse.MemberResponse] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.members: list[LeaveGroupResponse.MemberResponse] = [] if members is _NEW else members

    class MemberResponse(Message):
        __slots__ = ("member_id", "group_instance_id", "error_code")

        def __init__(
            self,
            member_id: str = "",
            group_instance_id: str | None = "",
            error_code: int = 0,
        ) -> None:
            self.member_id: str = member_id
            self.group_instance_id: str | None = group_instance_id
            self.error_code: int = error_code

class SyncGroupRequest(Message):
    __slots__ = ("group_id", "generation_id", "member_id", "group_instance_id", "protocol_type", "protocol_name", "assignments")
    API_KEY: ClassVar[int] = 14

    def __init__(
        self,
        group_id: str = "",
        generation_id: int = 0,
        member_id: str = "",
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.generation_id: int = generation_id
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id
        self.protocol_type: str | None = protocol_type
        self.protocol_name: str | None = protocol_name
        self.assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = [] if assignments is _NEW else assignments

    class SyncGroupRequestAssignment(Message):
        __slots__ = ("member_id", "assignment")

        def __init__(
            self,
            member_id: str = "",
            assignment: bytes = b"",
        ) -> None:
            self.member_id: str = member_id
            self.assignment: bytes = assignment

class SyncGroupResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "protocol_type", "protocol_name", "assignment")
    API_KEY: ClassVar[int] = 14

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignment: bytes = b"",
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.protocol_type: str | None = protocol_type
        self.protocol_name: str | None = protocol_name
        self.assignment: bytes = assignment

class DescribeGroupsRequest(Message):
    __slots__ = ("groups", "include_authorized_operations")
    API_KEY: ClassVar[int] = 15

    def __init__(
        self,
        groups: list[str] = _NEW,
        include_authorized_operations: bool = False,
    ) -> None:
        self.groups: list[str] = [] if groups is _NEW else groups
        self.include_authorized_operations: bool = include_authorized_operations

class DescribeGroupsResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")
    API_KEY: ClassVar[int] = 15

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[DescribeGroupsResponse.DescribedGroup] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.groups: list[DescribeGroupsResponse.DescribedGroup] = [] if groups is _NEW else groups

    class DescribedGroup(Message):
        __slots__ = ("error_code", "error_message", "group_id", "group_state", "protocol_type", "protocol_data", "members", "authorized_operations")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            group_id: str = "",
            group_state: str = "",
            protocol_type: str = "",
            protocol_data: str = "",
            members: list[DescribeGroupsResponse.DescribedGroupMember] = _NEW,
            authorized_operations: int = -2147483648,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.group_id: str = group_id
            self.group_state: str = group_state
            self.protocol_type: str = protocol_type
            self.protocol_data: str = protocol_data
            self.members: list[DescribeGroupsResponse.DescribedGroupMember] = [] if members is _NEW else members
            self.authorized_operations: int = authorized_operations

    class DescribedGroupMember(Message):
        __slots__ = ("member_id", "group_instance_id", "client_id", "client_host", "member_metadata", "member_assignment")

        def __init__(
            self,
            member_id: str = "",
            group_instance_id: str | None = None,
            client_id: str = "",
            client_host: str = "",
            member_metadata: bytes = b"",
            member_assignment: bytes = b"",
        ) -> None:
            self.member_id: str = member_id
            self.group_instance_id: str | None = group_instance_id
            self.client_id: str = client_id
            self.client_host: str = client_host
            self.member_metadata: bytes = member_metadata
            self.member_assignment: bytes = member_assignment

class ListGroupsRequest(Message):
    __slots__ = ("states_filter", "types_filter")
    API_KEY: ClassVar[int] = 16

    def __init__(
        self,
        states_filter: list[str] = _NEW,
        types_filter: list[str] = _NEW,
    ) -> None:
        self.states_filter: list[str] = [] if states_filter is _NEW else states_filter
        self.types_filter: list[str] = [] if types_filter is _NEW else types_filter

class ListGroupsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "groups")
    API_KEY: ClassVar[int] = 16

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        groups: list[ListGroupsResponse.ListedGroup] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.groups: list[ListGroupsResponse.ListedGroup] = [] if groups is _NEW else groups

    class ListedGroup(Message):
        __slots__ = ("group_id", "protocol_type", "group_state", "group_type")

        def __init__(
            self,
            group_id: str = "",
            protocol_type: str = "",
            group_state: str = "",
            group_type: str = "",
        ) -> None:
            self.group_id: str = group_id
            self.protocol_type: str = protocol_type
            self.group_state: str = group_state
            self.group_type: str = group_type

class SaslHandshakeRequest(Message):
    __slots__ = ("mechanism",)
    API_KEY: ClassVar[int] = 17

    def __init__(
        self,
        mechanism: str = "",
    ) -> None:
        self.mechanism: str = mechanism

class SaslHandshakeResponse(Message):
    __slots__ = ("error_code", "mechanisms")
    API_KEY: ClassVar[int] = 17

    def __init__(
        self,
        error_code: int = 0,
        mechanisms: list[str] = _NEW,
    ) -> None:
        self.error_code: int = error_code
        self.mechanisms: list[str] = [] if mechanisms is _NEW else mechanisms

class ApiVersionsRequest(Message):
    __slots__ = ("client_software_name", "client_software_version", "cluster_id", "node_id")
    API_KEY: ClassVar[int] = 18

    def __init__(
        self,
        client_software_name: str = "",
        client_software_version: str = "",
        cluster_id: str | None = None,
        node_id: int = -1,
    ) -> None:
        self.client_software_name: str = client_software_name
        self.client_software_version: str = client_software_version
        self.cluster_id: str | None = cluster_id
        self.node_id: int = node_id

class ApiVersionsResponse(Message):
    __slots__ = ("error_code", "api_keys", "throttle_time_ms", "supported_features", "finalized_features_epoch", "finalized_features", "zk_migration_ready")
    API_KEY: ClassVar[int] = 18

    def __init__(
        self,
        error_code: int = 0,
        api_keys: list[ApiVersionsResponse.ApiVersion] = _NEW,
        throttle_time_ms: int = 0,
        supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = _NEW,
        finalized_features_epoch: int = -1,
        finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = _NEW,
        zk_migration_ready: bool = False,
    ) -> None:
        self.error_code: int = error_code
        self.api_keys: list[ApiVersionsResponse.ApiVersion] = [] if api_keys is _NEW else api_keys
        self.throttle_time_ms: int = throttle_time_ms
        self.supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = [] if supported_features is _NEW else supported_features
        self.finalized_features_epoch: int = finalized_features_epoch
        self.finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = [] if finalized_features is _NEW else finalized_features
        self.zk_migration_ready: bool = zk_migration_ready

    class ApiVersion(Message):
        __slots__ = ("api_key", "min_version", "max_version")

        def __init__(
            self,
            api_key: int = 0,
            min_version: int = 0,
            max_version: int = 0,
        ) -> None:
            self.api_key: int = api_key
            self.min_version: int = min_version
            self.max_version: int = max_version

    class SupportedFeatureKey(Message):
        __slots__ = ("name", "min_version", "max_version")

        def __init__(
            self,
            name: str = "",
            min_version: int = 0,
            max_version: int = 0,
        ) -> None:
            self.name: str = name
            self.min_version: int = min_version
            self.max_version: int = max_version

    class FinalizedFeatureKey(Message):
        __slots__ = ("name", "max_version_level", "min_version_level")

        def __init__(
            self,
            name: str = "",
            max_version_level: int = 0,
            min_version_level: int = 0,
        ) -> None:
            self.name: str = name
            self.max_version_level: int = max_version_level
            self.min_version_level: int = min_version_level

class CreateTopicsRequest(Message):
    __slots__ = ("topics", "timeout_ms", "validate_only")
    API_KEY: ClassVar[int] = 19

    def __init__(
        self,
        topics: list[CreateTopicsRequest.CreatableTopic] = _NEW,
        timeout_ms: int = 60000,
        validate_only: bool = False,
    ) -> None:
        self.topics: list[CreateTopicsRequest.CreatableTopic] = [] if topics is _NEW else topics
        self.timeout_ms: int = timeout_ms
        self.validate_only: bool = validate_only

    class CreatableTopic(Message):
        __slots__ = ("name", "num_partitions", "replication_factor", "assignments", "configs")

        def __init__(
            self,
            name: str = "",
            num_partitions: int = 0,
            replication_factor: int = 0,
            assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = _NEW,
            configs: list[CreateTopicsRequest.CreatableTopicConfig] = _NEW,
        ) -> None:
            self.name: str = name
            self.num_partitions: int = num_partitions
            self.replication_factor: int = replication_factor
            self.assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = [] if assignments is _NEW else assignments
            self.configs: list[CreateTopicsRequest.CreatableTopicConfig] = [] if configs is _NEW else configs

    class CreatableReplicaAssignment(Message):
        __slots__ = ("partition_index", "broker_ids")

        def __init__(
            self,
            partition_index: int = 0,
            broker_ids: list[int] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.broker_ids: list[int] = [] if broker_ids is _NEW else broker_ids

    class CreatableTopicConfig(Message):
        __slots__ = ("name", "value")

        def __init__(
            self,
            name: str = "",
            value: str | None = "",
        ) -> None:
            self.name: str = name
            self.value: str | None = value

class CreateTopicsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 19

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[CreateTopicsResponse.CreatableTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[CreateTopicsResponse.CreatableTopicResult] = [] if topics is _NEW else topics

    class CreatableTopicResult(Message):
        __slots__ = ("name", "topic_id", "error_code", "error_message", "topic_config_error_code", "num_partitions", "replication_factor", "configs")

        def __init__(
            self,
            name: str = "",
            topic_id: bytes = _NO_ID,
            error_code: int = 0,
            error_message: str | None = None,
            topic_config_error_code: int = 0,
            num_partitions: int = -1,
            replication_factor: int = -1,
            configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = _NEW,
        ) -> None:
            self.name: str = name
            self.topic_id: bytes = topic_id
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.topic_config_error_code: int = topic_config_error_code
            self.num_partitions: int = num_partitions
            self.replication_factor: int = replication_factor
            self.configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = [] if configs is _NEW else configs

    class CreatableTopicConfigs(Message):
        __slots__ = ("name", "value", "read_only", "config_source", "is_sensitive")

        def __init__(
            self,
            name: str = "",
            value: str | None = "",
            read_only: bool = False,
            config_source: int = -1,
            is_sensitive: bool = False,
        ) -> None:
            self.name: str = name
            self.value: str | None = value
            self.read_only: bool = read_only
            self.config_source: int = config_source
            self.is_sensitive: bool = is_sensitive

class DeleteTopicsRequest(Message):
    __slots__ = ("topics", "timeout_ms", "topic_names")
    API_KEY: ClassVar[int] = 20

    def __init__(
        self,
        topics: list[DeleteTopicsRequest.DeleteTopicState] = _NEW,
        timeout_ms: int = 0,
        topic_names: list[str] = _NEW,
    ) -> None:
        self.topics: list[DeleteTopicsRequest.DeleteTopicState] = [] if topics is _NEW else topics
        self.timeout_ms: int = timeout_ms
        self.topic_names: list[str] = [] if topic_names is _NEW else topic_names

    class DeleteTopicState(Message):
        __slots__ = ("name", "topic_id")

        def __init__(
            self,
            name: str | None = None,
            topic_id: bytes = _NO_ID,
        ) -> None:
            self.name: str | None = name
            self.topic_id: bytes = topic_id

class DeleteTopicsResponse(Message):
    __slots__ = ("throttle_time_ms", "responses")
    API_KEY: ClassVar[int] = 20

    def __init__(
        self,
        throttle_time_ms: int = 0,
        responses: list[DeleteTopicsResponse.DeletableTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.responses: list[DeleteTopicsResponse.DeletableTopicResult] = [] if responses is _NEW else responses

    class DeletableTopicResult(Message):
        __slots__ = ("name", "topic_id", "error_code", "error_message")

        def __init__(
            self,
            name: str | None = "",
            topic_id: bytes = _NO_ID,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.name: str | None = name
            self.topic_id: bytes = topic_id
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class DeleteRecordsRequest(Message):
    __slots__ = ("topics", "timeout_ms")
    API_KEY: ClassVar[int] = 21

    def __init__(
        self,
        topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = _NEW,
        timeout_ms: int = 0,
    ) -> None:
        self.topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = [] if topics is _NEW else topics
        self.timeout_ms: int = timeout_ms

    class DeleteRecordsTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = [] if partitions is _NEW else partitions

    class DeleteRecordsPartition(Message):
        __slots__ = ("partition_index", "offset")

        def __init__(
            self,
            partition_index: int = 0,
            offset: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.offset: int = offset

class DeleteRecordsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 21

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = [] if topics is _NEW else topics

    class DeleteRecordsTopicResult(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = [] if partitions is _NEW else partitions

    class DeleteRecordsPartitionResult(Message):
        __slots__ = ("partition_index", "low_watermark", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            low_watermark: int = 0,
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.low_watermark: int = low_watermark
            self.error_code: int = error_code

class InitProducerIdRequest(Message):
    __slots__ = ("transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch", "enable2_pc", "keep_prepared_txn")
    API_KEY: ClassVar[int] = 22

    def __init__(
        self,
        transactional_id: str | None = "",
        transaction_timeout_ms: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        enable2_pc: bool = False,
        keep_prepared_txn: bool = False,
    ) -> None:
        self.transactional_id: str | None = transactional_id
        self.transaction_timeout_ms: int = transaction_timeout_ms
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.enable2_pc: bool = enable2_pc
        self.keep_prepared_txn: bool = keep_prepared_txn

class InitProducerIdResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch", "ongoing_txn_producer_id", "ongoing_txn_producer_epoch")
    API_KEY: ClassVar[int] = 22

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        producer_id: int = -1,
        producer_epoch: int = 0,
        ongoing_txn_producer_id: int = -1,
        ongoing_txn_producer_epoch: int = -1,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.ongoing_txn_producer_id: int = ongoing_txn_producer_id
        self.ongoing_txn_producer_epoch: int = ongoing_txn_producer_epoch

class OffsetForLeaderEpochRequest(Message):
    __slots__ = ("replica_id", "topics")
    API_KEY: ClassVar[int] = 23

    def __init__(
        self,
        replica_id: int = -2,
        topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = _NEW,
    ) -> None:
        self.replica_id: int = replica_id
        self.topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = [] if topics is _NEW else topics

    class OffsetForLeaderTopic(Message):
        __slots__ = ("topic", "partitions")

        def __init__(
            self,
            topic: str = "",
            partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = [] if partitions is _NEW else partitions

    class OffsetForLeaderPartition(Message):
        __slots__ = ("partition", "current_leader_epoch", "leader_epoch")

        def __init__(
            self,
            partition: int = 0,
            current_leader_epoch: int = -1,
            leader_epoch: int = 0,
        ) -> None:
            self.partition: int = partition
            self.current_leader_epoch: int = current_leader_epoch
            self.leader_epoch: int = leader_epoch

class OffsetForLeaderEpochResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 23

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = [] if topics is _NEW else topics

    class OffsetForLeaderTopicResult(Message):
        __slots__ = ("topic", "partitions")

        def __init__(
            self,
            topic: str = "",
            partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = [] if partitions is _NEW else partitions

    class EpochEndOffset(Message):
        __slots__ = ("error_code", "partition", "leader_epoch", "end_offset")

        def __init__(
            self,
            error_code: int = 0,
            partition: int = 0,
            leader_epoch: int = -1,
            end_offset: int = -1,
        ) -> None:
            self.error_code: int = error_code
            self.partition: int = partition
            self.leader_epoch: int = leader_epoch
            self.end_offset: int = end_offset

class AddPartitionsToTxnRequest(Message):
    __slots__ = ("transactions", "v3_and_below_transactional_id", "v3_and_below_producer_id", "v3_and_below_producer_epoch", "v3_and_below_topics")
    API_KEY: ClassVar[int] = 24

    def __init__(
        self,
        transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = _NEW,
        v3_and_below_transactional_id: str = "",
        v3_and_below_producer_id: int = 0,
        v3_and_below_producer_epoch: int = 0,
        v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = _NEW,
    ) -> None:
        self.transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = [] if transactions is _NEW else transactions
        self.v3_and_below_transactional_id: str = v3_and_below_transactional_id
        self.v3_and_below_producer_id: int = v3_and_below_producer_id
        self.v3_and_below_producer_epoch: int = v3_and_below_producer_epoch
        self.v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = [] if v3_and_below_topics is _NEW else v3_and_below_topics

    class AddPartitionsToTxnTransaction(Message):
        __slots__ = ("transactional_id", "producer_id", "producer_epoch", "verify_only", "topics")

        def __init__(
            self,
            transactional_id: str = "",
            producer_id: int = 0,
            producer_epoch: int = 0,
            verify_only: bool = False,
            topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = _NEW,
        ) -> None:
            self.transactional_id: str = transactional_id
            self.producer_id: int = producer_id
            self.producer_epoch: int = producer_epoch
            self.verify_only: bool = verify_only
            self.topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = [] if topics is _NEW else topics

    class AddPartitionsToTxnTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class AddPartitionsToTxnResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "results_by_transaction", "results_by_topic_v3_and_below")
    API_KEY: ClassVar[int] = 24

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = _NEW,
        results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = [] if results_by_transaction is _NEW else results_by_transaction
        self.results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = [] if results_by_topic_v3_and_below is _NEW else results_by_topic_v3_and_below

    class AddPartitionsToTxnResult(Message):
        __slots__ = ("transactional_id", "topic_results")

        def __init__(
            self,
            transactional_id: str = "",
            topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = _NEW,
        ) -> None:
            self.transactional_id: str = transactional_id
            self.topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = [] if topic_results is _NEW else topic_results

    class AddPartitionsToTxnTopicResult(Message):
        __slots__ = ("name", "results_by_partition")

        def __init__(
            self,
            name: str = "",
            results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = _NEW,
        ) -> None:
            self.name: str = name
            self.results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = [] if results_by_partition is _NEW else results_by_partition

    class AddPartitionsToTxnPartitionResult(Message):
        __slots__ = ("partition_index", "partition_error_code")

        def __init__(
            self,
            partition_index: int = 0,
            partition_error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.partition_error_code: int = partition_error_code

class AddOffsetsToTxnRequest(Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "group_id")
    API_KEY: ClassVar[int] = 25

    def __init__(
        self,
        transactional_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        group_id: str = "",
    ) -> None:
        self.transactional_id: str = transactional_id
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.group_id: str = group_id

class AddOffsetsToTxnResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code")
    API_KEY: ClassVar[int] = 25

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code

class EndTxnRequest(Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "committed")
    API_KEY: ClassVar[int] = 26

    def __init__(
        self,
        transactional_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        committed: bool = False,
    ) -> None:
        self.transactional_id: str = transactional_id
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.committed: bool = committed

class EndTxnResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch")
    API_KEY: ClassVar[int] = 26

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch

class WriteTxnMarkersRequest(Message):
    __slots__ = ("markers",)
    API_KEY: ClassVar[int] = 27

    def __init__(
        self,
        markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = _NEW,
    ) -> None:
        self.markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = [] if markers is _NEW else markers

    class WritableTxnMarker(Message):
        __slots__ = ("producer_id", "producer_epoch", "transaction_result", "topics", "coordinator_epoch", "transaction_version")

        def __init__(
            self,
            producer_id: int = 0,
            producer_epoch: int = 0,
            transaction_result: bool = False,
            topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = _NEW,
            coordinator_epoch: int = 0,
            transaction_version: int = 0,
        ) -> None:
            self.producer_id: int = producer_id
            self.producer_epoch: int = producer_epoch
            self.transaction_result: bool = transaction_result
            self.topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = [] if topics is _NEW else topics
            self.coordinator_epoch: int = coordinator_epoch
            self.transaction_version: int = transaction_version

    class WritableTxnMarkerTopic(Message):
        __slots__ = ("name", "partition_indexes")

        def __init__(
            self,
            name: str = "",
            partition_indexes: list[int] = _NEW,
        ) -> None:
            self.name: str = name
            self.partition_indexes: list[int] = [] if partition_indexes is _NEW else partition_indexes

class WriteTxnMarkersResponse(Message):
    __slots__ = ("markers",)
    API_KEY: ClassVar[int] = 27

    def __init__(
        self,
        markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = _NEW,
    ) -> None:
        self.markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = [] if markers is _NEW else markers

    class WritableTxnMarkerResult(Message):
        __slots__ = ("producer_id", "topics")

        def __init__(
            self,
            producer_id: int = 0,
            topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = _NEW,
        ) -> None:
            self.producer_id: int = producer_id
            self.topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = [] if topics is _NEW else topics

    class WritableTxnMarkerTopicResult(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = [] if partitions is _NEW else partitions

    class WritableTxnMarkerPartitionResult(Message):
        __slots__ = ("partition_index", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code

class TxnOffsetCommitRequest(Message):
    __slots__ = ("transactional_id", "group_id", "producer_id", "producer_epoch", "generation_id_or_member_epoch", "member_id", "group_instance_id", "topics")
    API_KEY: ClassVar[int] = 28

    def __init__(
        self,
        transactional_id: str = "",
        group_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        generation_id_or_member_epoch: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = _NEW,
    ) -> None:
        self.transactional_id: str = transactional_id
        self.group_id: str = group_id
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.generation_id_or_member_epoch: int = generation_id_or_member_epoch
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id
        self.topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = [] if topics is _NEW else topics

    class TxnOffsetCommitRequestTopic(Message):
        __slots__ = ("topic_id", "partitions", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = [] if partitions is _NEW else partitions
            self.name: str = name

    class TxnOffsetCommitRequestPartition(Message):
        __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")

        def __init__(
            self,
            partition_index: int = 0,
            committed_offset: int = 0,
            committed_leader_epoch: int = -1,
            committed_metadata: str | None = "",
        ) -> None:
            self.partition_index: int = partition_index
            self.committed_offset: int = committed_offset
            self.committed_leader_epoch: int = committed_leader_epoch
            self.committed_metadata: str | None = committed_metadata

class TxnOffsetCommitResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 28

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = [] if topics is _NEW else topics

    class TxnOffsetCommitResponseTopic(Message):
        __slots__ = ("topic_id", "partitions", "name")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = _NEW,
            name: str = "",
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = [] if partitions is _NEW else partitions
            self.name: str = name

    class TxnOffsetCommitResponsePartition(Message):
        __slots__ = ("partition_index", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code

class DescribeAclsRequest(Message):
    __slots__ = ("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter", "operation", "permission_type")
    API_KEY: ClassVar[int] = 29

    def __init__(
        self,
        resource_type_filter: int = 0,
        resource_name_filter: str | None = "",
        pattern_type_filter: int = 3,
        principal_filter: str | None = "",
        host_filter: str | None = "",
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.resource_type_filter: int = resource_type_filter
        self.resource_name_filter: str | None = resource_name_filter
        self.pattern_type_filter: int = pattern_type_filter
        self.principal_filter: str | None = principal_filter
        self.host_filter: str | None = host_filter
        self.operation: int = operation
        self.permission_type: int = permission_type

class DescribeAclsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "resources")
    API_KEY: ClassVar[int] = 29

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        resources: list[DescribeAclsResponse.DescribeAclsResource] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.resources: list[DescribeAclsResponse.DescribeAclsResource] = [] if resources is _NEW else resources

    class DescribeAclsResource(Message):
        __slots__ = ("resource_type", "resource_name", "pattern_type", "acls")

        def __init__(
            self,
            resource_type: int = 0,
            resource_name: str = "",
            pattern_type: int = 3,
            acls: list[DescribeAclsResponse.AclDescription] = _NEW,
        ) -> None:
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.pattern_type: int = pattern_type
            self.acls: list[DescribeAclsResponse.AclDescription] = [] if acls is _NEW else acls

    class AclDescription(Message):
        __slots__ = ("principal", "host", "operation", "permission_type")

        def __init__(
            self,
            principal: str = "",
            host: str = "",
            operation: int = 0,
            permission_type: int = 0,
        ) -> None:
            self.principal: str = principal
            self.host: str = host
            self.operation: int = operation
            self.permission_type: int = permission_type

class CreateAclsRequest(Message):
    __slots__ = ("creations",)
    API_KEY: ClassVar[int] = 30

    def __init__(
        self,
        creations: list[CreateAclsRequest.AclCreation] = _NEW,
    ) -> None:
        self.creations: list[CreateAclsRequest.AclCreation] = [] if creations is _NEW else creations

    class AclCreation(Message):
        __slots__ = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation", "permission_type")

        def __init__(
            self,
            resource_type: int = 0,
            resource_name: str = "",
            resource_pattern_type: int = 3,
            principal: str = "",
            host: str = "",
            operation: int = 0,
            permission_type: int = 0,
        ) -> None:
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.resource_pattern_type: int = resource_pattern_type
            self.principal: str = principal
            self.host: str = host
            self.operation: int = operation
            self.permission_type: int = permission_type

class CreateAclsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")
    API_KEY: ClassVar[int] = 30

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[CreateAclsResponse.AclCreationResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.results: list[CreateAclsResponse.AclCreationResult] = [] if results is _NEW else results

    class AclCreationResult(Message):
        __slots__ = ("error_code", "error_message")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class DeleteAclsRequest(Message):
    __slots__ = ("filters",)
    API_KEY: ClassVar[int] = 31

    def __init__(
        self,
        filters: list[DeleteAclsRequest.DeleteAclsFilter] = _NEW,
    ) -> None:
        self.filters: list[DeleteAclsRequest.DeleteAclsFilter] = [] if filters is _NEW else filters

    class DeleteAclsFilter(Message):
        __slots__ = ("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter", "operation", "permission_type")

        def __init__(
            self,
            resource_type_filter: int = 0,
            resource_name_filter: str | None = "",
            pattern_type_filter: int = 3,
            principal_filter: str | None = "",
            host_filter: str | None = "",
            operation: int = 0,
            permission_type: int = 0,
        ) -> None:
            self.resource_type_filter: int = resource_type_filter
            self.resource_name_filter: str | None = resource_name_filter
            self.pattern_type_filter: int = pattern_type_filter
            self.principal_filter: str | None = principal_filter
            self.host_filter: str | None = host_filter
            self.operation: int = operation
            self.permission_type: int = permission_type

class DeleteAclsResponse(Message):
    __slots__ = ("throttle_time_ms", "filter_results")
    API_KEY: ClassVar[int] = 31

    def __init__(
        self,
        throttle_time_ms: int = 0,
        filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.filter_results: list[DeleteAclsResponse.DeleteAclsFilterResult] = [] if filter_results is _NEW else filter_results

    class DeleteAclsFilterResult(Message):
        __slots__ = ("error_code", "error_message", "matching_acls")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = _NEW,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = [] if matching_acls is _NEW else matching_acls

    class DeleteAclsMatchingAcl(Message):
        __slots__ = ("error_code", "error_message", "resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission_type")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            resource_type: int = 0,
            resource_name: str = "",
            pattern_type: int = 3,
            principal: str = "",
            host: str = "",
            operation: int = 0,
            permission_type: int = 0,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.pattern_type: int = pattern_type
            self.principal: str = principal
            self.host: str = host
            self.operation: int = operation
            self.permission_type: int = permission_type

class DescribeConfigsRequest(Message):
    __slots__ = ("resources", "include_synonyms", "include_documentation")
    API_KEY: ClassVar[int] = 32

    def __init__(
        self,
        resources: list[DescribeConfigsRequest.DescribeConfigsResource] = _NEW,
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> None:
        self.resources: list[DescribeConfigsRequest.DescribeConfigsResource] = [] if resources is _NEW else resources
        self.include_synonyms: bool = include_synonyms
        self.include_documentation: bool = include_documentation

    class DescribeConfigsResource(Message):
        __slots__ = ("resource_type", "resource_name", "configuration_keys")

        def __init__(
            self,
            resource_type: int = 0,
            resource_name: str = "",
            configuration_keys: list[str] | None = _NEW,
        ) -> None:
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.configuration_keys: list[str] | None = [] if configuration_keys is _NEW else configuration_keys

class DescribeConfigsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")
    API_KEY: ClassVar[int] = 32

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[DescribeConfigsResponse.DescribeConfigsResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.results: list[DescribeConfigsResponse.DescribeConfigsResult] = [] if results is _NEW else results

    class DescribeConfigsResult(Message):
        __slots__ = ("error_code", "error_message", "resource_type", "resource_name", "configs")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            resource_type: int = 0,
            resource_name: str = "",
            configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = _NEW,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = [] if configs is _NEW else configs

    class DescribeConfigsResourceResult(Message):
        __slots__ = ("name", "value", "read_only", "config_source", "is_sensitive", "synonyms", "config_type", "documentation")

        def __init__(
            self,
            name: str = "",
            value: str | None = "",
            read_only: bool = False,
            config_source: int = -1,
            is_sensitive: bool = False,
            synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = _NEW,
            config_type: int = 0,
            documentation: str | None = "",
        ) -> None:
            self.name: str = name
            self.value: str | None = value
            self.read_only: bool = read_only
            self.config_source: int = config_source
            self.is_sensitive: bool = is_sensitive
            self.synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = [] if synonyms is _NEW else synonyms
            self.config_type: int = config_type
            self.documentation: str | None = documentation

    class DescribeConfigsSynonym(Message):
        __slots__ = ("name", "value", "source")

        def __init__(
            self,
            name: str = "",
            value: str | None = "",
            source: int = 0,
        ) -> None:
            self.name: str = name
            self.value: str | None = value
            self.source: int = source

class AlterConfigsRequest(Message):
    __slots__ = ("resources", "validate_only")
    API_KEY: ClassVar[int] = 33

    def __init__(
        self,
        resources: list[AlterConfigsRequest.AlterConfigsResource] = _NEW,
        validate_only: bool = False,
    ) -> None:
        self.resources: list[AlterConfigsRequest.AlterConfigsResource] = [] if resources is _NEW else resources
        self.validate_only: bool = validate_only

    class AlterConfigsResource(Message):
        __slots__ = ("resource_type", "resource_name", "configs")

        def __init__(
            self,
            resource_type: int = 0,
            resource_name: str = "",
            configs: list[AlterConfigsRequest.AlterableConfig] = _NEW,
        ) -> None:
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.configs: list[AlterConfigsRequest.AlterableConfig] = [] if configs is _NEW else configs

    class AlterableConfig(Message):
        __slots__ = ("name", "value")

        def __init__(
            self,
            name: str = "",
            value: str | None = "",
        ) -> None:
            self.name: str = name
            self.value: str | None = value

class AlterConfigsResponse(Message):
    __slots__ = ("throttle_time_ms", "responses")
    API_KEY: ClassVar[int] = 33

    def __init__(
        self,
        throttle_time_ms: int = 0,
        responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = [] if responses is _NEW else responses

    class AlterConfigsResourceResponse(Message):
        __slots__ = ("error_code", "error_message", "resource_type", "resource_name")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            resource_type: int = 0,
            resource_name: str = "",
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name

class AlterReplicaLogDirsRequest(Message):
    __slots__ = ("dirs",)
    API_KEY: ClassVar[int] = 34

    def __init__(
        self,
        dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = _NEW,
    ) -> None:
        self.dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = [] if dirs is _NEW else dirs

    class AlterReplicaLogDir(Message):
        __slots__ = ("path", "topics")

        def __init__(
            self,
            path: str = "",
            topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = _NEW,
        ) -> None:
            self.path: str = path
            self.topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = [] if topics is _NEW else topics

    class AlterReplicaLogDirTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class AlterReplicaLogDirsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")
    API_KEY: ClassVar[int] = 34

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = [] if results is _NEW else results

    class AlterReplicaLogDirTopicResult(Message):
        __slots__ = ("topic_name", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = [] if partitions is _NEW else partitions

    class AlterReplicaLogDirPartitionResult(Message):
        __slots__ = ("partition_index", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code

class DescribeLogDirsRequest(Message):
    __slots__ = ("topics",)
    API_KEY: ClassVar[int] = 35

    def __init__(
        self,
        topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = _NEW,
    ) -> None:
        self.topics: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = [] if topics is _NEW else topics

    class DescribableLogDirTopic(Message):
        __slots__ = ("topic", "partitions")

        def __init__(
            self,
            topic: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class DescribeLogDirsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "results")
    API_KEY: ClassVar[int] = 35

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.results: list[DescribeLogDirsResponse.DescribeLogDirsResult] = [] if results is _NEW else results

    class DescribeLogDirsResult(Message):
        __slots__ = ("error_code", "log_dir", "topics", "total_bytes", "usable_bytes", "is_cordoned")

        def __init__(
            self,
            error_code: int = 0,
            log_dir: str = "",
            topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = _NEW,
            total_bytes: int = -1,
            usable_bytes: int = -1,
            is_cordoned: bool = False,
        ) -> None:
            self.error_code: int = error_code
            self.log_dir: str = log_dir
            self.topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = [] if topics is _NEW else topics
            self.total_bytes: int = total_bytes
            self.usable_bytes: int = usable_bytes
            self.is_cordoned: bool = is_cordoned

    class DescribeLogDirsTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = [] if partitions is _NEW else partitions

    class DescribeLogDirsPartition(Message):
        __slots__ = ("partition_index", "partition_size", "offset_lag", "is_future_key")

        def __init__(
            self,
            partition_index: int = 0,
            partition_size: int = 0,
            offset_lag: int = 0,
            is_future_key: bool = False,
        ) -> None:
            self.partition_index: int = partition_index
            self.partition_size: int = partition_size
            self.offset_lag: int = offset_lag
            self.is_future_key: bool = is_future_key

class SaslAuthenticateRequest(Message):
    __slots__ = ("auth_bytes",)
    API_KEY: ClassVar[int] = 36

    def __init__(
        self,
        auth_bytes: bytes = b"",
    ) -> None:
        self.auth_bytes: bytes = auth_bytes

class SaslAuthenticateResponse(Message):
    __slots__ = ("error_code", "error_message", "auth_bytes", "session_lifetime_ms")
    API_KEY: ClassVar[int] = 36

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = None,
        auth_bytes: bytes = b"",
        session_lifetime_ms: int = 0,
    ) -> None:
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.auth_bytes: bytes = auth_bytes
        self.session_lifetime_ms: int = session_lifetime_ms

class CreatePartitionsRequest(Message):
    __slots__ = ("topics", "timeout_ms", "validate_only")
    API_KEY: ClassVar[int] = 37

    def __init__(
        self,
        topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = _NEW,
        timeout_ms: int = 0,
        validate_only: bool = False,
    ) -> None:
        self.topics: list[CreatePartitionsRequest.CreatePartitionsTopic] = [] if topics is _NEW else topics
        self.timeout_ms: int = timeout_ms
        self.validate_only: bool = validate_only

    class CreatePartitionsTopic(Message):
        __slots__ = ("name", "count", "assignments")

        def __init__(
            self,
            name: str = "",
            count: int = 0,
            assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = _NEW,
        ) -> None:
            self.name: str = name
            self.count: int = count
            self.assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = [] if assignments is _NEW else assignments

    class CreatePartitionsAssignment(Message):
        __slots__ = ("broker_ids",)

        def __init__(
            self,
            broker_ids: list[int] = _NEW,
        ) -> None:
            self.broker_ids: list[int] = [] if broker_ids is _NEW else broker_ids

class CreatePartitionsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")
    API_KEY: ClassVar[int] = 37

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.results: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = [] if results is _NEW else results

    class CreatePartitionsTopicResult(Message):
        __slots__ = ("name", "error_code", "error_message")

        def __init__(
            self,
            name: str = "",
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.name: str = name
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class CreateDelegationTokenRequest(Message):
    __slots__ = ("owner_principal_type", "owner_principal_name", "renewers", "max_lifetime_ms")
    API_KEY: ClassVar[int] = 38

    def __init__(
        self,
        owner_principal_type: str | None = "",
        owner_principal_name: str | None = "",
        renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = _NEW,
        max_lifetime_ms: int = 0,
    ) -> None:
        self.owner_principal_type: str | None = owner_principal_type
        self.owner_principal_name: str | None = owner_principal_name
        self.renewers: list[CreateDelegationTokenRequest.CreatableRenewers] = [] if renewers is _NEW else renewers
        self.max_lifetime_ms: int = max_lifetime_ms

    class CreatableRenewers(Message):
        __slots__ = ("principal_type", "principal_name")

        def __init__(
            self,
            principal_type: str = "",
            principal_name: str = "",
        ) -> None:
            self.principal_type: str = principal_type
            self.principal_name: str = principal_name

class CreateDelegationTokenResponse(Message):
    __slots__ = ("error_code", "principal_type", "principal_name", "token_requester_principal_type", "token_requester_principal_name", "issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms", "token_id", "hmac", "throttle_time_ms")
    API_KEY: ClassVar[int] = 38

    def __init__(
        self,
        error_code: int = 0,
        principal_type: str = "",
        principal_name: str = "",
        token_requester_principal_type: str = "",
        token_requester_principal_name: str = "",
        issue_timestamp_ms: int = 0,
        expiry_timestamp_ms: int = 0,
        max_timestamp_ms: int = 0,
        token_id: str = "",
        hmac: bytes = b"",
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code: int = error_code
        self.principal_type: str = principal_type
        self.principal_name: str = principal_name
        self.token_requester_principal_type: str = token_requester_principal_type
        self.token_requester_principal_name: str = token_requester_principal_name
        self.issue_timestamp_ms: int = issue_timestamp_ms
        self.expiry_timestamp_ms: int = expiry_timestamp_ms
        self.max_timestamp_ms: int = max_timestamp_ms
        self.token_id: str = token_id
        self.hmac: bytes = hmac
        self.throttle_time_ms: int = throttle_time_ms

class RenewDelegationTokenRequest(Message):
    __slots__ = ("hmac", "renew_period_ms")
    API_KEY: ClassVar[int] = 39

    def __init__(
        self,
        hmac: bytes = b"",
        renew_period_ms: int = 0,
    ) -> None:
        self.hmac: bytes = hmac
        self.renew_period_ms: int = renew_period_ms

class RenewDelegationTokenResponse(Message):
    __slots__ = ("error_code", "expiry_timestamp_ms", "throttle_time_ms")
    API_KEY: ClassVar[int] = 39

    def __init__(
        self,
        error_code: int = 0,
        expiry_timestamp_ms: int = 0,
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code: int = error_code
        self.expiry_timestamp_ms: int = expiry_timestamp_ms
        self.throttle_time_ms: int = throttle_time_ms

class ExpireDelegationTokenRequest(Message):
    __slots__ = ("hmac", "expiry_time_period_ms")
    API_KEY: ClassVar[int] = 40

    def __init__(
        self,
        hmac: bytes = b"",
        expiry_time_period_ms: int = 0,
    ) -> None:
        self.hmac: bytes = hmac
        self.expiry_time_period_ms: int = expiry_time_period_ms

class ExpireDelegationTokenResponse(Message):
    __slots__ = ("error_code", "expiry_timestamp_ms", "throttle_time_ms")
    API_KEY: ClassVar[int] = 40

    def __init__(
        self,
        error_code: int = 0,
        expiry_timestamp_ms: int = 0,
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code: int = error_code
        self.expiry_timestamp_ms: int = expiry_timestamp_ms
        self.throttle_time_ms: int = throttle_time_ms

class DescribeDelegationTokenRequest(Message):
    __slots__ = ("owners",)
    API_KEY: ClassVar[int] = 41

    def __init__(
        self,
        owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = _NEW,
    ) -> None:
        self.owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = [] if owners is _NEW else owners

    class DescribeDelegationTokenOwner(Message):
        __slots__ = ("principal_type", "principal_name")

        def __init__(
            self,
            principal_type: str = "",
            principal_name: str = "",
        ) -> None:
            self.principal_type: str = principal_type
            self.principal_name: str = principal_name

class DescribeDelegationTokenResponse(Message):
    __slots__ = ("error_code", "tokens", "throttle_time_ms")
    API_KEY: ClassVar[int] = 41

    def __init__(
        self,
        error_code: int = 0,
        tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = _NEW,
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code: int = error_code
        self.tokens: list[DescribeDelegationTokenResponse.DescribedDelegationToken] = [] if tokens is _NEW else tokens
        self.throttle_time_ms: int = throttle_time_ms

    class DescribedDelegationToken(Message):
        __slots__ = ("principal_type", "principal_name", "token_requester_principal_type", "token_requester_principal_name", "issue_timestamp", "expiry_timestamp", "max_timestamp", "token_id", "hmac", "renewers")

        def __init__(
            self,
            principal_type: str = "",
            principal_name: str = "",
            token_requester_principal_type: str = "",
            token_requester_principal_name: str = "",
            issue_timestamp: int = 0,
            expiry_timestamp: int = 0,
            max_timestamp: int = 0,
            token_id: str = "",
            hmac: bytes = b"",
            renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = _NEW,
        ) -> None:
            self.principal_type: str = principal_type
            self.principal_name: str = principal_name
            self.token_requester_principal_type: str = token_requester_principal_type
            self.token_requester_principal_name: str = token_requester_principal_name
            self.issue_timestamp: int = issue_timestamp
            self.expiry_timestamp: int = expiry_timestamp
            self.max_timestamp: int = max_timestamp
            self.token_id: str = token_id
            self.hmac: bytes = hmac
            self.renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = [] if renewers is _NEW else renewers

    class DescribedDelegationTokenRenewer(Message):
        __slots__ = ("principal_type", "principal_name")

        def __init__(
            self,
            principal_type: str = "",
            principal_name: str = "",
        ) -> None:
            self.principal_type: str = principal_type
            self.principal_name: str = principal_name

class DeleteGroupsRequest(Message):
    __slots__ = ("groups_names",)
    API_KEY: ClassVar[int] = 42

    def __init__(
        self,
        groups_names: list[str] = _NEW,
    ) -> None:
        self.groups_names: list[str] = [] if groups_names is _NEW else groups_names

class DeleteGroupsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")
    API_KEY: ClassVar[int] = 42

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[DeleteGroupsResponse.DeletableGroupResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.results: list[DeleteGroupsResponse.DeletableGroupResult] = [] if results is _NEW else results

    class DeletableGroupResult(Message):
        __slots__ = ("group_id", "error_code", "error_message")

        def __init__(
            self,
            group_id: str = "",
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.group_id: str = group_id
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class ElectLeadersRequest(Message):
    __slots__ = ("election_type", "topic_partitions", "timeout_ms")
    API_KEY: ClassVar[int] = 43

    def __init__(
        self,
        election_type: int = 0,
        topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = _NEW,
        timeout_ms: int = 60000,
    ) -> None:
        self.election_type: int = election_type
        self.topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = [] if topic_partitions is _NEW else topic_partitions
        self.timeout_ms: int = timeout_ms

    class TopicPartitions(Message):
        __slots__ = ("topic", "partitions")

        def __init__(
            self,
            topic: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ElectLeadersResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "replica_election_results")
    API_KEY: ClassVar[int] = 43

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = [] if replica_election_results is _NEW else replica_election_results

    class ReplicaElectionResult(Message):
        __slots__ = ("topic", "partition_result")

        def __init__(
            self,
            topic: str = "",
            partition_result: list[ElectLeadersResponse.PartitionResult] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partition_result: list[ElectLeadersResponse.PartitionResult] = [] if partition_result is _NEW else partition_result

    class PartitionResult(Message):
        __slots__ = ("partition_id", "error_code", "error_message")

        def __init__(
            self,
            partition_id: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition_id: int = partition_id
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class IncrementalAlterConfigsRequest(Message):
    __slots__ = ("resources", "validate_only")
    API_KEY: ClassVar[int] = 44

    def __init__(
        self,
        resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = _NEW,
        validate_only: bool = False,
    ) -> None:
        self.resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = [] if resources is _NEW else resources
        self.validate_only: bool = validate_only

    class AlterConfigsResource(Message):
        __slots__ = ("resource_type", "resource_name", "configs")

        def __init__(
            self,
            resource_type: int = 0,
            resource_name: str = "",
            configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = _NEW,
        ) -> None:
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name
            self.configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = [] if configs is _NEW else configs

    class AlterableConfig(Message):
        __slots__ = ("name", "config_operation", "value")

        def __init__(
            self,
            name: str = "",
            config_operation: int = 0,
            value: str | None = "",
        ) -> None:
            self.name: str = name
            self.config_operation: int = config_operation
            self.value: str | None = value

class IncrementalAlterConfigsResponse(Message):
    __slots__ = ("throttle_time_ms", "responses")
    API_KEY: ClassVar[int] = 44

    def __init__(
        self,
        throttle_time_ms: int = 0,
        responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = [] if responses is _NEW else responses

    class AlterConfigsResourceResponse(Message):
        __slots__ = ("error_code", "error_message", "resource_type", "resource_name")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            resource_type: int = 0,
            resource_name: str = "",
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.resource_type: int = resource_type
            self.resource_name: str = resource_name

class AlterPartitionReassignmentsRequest(Message):
    __slots__ = ("timeout_ms", "allow_replication_factor_change", "topics")
    API_KEY: ClassVar[int] = 45

    def __init__(
        self,
        timeout_ms: int = 60000,
        allow_replication_factor_change: bool = True,
        topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = _NEW,
    ) -> None:
        self.timeout_ms: int = timeout_ms
        self.allow_replication_factor_change: bool = allow_replication_factor_change
        self.topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = [] if topics is _NEW else topics

    class ReassignableTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = [] if partitions is _NEW else partitions

    class ReassignablePartition(Message):
        __slots__ = ("partition_index", "replicas")

        def __init__(
            self,
            partition_index: int = 0,
            replicas: list[int] | None = None,
        ) -> None:
            self.partition_index: int = partition_index
            self.replicas: list[int] | None = replicas

class AlterPartitionReassignmentsResponse(Message):
    __slots__ = ("throttle_time_ms", "allow_replication_factor_change", "error_code", "error_message", "responses")
    API_KEY: ClassVar[int] = 45

    def __init__(
        self,
        throttle_time_ms: int = 0,
        allow_replication_factor_change: bool = True,
        error_code: int = 0,
        error_message: str | None = None,
        responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.allow_replication_factor_change: bool = allow_replication_factor_change
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = [] if responses is _NEW else responses

    class ReassignableTopicResponse(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = [] if partitions is _NEW else partitions

    class ReassignablePartitionResponse(Message):
        __slots__ = ("partition_index", "error_code", "error_message")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class ListPartitionReassignmentsRequest(Message):
    __slots__ = ("timeout_ms", "topics")
    API_KEY: ClassVar[int] = 46

    def __init__(
        self,
        timeout_ms: int = 60000,
        topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = None,
    ) -> None:
        self.timeout_ms: int = timeout_ms
        self.topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = topics

    class ListPartitionReassignmentsTopics(Message):
        __slots__ = ("name", "partition_indexes")

        def __init__(
            self,
            name: str = "",
            partition_indexes: list[int] = _NEW,
        ) -> None:
            self.name: str = name
            self.partition_indexes: list[int] = [] if partition_indexes is _NEW else partition_indexes

class ListPartitionReassignmentsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "topics")
    API_KEY: ClassVar[int] = 46

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = [] if topics is _NEW else topics

    class OngoingTopicReassignment(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = [] if partitions is _NEW else partitions

    class OngoingPartitionReassignment(Message):
        __slots__ = ("partition_index", "replicas", "adding_replicas", "removing_replicas")

        def __init__(
            self,
            partition_index: int = 0,
            replicas: list[int] = _NEW,
            adding_replicas: list[int] = _NEW,
            removing_replicas: list[int] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.replicas: list[int] = [] if replicas is _NEW else replicas
            self.adding_replicas: list[int] = [] if adding_replicas is _NEW else adding_replicas
            self.removing_replicas: list[int] = [] if removing_replicas is _NEW else removing_replicas

class OffsetDeleteRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 47

    def __init__(
        self,
        group_id: str = "",
        topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = [] if topics is _NEW else topics

    class OffsetDeleteRequestTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = [] if partitions is _NEW else partitions

    class OffsetDeleteRequestPartition(Message):
        __slots__ = ("partition_index",)

        def __init__(
            self,
            partition_index: int = 0,
        ) -> None:
            self.partition_index: int = partition_index

class OffsetDeleteResponse(Message):
    __slots__ = ("error_code", "throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 47

    def __init__(
        self,
        error_code: int = 0,
        throttle_time_ms: int = 0,
        topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = _NEW,
    ) -> None:
        self.error_code: int = error_code
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = [] if topics is _NEW else topics

    class OffsetDeleteResponseTopic(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = [] if partitions is _NEW else partitions

    class OffsetDeleteResponsePartition(Message):
        __slots__ = ("partition_index", "error_code")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code

class DescribeClientQuotasRequest(Message):
    __slots__ = ("components", "strict")
    API_KEY: ClassVar[int] = 48

    def __init__(
        self,
        components: list[DescribeClientQuotasRequest.ComponentData] = _NEW,
        strict: bool = False,
    ) -> None:
        self.components: list[DescribeClientQuotasRequest.ComponentData] = [] if components is _NEW else components
        self.strict: bool = strict

    class ComponentData(Message):
        __slots__ = ("entity_type", "match_type", "match")

        def __init__(
            self,
            entity_type: str = "",
            match_type: int = 0,
            match: str | None = "",
        ) -> None:
            self.entity_type: str = entity_type
            self.match_type: int = match_type
            self.match: str | None = match

class DescribeClientQuotasResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "entries")
    API_KEY: ClassVar[int] = 48

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        entries: list[DescribeClientQuotasResponse.EntryData] | None = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.entries: list[DescribeClientQuotasResponse.EntryData] | None = [] if entries is _NEW else entries

    class EntryData(Message):
        __slots__ = ("entity", "values")

        def __init__(
            self,
            entity: list[DescribeClientQuotasResponse.EntityData] = _NEW,
            values: list[DescribeClientQuotasResponse.ValueData] = _NEW,
        ) -> None:
            self.entity: list[DescribeClientQuotasResponse.EntityData] = [] if entity is _NEW else entity
            self.values: list[DescribeClientQuotasResponse.ValueData] = [] if values is _NEW else values

    class EntityData(Message):
        __slots__ = ("entity_type", "entity_name")

        def __init__(
            self,
            entity_type: str = "",
            entity_name: str | None = "",
        ) -> None:
            self.entity_type: str = entity_type
            self.entity_name: str | None = entity_name

    class ValueData(Message):
        __slots__ = ("key", "value")

        def __init__(
            self,
            key: str = "",
            value: float = 0.0,
        ) -> None:
            self.key: str = key
            self.value: float = value

class AlterClientQuotasRequest(Message):
    __slots__ = ("entries", "validate_only")
    API_KEY: ClassVar[int] = 49

    def __init__(
        self,
        entries: list[AlterClientQuotasRequest.EntryData] = _NEW,
        validate_only: bool = False,
    ) -> None:
        self.entries: list[AlterClientQuotasRequest.EntryData] = [] if entries is _NEW else entries
        self.validate_only: bool = validate_only

    class EntryData(Message):
        __slots__ = ("entity", "ops")

        def __init__(
            self,
            entity: list[AlterClientQuotasRequest.EntityData] = _NEW,
            ops: list[AlterClientQuotasRequest.OpData] = _NEW,
        ) -> None:
            self.entity: list[AlterClientQuotasRequest.EntityData] = [] if entity is _NEW else entity
            self.ops: list[AlterClientQuotasRequest.OpData] = [] if ops is _NEW else ops

    class EntityData(Message):
        __slots__ = ("entity_type", "entity_name")

        def __init__(
            self,
            entity_type: str = "",
            entity_name: str | None = "",
        ) -> None:
            self.entity_type: str = entity_type
            self.entity_name: str | None = entity_name

    class OpData(Message):
        __slots__ = ("key", "value", "remove")

        def __init__(
            self,
            key: str = "",
            value: float = 0.0,
            remove: bool = False,
        ) -> None:
            self.key: str = key
            self.value: float = value
            self.remove: bool = remove

class AlterClientQuotasResponse(Message):
    __slots__ = ("throttle_time_ms", "entries")
    API_KEY: ClassVar[int] = 49

    def __init__(
        self,
        throttle_time_ms: int = 0,
        entries: list[AlterClientQuotasResponse.EntryData] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.entries: list[AlterClientQuotasResponse.EntryData] = [] if entries is _NEW else entries

    class EntryData(Message):
        __slots__ = ("error_code", "error_message", "entity")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            entity: list[AlterClientQuotasResponse.EntityData] = _NEW,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.entity: list[AlterClientQuotasResponse.EntityData] = [] if entity is _NEW else entity

    class EntityData(Message):
        __slots__ = ("entity_type", "entity_name")

        def __init__(
            self,
            entity_type: str = "",
            entity_name: str | None = "",
        ) -> None:
            self.entity_type: str = entity_type
            self.entity_name: str | None = entity_name

class DescribeUserScramCredentialsRequest(Message):
    __slots__ = ("users",)
    API_KEY: ClassVar[int] = 50

    def __init__(
        self,
        users: list[DescribeUserScramCredentialsRequest.UserName] | None = _NEW,
    ) -> None:
        self.users: list[DescribeUserScramCredentialsRequest.UserName] | None = [] if users is _NEW else users

    class UserName(Message):
        __slots__ = ("name",)

        def __init__(
            self,
            name: str = "",
        ) -> None:
            self.name: str = name

class DescribeUserScramCredentialsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")
    API_KEY: ClassVar[int] = 50

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.results: list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = [] if results is _NEW else results

    class DescribeUserScramCredentialsResult(Message):
        __slots__ = ("user", "error_code", "error_message", "credential_infos")

        def __init__(
            self,
            user: str = "",
            error_code: int = 0,
            error_message: str | None = None,
            credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = _NEW,
        ) -> None:
            self.user: str = user
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = [] if credential_infos is _NEW else credential_infos

    class CredentialInfo(Message):
        __slots__ = ("mechanism", "iterations")

        def __init__(
            self,
            mechanism: int = 0,
            iterations: int = 0,
        ) -> None:
            self.mechanism: int = mechanism
            self.iterations: int = iterations

class AlterUserScramCredentialsRequest(Message):
    __slots__ = ("deletions", "upsertions")
    API_KEY: ClassVar[int] = 51

    def __init__(
        self,
        deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = _NEW,
        upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = _NEW,
    ) -> None:
        self.deletions: list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = [] if deletions is _NEW else deletions
        self.upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = [] if upsertions is _NEW else upsertions

    class ScramCredentialDeletion(Message):
        __slots__ = ("name", "mechanism")

        def __init__(
            self,
            name: str = "",
            mechanism: int = 0,
        ) -> None:
            self.name: str = name
            self.mechanism: int = mechanism

    class ScramCredentialUpsertion(Message):
        __slots__ = ("name", "mechanism", "iterations", "salt", "salted_password")

        def __init__(
            self,
            name: str = "",
            mechanism: int = 0,
            iterations: int = 0,
            salt: bytes = b"",
            salted_password: bytes = b"",
        ) -> None:
            self.name: str = name
            self.mechanism: int = mechanism
            self.iterations: int = iterations
            self.salt: bytes = salt
            self.salted_password: bytes = salted_password

class AlterUserScramCredentialsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")
    API_KEY: ClassVar[int] = 51

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.results: list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = [] if results is _NEW else results

    class AlterUserScramCredentialsResult(Message):
        __slots__ = ("user", "error_code", "error_message")

        def __init__(
            self,
            user: str = "",
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.user: str = user
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class DescribeQuorumRequest(Message):
    __slots__ = ("topics",)
    API_KEY: ClassVar[int] = 55

    def __init__(
        self,
        topics: list[DescribeQuorumRequest.TopicData] = _NEW,
    ) -> None:
        self.topics: list[DescribeQuorumRequest.TopicData] = [] if topics is _NEW else topics

    class TopicData(Message):
        __slots__ = ("topic_name", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            partitions: list[DescribeQuorumRequest.PartitionData] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.partitions: list[DescribeQuorumRequest.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition_index",)

        def __init__(
            self,
            partition_index: int = 0,
        ) -> None:
            self.partition_index: int = partition_index

class DescribeQuorumResponse(Message):
    __slots__ = ("error_code", "error_message", "topics", "nodes")
    API_KEY: ClassVar[int] = 55

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = None,
        topics: list[DescribeQuorumResponse.TopicData] = _NEW,
        nodes: list[DescribeQuorumResponse.Node] = _NEW,
    ) -> None:
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.topics: list[DescribeQuorumResponse.TopicData] = [] if topics is _NEW else topics
        self.nodes: list[DescribeQuorumResponse.Node] = [] if nodes is _NEW else nodes

    class TopicData(Message):
        __slots__ = ("topic_name", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            partitions: list[DescribeQuorumResponse.PartitionData] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.partitions: list[DescribeQuorumResponse.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition_index", "error_code", "error_message", "leader_id", "leader_epoch", "high_watermark", "current_voters", "observers")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
            leader_id: int = 0,
            leader_epoch: int = 0,
            high_watermark: int = 0,
            current_voters: list[DescribeQuorumResponse.ReplicaState] = _NEW,
            observers: list[DescribeQuorumResponse.ReplicaState] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch
            self.high_watermark: int = high_watermark
            self.current_voters: list[DescribeQuorumResponse.ReplicaState] = [] if current_voters is _NEW else current_voters
            self.observers: list[DescribeQuorumResponse.ReplicaState] = [] if observers is _NEW else observers

    class ReplicaState(Message):
        __slots__ = ("replica_id", "replica_directory_id", "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp")

        def __init__(
            self,
            replica_id: int = 0,
            replica_directory_id: bytes = _NO_ID,
            log_end_offset: int = 0,
            last_fetch_timestamp: int = -1,
            last_caught_up_timestamp: int = -1,
        ) -> None:
            self.replica_id: int = replica_id
            self.replica_directory_id: bytes = replica_directory_id
            self.log_end_offset: int = log_end_offset
            self.last_fetch_timestamp: int = last_fetch_timestamp
            self.last_caught_up_timestamp: int = last_caught_up_timestamp

    class Node(Message):
        __slots__ = ("node_id", "listeners")

        def __init__(
            self,
            node_id: int = 0,
            listeners: list[DescribeQuorumResponse.Listener] = _NEW,
        ) -> None:
            self.node_id: int = node_id
            self.listeners: list[DescribeQuorumResponse.Listener] = [] if listeners is _NEW else listeners

    class Listener(Message):
        __slots__ = ("name", "host", "port")

        def __init__(
            self,
            name: str = "",
            host: str = "",
            port: int = 0,
        ) -> None:
            self.name: str = name
            self.host: str = host
            self.port: int = port

class UpdateFeaturesRequest(Message):
    __slots__ = ("timeout_ms", "feature_updates", "validate_only")
    API_KEY: ClassVar[int] = 57

    def __init__(
        self,
        timeout_ms: int = 60000,
        feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = _NEW,
        validate_only: bool = False,
    ) -> None:
        self.timeout_ms: int = timeout_ms
        self.feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = [] if feature_updates is _NEW else feature_updates
        self.validate_only: bool = validate_only

    class FeatureUpdateKey(Message):
        __slots__ = ("feature", "max_version_level", "upgrade_type", "allow_downgrade")

        def __init__(
            self,
            feature: str = "",
            max_version_level: int = 0,
            upgrade_type: int = 1,
            allow_downgrade: bool = False,
        ) -> None:
            self.feature: str = feature
            self.max_version_level: int = max_version_level
            self.upgrade_type: int = upgrade_type
            self.allow_downgrade: bool = allow_downgrade

class UpdateFeaturesResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")
    API_KEY: ClassVar[int] = 57

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = [] if results is _NEW else results

    class UpdatableFeatureResult(Message):
        __slots__ = ("feature", "error_code", "error_message")

        def __init__(
            self,
            feature: str = "",
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.feature: str = feature
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class DescribeClusterRequest(Message):
    __slots__ = ("include_cluster_authorized_operations", "endpoint_type", "include_fenced_brokers")
    API_KEY: ClassVar[int] = 60

    def __init__(
        self,
        include_cluster_authorized_operations: bool = False,
        endpoint_type: int = 1,
        include_fenced_brokers: bool = False,
    ) -> None:
        self.include_cluster_authorized_operations: bool = include_cluster_authorized_operations
        self.endpoint_type: int = endpoint_type
        self.include_fenced_brokers: bool = include_fenced_brokers

class DescribeClusterResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "endpoint_type", "cluster_id", "controller_id", "brokers", "cluster_authorized_operations")
    API_KEY: ClassVar[int] = 60

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        endpoint_type: int = 1,
        cluster_id: str = "",
        controller_id: int = -1,
        brokers: list[DescribeClusterResponse.DescribeClusterBroker] = _NEW,
        cluster_authorized_operations: int = -2147483648,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.endpoint_type: int = endpoint_type
        self.cluster_id: str = cluster_id
        self.controller_id: int = controller_id
        self.brokers: list[DescribeClusterResponse.DescribeClusterBroker] = [] if brokers is _NEW else brokers
        self.cluster_authorized_operations: int = cluster_authorized_operations

    class DescribeClusterBroker(Message):
        __slots__ = ("broker_id", "host", "port", "rack", "is_fenced")

        def __init__(
            self,
            broker_id: int = 0,
            host: str = "",
            port: int = 0,
            rack: str | None = None,
            is_fenced: bool = False,
        ) -> None:
            self.broker_id: int = broker_id
            self.host: str = host
            self.port: int = port
            self.rack: str | None = rack
            self.is_fenced: bool = is_fenced

class DescribeProducersRequest(Message):
    __slots__ = ("topics",)
    API_KEY: ClassVar[int] = 61

    def __init__(
        self,
        topics: list[DescribeProducersRequest.TopicRequest] = _NEW,
    ) -> None:
        self.topics: list[DescribeProducersRequest.TopicRequest] = [] if topics is _NEW else topics

    class TopicRequest(Message):
        __slots__ = ("name", "partition_indexes")

        def __init__(
            self,
            name: str = "",
            partition_indexes: list[int] = _NEW,
        ) -> None:
            self.name: str = name
            self.partition_indexes: list[int] = [] if partition_indexes is _NEW else partition_indexes

class DescribeProducersResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")
    API_KEY: ClassVar[int] = 61

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[DescribeProducersResponse.TopicResponse] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[DescribeProducersResponse.TopicResponse] = [] if topics is _NEW else topics

    class TopicResponse(Message):
        __slots__ = ("name", "partitions")

        def __init__(
            self,
            name: str = "",
            partitions: list[DescribeProducersResponse.PartitionResponse] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: list[DescribeProducersResponse.PartitionResponse] = [] if partitions is _NEW else partitions

    class PartitionResponse(Message):
        __slots__ = ("partition_index", "error_code", "error_message", "active_producers")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
            active_producers: list[DescribeProducersResponse.ProducerState] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.active_producers: list[DescribeProducersResponse.ProducerState] = [] if active_producers is _NEW else active_producers

    class ProducerState(Message):
        __slots__ = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp", "coordinator_epoch", "current_txn_start_offset")

        def __init__(
            self,
            producer_id: int = 0,
            producer_epoch: int = 0,
            last_sequence: int = -1,
            last_timestamp: int = -1,
            coordinator_epoch: int = 0,
            current_txn_start_offset: int = -1,
        ) -> None:
            self.producer_id: int = producer_id
            self.producer_epoch: int = producer_epoch
            self.last_sequence: int = last_sequence
            self.last_timestamp: int = last_timestamp
            self.coordinator_epoch: int = coordinator_epoch
            self.current_txn_start_offset: int = current_txn_start_offset

class UnregisterBrokerRequest(Message):
    __slots__ = ("broker_id",)
    API_KEY: ClassVar[int] = 64

    def __init__(
        self,
        broker_id: int = 0,
    ) -> None:
        self.broker_id: int = broker_id

class UnregisterBrokerResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    API_KEY: ClassVar[int] = 64

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message

class DescribeTransactionsRequest(Message):
    __slots__ = ("transactional_ids",)
    API_KEY: ClassVar[int] = 65

    def __init__(
        self,
        transactional_ids: list[str] = _NEW,
    ) -> None:
        self.transactional_ids: list[str] = [] if transactional_ids is _NEW else transactional_ids

class DescribeTransactionsResponse(Message):
    __slots__ = ("throttle_time_ms", "transaction_states")
    API_KEY: ClassVar[int] = 65

    def __init__(
        self,
        throttle_time_ms: int = 0,
        transaction_states: list[DescribeTransactionsResponse.TransactionState] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.transaction_states: list[DescribeTransactionsResponse.TransactionState] = [] if transaction_states is _NEW else transaction_states

    class TransactionState(Message):
        __slots__ = ("error_code", "transactional_id", "transaction_state", "transaction_timeout_ms", "transaction_start_time_ms", "producer_id", "producer_epoch", "topics")

        def __init__(
            self,
            error_code: int = 0,
            transactional_id: str = "",
            transaction_state: str = "",
            transaction_timeout_ms: int = 0,
            transaction_start_time_ms: int = 0,
            producer_id: int = 0,
            producer_epoch: int = 0,
            topics: list[DescribeTransactionsResponse.TopicData] = _NEW,
        ) -> None:
            self.error_code: int = error_code
            self.transactional_id: str = transactional_id
            self.transaction_state: str = transaction_state
            self.transaction_timeout_ms: int = transaction_timeout_ms
            self.transaction_start_time_ms: int = transaction_start_time_ms
            self.producer_id: int = producer_id
            self.producer_epoch: int = producer_epoch
            self.topics: list[DescribeTransactionsResponse.TopicData] = [] if topics is _NEW else topics

    class TopicData(Message):
        __slots__ = ("topic", "partitions")

        def __init__(
            self,
            topic: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ListTransactionsRequest(Message):
    __slots__ = ("state_filters", "producer_id_filters", "duration_filter", "transactional_id_pattern")
    API_KEY: ClassVar[int] = 66

    def __init__(
        self,
        state_filters: list[str] = _NEW,
        producer_id_filters: list[int] = _NEW,
        duration_filter: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> None:
        self.state_filters: list[str] = [] if state_filters is _NEW else state_filters
        self.producer_id_filters: list[int] = [] if producer_id_filters is _NEW else producer_id_filters
        self.duration_filter: int = duration_filter
        self.transactional_id_pattern: str | None = transactional_id_pattern

class ListTransactionsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "unknown_state_filters", "transaction_states")
    API_KEY: ClassVar[int] = 66

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        unknown_state_filters: list[str] = _NEW,
        transaction_states: list[ListTransactionsResponse.TransactionState] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.unknown_state_filters: list[str] = [] if unknown_state_filters is _NEW else unknown_state_filters
        self.transaction_states: list[ListTransactionsResponse.TransactionState] = [] if transaction_states is _NEW else transaction_states

    class TransactionState(Message):
        __slots__ = ("transactional_id", "producer_id", "transaction_state")

        def __init__(
            self,
            transactional_id: str = "",
            producer_id: int = 0,
            transaction_state: str = "",
        ) -> None:
            self.transactional_id: str = transactional_id
            self.producer_id: int = producer_id
            self.transaction_state: str = transaction_state

class ConsumerGroupHeartbeatRequest(Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "instance_id", "rack_id", "rebalance_timeout_ms", "subscribed_topic_names", "subscribed_topic_regex", "server_assignor", "topic_partitions")
    API_KEY: ClassVar[int] = 68

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
        member_epoch: int = 0,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = -1,
        subscribed_topic_names: list[str] | None = None,
        subscribed_topic_regex: str | None = None,
        server_assignor: str | None = None,
        topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = None,
    ) -> None:
        self.group_id: str = group_id
        self.member_id: str = member_id
        self.member_epoch: int = member_epoch
        self.instance_id: str | None = instance_id
        self.rack_id: str | None = rack_id
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.subscribed_topic_names: list[str] | None = subscribed_topic_names
        self.subscribed_topic_regex: str | None = subscribed_topic_regex
        self.server_assignor: str | None = server_assignor
        self.topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = topic_partitions

    class TopicPartitions(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ConsumerGroupHeartbeatResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "member_id", "member_epoch", "heartbeat_interval_ms", "assignment")
    API_KEY: ClassVar[int] = 68

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        member_id: str | None = None,
        member_epoch: int = 0,
        heartbeat_interval_ms: int = 0,
        assignment: ConsumerGroupHeartbeatResponse.Assignment | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.member_id: str | None = member_id
        self.member_epoch: int = member_epoch
        self.heartbeat_interval_ms: int = heartbeat_interval_ms
        self.assignment: ConsumerGroupHeartbeatResponse.Assignment | None = assignment

    class Assignment(Message):
        __slots__ = ("topic_partitions",)

        def __init__(
            self,
            topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = _NEW,
        ) -> None:
            self.topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = [] if topic_partitions is _NEW else topic_partitions

    class TopicPartitions(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ConsumerGroupDescribeRequest(Message):
    __slots__ = ("group_ids", "include_authorized_operations")
    API_KEY: ClassVar[int] = 69

    def __init__(
        self,
        group_ids: list[str] = _NEW,
        include_authorized_operations: bool = False,
    ) -> None:
        self.group_ids: list[str] = [] if group_ids is _NEW else group_ids
        self.include_authorized_operations: bool = include_authorized_operations

class ConsumerGroupDescribeResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")
    API_KEY: ClassVar[int] = 69

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = [] if groups is _NEW else groups

    class DescribedGroup(Message):
        __slots__ = ("error_code", "error_message", "group_id", "group_state", "group_epoch", "assignment_epoch", "assignor_name", "members", "authorized_operations")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            group_id: str = "",
            group_state: str = "",
            group_epoch: int = 0,
            assignment_epoch: int = 0,
            assignor_name: str = "",
            members: list[ConsumerGroupDescribeResponse.Member] = _NEW,
            authorized_operations: int = -2147483648,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.group_id: str = group_id
            self.group_state: str = group_state
            self.group_epoch: int = group_epoch
            self.assignment_epoch: int = assignment_epoch
            self.assignor_name: str = assignor_name
            self.members: list[ConsumerGroupDescribeResponse.Member] = [] if members is _NEW else members
            self.authorized_operations: int = authorized_operations

    class Member(Message):
        __slots__ = ("member_id", "instance_id", "rack_id", "member_epoch", "client_id", "client_host", "subscribed_topic_names", "subscribed_topic_regex", "assignment", "target_assignment", "member_type")

        def __init__(
            self,
            member_id: str = "",
            instance_id: str | None = None,
            rack_id: str | None = None,
            member_epoch: int = 0,
            client_id: str = "",
            client_host: str = "",
            subscribed_topic_names: list[str] = _NEW,
            subscribed_topic_regex: str | None = None,
            assignment: ConsumerGroupDescribeResponse.Assignment = _NEW,
            target_assignment: ConsumerGroupDescribeResponse.Assignment = _NEW,
            member_type: int = -1,
        ) -> None:
            self.member_id: str = member_id
            self.instance_id: str | None = instance_id
            self.rack_id: str | None = rack_id
            self.member_epoch: int = member_epoch
            self.client_id: str = client_id
            self.client_host: str = client_host
            self.subscribed_topic_names: list[str] = [] if subscribed_topic_names is _NEW else subscribed_topic_names
            self.subscribed_topic_regex: str | None = subscribed_topic_regex
            self.assignment: ConsumerGroupDescribeResponse.Assignment = ConsumerGroupDescribeResponse.Assignment() if assignment is _NEW else assignment
            self.target_assignment: ConsumerGroupDescribeResponse.Assignment = ConsumerGroupDescribeResponse.Assignment() if target_assignment is _NEW else target_assignment
            self.member_type: int = member_type

    class Assignment(Message):
        __slots__ = ("topic_partitions",)

        def __init__(
            self,
            topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = _NEW,
        ) -> None:
            self.topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = [] if topic_partitions is _NEW else topic_partitions

    class TopicPartitions(Message):
        __slots__ = ("topic_id", "topic_name", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            topic_name: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.topic_name: str = topic_name
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class GetTelemetrySubscriptionsRequest(Message):
    __slots__ = ("client_instance_id",)
    API_KEY: ClassVar[int] = 71

    def __init__(
        self,
        client_instance_id: bytes = _NO_ID,
    ) -> None:
        self.client_instance_id: bytes = client_instance_id

class GetTelemetrySubscriptionsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "client_instance_id", "subscription_id", "accepted_compression_types", "push_interval_ms", "telemetry_max_bytes", "delta_temporality", "requested_metrics")
    API_KEY: ClassVar[int] = 71

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        client_instance_id: bytes = _NO_ID,
        subscription_id: int = 0,
        accepted_compression_types: list[int] = _NEW,
        push_interval_ms: int = 0,
        telemetry_max_bytes: int = 0,
        delta_temporality: bool = False,
        requested_metrics: list[str] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.client_instance_id: bytes = client_instance_id
        self.subscription_id: int = subscription_id
        self.accepted_compression_types: list[int] = [] if accepted_compression_types is _NEW else accepted_compression_types
        self.push_interval_ms: int = push_interval_ms
        self.telemetry_max_bytes: int = telemetry_max_bytes
        self.delta_temporality: bool = delta_temporality
        self.requested_metrics: list[str] = [] if requested_metrics is _NEW else requested_metrics

class PushTelemetryRequest(Message):
    __slots__ = ("client_instance_id", "subscription_id", "terminating", "compression_type", "metrics")
    API_KEY: ClassVar[int] = 72

    def __init__(
        self,
        client_instance_id: bytes = _NO_ID,
        subscription_id: int = 0,
        terminating: bool = False,
        compression_type: int = 0,
        metrics: bytes = b"",
    ) -> None:
        self.client_instance_id: bytes = client_instance_id
        self.subscription_id: int = subscription_id
        self.terminating: bool = terminating
        self.compression_type: int = compression_type
        self.metrics: bytes = metrics

class PushTelemetryResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code")
    API_KEY: ClassVar[int] = 72

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code

class ListConfigResourcesRequest(Message):
    __slots__ = ("resource_types",)
    API_KEY: ClassVar[int] = 74

    def __init__(
        self,
        resource_types: list[int] = _NEW,
    ) -> None:
        self.resource_types: list[int] = [] if resource_types is _NEW else resource_types

class ListConfigResourcesResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "config_resources")
    API_KEY: ClassVar[int] = 74

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        config_resources: list[ListConfigResourcesResponse.ConfigResource] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.config_resources: list[ListConfigResourcesResponse.ConfigResource] = [] if config_resources is _NEW else config_resources

    class ConfigResource(Message):
        __slots__ = ("resource_name", "resource_type")

        def __init__(
            self,
            resource_name: str = "",
            resource_type: int = 16,
        ) -> None:
            self.resource_name: str = resource_name
            self.resource_type: int = resource_type

class DescribeTopicPartitionsRequest(Message):
    __slots__ = ("topics", "response_partition_limit", "cursor")
    API_KEY: ClassVar[int] = 75

    def __init__(
        self,
        topics: list[DescribeTopicPartitionsRequest.TopicRequest] = _NEW,
        response_partition_limit: int = 2000,
        cursor: DescribeTopicPartitionsRequest.Cursor | None = None,
    ) -> None:
        self.topics: list[DescribeTopicPartitionsRequest.TopicRequest] = [] if topics is _NEW else topics
        self.response_partition_limit: int = response_partition_limit
        self.cursor: DescribeTopicPartitionsRequest.Cursor | None = cursor

    class TopicRequest(Message):
        __slots__ = ("name",)

        def __init__(
            self,
            name: str = "",
        ) -> None:
            self.name: str = name

    class Cursor(Message):
        __slots__ = ("topic_name", "partition_index")

        def __init__(
            self,
            topic_name: str = "",
            partition_index: int = 0,
        ) -> None:
            self.topic_name: str = topic_name
            self.partition_index: int = partition_index

class DescribeTopicPartitionsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics", "next_cursor")
    API_KEY: ClassVar[int] = 75

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = _NEW,
        next_cursor: DescribeTopicPartitionsResponse.Cursor | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = [] if topics is _NEW else topics
        self.next_cursor: DescribeTopicPartitionsResponse.Cursor | None = next_cursor

    class DescribeTopicPartitionsResponseTopic(Message):
        __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")

        def __init__(
            self,
            error_code: int = 0,
            name: str | None = "",
            topic_id: bytes = _NO_ID,
            is_internal: bool = False,
            partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = _NEW,
            topic_authorized_operations: int = -2147483648,
        ) -> None:
            self.error_code: int = error_code
            self.name: str | None = name
            self.topic_id: bytes = topic_id
            self.is_internal: bool = is_internal
            self.partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = [] if partitions is _NEW else partitions
            self.topic_authorized_operations: int = topic_authorized_operations

    class DescribeTopicPartitionsResponsePartition(Message):
        __slots__ = ("error_code", "partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "eligible_leader_replicas", "last_known_elr", "offline_replicas")

        def __init__(
            self,
            error_code: int = 0,
            partition_index: int = 0,
            leader_id: int = 0,
            leader_epoch: int = -1,
            replica_nodes: list[int] = _NEW,
            isr_nodes: list[int] = _NEW,
            eligible_leader_replicas: list[int] | None = None,
            last_known_elr: list[int] | None = None,
            offline_replicas: list[int] = _NEW,
        ) -> None:
            self.error_code: int = error_code
            self.partition_index: int = partition_index
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch
            self.replica_nodes: list[int] = [] if replica_nodes is _NEW else replica_nodes
            self.isr_nodes: list[int] = [] if isr_nodes is _NEW else isr_nodes
            self.eligible_leader_replicas: list[int] | None = eligible_leader_replicas
            self.last_known_elr: list[int] | None = last_known_elr
            self.offline_replicas: list[int] = [] if offline_replicas is _NEW else offline_replicas

    class Cursor(Message):
        __slots__ = ("topic_name", "partition_index")

        def __init__(
            self,
            topic_name: str = "",
            partition_index: int = 0,
        ) -> None:
            self.topic_name: str = topic_name
            self.partition_index: int = partition_index

class ShareGroupHeartbeatRequest(Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "rack_id", "subscribed_topic_names")
    API_KEY: ClassVar[int] = 76

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
        member_epoch: int = 0,
        rack_id: str | None = None,
        subscribed_topic_names: list[str] | None = None,
    ) -> None:
        self.group_id: str = group_id
        self.member_id: str = member_id
        self.member_epoch: int = member_epoch
        self.rack_id: str | None = rack_id
        self.subscribed_topic_names: list[str] | None = subscribed_topic_names

class ShareGroupHeartbeatResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "member_id", "member_epoch", "heartbeat_interval_ms", "assignment")
    API_KEY: ClassVar[int] = 76

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        member_id: str | None = None,
        member_epoch: int = 0,
        heartbeat_interval_ms: int = 0,
        assignment: ShareGroupHeartbeatResponse.Assignment | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.member_id: str | None = member_id
        self.member_epoch: int = member_epoch
        self.heartbeat_interval_ms: int = heartbeat_interval_ms
        self.assignment: ShareGroupHeartbeatResponse.Assignment | None = assignment

    class Assignment(Message):
        __slots__ = ("topic_partitions",)

        def __init__(
            self,
            topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = _NEW,
        ) -> None:
            self.topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = [] if topic_partitions is _NEW else topic_partitions

    class TopicPartitions(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ShareGroupDescribeRequest(Message):
    __slots__ = ("group_ids", "include_authorized_operations")
    API_KEY: ClassVar[int] = 77

    def __init__(
        self,
        group_ids: list[str] = _NEW,
        include_authorized_operations: bool = False,
    ) -> None:
        self.group_ids: list[str] = [] if group_ids is _NEW else group_ids
        self.include_authorized_operations: bool = include_authorized_operations

class ShareGroupDescribeResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")
    API_KEY: ClassVar[int] = 77

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[ShareGroupDescribeResponse.DescribedGroup] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.groups: list[ShareGroupDescribeResponse.DescribedGroup] = [] if groups is _NEW else groups

    class DescribedGroup(Message):
        __slots__ = ("error_code", "error_message", "group_id", "group_state", "group_epoch", "assignment_epoch", "assignor_name", "members", "authorized_operations")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            group_id: str = "",
            group_state: str = "",
            group_epoch: int = 0,
            assignment_epoch: int = 0,
            assignor_name: str = "",
            members: list[ShareGroupDescribeResponse.Member] = _NEW,
            authorized_operations: int = -2147483648,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.group_id: str = group_id
            self.group_state: str = group_state
            self.group_epoch: int = group_epoch
            self.assignment_epoch: int = assignment_epoch
            self.assignor_name: str = assignor_name
            self.members: list[ShareGroupDescribeResponse.Member] = [] if members is _NEW else members
            self.authorized_operations: int = authorized_operations

    class Member(Message):
        __slots__ = ("member_id", "rack_id", "member_epoch", "client_id", "client_host", "subscribed_topic_names", "assignment")

        def __init__(
            self,
            member_id: str = "",
            rack_id: str | None = None,
            member_epoch: int = 0,
            client_id: str = "",
            client_host: str = "",
            subscribed_topic_names: list[str] = _NEW,
            assignment: ShareGroupDescribeResponse.Assignment = _NEW,
        ) -> None:
            self.member_id: str = member_id
            self.rack_id: str | None = rack_id
            self.member_epoch: int = member_epoch
            self.client_id: str = client_id
            self.client_host: str = client_host
            self.subscribed_topic_names: list[str] = [] if subscribed_topic_names is _NEW else subscribed_topic_names
            self.assignment: ShareGroupDescribeResponse.Assignment = ShareGroupDescribeResponse.Assignment() if assignment is _NEW else assignment

    class Assignment(Message):
        __slots__ = ("topic_partitions",)

        def __init__(
            self,
            topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = _NEW,
        ) -> None:
            self.topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = [] if topic_partitions is _NEW else topic_partitions

    class TopicPartitions(Message):
        __slots__ = ("topic_id", "topic_name", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            topic_name: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.topic_name: str = topic_name
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ShareFetchRequest(Message):
    __slots__ = ("group_id", "member_id", "share_session_epoch", "max_wait_ms", "min_bytes", "max_bytes", "max_records", "batch_size", "share_acquire_mode", "is_renew_ack", "topics", "forgotten_topics_data")
    API_KEY: ClassVar[int] = 78

    def __init__(
        self,
        group_id: str | None = None,
        member_id: str | None = "",
        share_session_epoch: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 2147483647,
        max_records: int = 0,
        batch_size: int = 0,
        share_acquire_mode: int = 0,
        is_renew_ack: bool = False,
        topics: list[ShareFetchRequest.FetchTopic] = _NEW,
        forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = _NEW,
    ) -> None:
        self.group_id: str | None = group_id
        self.member_id: str | None = member_id
        self.share_session_epoch: int = share_session_epoch
        self.max_wait_ms: int = max_wait_ms
        self.min_bytes: int = min_bytes
        self.max_bytes: int = max_bytes
        self.max_records: int = max_records
        self.batch_size: int = batch_size
        self.share_acquire_mode: int = share_acquire_mode
        self.is_renew_ack: bool = is_renew_ack
        self.topics: list[ShareFetchRequest.FetchTopic] = [] if topics is _NEW else topics
        self.forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = [] if forgotten_topics_data is _NEW else forgotten_topics_data

    class FetchTopic(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ShareFetchRequest.FetchPartition] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ShareFetchRequest.FetchPartition] = [] if partitions is _NEW else partitions

    class FetchPartition(Message):
        __slots__ = ("partition_index", "acknowledgement_batches")

        def __init__(
            self,
            partition_index: int = 0,
            acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = [] if acknowledgement_batches is _NEW else acknowledgement_batches

    class AcknowledgementBatch(Message):
        __slots__ = ("first_offset", "last_offset", "acknowledge_types")

        def __init__(
            self,
            first_offset: int = 0,
            last_offset: int = 0,
            acknowledge_types: list[int] = _NEW,
        ) -> None:
            self.first_offset: int = first_offset
            self.last_offset: int = last_offset
            self.acknowledge_types: list[int] = [] if acknowledge_types is _NEW else acknowledge_types

    class ForgottenTopic(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class ShareFetchResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "acquisition_lock_timeout_ms", "responses", "node_endpoints")
    API_KEY: ClassVar[int] = 78

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        acquisition_lock_timeout_ms: int = 0,
        responses: list[ShareFetchResponse.ShareFetchableTopicResponse] = _NEW,
        node_endpoints: list[ShareFetchResponse.NodeEndpoint] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.acquisition_lock_timeout_ms: int = acquisition_lock_timeout_ms
        self.responses: list[ShareFetchResponse.ShareFetchableTopicResponse] = [] if responses is _NEW else responses
        self.node_endpoints: list[ShareFetchResponse.NodeEndpoint] = [] if node_endpoints is _NEW else node_endpoints

    class ShareFetchableTopicResponse(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ShareFetchResponse.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ShareFetchResponse.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition_index", "error_code", "error_message", "acknowledge_error_code", "acknowledge_error_message", "current_leader", "records", "acquired_records")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
            acknowledge_error_code: int = 0,
            acknowledge_error_message: str | None = None,
            current_leader: ShareFetchResponse.LeaderIdAndEpoch = _NEW,
            records: Buffer | list[Buffer] = b"",
            acquired_records: list[ShareFetchResponse.AcquiredRecords] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.acknowledge_error_code: int = acknowledge_error_code
            self.acknowledge_error_message: str | None = acknowledge_error_message
            self.current_leader: ShareFetchResponse.LeaderIdAndEpoch = ShareFetchResponse.LeaderIdAndEpoch() if current_leader is _NEW else current_leader
            self.records: Buffer | list[Buffer] = records
            self.acquired_records: list[ShareFetchResponse.AcquiredRecords] = [] if acquired_records is _NEW else acquired_records

    class LeaderIdAndEpoch(Message):
        __slots__ = ("leader_id", "leader_epoch")

        def __init__(
            self,
            leader_id: int = 0,
            leader_epoch: int = 0,
        ) -> None:
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch

    class AcquiredRecords(Message):
        __slots__ = ("first_offset", "last_offset", "delivery_count")

        def __init__(
            self,
            first_offset: int = 0,
            last_offset: int = 0,
            delivery_count: int = 0,
        ) -> None:
            self.first_offset: int = first_offset
            self.last_offset: int = last_offset
            self.delivery_count: int = delivery_count

    class NodeEndpoint(Message):
        __slots__ = ("node_id", "host", "port", "rack")

        def __init__(
            self,
            node_id: int = 0,
            host: str = "",
            port: int = 0,
            rack: str | None = None,
        ) -> None:
            self.node_id: int = node_id
            self.host: str = host
            self.port: int = port
            self.rack: str | None = rack

class ShareAcknowledgeRequest(Message):
    __slots__ = ("group_id", "member_id", "share_session_epoch", "is_renew_ack", "topics")
    API_KEY: ClassVar[int] = 79

    def __init__(
        self,
        group_id: str | None = None,
        member_id: str | None = "",
        share_session_epoch: int = 0,
        is_renew_ack: bool = False,
        topics: list[ShareAcknowledgeRequest.AcknowledgeTopic] = _NEW,
    ) -> None:
        self.group_id: str | None = group_id
        self.member_id: str | None = member_id
        self.share_session_epoch: int = share_session_epoch
        self.is_renew_ack: bool = is_renew_ack
        self.topics: list[ShareAcknowledgeRequest.AcknowledgeTopic] = [] if topics is _NEW else topics

    class AcknowledgeTopic(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = [] if partitions is _NEW else partitions

    class AcknowledgePartition(Message):
        __slots__ = ("partition_index", "acknowledgement_batches")

        def __init__(
            self,
            partition_index: int = 0,
            acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = [] if acknowledgement_batches is _NEW else acknowledgement_batches

    class AcknowledgementBatch(Message):
        __slots__ = ("first_offset", "last_offset", "acknowledge_types")

        def __init__(
            self,
            first_offset: int = 0,
            last_offset: int = 0,
            acknowledge_types: list[int] = _NEW,
        ) -> None:
            self.first_offset: int = first_offset
            self.last_offset: int = last_offset
            self.acknowledge_types: list[int] = [] if acknowledge_types is _NEW else acknowledge_types

class ShareAcknowledgeResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "acquisition_lock_timeout_ms", "responses", "node_endpoints")
    API_KEY: ClassVar[int] = 79

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        acquisition_lock_timeout_ms: int = 0,
        responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = _NEW,
        node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.acquisition_lock_timeout_ms: int = acquisition_lock_timeout_ms
        self.responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = [] if responses is _NEW else responses
        self.node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint] = [] if node_endpoints is _NEW else node_endpoints

    class ShareAcknowledgeTopicResponse(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ShareAcknowledgeResponse.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ShareAcknowledgeResponse.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition_index", "error_code", "error_message", "current_leader")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
            current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = _NEW,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = ShareAcknowledgeResponse.LeaderIdAndEpoch() if current_leader is _NEW else current_leader

    class LeaderIdAndEpoch(Message):
        __slots__ = ("leader_id", "leader_epoch")

        def __init__(
            self,
            leader_id: int = 0,
            leader_epoch: int = 0,
        ) -> None:
            self.leader_id: int = leader_id
            self.leader_epoch: int = leader_epoch

    class NodeEndpoint(Message):
        __slots__ = ("node_id", "host", "port", "rack")

        def __init__(
            self,
            node_id: int = 0,
            host: str = "",
            port: int = 0,
            rack: str | None = None,
        ) -> None:
            self.node_id: int = node_id
            self.host: str = host
            self.port: int = port
            self.rack: str | None = rack

class AddRaftVoterRequest(Message):
    __slots__ = ("cluster_id", "timeout_ms", "voter_id", "voter_directory_id", "listeners", "ack_when_committed")
    API_KEY: ClassVar[int] = 80

    def __init__(
        self,
        cluster_id: str | None = "",
        timeout_ms: int = 0,
        voter_id: int = 0,
        voter_directory_id: bytes = _NO_ID,
        listeners: list[AddRaftVoterRequest.Listener] = _NEW,
        ack_when_committed: bool = True,
    ) -> None:
        self.cluster_id: str | None = cluster_id
        self.timeout_ms: int = timeout_ms
        self.voter_id: int = voter_id
        self.voter_directory_id: bytes = voter_directory_id
        self.listeners: list[AddRaftVoterRequest.Listener] = [] if listeners is _NEW else listeners
        self.ack_when_committed: bool = ack_when_committed

    class Listener(Message):
        __slots__ = ("name", "host", "port")

        def __init__(
            self,
            name: str = "",
            host: str = "",
            port: int = 0,
        ) -> None:
            self.name: str = name
            self.host: str = host
            self.port: int = port

class AddRaftVoterResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    API_KEY: ClassVar[int] = 80

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message

class RemoveRaftVoterRequest(Message):
    __slots__ = ("cluster_id", "voter_id", "voter_directory_id")
    API_KEY: ClassVar[int] = 81

    def __init__(
        self,
        cluster_id: str | None = "",
        voter_id: int = 0,
        voter_directory_id: bytes = _NO_ID,
    ) -> None:
        self.cluster_id: str | None = cluster_id
        self.voter_id: int = voter_id
        self.voter_directory_id: bytes = voter_directory_id

class RemoveRaftVoterResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    API_KEY: ClassVar[int] = 81

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message

class InitializeShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 83

    def __init__(
        self,
        group_id: str = "",
        topics: list[InitializeShareGroupStateRequest.InitializeStateData] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[InitializeShareGroupStateRequest.InitializeStateData] = [] if topics is _NEW else topics

    class InitializeStateData(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[InitializeShareGroupStateRequest.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[InitializeShareGroupStateRequest.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition", "state_epoch", "start_offset")

        def __init__(
            self,
            partition: int = 0,
            state_epoch: int = 0,
            start_offset: int = 0,
        ) -> None:
            self.partition: int = partition
            self.state_epoch: int = state_epoch
            self.start_offset: int = start_offset

class InitializeShareGroupStateResponse(Message):
    __slots__ = ("results",)
    API_KEY: ClassVar[int] = 83

    def __init__(
        self,
        results: list[InitializeShareGroupStateResponse.InitializeStateResult] = _NEW,
    ) -> None:
        self.results: list[InitializeShareGroupStateResponse.InitializeStateResult] = [] if results is _NEW else results

    class InitializeStateResult(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[InitializeShareGroupStateResponse.PartitionResult] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[InitializeShareGroupStateResponse.PartitionResult] = [] if partitions is _NEW else partitions

    class PartitionResult(Message):
        __slots__ = ("partition", "error_code", "error_message")

        def __init__(
            self,
            partition: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition: int = partition
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class ReadShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 84

    def __init__(
        self,
        group_id: str = "",
        topics: list[ReadShareGroupStateRequest.ReadStateData] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[ReadShareGroupStateRequest.ReadStateData] = [] if topics is _NEW else topics

    class ReadStateData(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ReadShareGroupStateRequest.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ReadShareGroupStateRequest.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition", "leader_epoch")

        def __init__(
            self,
            partition: int = 0,
            leader_epoch: int = 0,
        ) -> None:
            self.partition: int = partition
            self.leader_epoch: int = leader_epoch

class ReadShareGroupStateResponse(Message):
    __slots__ = ("results",)
    API_KEY: ClassVar[int] = 84

    def __init__(
        self,
        results: list[ReadShareGroupStateResponse.ReadStateResult] = _NEW,
    ) -> None:
        self.results: list[ReadShareGroupStateResponse.ReadStateResult] = [] if results is _NEW else results

    class ReadStateResult(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ReadShareGroupStateResponse.PartitionResult] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ReadShareGroupStateResponse.PartitionResult] = [] if partitions is _NEW else partitions

    class PartitionResult(Message):
        __slots__ = ("partition", "error_code", "error_message", "state_epoch", "start_offset", "state_batches")

        def __init__(
            self,
            partition: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
            state_epoch: int = 0,
            start_offset: int = 0,
            state_batches: list[ReadShareGroupStateResponse.StateBatch] = _NEW,
        ) -> None:
            self.partition: int = partition
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.state_epoch: int = state_epoch
            self.start_offset: int = start_offset
            self.state_batches: list[ReadShareGroupStateResponse.StateBatch] = [] if state_batches is _NEW else state_batches

    class StateBatch(Message):
        __slots__ = ("first_offset", "last_offset", "delivery_state", "delivery_count")

        def __init__(
            self,
            first_offset: int = 0,
            last_offset: int = 0,
            delivery_state: int = 0,
            delivery_count: int = 0,
        ) -> None:
            self.first_offset: int = first_offset
            self.last_offset: int = last_offset
            self.delivery_state: int = delivery_state
            self.delivery_count: int = delivery_count

class WriteShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 85

    def __init__(
        self,
        group_id: str = "",
        topics: list[WriteShareGroupStateRequest.WriteStateData] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[WriteShareGroupStateRequest.WriteStateData] = [] if topics is _NEW else topics

    class WriteStateData(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[WriteShareGroupStateRequest.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[WriteShareGroupStateRequest.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition", "state_epoch", "leader_epoch", "start_offset", "delivery_complete_count", "state_batches")

        def __init__(
            self,
            partition: int = 0,
            state_epoch: int = 0,
            leader_epoch: int = 0,
            start_offset: int = 0,
            delivery_complete_count: int = -1,
            state_batches: list[WriteShareGroupStateRequest.StateBatch] = _NEW,
        ) -> None:
            self.partition: int = partition
            self.state_epoch: int = state_epoch
            self.leader_epoch: int = leader_epoch
            self.start_offset: int = start_offset
            self.delivery_complete_count: int = delivery_complete_count
            self.state_batches: list[WriteShareGroupStateRequest.StateBatch] = [] if state_batches is _NEW else state_batches

    class StateBatch(Message):
        __slots__ = ("first_offset", "last_offset", "delivery_state", "delivery_count")

        def __init__(
            self,
            first_offset: int = 0,
            last_offset: int = 0,
            delivery_state: int = 0,
            delivery_count: int = 0,
        ) -> None:
            self.first_offset: int = first_offset
            self.last_offset: int = last_offset
            self.delivery_state: int = delivery_state
            self.delivery_count: int = delivery_count

class WriteShareGroupStateResponse(Message):
    __slots__ = ("results",)
    API_KEY: ClassVar[int] = 85

    def __init__(
        self,
        results: list[WriteShareGroupStateResponse.WriteStateResult] = _NEW,
    ) -> None:
        self.results: list[WriteShareGroupStateResponse.WriteStateResult] = [] if results is _NEW else results

    class WriteStateResult(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[WriteShareGroupStateResponse.PartitionResult] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[WriteShareGroupStateResponse.PartitionResult] = [] if partitions is _NEW else partitions

    class PartitionResult(Message):
        __slots__ = ("partition", "error_code", "error_message")

        def __init__(
            self,
            partition: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition: int = partition
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class DeleteShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 86

    def __init__(
        self,
        group_id: str = "",
        topics: list[DeleteShareGroupStateRequest.DeleteStateData] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[DeleteShareGroupStateRequest.DeleteStateData] = [] if topics is _NEW else topics

    class DeleteStateData(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[DeleteShareGroupStateRequest.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[DeleteShareGroupStateRequest.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition",)

        def __init__(
            self,
            partition: int = 0,
        ) -> None:
            self.partition: int = partition

class DeleteShareGroupStateResponse(Message):
    __slots__ = ("results",)
    API_KEY: ClassVar[int] = 86

    def __init__(
        self,
        results: list[DeleteShareGroupStateResponse.DeleteStateResult] = _NEW,
    ) -> None:
        self.results: list[DeleteShareGroupStateResponse.DeleteStateResult] = [] if results is _NEW else results

    class DeleteStateResult(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[DeleteShareGroupStateResponse.PartitionResult] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[DeleteShareGroupStateResponse.PartitionResult] = [] if partitions is _NEW else partitions

    class PartitionResult(Message):
        __slots__ = ("partition", "error_code", "error_message")

        def __init__(
            self,
            partition: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition: int = partition
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class ReadShareGroupStateSummaryRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 87

    def __init__(
        self,
        group_id: str = "",
        topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = [] if topics is _NEW else topics

    class ReadStateSummaryData(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = [] if partitions is _NEW else partitions

    class PartitionData(Message):
        __slots__ = ("partition", "leader_epoch")

        def __init__(
            self,
            partition: int = 0,
            leader_epoch: int = 0,
        ) -> None:
            self.partition: int = partition
            self.leader_epoch: int = leader_epoch

class ReadShareGroupStateSummaryResponse(Message):
    __slots__ = ("results",)
    API_KEY: ClassVar[int] = 87

    def __init__(
        self,
        results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = _NEW,
    ) -> None:
        self.results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = [] if results is _NEW else results

    class ReadStateSummaryResult(Message):
        __slots__ = ("topic_id", "partitions")

        def __init__(
            self,
            topic_id: bytes = _NO_ID,
            partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = _NEW,
        ) -> None:
            self.topic_id: bytes = topic_id
            self.partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = [] if partitions is _NEW else partitions

    class PartitionResult(Message):
        __slots__ = ("partition", "error_code", "error_message", "state_epoch", "leader_epoch", "start_offset", "delivery_complete_count")

        def __init__(
            self,
            partition: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
            state_epoch: int = 0,
            leader_epoch: int = 0,
            start_offset: int = 0,
            delivery_complete_count: int = -1,
        ) -> None:
            self.partition: int = partition
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.state_epoch: int = state_epoch
            self.leader_epoch: int = leader_epoch
            self.start_offset: int = start_offset
            self.delivery_complete_count: int = delivery_complete_count

class StreamsGroupHeartbeatRequest(Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "endpoint_information_epoch", "instance_id", "rack_id", "rebalance_timeout_ms", "topology", "active_tasks", "standby_tasks", "warmup_tasks", "process_id", "user_endpoint", "client_tags", "task_offsets", "task_end_offsets", "shutdown_application")
    API_KEY: ClassVar[int] = 88

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
        member_epoch: int = 0,
        endpoint_information_epoch: int = 0,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = -1,
        topology: StreamsGroupHeartbeatRequest.Topology | None = None,
        active_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = None,
        standby_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = None,
        warmup_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = None,
        process_id: str | None = None,
        user_endpoint: StreamsGroupHeartbeatRequest.Endpoint | None = None,
        client_tags: list[StreamsGroupHeartbeatRequest.KeyValue] | None = None,
        task_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = None,
        task_end_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = None,
        shutdown_application: bool = False,
    ) -> None:
        self.group_id: str = group_id
        self.member_id: str = member_id
        self.member_epoch: int = member_epoch
        self.endpoint_information_epoch: int = endpoint_information_epoch
        self.instance_id: str | None = instance_id
        self.rack_id: str | None = rack_id
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.topology: StreamsGroupHeartbeatRequest.Topology | None = topology
        self.active_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = active_tasks
        self.standby_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = standby_tasks
        self.warmup_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = warmup_tasks
        self.process_id: str | None = process_id
        self.user_endpoint: StreamsGroupHeartbeatRequest.Endpoint | None = user_endpoint
        self.client_tags: list[StreamsGroupHeartbeatRequest.KeyValue] | None = client_tags
        self.task_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = task_offsets
        self.task_end_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = task_end_offsets
        self.shutdown_application: bool = shutdown_application

    class Topology(Message):
        __slots__ = ("epoch", "subtopologies")

        def __init__(
            self,
            epoch: int = 0,
            subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology] = _NEW,
        ) -> None:
            self.epoch: int = epoch
            self.subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology] = [] if subtopologies is _NEW else subtopologies

    class Subtopology(Message):
        __slots__ = ("subtopology_id", "source_topics", "source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "repartition_source_topics", "copartition_groups")

        def __init__(
            self,
            subtopology_id: str = "",
            source_topics: list[str] = _NEW,
            source_topic_regex: list[str] = _NEW,
            state_changelog_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = _NEW,
            repartition_sink_topics: list[str] = _NEW,
            repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = _NEW,
            copartition_groups: list[StreamsGroupHeartbeatRequest.CopartitionGroup] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.source_topics: list[str] = [] if source_topics is _NEW else source_topics
            self.source_topic_regex: list[str] = [] if source_topic_regex is _NEW else source_topic_regex
            self.state_changelog_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = [] if state_changelog_topics is _NEW else state_changelog_topics
            self.repartition_sink_topics: list[str] = [] if repartition_sink_topics is _NEW else repartition_sink_topics
            self.repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = [] if repartition_source_topics is _NEW else repartition_source_topics
            self.copartition_groups: list[StreamsGroupHeartbeatRequest.CopartitionGroup] = [] if copartition_groups is _NEW else copartition_groups

    class TopicInfo(Message):
        __slots__ = ("name", "partitions", "replication_factor", "topic_configs")

        def __init__(
            self,
            name: str = "",
            partitions: int = 0,
            replication_factor: int = 0,
            topic_configs: list[StreamsGroupHeartbeatRequest.KeyValue] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: int = partitions
            self.replication_factor: int = replication_factor
            self.topic_configs: list[StreamsGroupHeartbeatRequest.KeyValue] = [] if topic_configs is _NEW else topic_configs

    class KeyValue(Message):
        __slots__ = ("key", "value")

        def __init__(
            self,
            key: str = "",
            value: str = "",
        ) -> None:
            self.key: str = key
            self.value: str = value

    class CopartitionGroup(Message):
        __slots__ = ("source_topics", "source_topic_regex", "repartition_source_topics")

        def __init__(
            self,
            source_topics: list[int] = _NEW,
            source_topic_regex: list[int] = _NEW,
            repartition_source_topics: list[int] = _NEW,
        ) -> None:
            self.source_topics: list[int] = [] if source_topics is _NEW else source_topics
            self.source_topic_regex: list[int] = [] if source_topic_regex is _NEW else source_topic_regex
            self.repartition_source_topics: list[int] = [] if repartition_source_topics is _NEW else repartition_source_topics

    class TaskIds(Message):
        __slots__ = ("subtopology_id", "partitions")

        def __init__(
            self,
            subtopology_id: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

    class Endpoint(Message):
        __slots__ = ("host", "port")

        def __init__(
            self,
            host: str = "",
            port: int = 0,
        ) -> None:
            self.host: str = host
            self.port: int = port

    class TaskOffset(Message):
        __slots__ = ("subtopology_id", "partition", "offset")

        def __init__(
            self,
            subtopology_id: str = "",
            partition: int = 0,
            offset: int = 0,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.partition: int = partition
            self.offset: int = offset

class StreamsGroupHeartbeatResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "member_id", "member_epoch", "heartbeat_interval_ms", "task_offset_interval_ms", "acceptable_recovery_lag", "status", "active_tasks", "standby_tasks", "warmup_tasks", "topology_description_required", "endpoint_information_epoch", "partitions_by_user_endpoint", "acceptable_recovery_lag_legacy")
    API_KEY: ClassVar[int] = 88

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        member_id: str = "",
        member_epoch: int = 0,
        heartbeat_interval_ms: int = 0,
        task_offset_interval_ms: int = 0,
        acceptable_recovery_lag: int = -1,
        status: list[StreamsGroupHeartbeatResponse.Status] | None = _NEW,
        active_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = None,
        standby_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = None,
        warmup_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = None,
        topology_description_required: bool = False,
        endpoint_information_epoch: int = 0,
        partitions_by_user_endpoint: list[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None = None,
        acceptable_recovery_lag_legacy: int = 0,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.member_id: str = member_id
        self.member_epoch: int = member_epoch
        self.heartbeat_interval_ms: int = heartbeat_interval_ms
        self.task_offset_interval_ms: int = task_offset_interval_ms
        self.acceptable_recovery_lag: int = acceptable_recovery_lag
        self.status: list[StreamsGroupHeartbeatResponse.Status] | None = [] if status is _NEW else status
        self.active_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = active_tasks
        self.standby_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = standby_tasks
        self.warmup_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = warmup_tasks
        self.topology_description_required: bool = topology_description_required
        self.endpoint_information_epoch: int = endpoint_information_epoch
        self.partitions_by_user_endpoint: list[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None = partitions_by_user_endpoint
        self.acceptable_recovery_lag_legacy: int = acceptable_recovery_lag_legacy

    class Status(Message):
        __slots__ = ("status_code", "status_detail")

        def __init__(
            self,
            status_code: int = 0,
            status_detail: str = "",
        ) -> None:
            self.status_code: int = status_code
            self.status_detail: str = status_detail

    class TaskIds(Message):
        __slots__ = ("subtopology_id", "partitions")

        def __init__(
            self,
            subtopology_id: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

    class EndpointToPartitions(Message):
        __slots__ = ("user_endpoint", "active_partitions", "standby_partitions")

        def __init__(
            self,
            user_endpoint: StreamsGroupHeartbeatResponse.Endpoint = _NEW,
            active_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = _NEW,
            standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = _NEW,
        ) -> None:
            self.user_endpoint: StreamsGroupHeartbeatResponse.Endpoint = StreamsGroupHeartbeatResponse.Endpoint() if user_endpoint is _NEW else user_endpoint
            self.active_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = [] if active_partitions is _NEW else active_partitions
            self.standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = [] if standby_partitions is _NEW else standby_partitions

    class Endpoint(Message):
        __slots__ = ("host", "port")

        def __init__(
            self,
            host: str = "",
            port: int = 0,
        ) -> None:
            self.host: str = host
            self.port: int = port

    class TopicPartition(Message):
        __slots__ = ("topic", "partitions")

        def __init__(
            self,
            topic: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic: str = topic
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class StreamsGroupDescribeRequest(Message):
    __slots__ = ("group_ids", "include_authorized_operations", "include_topology_description")
    API_KEY: ClassVar[int] = 89

    def __init__(
        self,
        group_ids: list[str] = _NEW,
        include_authorized_operations: bool = False,
        include_topology_description: bool = False,
    ) -> None:
        self.group_ids: list[str] = [] if group_ids is _NEW else group_ids
        self.include_authorized_operations: bool = include_authorized_operations
        self.include_topology_description: bool = include_topology_description

class StreamsGroupDescribeResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")
    API_KEY: ClassVar[int] = 89

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[StreamsGroupDescribeResponse.DescribedGroup] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.groups: list[StreamsGroupDescribeResponse.DescribedGroup] = [] if groups is _NEW else groups

    class DescribedGroup(Message):
        __slots__ = ("error_code", "error_message", "group_id", "group_state", "group_epoch", "assignment_epoch", "topology", "members", "authorized_operations", "topology_description", "topology_description_status", "assignor_name")

        def __init__(
            self,
            error_code: int = 0,
            error_message: str | None = None,
            group_id: str = "",
            group_state: str = "",
            group_epoch: int = 0,
            assignment_epoch: int = 0,
            topology: StreamsGroupDescribeResponse.Topology | None = None,
            members: list[StreamsGroupDescribeResponse.Member] = _NEW,
            authorized_operations: int = -2147483648,
            topology_description: StreamsGroupDescribeResponse.TopologyDescription | None = None,
            topology_description_status: int = 0,
            assignor_name: str | None = None,
        ) -> None:
            self.error_code: int = error_code
            self.error_message: str | None = error_message
            self.group_id: str = group_id
            self.group_state: str = group_state
            self.group_epoch: int = group_epoch
            self.assignment_epoch: int = assignment_epoch
            self.topology: StreamsGroupDescribeResponse.Topology | None = topology
            self.members: list[StreamsGroupDescribeResponse.Member] = [] if members is _NEW else members
            self.authorized_operations: int = authorized_operations
            self.topology_description: StreamsGroupDescribeResponse.TopologyDescription | None = topology_description
            self.topology_description_status: int = topology_description_status
            self.assignor_name: str | None = assignor_name

    class Topology(Message):
        __slots__ = ("epoch", "subtopologies")

        def __init__(
            self,
            epoch: int = 0,
            subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = None,
        ) -> None:
            self.epoch: int = epoch
            self.subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = subtopologies

    class Subtopology(Message):
        __slots__ = ("subtopology_id", "source_topics", "repartition_sink_topics", "state_changelog_topics", "repartition_source_topics")

        def __init__(
            self,
            subtopology_id: str = "",
            source_topics: list[str] = _NEW,
            repartition_sink_topics: list[str] = _NEW,
            state_changelog_topics: list[StreamsGroupDescribeResponse.TopicInfo] = _NEW,
            repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.source_topics: list[str] = [] if source_topics is _NEW else source_topics
            self.repartition_sink_topics: list[str] = [] if repartition_sink_topics is _NEW else repartition_sink_topics
            self.state_changelog_topics: list[StreamsGroupDescribeResponse.TopicInfo] = [] if state_changelog_topics is _NEW else state_changelog_topics
            self.repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo] = [] if repartition_source_topics is _NEW else repartition_source_topics

    class TopicInfo(Message):
        __slots__ = ("name", "partitions", "replication_factor", "topic_configs")

        def __init__(
            self,
            name: str = "",
            partitions: int = 0,
            replication_factor: int = 0,
            topic_configs: list[StreamsGroupDescribeResponse.KeyValue] = _NEW,
        ) -> None:
            self.name: str = name
            self.partitions: int = partitions
            self.replication_factor: int = replication_factor
            self.topic_configs: list[StreamsGroupDescribeResponse.KeyValue] = [] if topic_configs is _NEW else topic_configs

    class KeyValue(Message):
        __slots__ = ("key", "value")

        def __init__(
            self,
            key: str = "",
            value: str = "",
        ) -> None:
            self.key: str = key
            self.value: str = value

    class Member(Message):
        __slots__ = ("member_id", "member_epoch", "instance_id", "rack_id", "client_id", "client_host", "topology_epoch", "process_id", "user_endpoint", "client_tags", "task_offsets", "task_end_offsets", "assignment", "target_assignment", "is_classic")

        def __init__(
            self,
            member_id: str = "",
            member_epoch: int = 0,
            instance_id: str | None = None,
            rack_id: str | None = None,
            client_id: str = "",
            client_host: str = "",
            topology_epoch: int = 0,
            process_id: str = "",
            user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = None,
            client_tags: list[StreamsGroupDescribeResponse.KeyValue] = _NEW,
            task_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = _NEW,
            task_end_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = _NEW,
            assignment: StreamsGroupDescribeResponse.Assignment = _NEW,
            target_assignment: StreamsGroupDescribeResponse.Assignment = _NEW,
            is_classic: bool = False,
        ) -> None:
            self.member_id: str = member_id
            self.member_epoch: int = member_epoch
            self.instance_id: str | None = instance_id
            self.rack_id: str | None = rack_id
            self.client_id: str = client_id
            self.client_host: str = client_host
            self.topology_epoch: int = topology_epoch
            self.process_id: str = process_id
            self.user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = user_endpoint
            self.client_tags: list[StreamsGroupDescribeResponse.KeyValue] = [] if client_tags is _NEW else client_tags
            self.task_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = [] if task_offsets is _NEW else task_offsets
            self.task_end_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = [] if task_end_offsets is _NEW else task_end_offsets
            self.assignment: StreamsGroupDescribeResponse.Assignment = StreamsGroupDescribeResponse.Assignment() if assignment is _NEW else assignment
            self.target_assignment: StreamsGroupDescribeResponse.Assignment = StreamsGroupDescribeResponse.Assignment() if target_assignment is _NEW else target_assignment
            self.is_classic: bool = is_classic

    class Endpoint(Message):
        __slots__ = ("host", "port")

        def __init__(
            self,
            host: str = "",
            port: int = 0,
        ) -> None:
            self.host: str = host
            self.port: int = port

    class TaskOffset(Message):
        __slots__ = ("subtopology_id", "partition", "offset")

        def __init__(
            self,
            subtopology_id: str = "",
            partition: int = 0,
            offset: int = 0,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.partition: int = partition
            self.offset: int = offset

    class Assignment(Message):
        __slots__ = ("active_tasks", "standby_tasks", "warmup_tasks")

        def __init__(
            self,
            active_tasks: list[StreamsGroupDescribeResponse.TaskIds] = _NEW,
            standby_tasks: list[StreamsGroupDescribeResponse.TaskIds] = _NEW,
            warmup_tasks: list[StreamsGroupDescribeResponse.TaskIds] = _NEW,
        ) -> None:
            self.active_tasks: list[StreamsGroupDescribeResponse.TaskIds] = [] if active_tasks is _NEW else active_tasks
            self.standby_tasks: list[StreamsGroupDescribeResponse.TaskIds] = [] if standby_tasks is _NEW else standby_tasks
            self.warmup_tasks: list[StreamsGroupDescribeResponse.TaskIds] = [] if warmup_tasks is _NEW else warmup_tasks

    class TaskIds(Message):
        __slots__ = ("subtopology_id", "partitions")

        def __init__(
            self,
            subtopology_id: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.partitions: list[int] = [] if partitions is _NEW else partitions

    class TopologyDescription(Message):
        __slots__ = ("subtopologies", "global_stores")

        def __init__(
            self,
            subtopologies: list[StreamsGroupDescribeResponse.TopologyDescriptionSubtopology] = _NEW,
            global_stores: list[StreamsGroupDescribeResponse.TopologyDescriptionGlobalStore] = _NEW,
        ) -> None:
            self.subtopologies: list[StreamsGroupDescribeResponse.TopologyDescriptionSubtopology] = [] if subtopologies is _NEW else subtopologies
            self.global_stores: list[StreamsGroupDescribeResponse.TopologyDescriptionGlobalStore] = [] if global_stores is _NEW else global_stores

    class TopologyDescriptionSubtopology(Message):
        __slots__ = ("subtopology_id", "nodes")

        def __init__(
            self,
            subtopology_id: str = "",
            nodes: list[StreamsGroupDescribeResponse.TopologyDescriptionNode] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.nodes: list[StreamsGroupDescribeResponse.TopologyDescriptionNode] = [] if nodes is _NEW else nodes

    class TopologyDescriptionNode(Message):
        __slots__ = ("name", "node_type", "source_topics", "sink_topic", "stores", "successors")

        def __init__(
            self,
            name: str = "",
            node_type: int = 0,
            source_topics: list[str] = _NEW,
            sink_topic: str | None = None,
            stores: list[str] = _NEW,
            successors: list[str] = _NEW,
        ) -> None:
            self.name: str = name
            self.node_type: int = node_type
            self.source_topics: list[str] = [] if source_topics is _NEW else source_topics
            self.sink_topic: str | None = sink_topic
            self.stores: list[str] = [] if stores is _NEW else stores
            self.successors: list[str] = [] if successors is _NEW else successors

    class TopologyDescriptionGlobalStore(Message):
        __slots__ = ("source", "processor")

        def __init__(
            self,
            source: StreamsGroupDescribeResponse.TopologyDescriptionNode = _NEW,
            processor: StreamsGroupDescribeResponse.TopologyDescriptionNode = _NEW,
        ) -> None:
            self.source: StreamsGroupDescribeResponse.TopologyDescriptionNode = StreamsGroupDescribeResponse.TopologyDescriptionNode() if source is _NEW else source
            self.processor: StreamsGroupDescribeResponse.TopologyDescriptionNode = StreamsGroupDescribeResponse.TopologyDescriptionNode() if processor is _NEW else processor

class DescribeShareGroupOffsetsRequest(Message):
    __slots__ = ("groups",)
    API_KEY: ClassVar[int] = 90

    def __init__(
        self,
        groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = _NEW,
    ) -> None:
        self.groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = [] if groups is _NEW else groups

    class DescribeShareGroupOffsetsRequestGroup(Message):
        __slots__ = ("group_id", "topics")

        def __init__(
            self,
            group_id: str = "",
            topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = _NEW,
        ) -> None:
            self.group_id: str = group_id
            self.topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = [] if topics is _NEW else topics

    class DescribeShareGroupOffsetsRequestTopic(Message):
        __slots__ = ("topic_name", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            partitions: list[int] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.partitions: list[int] = [] if partitions is _NEW else partitions

class DescribeShareGroupOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")
    API_KEY: ClassVar[int] = 90

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = [] if groups is _NEW else groups

    class DescribeShareGroupOffsetsResponseGroup(Message):
        __slots__ = ("group_id", "topics", "error_code", "error_message")

        def __init__(
            self,
            group_id: str = "",
            topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = _NEW,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.group_id: str = group_id
            self.topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = [] if topics is _NEW else topics
            self.error_code: int = error_code
            self.error_message: str | None = error_message

    class DescribeShareGroupOffsetsResponseTopic(Message):
        __slots__ = ("topic_name", "topic_id", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            topic_id: bytes = _NO_ID,
            partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.topic_id: bytes = topic_id
            self.partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = [] if partitions is _NEW else partitions

    class DescribeShareGroupOffsetsResponsePartition(Message):
        __slots__ = ("partition_index", "start_offset", "leader_epoch", "lag", "error_code", "error_message")

        def __init__(
            self,
            partition_index: int = 0,
            start_offset: int = 0,
            leader_epoch: int = 0,
            lag: int = -1,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition_index: int = partition_index
            self.start_offset: int = start_offset
            self.leader_epoch: int = leader_epoch
            self.lag: int = lag
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class AlterShareGroupOffsetsRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 91

    def __init__(
        self,
        group_id: str = "",
        topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = [] if topics is _NEW else topics

    class AlterShareGroupOffsetsRequestTopic(Message):
        __slots__ = ("topic_name", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = [] if partitions is _NEW else partitions

    class AlterShareGroupOffsetsRequestPartition(Message):
        __slots__ = ("partition_index", "start_offset")

        def __init__(
            self,
            partition_index: int = 0,
            start_offset: int = 0,
        ) -> None:
            self.partition_index: int = partition_index
            self.start_offset: int = start_offset

class AlterShareGroupOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "responses")
    API_KEY: ClassVar[int] = 91

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = [] if responses is _NEW else responses

    class AlterShareGroupOffsetsResponseTopic(Message):
        __slots__ = ("topic_name", "topic_id", "partitions")

        def __init__(
            self,
            topic_name: str = "",
            topic_id: bytes = _NO_ID,
            partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = _NEW,
        ) -> None:
            self.topic_name: str = topic_name
            self.topic_id: bytes = topic_id
            self.partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = [] if partitions is _NEW else partitions

    class AlterShareGroupOffsetsResponsePartition(Message):
        __slots__ = ("partition_index", "error_code", "error_message")

        def __init__(
            self,
            partition_index: int = 0,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.partition_index: int = partition_index
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class DeleteShareGroupOffsetsRequest(Message):
    __slots__ = ("group_id", "topics")
    API_KEY: ClassVar[int] = 92

    def __init__(
        self,
        group_id: str = "",
        topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = [] if topics is _NEW else topics

    class DeleteShareGroupOffsetsRequestTopic(Message):
        __slots__ = ("topic_name",)

        def __init__(
            self,
            topic_name: str = "",
        ) -> None:
            self.topic_name: str = topic_name

class DeleteShareGroupOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "responses")
    API_KEY: ClassVar[int] = 92

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = _NEW,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
        self.responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = [] if responses is _NEW else responses

    class DeleteShareGroupOffsetsResponseTopic(Message):
        __slots__ = ("topic_name", "topic_id", "error_code", "error_message")

        def __init__(
            self,
            topic_name: str = "",
            topic_id: bytes = _NO_ID,
            error_code: int = 0,
            error_message: str | None = None,
        ) -> None:
            self.topic_name: str = topic_name
            self.topic_id: bytes = topic_id
            self.error_code: int = error_code
            self.error_message: str | None = error_message

class StreamsGroupTopologyDescriptionUpdateRequest(Message):
    __slots__ = ("group_id", "member_id", "topology_epoch", "topology_description")
    API_KEY: ClassVar[int] = 93

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
        topology_epoch: int = 0,
        topology_description: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescription = _NEW,
    ) -> None:
        self.group_id: str = group_id
        self.member_id: str = member_id
        self.topology_epoch: int = topology_epoch
        self.topology_description: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescription = StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescription() if topology_description is _NEW else topology_description

    class TopologyDescription(Message):
        __slots__ = ("subtopologies", "global_stores")

        def __init__(
            self,
            subtopologies: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionSubtopology] = _NEW,
            global_stores: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionGlobalStore] = _NEW,
        ) -> None:
            self.subtopologies: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionSubtopology] = [] if subtopologies is _NEW else subtopologies
            self.global_stores: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionGlobalStore] = [] if global_stores is _NEW else global_stores

    class TopologyDescriptionSubtopology(Message):
        __slots__ = ("subtopology_id", "nodes")

        def __init__(
            self,
            subtopology_id: str = "",
            nodes: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode] = _NEW,
        ) -> None:
            self.subtopology_id: str = subtopology_id
            self.nodes: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode] = [] if nodes is _NEW else nodes

    class TopologyDescriptionNode(Message):
        __slots__ = ("name", "node_type", "source_topics", "sink_topic", "stores", "successors")

        def __init__(
            self,
            name: str = "",
            node_type: int = 0,
            source_topics: list[str] = _NEW,
            sink_topic: str | None = None,
            stores: list[str] = _NEW,
            successors: list[str] = _NEW,
        ) -> None:
            self.name: str = name
            self.node_type: int = node_type
            self.source_topics: list[str] = [] if source_topics is _NEW else source_topics
            self.sink_topic: str | None = sink_topic
            self.stores: list[str] = [] if stores is _NEW else stores
            self.successors: list[str] = [] if successors is _NEW else successors

    class TopologyDescriptionGlobalStore(Message):
        __slots__ = ("source", "processor")

        def __init__(
            self,
            source: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode = _NEW,
            processor: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode = _NEW,
        ) -> None:
            self.source: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode = StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode() if source is _NEW else source
            self.processor: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode = StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode() if processor is _NEW else processor

class StreamsGroupTopologyDescriptionUpdateResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    API_KEY: ClassVar[int] = 93

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message

class UnregisterControllerRequest(Message):
    __slots__ = ("controller_id",)
    API_KEY: ClassVar[int] = 94

    def __init__(
        self,
        controller_id: int = 0,
    ) -> None:
        self.controller_id: int = controller_id

class UnregisterControllerResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    API_KEY: ClassVar[int] = 94

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.throttle_time_ms: int = throttle_time_ms
        self.error_code: int = error_code
        self.error_message: str | None = error_message
