"""What clients with few rights ask: at least one request of every API key that has anything to do with rights.

Every client has topics, groups and transactional ids of its own (:class:`Home`), so that what one of them changes no
other sees, and each right is asked of the same state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.lab import assignment, subscription
from tests.kafka_front.groups.wire_client import WireClient, commit, delete_offsets, fetch, join, protocols, sync
from tests.kit.waiting import until_asked

WITHOUT_RIGHTS = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    # Everybody manages his own tokens; the rights to those of others: tests/kafka_front/test_delegation_tokens.py.
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    # Not offered here:
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    # Switched off here, whoever asks:
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
}
"""Keys that nobody needs a right for."""

TOPIC, GROUP, CLUSTER = 2, 3, 4
TOPIC_CONFIG, BROKER_CONFIG, LOGGER_CONFIG, METRICS_CONFIG, GROUP_CONFIG = 2, 4, 8, 16, 32
ANY, LITERAL, ALLOW, READ = 1, 3, 3, 3
NODE_ID = "0"
ROOT, MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
"""Ids of members of share groups, in the form that a broker wants."""
SESSION_MS = 600_000
_NOT_YET = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass
class Home:
    """What one client's questions are about; all names begin with ``prefix``."""

    prefix: str
    ids: dict[str, bytes] = field(default_factory=dict)
    producer: tuple[int, int] = (-1, -1)

    def __getattr__(self, name: str) -> str:
        """The name of a thing of this client: ``home.t`` is its topic t."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.prefix + name


async def furnish(root: WireClient, home: Home) -> None:
    """Make what the questions are about, as somebody who may do everything."""
    topics = [m.CreateTopicsRequest.CreatableTopic(name, 1, 1) for name in (home.t, home.d, home.i)]
    await _until(root, 7, m.CreateTopicsRequest(topics, 30_000), lambda told: [one.error_code for one in told.topics])
    named = [m.MetadataRequest.MetadataRequestTopic(name=one.name) for one in topics]
    metadata = await _until(
        root,
        12,
        m.MetadataRequest(named, allow_auto_topic_creation=False),
        lambda told: (
            [one.error_code for one in told.topics] + [p.error_code for t in told.topics for p in t.partitions]
        ),
    )
    home.ids = {one.name: one.topic_id for one in metadata.topics}
    await _until(root, 11, produce(home), lambda told: [told.responses[0].partition_responses[0].error_code])
    for kind, key in ((0, home.g), (1, home.x)):  # which has a broker make its internal topics

        def codes(told: Any) -> list[int]:
            return [told.coordinators[0].error_code]

        await _until(root, 4, m.FindCoordinatorRequest(kind, [key]), codes)
    for group in (home.e, home.f):
        await _until(
            root,
            9,
            commit(group, {(home.t, 0): 0}),
            lambda told: [told.topics[0].partitions[0].error_code],
        )
    metadata_of = protocols(("range", subscription(home.t)))
    asked = join(home.g, session_timeout_ms=SESSION_MS, protocols=metadata_of)
    asked.member_id = (await root.when_ready(9, asked, _NOT_YET)).member_id
    joined = await root.call(9, asked)
    member = joined.member_id
    given = {member: assignment({home.t: [0]})}
    assert (await root.call(5, sync(home.g, member, joined.generation_id, given))).error_code == 0
    for beat in (consumer_beat(home.c, "root", topics=[home.t]), share_beat(home.s, home.t, ROOT)):
        await until_asked(partial(root.call, 1, beat), is_assigned)
    await root.call(1, share_fetch(home, ROOT))
    await until_asked(lambda: root.call(0, _share_offsets(home.s)), lambda told: told.groups[0].topics)
    begun = await root.when_ready(4, m.InitProducerIdRequest(home.x, 60_000), _NOT_YET)
    home.producer = begun.producer_id, begun.producer_epoch
    await _until(
        root,
        3,
        add_partitions(home),
        lambda told: [told.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code],
    )
    for kind, name, key, value in (
        (GROUP_CONFIG, home.g, "consumer.session.timeout.ms", "50000"),
        (METRICS_CONFIG, home.m, "interval.ms", "30000"),
    ):
        told = await root.call(1, incremental(kind, name, key, value, validate_only=False))
        assert told.responses[0].error_code == 0, told.responses[0].error_message
    await until_asked(
        lambda: _config_resources(root),
        lambda told: {home.g, home.m} <= {one.resource_name for one in told.config_resources},
    )


async def _config_resources(root: WireClient) -> Any:
    return await root.call(1, m.ListConfigResourcesRequest([METRICS_CONFIG, GROUP_CONFIG]))


async def _until(client: WireClient, version: int, request: Any, codes: Callable[[Any], list[int]]) -> Any:
    """Ask until it is done: what a broker makes is not there at once."""
    while True:
        told = await client.call(version, request)
        found = {*codes(told)} - {0}
        if not found:
            return told
        assert found <= {*_NOT_YET, ErrorCode.TOPIC_ALREADY_EXISTS}, found
        if found == {ErrorCode.TOPIC_ALREADY_EXISTS}:
            return told
        await asyncio.sleep(0.05)


def is_assigned(told: Any) -> bool:
    """Whether a member was told of partitions that are its; a broker computes that after its first request."""
    assert not told.error_code, told.error_message
    return told.assignment is not None and bool(told.assignment.topic_partitions)


# --- requests -------------------------------------------------------------------------------------------------------


def produce(home: Home, *, by_id: bool = False, transactional: bool = False, producer: int = -1) -> m.ProduceRequest:
    """One record to the topic t."""
    stamp: dict[str, int] = {}
    if transactional:
        stamp = {"attributes": TRANSACTIONAL, "producer_id": home.producer[0], "producer_epoch": home.producer[1]}
        stamp["base_sequence"] = 0
    elif producer >= 0:
        stamp = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    # Of now: a broker deletes an older one as soon as it looks for that, half a minute after its start.
    payload = encode([Record(None, b"v", timestamp=time.time_ns() // 1_000_000)], **stamp)
    data = m.ProduceRequest.PartitionProduceData(0, memoryview(bytearray(payload)))
    topic = {"topic_id": home.ids[home.t]} if by_id else {"name": home.t}
    topics = [m.ProduceRequest.TopicProduceData(partition_data=[data], **topic)]
    return m.ProduceRequest(home.x if transactional else None, -1, 10_000, topics)


def consumer_beat(
    group: str, member: str, *, topics: list[str] | None = None, pattern: str | None = None
) -> m.ConsumerGroupHeartbeatRequest:
    """The first heartbeat of a member of the new protocol."""
    return m.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=SESSION_MS,
        subscribed_topic_names=topics,
        subscribed_topic_regex=pattern,
        topic_partitions=[],
    )


def share_beat(group: str, topic: str, member: str) -> m.ShareGroupHeartbeatRequest:
    """The first heartbeat of a member of a share group."""
    return m.ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=0, subscribed_topic_names=[topic]
    )


def streams_beat(group: str, topic: str, member: str) -> m.StreamsGroupHeartbeatRequest:
    """A heartbeat that only a member that joins may send: its answer tells what was checked before."""
    request = m.StreamsGroupHeartbeatRequest
    topology = request.Topology(0, [request.Subtopology("0", [topic])])
    return request(group_id=group, member_id=member, member_epoch=1, topology=topology)


def add_partitions(home: Home) -> m.AddPartitionsToTxnRequest:
    topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(home.t, [0])]
    return m.AddPartitionsToTxnRequest([], home.x, *home.producer, topics)


def incremental(kind: int, name: str, key: str, value: str, *, validate_only: bool = True) -> Any:
    of = m.IncrementalAlterConfigsRequest
    return of([of.AlterConfigsResource(kind, name, [of.AlterableConfig(key, 0, value)])], validate_only)


def _replace(kind: int, name: str, key: str, value: str) -> Any:
    of = m.AlterConfigsRequest
    return of([of.AlterConfigsResource(kind, name, [of.AlterableConfig(key, value)])], True)


def _describe_config(kind: int, name: str) -> Any:
    return m.DescribeConfigsRequest([m.DescribeConfigsRequest.DescribeConfigsResource(kind, name, None)])


def _metadata(*topics: dict[str, Any], create: bool = False) -> m.MetadataRequest:
    named = [m.MetadataRequest.MetadataRequestTopic(**{"name": None, **one}) for one in topics]
    return m.MetadataRequest(named or None, create, True, False)


def _fetch(**topic: Any) -> m.FetchRequest:
    part = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = [m.FetchRequest.FetchTopic(partitions=[part], **topic)]
    return m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=topics)


def _fetch_by_id(group: str, topic_id: bytes) -> m.OffsetFetchRequest:
    of = m.OffsetFetchRequest
    topics = [of.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])]
    return of(groups=[of.OffsetFetchRequestGroup(group_id=group, topics=topics)])


def _commit_by_id(group: str, topic_id: bytes) -> m.OffsetCommitRequest:
    asked = commit(group, {("", 0): 0})
    asked.topics[0].topic_id = topic_id
    return asked


def _txn_commit(home: Home) -> m.TxnOffsetCommitRequest:
    of = m.TxnOffsetCommitRequest
    topics = [of.TxnOffsetCommitRequestTopic(home.ids[home.t], [of.TxnOffsetCommitRequestPartition(0, 0)], home.t)]
    return of(home.x, home.e, *home.producer, topics=topics)


def _feature(name: str, level: int) -> m.UpdateFeaturesRequest.FeatureUpdateKey:
    return m.UpdateFeaturesRequest.FeatureUpdateKey(name, level, 1)


def _markers(home: Home) -> m.WriteTxnMarkersRequest:
    of = m.WriteTxnMarkersRequest
    return of([of.WritableTxnMarker(4_000_000, 0, False, [of.WritableTxnMarkerTopic(home.t, [0])], 0)])


def _share_offsets(group: str, *topics: str) -> m.DescribeShareGroupOffsetsRequest:
    of = m.DescribeShareGroupOffsetsRequest
    named = [of.DescribeShareGroupOffsetsRequestTopic(topic, [0]) for topic in topics]
    return of([of.DescribeShareGroupOffsetsRequestGroup(group, named or None)])


def share_fetch(home: Home, member: str) -> m.ShareFetchRequest:
    of = m.ShareFetchRequest
    topics = [of.FetchTopic(home.ids[home.t], [of.FetchPartition(0)])]
    return of(
        home.s, member, 0, max_wait_ms=0, min_bytes=0, max_bytes=1000, max_records=10, batch_size=10, topics=topics
    )


def _share_state(kind: Any, home: Home) -> Any:
    """A request of brokers among themselves about a group that has no such state."""
    return kind(home.s, [])


def _share_acknowledge(home: Home) -> m.ShareAcknowledgeRequest:
    of = m.ShareAcknowledgeRequest
    partition = of.AcknowledgePartition(0, [of.AcknowledgementBatch(0, 0, [1])])
    return of(home.s, MEMBER, 1, topics=[of.AcknowledgeTopic(home.ids[home.t], [partition])])


def _acl_creation(home: Home) -> m.CreateAclsRequest:
    return m.CreateAclsRequest(
        [m.CreateAclsRequest.AclCreation(TOPIC, home.acl, LITERAL, f"User:{home.prefix}nobody", "*", READ, ALLOW)]
    )


def _acl_deletion(home: Home) -> m.DeleteAclsRequest:
    of = m.DeleteAclsRequest.DeleteAclsFilter
    return m.DeleteAclsRequest([of(TOPIC, home.acl, LITERAL, None, None, ANY, ANY)])


def _quota_change(home: Home) -> m.AlterClientQuotasRequest:
    of = m.AlterClientQuotasRequest
    entry = of.EntryData([of.EntityData("user", home.quota)], [of.OpData("producer_byte_rate", 1e6, False)])
    return of([entry], True)


def _batched_partitions(home: Home) -> m.AddPartitionsToTxnRequest:
    of = m.AddPartitionsToTxnRequest
    topics = [of.AddPartitionsToTxnTopic(home.t, [0])]
    return of([of.AddPartitionsToTxnTransaction(home.x, *home.producer, True, topics)])


def _reassign(home: Home) -> m.AlterPartitionReassignmentsRequest:
    of = m.AlterPartitionReassignmentsRequest
    return of(10_000, True, [of.ReassignableTopic(home.t, [of.ReassignablePartition(0, [0])])])


@dataclass(frozen=True)
class Question:
    """``version`` of a request about a client's home. ``tries``: how often a broker is asked that may find the answer
    only some time after the first request. ``denials``: all else that is told depends on how far a broker has come."""

    name: str
    version: int
    request: Callable[[Home], Any]
    tries: int = 1
    denials: bool = False


_offsets = m.ListOffsetsRequest
_epochs = m.OffsetForLeaderEpochRequest
_parts = m.CreatePartitionsRequest
_records = m.DeleteRecordsRequest
_alter_share = m.AlterShareGroupOffsetsRequest
_delete_share = m.DeleteShareGroupOffsetsRequest
_move = m.AlterReplicaLogDirsRequest
_pages = m.DescribeTopicPartitionsRequest

QUESTIONS = (
    Question("Produce", 11, produce),
    Question("Produce, by id", 13, lambda h: produce(h, by_id=True)),
    Question("Produce, idempotent", 11, lambda h: produce(h, producer=5_000_000)),
    Question("Fetch", 12, lambda h: _fetch(topic=h.t)),
    Question("Fetch, by id", 17, lambda h: _fetch(topic_id=h.ids[h.t])),
    Question(
        "ListOffsets",
        8,
        lambda h: _offsets(-1, 0, [_offsets.ListOffsetsTopic(h.t, [_offsets.ListOffsetsPartition(0, -1, -1)])]),
    ),
    Question("Metadata", 12, lambda h: _metadata({"name": h.t})),
    Question("Metadata, by id", 12, lambda h: _metadata({"topic_id": h.ids[h.t]})),
    Question("Metadata, by id as of Java", 13, lambda h: _metadata({"topic_id": h.ids[h.t], "name": ""})),
    Question("Metadata, of all", 12, lambda h: _metadata()),
    Question("Metadata, of the cluster", 10, lambda h: m.MetadataRequest([], False, False, True)),
    Question("Metadata, of no topic", 12, lambda h: _metadata({"name": h.missing})),
    Question("OffsetCommit", 9, lambda h: commit(h.e, {(h.t, 0): 0})),
    Question("OffsetCommit, by id", 10, lambda h: _commit_by_id(h.e, h.ids[h.t])),
    Question("OffsetFetch", 9, lambda h: fetch(9, h.e, {h.t: [0]})),
    Question("OffsetFetch, by id", 10, lambda h: _fetch_by_id(h.e, h.ids[h.t])),
    Question("OffsetFetch, of all", 9, lambda h: fetch(9, h.e, None)),
    Question("OffsetFetch, of one group", 7, lambda h: fetch(7, h.e, {h.t: [0]})),
    Question("FindCoordinator, of a group", 4, lambda h: m.FindCoordinatorRequest(0, [h.g])),
    Question("FindCoordinator, of a transactional id", 4, lambda h: m.FindCoordinatorRequest(1, [h.x])),
    Question("FindCoordinator, of one group", 2, lambda h: m.FindCoordinatorRequest(0, key=h.g)),
    Question("JoinGroup", 9, lambda h: join(h.joined, protocols=protocols(("range", subscription(h.t))))),
    Question("Heartbeat", 4, lambda h: m.HeartbeatRequest(h.g, 1, "nobody")),
    Question("LeaveGroup", 5, lambda h: m.LeaveGroupRequest(h.g, [m.LeaveGroupRequest.MemberIdentity("nobody")])),
    Question("SyncGroup", 5, lambda h: sync(h.g, "nobody", 1)),
    Question("DescribeGroups", 6, lambda h: m.DescribeGroupsRequest([h.g], True)),
    Question("ListGroups", 5, lambda h: m.ListGroupsRequest()),
    Question("ConsumerGroupHeartbeat", 1, lambda h: consumer_beat(h.names, "me", topics=[h.t]), 5),
    Question(
        "ConsumerGroupHeartbeat, by pattern", 1, lambda h: consumer_beat(h.pattern, "me", pattern=f"{h.prefix}t"), 5
    ),
    Question("ConsumerGroupDescribe", 1, lambda h: m.ConsumerGroupDescribeRequest([h.c], True)),
    Question("ConsumerGroupDescribe, of no group", 1, lambda h: m.ConsumerGroupDescribeRequest([h.missing], True)),
    Question(
        "CreateTopics",
        7,
        lambda h: m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic(h.new, 1, 1)], 10_000, True),
    ),
    Question("CreatePartitions", 3, lambda h: _parts([_parts.CreatePartitionsTopic(h.t, 2, None)], 10_000, True)),
    Question(
        "DeleteRecords",
        2,
        lambda h: _records([_records.DeleteRecordsTopic(h.t, [_records.DeleteRecordsPartition(0, 0)])], 10_000),
    ),
    Question(
        "OffsetForLeaderEpoch",
        4,
        lambda h: _epochs(-1, [_epochs.OffsetForLeaderTopic(h.t, [_epochs.OffsetForLeaderPartition(0, -1, 0)])]),
    ),
    Question("DescribeAcls", 3, lambda h: m.DescribeAclsRequest(TOPIC, h.acl, LITERAL, None, None, ANY, ANY)),
    Question("CreateAcls", 3, _acl_creation),
    Question("DeleteAcls", 3, _acl_deletion),
    Question("DescribeConfigs, of a topic", 4, lambda h: _describe_config(TOPIC_CONFIG, h.t)),
    Question("DescribeConfigs, of a broker", 4, lambda h: _describe_config(BROKER_CONFIG, NODE_ID)),
    Question("DescribeConfigs, of a logger", 4, lambda h: _describe_config(LOGGER_CONFIG, NODE_ID), denials=True),
    Question("DescribeConfigs, of client metrics", 4, lambda h: _describe_config(METRICS_CONFIG, h.m)),
    Question("DescribeConfigs, of a group", 4, lambda h: _describe_config(GROUP_CONFIG, h.g)),
    Question("AlterConfigs, of a topic", 2, lambda h: _replace(TOPIC_CONFIG, h.t, "retention.ms", "5000")),
    Question("AlterConfigs, of brokers", 2, lambda h: _replace(BROKER_CONFIG, "", "min.insync.replicas", "1")),
    Question(
        "IncrementalAlterConfigs, of a topic", 1, lambda h: incremental(TOPIC_CONFIG, h.t, "retention.ms", "5000")
    ),
    Question(
        "IncrementalAlterConfigs, of brokers", 1, lambda h: incremental(BROKER_CONFIG, "", "min.insync.replicas", "1")
    ),
    Question(
        "IncrementalAlterConfigs, of a group",
        1,
        lambda h: incremental(GROUP_CONFIG, h.g, "consumer.session.timeout.ms", "50000"),
    ),
    Question(
        "IncrementalAlterConfigs, of client metrics",
        1,
        lambda h: incremental(METRICS_CONFIG, h.m, "interval.ms", "30000"),
    ),
    Question("ListConfigResources, of client metrics", 0, lambda h: m.ListConfigResourcesRequest()),
    Question("ListConfigResources", 1, lambda h: m.ListConfigResourcesRequest([])),
    Question(
        "DescribeLogDirs",
        5,
        lambda h: m.DescribeLogDirsRequest([m.DescribeLogDirsRequest.DescribableLogDirTopic(h.t, [0])]),
    ),
    Question(
        "AlterReplicaLogDirs",
        2,
        lambda h: _move([_move.AlterReplicaLogDir("/nowhere", [_move.AlterReplicaLogDirTopic(h.t, [0])])]),
    ),
    Question("UnregisterBroker", 0, lambda h: m.UnregisterBrokerRequest(77)),
    Question("UnregisterController", 0, lambda h: m.UnregisterControllerRequest(77)),
    Question("AddRaftVoter", 1, lambda h: m.AddRaftVoterRequest("another cluster", 1000, 77)),
    Question("RemoveRaftVoter", 0, lambda h: m.RemoveRaftVoterRequest("another cluster", 77)),
    Question("InitializeShareGroupState", 0, lambda h: _share_state(m.InitializeShareGroupStateRequest, h)),
    Question("ReadShareGroupState", 0, lambda h: _share_state(m.ReadShareGroupStateRequest, h)),
    Question("WriteShareGroupState", 1, lambda h: _share_state(m.WriteShareGroupStateRequest, h)),
    Question("DeleteShareGroupState", 0, lambda h: _share_state(m.DeleteShareGroupStateRequest, h)),
    Question("ReadShareGroupStateSummary", 1, lambda h: _share_state(m.ReadShareGroupStateSummaryRequest, h)),
    Question(
        "ElectLeaders", 2, lambda h: m.ElectLeadersRequest(0, [m.ElectLeadersRequest.TopicPartitions(h.t, [0])], 10_000)
    ),
    Question("AlterPartitionReassignments", 0, _reassign),
    Question("ListPartitionReassignments", 0, lambda h: m.ListPartitionReassignmentsRequest(10_000, None)),
    Question("DescribeClientQuotas", 1, lambda h: m.DescribeClientQuotasRequest([], False)),
    Question("AlterClientQuotas", 1, _quota_change),
    Question(
        "DescribeUserScramCredentials",
        0,
        lambda h: m.DescribeUserScramCredentialsRequest([m.DescribeUserScramCredentialsRequest.UserName(h.user)]),
    ),
    Question(
        "AlterUserScramCredentials",
        0,
        lambda h: m.AlterUserScramCredentialsRequest(
            [m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(h.user, 1)]
        ),
    ),
    Question(
        "DescribeQuorum",
        2,
        lambda h: m.DescribeQuorumRequest(
            [m.DescribeQuorumRequest.TopicData("__cluster_metadata", [m.DescribeQuorumRequest.PartitionData(0)])]
        ),
    ),
    Question("UpdateFeatures", 1, lambda h: m.UpdateFeaturesRequest(1000, [_feature("group.version", 1)])),
    Question("DescribeCluster", 1, lambda h: m.DescribeClusterRequest(True)),
    Question(
        "DescribeProducers",
        0,
        lambda h: m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest(h.t, [0])]),
    ),
    Question("DescribeTransactions", 0, lambda h: m.DescribeTransactionsRequest([h.x])),
    Question("ListTransactions", 1, lambda h: m.ListTransactionsRequest()),
    Question("DescribeTopicPartitions", 0, lambda h: _pages([_pages.TopicRequest(h.t)], 100)),
    Question("DescribeTopicPartitions, of all", 0, lambda h: _pages([], 2000)),
    Question("StreamsGroupHeartbeat", 0, lambda h: streams_beat(h.w, h.t, MEMBER)),
    Question("StreamsGroupDescribe", 0, lambda h: m.StreamsGroupDescribeRequest([h.missing], True)),
    Question("ShareGroupHeartbeat", 1, lambda h: share_beat(h.sharing, h.t, MEMBER), 30),
    Question("ShareGroupDescribe", 1, lambda h: m.ShareGroupDescribeRequest([h.s], True)),
    Question("ShareFetch", 1, lambda h: share_fetch(h, MEMBER), denials=True),
    Question("ShareAcknowledge", 1, _share_acknowledge, denials=True),
    Question("DescribeShareGroupOffsets", 0, lambda h: _share_offsets(h.s, h.t)),
    Question("DescribeShareGroupOffsets, of all", 0, lambda h: _share_offsets(h.s)),
    Question(
        "AlterShareGroupOffsets",
        0,
        lambda h: _alter_share(
            h.s,
            [
                _alter_share.AlterShareGroupOffsetsRequestTopic(
                    h.t, [_alter_share.AlterShareGroupOffsetsRequestPartition(0, 0)]
                )
            ],
        ),
    ),
    Question(
        "DeleteShareGroupOffsets",
        0,
        lambda h: _delete_share(h.s, [_delete_share.DeleteShareGroupOffsetsRequestTopic(h.t)]),
    ),
    Question("WriteTxnMarkers", 1, _markers),
    Question("InitProducerId", 4, lambda h: m.InitProducerIdRequest(None)),
    Question("InitProducerId, transactional", 4, lambda h: m.InitProducerIdRequest(h.y, 60_000)),
    Question("AddPartitionsToTxn", 3, add_partitions),
    Question("AddPartitionsToTxn, of brokers", 5, _batched_partitions),
    Question("AddOffsetsToTxn", 3, lambda h: m.AddOffsetsToTxnRequest(h.x, *h.producer, h.e)),
    Question("TxnOffsetCommit", 3, _txn_commit),
    Question("TxnOffsetCommit, by id", 6, _txn_commit),
    Question("Produce, transactional", 11, lambda h: produce(h, transactional=True)),
    Question("EndTxn", 4, lambda h: m.EndTxnRequest(h.x, *h.producer, True)),
    Question("OffsetDelete", 0, lambda h: delete_offsets(h.f, {h.t: [0]})),
    Question("DeleteGroups", 2, lambda h: m.DeleteGroupsRequest([h.e])),
    Question("DeleteTopics", 5, lambda h: m.DeleteTopicsRequest([], 10_000, [h.d])),
    Question(
        "DeleteTopics, by id",
        6,
        lambda h: m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(None, h.ids[h.i])], 10_000),
    ),
)
"""In this order: what changes anything comes last."""
