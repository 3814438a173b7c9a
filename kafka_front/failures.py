"""The error response of each API: what a client gets when its whole request failed (docs/protocols/kafka.md, rule 69).

Each builder echoes the items of the request, since clients look their own items up in the answer and treat a missing
one as a bug of the broker. An API without a builder and without a top-level error code has no such answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS
from kafka_front.wire.message import Message


def response(key: int, version: int, request: Any, code: int, message: str | None = None) -> Message | None:
    """Return the response that reports ``code`` for all of ``request``; None if the protocol has no such response."""
    builder = _BUILDERS.get(key)
    if builder is not None:
        return None if request is None else builder(request, version, code, message)
    found: Message = getattr(m, APIS[key].name + "Response")()
    if "error_code" not in found.__slots__:
        return None
    found.error_code = code  # type: ignore[attr-defined]
    if "error_message" in found.__slots__:
        found.error_message = message  # type: ignore[attr-defined]
    return found


def _produce(request: m.ProduceRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = m.ProduceResponse.TopicProduceResponse, m.ProduceResponse.PartitionProduceResponse
    return m.ProduceResponse(
        responses=[
            topic(
                topic_id=t.topic_id,
                name=t.name,
                partition_responses=[
                    partition(index=p.index, error_code=code, base_offset=-1, error_message=message)
                    for p in t.partition_data
                ],
            )
            for t in request.topic_data
        ]
    )


def _fetch(request: m.FetchRequest, version: int, code: int, message: str | None) -> Message:
    if version >= 7:
        return m.FetchResponse(error_code=code)
    topic, partition = m.FetchResponse.FetchableTopicResponse, m.FetchResponse.PartitionData
    return m.FetchResponse(
        responses=[
            topic(
                topic=t.topic,
                partitions=[
                    partition(partition_index=p.partition, error_code=code, high_watermark=-1, records=b"")
                    for p in t.partitions
                ],
            )
            for t in request.topics
        ]
    )


def _list_offsets(request: m.ListOffsetsRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = (
        m.ListOffsetsResponse.ListOffsetsTopicResponse,
        m.ListOffsetsResponse.ListOffsetsPartitionResponse,
    )
    return m.ListOffsetsResponse(
        topics=[
            topic(
                name=t.name,
                partitions=[partition(partition_index=p.partition_index, error_code=code) for p in t.partitions],
            )
            for t in request.topics
        ]
    )


def _metadata(request: m.MetadataRequest, version: int, code: int, message: str | None) -> Message:
    topic = m.MetadataResponse.MetadataResponseTopic
    return m.MetadataResponse(
        error_code=code,
        topics=[topic(error_code=code, name=t.name or "", topic_id=t.topic_id) for t in request.topics or []],
    )


def _offset_commit(request: m.OffsetCommitRequest, version: int, code: int, message: str | None) -> Message:
    topic = m.OffsetCommitResponse.OffsetCommitResponseTopic
    partition = m.OffsetCommitResponse.OffsetCommitResponsePartition
    return m.OffsetCommitResponse(
        topics=[
            topic(
                topic_id=t.topic_id,
                name=t.name,
                partitions=[partition(partition_index=p.partition_index, error_code=code) for p in t.partitions],
            )
            for t in request.topics
        ]
    )


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


def _describe_groups(request: m.DescribeGroupsRequest, version: int, code: int, message: str | None) -> Message:
    group = m.DescribeGroupsResponse.DescribedGroup
    return m.DescribeGroupsResponse(
        groups=[group(group_id=name, error_code=code, error_message=message) for name in request.groups]
    )


def _create_topics(request: m.CreateTopicsRequest, version: int, code: int, message: str | None) -> Message:
    topic = m.CreateTopicsResponse.CreatableTopicResult
    return m.CreateTopicsResponse(
        topics=[topic(name=t.name, error_code=code, error_message=message) for t in request.topics]
    )


def _delete_topics(request: m.DeleteTopicsRequest, version: int, code: int, message: str | None) -> Message:
    topic = m.DeleteTopicsResponse.DeletableTopicResult
    names = [topic(name=name, error_code=code, error_message=message) for name in request.topic_names]
    states = [topic(name=t.name, topic_id=t.topic_id, error_code=code, error_message=message) for t in request.topics]
    return m.DeleteTopicsResponse(responses=names + states)


def _delete_records(request: m.DeleteRecordsRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = (
        m.DeleteRecordsResponse.DeleteRecordsTopicResult,
        m.DeleteRecordsResponse.DeleteRecordsPartitionResult,
    )
    return m.DeleteRecordsResponse(
        topics=[
            topic(
                name=t.name,
                partitions=[
                    partition(partition_index=p.partition_index, low_watermark=-1, error_code=code)
                    for p in t.partitions
                ],
            )
            for t in request.topics
        ]
    )


def _init_producer_id(request: m.InitProducerIdRequest, version: int, code: int, message: str | None) -> Message:
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _leader_epochs(request: m.OffsetForLeaderEpochRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = (
        m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult,
        m.OffsetForLeaderEpochResponse.EpochEndOffset,
    )
    return m.OffsetForLeaderEpochResponse(
        topics=[
            topic(topic=t.topic, partitions=[partition(partition=p.partition, error_code=code) for p in t.partitions])
            for t in request.topics
        ]
    )


def _create_acls(request: m.CreateAclsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.CreateAclsResponse.AclCreationResult
    return m.CreateAclsResponse(results=[result(error_code=code, error_message=message) for _ in request.creations])


def _delete_acls(request: m.DeleteAclsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.DeleteAclsResponse.DeleteAclsFilterResult
    return m.DeleteAclsResponse(
        filter_results=[result(error_code=code, error_message=message) for _ in request.filters]
    )


def _describe_configs(request: m.DescribeConfigsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.DescribeConfigsResponse.DescribeConfigsResult
    return m.DescribeConfigsResponse(
        results=[
            result(resource_type=r.resource_type, resource_name=r.resource_name, error_code=code, error_message=message)
            for r in request.resources
        ]
    )


def _alter_configs(request: m.AlterConfigsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.AlterConfigsResponse.AlterConfigsResourceResponse
    return m.AlterConfigsResponse(
        responses=[
            result(resource_type=r.resource_type, resource_name=r.resource_name, error_code=code, error_message=message)
            for r in request.resources
        ]
    )


def _incremental_alter_configs(
    request: m.IncrementalAlterConfigsRequest, version: int, code: int, message: str | None
) -> Message:
    result = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return m.IncrementalAlterConfigsResponse(
        responses=[
            result(resource_type=r.resource_type, resource_name=r.resource_name, error_code=code, error_message=message)
            for r in request.resources
        ]
    )


def _describe_log_dirs(request: m.DescribeLogDirsRequest, version: int, code: int, message: str | None) -> Message:
    if version >= 3:
        return m.DescribeLogDirsResponse(error_code=code)
    return m.DescribeLogDirsResponse(results=[m.DescribeLogDirsResponse.DescribeLogDirsResult(error_code=code)])


def _create_partitions(request: m.CreatePartitionsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.CreatePartitionsResponse.CreatePartitionsTopicResult
    return m.CreatePartitionsResponse(
        results=[result(name=t.name, error_code=code, error_message=message) for t in request.topics]
    )


def _delete_groups(request: m.DeleteGroupsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.DeleteGroupsResponse.DeletableGroupResult
    return m.DeleteGroupsResponse(results=[result(group_id=name, error_code=code) for name in request.groups_names])


def _elect_leaders(request: m.ElectLeadersRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = m.ElectLeadersResponse.ReplicaElectionResult, m.ElectLeadersResponse.PartitionResult
    return m.ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            topic(
                topic=t.topic,
                partition_result=[
                    partition(partition_id=p, error_code=code, error_message=message) for p in t.partitions
                ],
            )
            for t in request.topic_partitions or []
        ],
    )


def _describe_producers(request: m.DescribeProducersRequest, version: int, code: int, message: str | None) -> Message:
    topic, partition = m.DescribeProducersResponse.TopicResponse, m.DescribeProducersResponse.PartitionResponse
    return m.DescribeProducersResponse(
        topics=[
            topic(
                name=t.name,
                partitions=[
                    partition(partition_index=index, error_code=code, error_message=message)
                    for index in t.partition_indexes
                ],
            )
            for t in request.topics
        ]
    )


def _describe_transactions(
    request: m.DescribeTransactionsRequest, version: int, code: int, message: str | None
) -> Message:
    state = m.DescribeTransactionsResponse.TransactionState
    return m.DescribeTransactionsResponse(
        transaction_states=[state(transactional_id=name, error_code=code) for name in request.transactional_ids]
    )


def _consumer_groups(request: m.ConsumerGroupDescribeRequest, version: int, code: int, message: str | None) -> Message:
    group = m.ConsumerGroupDescribeResponse.DescribedGroup
    return m.ConsumerGroupDescribeResponse(
        groups=[group(group_id=name, error_code=code, error_message=message) for name in request.group_ids]
    )


def _share_groups(request: m.ShareGroupDescribeRequest, version: int, code: int, message: str | None) -> Message:
    group = m.ShareGroupDescribeResponse.DescribedGroup
    return m.ShareGroupDescribeResponse(
        groups=[group(group_id=name, error_code=code, error_message=message) for name in request.group_ids]
    )


def _share_offsets(
    request: m.DescribeShareGroupOffsetsRequest, version: int, code: int, message: str | None
) -> Message:
    group = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
    return m.DescribeShareGroupOffsetsResponse(
        groups=[group(group_id=one.group_id, error_code=code, error_message=message) for one in request.groups]
    )


def _topic_partitions(
    request: m.DescribeTopicPartitionsRequest, version: int, code: int, message: str | None
) -> Message:
    topic = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return m.DescribeTopicPartitionsResponse(topics=[topic(name=t.name, error_code=code) for t in request.topics])


def _alter_quotas(request: m.AlterClientQuotasRequest, version: int, code: int, message: str | None) -> Message:
    entry, entity = m.AlterClientQuotasResponse.EntryData, m.AlterClientQuotasResponse.EntityData
    return m.AlterClientQuotasResponse(
        entries=[
            entry(
                error_code=code,
                error_message=message,
                entity=[entity(entity_type=part.entity_type, entity_name=part.entity_name) for part in e.entity],
            )
            for e in request.entries
        ]
    )


def _alter_scram(request: m.AlterUserScramCredentialsRequest, version: int, code: int, message: str | None) -> Message:
    result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    users = dict.fromkeys([d.name for d in request.deletions] + [u.name for u in request.upsertions])
    return m.AlterUserScramCredentialsResponse(
        results=[result(user=user, error_code=code, error_message=message) for user in users]
    )


def _txn_offset_commit(request: m.TxnOffsetCommitRequest, version: int, code: int, message: str | None) -> Message:
    topic = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partition = m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    return m.TxnOffsetCommitResponse(
        topics=[
            topic(
                name=t.name,
                partitions=[partition(partition_index=p.partition_index, error_code=code) for p in t.partitions],
            )
            for t in request.topics
        ]
    )


def _add_partitions(request: m.AddPartitionsToTxnRequest, version: int, code: int, message: str | None) -> Message:
    topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    return m.AddPartitionsToTxnResponse(
        error_code=code,
        results_by_topic_v3_and_below=[
            topic(
                name=t.name,
                results_by_partition=[
                    partition(partition_index=index, partition_error_code=code) for index in t.partitions
                ],
            )
            for t in request.v3_and_below_topics
        ],
    )


def _write_markers(request: m.WriteTxnMarkersRequest, version: int, code: int, message: str | None) -> Message:
    marker = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
    partition = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
    return m.WriteTxnMarkersResponse(
        markers=[
            marker(
                producer_id=one.producer_id,
                topics=[
                    topic(
                        name=t.name,
                        partitions=[partition(partition_index=index, error_code=code) for index in t.partition_indexes],
                    )
                    for t in one.topics
                ],
            )
            for one in request.markers
        ]
    )


_BUILDERS: dict[int, Callable[[Any, int, int, str | None], Message]] = {
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata,
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    11: _join_group,
    15: _describe_groups,
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    22: _init_producer_id,
    23: _leader_epochs,
    24: _add_partitions,
    27: _write_markers,
    28: _txn_offset_commit,
    30: _create_acls,
    31: _delete_acls,
    32: _describe_configs,
    33: _alter_configs,
    35: _describe_log_dirs,
    37: _create_partitions,
    42: _delete_groups,
    43: _elect_leaders,
    44: _incremental_alter_configs,
    49: _alter_quotas,
    51: _alter_scram,
    61: _describe_producers,
    65: _describe_transactions,
    69: _consumer_groups,
    75: _topic_partitions,
    77: _share_groups,
    90: _share_offsets,
}
