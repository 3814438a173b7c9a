"""The error response of each API: what a client gets when its whole request failed (docs/protocols/kafka.md, rule 69).

A response repeats the items of the request, since clients look their own items up in the answer and treat a missing one
as a bug of the broker. An API without such items and without a top-level error code has no such answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.message import Message


class _Items(NamedTuple):
    """A list of the response that has one ``kind`` for each item of the request's list ``asked``.

    ``repeats``: fields that an item repeats, ``there=here`` if the request has another name for it, ``there=`` if the
    request's item is the value itself. ``fixed``: fields with one value. ``inner``: a list of each item.
    """

    field: str
    kind: type[Message]
    asked: str
    repeats: str = ""
    inner: _Items | None = None
    fixed: Mapping[str, int] = {}


def response(key: int, version: int, request: Any, code: int, message: str | None = None) -> Message | None:
    """Return the response that reports ``code`` for all of ``request``; None if the protocol has no such response."""
    builder, lists = _BUILDERS.get(key), _ITEMS.get(key, ())
    if builder is not None:
        return None if request is None else builder(request, version, code, message)
    found: Message = getattr(m, APIS[key].name + "Response")()
    if (request is None) if lists else ("error_code" not in found.__slots__):
        return None
    _set_error(found, code, message)
    for items in lists:
        _repeat(items, request, found, code, message)
    return found


def _repeat(items: _Items, asked: Any, answer: Message, code: int, message: str | None) -> None:
    """Add the items of a request, or of one of its items, to the answer."""
    pairs = [repeated.partition("=") for repeated in items.repeats.split()]
    for one in getattr(asked, items.asked) or ():
        item = items.kind()
        _set_error(item, code, message)
        for there, renamed, here in pairs:
            value = one if renamed and not here else getattr(one, here or there)
            if value is not None:
                setattr(item, there, value)
        for there, number in items.fixed.items():
            setattr(item, there, number)
        if items.inner is not None:
            _repeat(items.inner, one, item, code, message)
        getattr(answer, items.field).append(item)


def _set_error(answer: Message, code: int, message: str | None) -> None:
    for name, value in (("error_code", code), ("partition_error_code", code), ("error_message", message)):
        if name in answer.__slots__:
            setattr(answer, name, value)


def _fetch(request: m.FetchRequest, version: int, code: int, message: str | None) -> Message:
    answer = m.FetchResponse(error_code=code)
    if version < 7:
        partition = m.FetchResponse.PartitionData
        fixed = {"high_watermark": -1}
        partitions = _Items("partitions", partition, "partitions", "partition_index=partition", fixed=fixed)
        topics = _Items("responses", m.FetchResponse.FetchableTopicResponse, "topics", "topic", partitions)
        _repeat(topics, request, answer, code, message)
        for topic in answer.responses:
            for one in topic.partitions:
                one.records = b""
    return answer


def _offset_fetch(request: m.OffsetFetchRequest, version: int, code: int, message: str | None) -> Message:
    group = m.OffsetFetchResponse.OffsetFetchResponseGroup
    topic, partition = (
        m.OffsetFetchResponse.OffsetFetchResponseTopic,
        m.OffsetFetchResponse.OffsetFetchResponsePartition,
    )
    if version >= 8:
        return m.OffsetFetchResponse(groups=[group(group_id=g.group_id, error_code=code) for g in request.groups])
    if version >= 2:
        return m.OffsetFetchResponse(error_code=code)
    return m.OffsetFetchResponse(
        error_code=code,
        topics=[
            topic(
                name=t.name,
                partitions=[
                    partition(partition_index=index, committed_offset=-1, error_code=code)
                    for index in t.partition_indexes
                ],
            )
            for t in request.topics or []
        ],
    )


def _find_coordinator(request: m.FindCoordinatorRequest, version: int, code: int, message: str | None) -> Message:
    coordinator = m.FindCoordinatorResponse.Coordinator
    return m.FindCoordinatorResponse(
        error_code=code,
        error_message=message,
        node_id=-1,
        port=-1,
        coordinators=[
            coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ],
    )


def _join_group(request: m.JoinGroupRequest, version: int, code: int, message: str | None) -> Message:
    # Before version 7 the protocol name may not be null (docs/protocols/kafka.md, rule 12).
    return m.JoinGroupResponse(
        error_code=code,
        generation_id=-1,
        protocol_name=None if version >= 7 else "",
        member_id=request.member_id,
    )


def _init_producer_id(request: m.InitProducerIdRequest, version: int, code: int, message: str | None) -> Message:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _describe_log_dirs(request: m.DescribeLogDirsRequest, version: int, code: int, message: str | None) -> Message:
    if version >= 3:
        return m.DescribeLogDirsResponse(error_code=code)
    return m.DescribeLogDirsResponse(results=[m.DescribeLogDirsResponse.DescribeLogDirsResult(error_code=code)])


def _alter_log_dirs(request: m.AlterReplicaLogDirsRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = (
        m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult,
        m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult,
    )
    return m.AlterReplicaLogDirsResponse(
        results=[
            topic(one.name, [partition(index, code) for index in one.partitions])
            for wanted in request.dirs
            for one in wanted.topics
        ]
    )


def _alter_scram(request: m.AlterUserScramCredentialsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    users = dict.fromkeys([d.name for d in request.deletions] + [u.name for u in request.upsertions])
    return m.AlterUserScramCredentialsResponse(
        results=[result(user=user, error_code=code, error_message=message) for user in users]
    )


_BUILDERS: dict[int, Callable[[Any, int, int, str | None], Message]] = {
    ApiKey.FETCH: _fetch,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_log_dirs,
}


def _share_state(key: ApiKey, topic: str) -> tuple[_Items, ...]:
    response = getattr(m, APIS[key].name + "Response")
    partitions = _Items("partitions", response.PartitionResult, "partitions", "partition")
    return (_Items("results", getattr(response, topic), "topics", "topic_id", partitions),)


_RESOURCE = "resource_type resource_name"
_ITEMS: dict[int, tuple[_Items, ...]] = {
    ApiKey.PRODUCE: (
        _Items(
            "responses",
            m.ProduceResponse.TopicProduceResponse,
            "topic_data",
            "topic_id name",
            _Items(
                "partition_responses",
                m.ProduceResponse.PartitionProduceResponse,
                "partition_data",
                "index",
                fixed={"base_offset": -1},
            ),
        ),
    ),
    ApiKey.LIST_OFFSETS: (
        _Items(
            "topics",
            m.ListOffsetsResponse.ListOffsetsTopicResponse,
            "topics",
            "name",
            _Items("partitions", m.ListOffsetsResponse.ListOffsetsPartitionResponse, "partitions", "partition_index"),
        ),
    ),
    ApiKey.METADATA: (_Items("topics", m.MetadataResponse.MetadataResponseTopic, "topics", "name topic_id"),),
    ApiKey.OFFSET_COMMIT: (
        _Items(
            "topics",
            m.OffsetCommitResponse.OffsetCommitResponseTopic,
            "topics",
            "topic_id name",
            _Items("partitions", m.OffsetCommitResponse.OffsetCommitResponsePartition, "partitions", "partition_index"),
        ),
    ),
    ApiKey.DESCRIBE_GROUPS: (_Items("groups", m.DescribeGroupsResponse.DescribedGroup, "groups", "group_id="),),
    ApiKey.CREATE_TOPICS: (_Items("topics", m.CreateTopicsResponse.CreatableTopicResult, "topics", "name"),),
    ApiKey.DELETE_TOPICS: (
        _Items("responses", m.DeleteTopicsResponse.DeletableTopicResult, "topic_names", "name="),
        _Items("responses", m.DeleteTopicsResponse.DeletableTopicResult, "topics", "name topic_id"),
    ),
    ApiKey.DELETE_RECORDS: (
        _Items(
            "topics",
            m.DeleteRecordsResponse.DeleteRecordsTopicResult,
            "topics",
            "name",
            _Items(
                "partitions",
                m.DeleteRecordsResponse.DeleteRecordsPartitionResult,
                "partitions",
                "partition_index",
                fixed={"low_watermark": -1},
            ),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        _Items(
            "topics",
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult,
            "topics",
            "topic",
            _Items("partitions", m.OffsetForLeaderEpochResponse.EpochEndOffset, "partitions", "partition"),
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        _Items(
            "results_by_topic_v3_and_below",
            m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult,
            "v3_and_below_topics",
            "name",
            _Items(
                "results_by_partition",
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult,
                "partitions",
                "partition_index=",
            ),
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        _Items(
            "markers",
            m.WriteTxnMarkersResponse.WritableTxnMarkerResult,
            "markers",
            "producer_id",
            _Items(
                "topics",
                m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult,
                "topics",
                "name",
                _Items(
                    "partitions",
                    m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult,
                    "partition_indexes",
                    "partition_index=",
                ),
            ),
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        _Items(
            "topics",
            m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
            "topics",
            "topic_id name",
            _Items(
                "partitions",
                m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
                "partitions",
                "partition_index",
            ),
        ),
    ),
    ApiKey.CREATE_ACLS: (_Items("results", m.CreateAclsResponse.AclCreationResult, "creations"),),
    ApiKey.DELETE_ACLS: (_Items("filter_results", m.DeleteAclsResponse.DeleteAclsFilterResult, "filters"),),
    ApiKey.DESCRIBE_CONFIGS: (
        _Items("results", m.DescribeConfigsResponse.DescribeConfigsResult, "resources", _RESOURCE),
    ),
    ApiKey.ALTER_CONFIGS: (
        _Items("responses", m.AlterConfigsResponse.AlterConfigsResourceResponse, "resources", _RESOURCE),
    ),
    ApiKey.CREATE_PARTITIONS: (
        _Items("results", m.CreatePartitionsResponse.CreatePartitionsTopicResult, "topics", "name"),
    ),
    ApiKey.DELETE_GROUPS: (
        _Items("results", m.DeleteGroupsResponse.DeletableGroupResult, "groups_names", "group_id="),
    ),
    ApiKey.ELECT_LEADERS: (
        _Items(
            "replica_election_results",
            m.ElectLeadersResponse.ReplicaElectionResult,
            "topic_partitions",
            "topic",
            _Items("partition_result", m.ElectLeadersResponse.PartitionResult, "partitions", "partition_id="),
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        _Items("responses", m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, "resources", _RESOURCE),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        _Items(
            "entries",
            m.AlterClientQuotasResponse.EntryData,
            "entries",
            "",
            _Items("entity", m.AlterClientQuotasResponse.EntityData, "entity", "entity_type entity_name"),
        ),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        _Items(
            "topics",
            m.DescribeProducersResponse.TopicResponse,
            "topics",
            "name",
            _Items(
                "partitions", m.DescribeProducersResponse.PartitionResponse, "partition_indexes", "partition_index="
            ),
        ),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _Items(
            "transaction_states",
            m.DescribeTransactionsResponse.TransactionState,
            "transactional_ids",
            "transactional_id=",
        ),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        _Items("groups", m.ConsumerGroupDescribeResponse.DescribedGroup, "group_ids", "group_id="),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        _Items("topics", m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic, "topics", "name"),
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: (
        _Items("groups", m.ShareGroupDescribeResponse.DescribedGroup, "group_ids", "group_id="),
    ),
    **{
        key: _share_state(key, topic)
        for key, topic in (
            (ApiKey.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateResult"),
            (ApiKey.READ_SHARE_GROUP_STATE, "ReadStateResult"),
            (ApiKey.WRITE_SHARE_GROUP_STATE, "WriteStateResult"),
            (ApiKey.DELETE_SHARE_GROUP_STATE, "DeleteStateResult"),
            (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "ReadStateSummaryResult"),
        )
    },
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        _Items("groups", m.StreamsGroupDescribeResponse.DescribedGroup, "group_ids", "group_id="),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        _Items(
            "groups", m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup, "groups", "group_id"
        ),
    ),
}
