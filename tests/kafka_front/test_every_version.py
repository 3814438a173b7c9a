"""Every offered version of every request, as clients of its time send it: a life of each kind, in every version it has.

A request is written once for all of its versions: fields that a version lacks are left out as it is encoded. What
clients of a time did otherwise stands where it is sent. A scenario is repeated with the next versions of its requests
until none of them is new; the last test is that no version was left out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.groups import wire_client as w
from tests.kafka_front.groups.lab import assignment
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.place import Place, create, error_codes, fresh, new
from tests.kafka_front.test_topic_ids import id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of Kafka's broker fetches it

NOT_YET = {E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.CONCURRENT_TRANSACTIONS}
"""What every client repeats a request for: a broker's coordinators take their time."""
SECOND_TERM = E.MEMBER_ID_REQUIRED


class Client:
    """One that is ``age`` versions younger than the oldest that is served, in each of its requests."""

    def __init__(self, place: Place, wire: WireClient, age: int) -> None:
        self.place = place
        self.age = age
        self.spoken: set[tuple[int, int]] = set()
        self._wire = wire

    def version(self, key: int) -> int:
        return min(APIS[key].lowest + self.age, APIS[key].highest)

    async def ask(self, request: Any, *but: int, since: int = 0) -> Any:
        """Send a request, in version ``since`` or later, whose answer tells of no error ``but`` these."""
        version = max(self.version(request.API_KEY), since)
        self.spoken.add((request.API_KEY, version))
        while True:
            response = await self._wire.call(version, request)
            told = set(error_codes(response))
            if told.isdisjoint(NOT_YET):
                break
            await asyncio.sleep(0.02)
        assert told <= {E.NONE, *but}, f"{APIS[request.API_KEY].name} {version}: {response}"
        return response

    async def topic(self, **fields: Any) -> tuple[str, bytes]:
        name = await self.place.topic(**fields)
        return name, await id_of(self.place, name)


def records(**fields: Any) -> memoryview:
    return memoryview(bytearray(encode([Record(b"k", b"v", timestamp=1_700_000_000_000)], **fields)))


def write(name: str, topic_id: bytes, data: memoryview, transactional_id: str | None = None) -> m.ProduceRequest:
    asked = m.ProduceRequest
    topic = asked.TopicProduceData(topic_id, [asked.PartitionProduceData(0, data)], name)
    return asked(transactional_id, -1, 10_000, [topic])


def read(name: str, topic_id: bytes, session: int, epoch: int) -> m.FetchRequest:
    asked = m.FetchRequest
    topic = asked.FetchTopic(topic_id, [asked.FetchPartition(0, partition_max_bytes=1 << 20)], name)
    return asked(max_wait_ms=10_000, min_bytes=1, session_id=session, session_epoch=epoch, topics=[topic])


def written(response: m.FetchResponse) -> bool:
    return any(partition.records for topic in response.responses for partition in topic.partitions)


async def who_writes_and_reads(client: Client) -> None:
    name, topic_id = await client.topic()
    await client.ask(m.ApiVersionsRequest("tests", "1"))
    everything = [] if client.version(ApiKey.METADATA) == 0 else None
    told = await client.ask(m.MetadataRequest(everything))
    assert name in {topic.name for topic in told.topics}
    named = m.MetadataRequest.MetadataRequestTopic
    told = await client.ask(m.MetadataRequest([named(name=name)]))
    assert [(topic.name, len(topic.partitions)) for topic in told.topics] == [(name, 1)]
    if client.version(ApiKey.METADATA) >= 12:
        told = await client.ask(m.MetadataRequest([named(topic_id, None)]))
        assert [topic.name for topic in told.topics] == [name]
    await client.ask(write(name, topic_id, records()))
    asked = m.ListOffsetsRequest
    for timestamp, offset in ((-1, 1), (-2, 0), (1_700_000_000_000, 0), (1_700_000_000_001, -1)):
        topic = asked.ListOffsetsTopic(name, [asked.ListOffsetsPartition(0, timestamp=timestamp)])
        told = await client.ask(asked(-1, topics=[topic], timeout_ms=10_000))
        assert told.topics[0].partitions[0].offset == offset
    epochs = m.OffsetForLeaderEpochRequest
    partition = epochs.OffsetForLeaderPartition(0, -1, 0)
    told = await client.ask(epochs(-1, [epochs.OffsetForLeaderTopic(name, [partition])]))
    assert told.topics[0].partitions[0].end_offset == 1
    assert written(await client.ask(read(name, topic_id, 0, -1)))
    if client.version(ApiKey.FETCH) >= 7:
        opened = await client.ask(read(name, topic_id, 0, 0))
        assert written(opened)
        assert opened.session_id
        again = read(name, topic_id, opened.session_id, 1)
        assert written(await client.ask(again))
    deleting = m.DeleteRecordsRequest
    topic = deleting.DeleteRecordsTopic(name, [deleting.DeleteRecordsPartition(0, 1)])
    told = await client.ask(deleting([topic], 10_000))
    assert told.topics[0].partitions[0].low_watermark == 1


async def who_reads_in_a_classic_group(client: Client) -> None:
    name, topic_id = await client.topic()
    group = f"g-{uuid.uuid4()}"
    await client.ask(m.FindCoordinatorRequest(0, [group], group))
    joined = await client.ask(w.join(group), SECOND_TERM)
    if joined.error_code:
        joined = await client.ask(w.join(group, joined.member_id))
    member, generation = joined.member_id, joined.generation_id
    given = {member: assignment({name: [0]})}
    assert (await client.ask(w.sync(group, member, generation, given))).assignment == given[member]
    await client.ask(w.heartbeat(group, member, generation))
    committing = w.commit(group, {(name, 0): 7}, member, generation)
    committing.topics[0].topic_id = topic_id
    await client.ask(committing)
    asked = m.OffsetFetchRequest
    whole = asked.OffsetFetchRequestGroup(group, topics=[asked.OffsetFetchRequestTopics(topic_id, [0], name)])
    told = await client.ask(asked([whole], False, group, [asked.OffsetFetchRequestTopic(name, [0])]))
    topics = told.groups[0].topics if client.version(ApiKey.OFFSET_FETCH) >= 8 else told.topics
    assert [row.committed_offset for topic in topics for row in topic.partitions] == [7]
    described = (await client.ask(m.DescribeGroupsRequest([group]))).groups
    assert [(one.group_state, len(one.members)) for one in described] == [("Stable", 1)]
    assert group in {one.group_id for one in (await client.ask(m.ListGroupsRequest())).groups}
    leaving = w.leave(group, (member, None))
    leaving.member_id = member
    await client.ask(leaving)
    asked_offsets = m.OffsetDeleteRequest
    rows = [asked_offsets.OffsetDeleteRequestPartition(0)]
    await client.ask(asked_offsets(group, [asked_offsets.OffsetDeleteRequestTopic(name, rows)]))
    await client.ask(m.DeleteGroupsRequest([group]))


async def who_reads_in_a_group_of_the_new_protocol(client: Client) -> None:
    name, topic_id = await client.topic()
    asked = m.ConsumerGroupHeartbeatRequest
    group = f"g-{uuid.uuid4()}"
    # The broker gave members their ids, until they made them themselves (KIP-1082).
    member = str(uuid.uuid4()) if client.version(ApiKey.CONSUMER_GROUP_HEARTBEAT) else ""
    epoch = 0
    has: dict[bytes, list[int]] = {}
    while has != {topic_id: [0]}:
        owned = [asked.TopicPartitions(one, partitions) for one, partitions in has.items()]
        told = await client.ask(
            asked(
                group,
                member,
                epoch,
                rebalance_timeout_ms=w.REBALANCE_MS,
                subscribed_topic_names=[name],
                topic_partitions=owned,
            )
        )
        member, epoch = told.member_id, told.member_epoch
        if told.assignment is not None:
            has = {one.topic_id: one.partitions for one in told.assignment.topic_partitions}
    await client.ask(asked(group, member, epoch, topic_partitions=None))
    described = (await client.ask(m.ConsumerGroupDescribeRequest([group]))).groups
    assert [(one.group_state, [who.member_id for who in one.members]) for one in described] == [("Stable", [member])]
    await client.ask(asked(group, member, -1, topic_partitions=None))


async def who_reads_in_a_share_group(client: Client) -> None:
    name, topic_id = await client.topic()
    group, member = f"g-{uuid.uuid4()}", str(uuid.uuid4())
    beating = m.ShareGroupHeartbeatRequest
    epoch = 0
    while not epoch or not told.assignment or not told.assignment.topic_partitions:  # noqa: F821 - told before
        told = await client.ask(beating(group, member, epoch, subscribed_topic_names=None if epoch else [name]))
        epoch = told.member_epoch
    fetching = m.ShareFetchRequest
    topic = fetching.FetchTopic(topic_id, [fetching.FetchPartition(0)])
    session = 0
    rows: list[Any] = []
    while not rows:
        told = await client.ask(
            fetching(
                group,
                member,
                session,
                max_wait_ms=500,
                min_bytes=1,
                max_records=100,
                batch_size=100,
                topics=[] if session else [topic],
            )
        )
        if session == 0:
            await client.ask(write(name, topic_id, records()))  # a group begins at the end
        session += 1
        rows = [row for one in told.responses for part in one.partitions for row in part.acquired_records]
    assert [(row.first_offset, row.last_offset) for row in rows] == [(0, 0)]
    telling = m.ShareAcknowledgeRequest
    batches = [telling.AcknowledgementBatch(0, 0, [1])]
    said = telling.AcknowledgeTopic(topic_id, [telling.AcknowledgePartition(0, batches)])
    await client.ask(telling(group, member, session, topics=[said]))
    described = (await client.ask(m.ShareGroupDescribeRequest([group]))).groups
    assert [(one.group_state, len(one.members)) for one in described] == [("Stable", 1)]
    await client.ask(beating(group, member, -1))
    offsets = m.DescribeShareGroupOffsetsRequest
    of_topic = offsets.DescribeShareGroupOffsetsRequestTopic(name, [0])
    found = await client.ask(offsets([offsets.DescribeShareGroupOffsetsRequestGroup(group, [of_topic])]))
    told_of = [row.start_offset for row in found.groups[0].topics[0].partitions]
    assert told_of == [1] or not client.place.ours  # a broker stores a start with what is acknowledged next
    altering = m.AlterShareGroupOffsetsRequest
    place = altering.AlterShareGroupOffsetsRequestPartition(0, 0)
    await client.ask(altering(group, [altering.AlterShareGroupOffsetsRequestTopic(name, [place])]))
    deleting = m.DeleteShareGroupOffsetsRequest
    await client.ask(deleting(group, [deleting.DeleteShareGroupOffsetsRequestTopic(name)]))


async def who_processes_in_a_streams_group(client: Client) -> None:
    name, (topic, _) = fresh(), await client.topic()
    request = m.StreamsGroupHeartbeatRequest
    topology = request.Topology(0, [request.Subtopology("0", [topic])])
    process = ("process", request.Endpoint("a", 1), [])
    joined = await client.ask(request(name, "member", 0, 0, None, None, 60_000, topology, [], [], [], *process))
    assert joined.member_epoch
    assert (await client.ask(request(name, "member", joined.member_epoch))).member_epoch
    (group,) = (await client.ask(m.StreamsGroupDescribeRequest([name]))).groups
    assert (group.error_code, len(group.members), group.topology.epoch) == (0, 1, 0)
    await client.ask(request(name, "member", -1))


async def who_writes_in_transactions(client: Client) -> None:
    name, topic_id = await client.topic()
    txn, group = f"x-{uuid.uuid4()}", f"g-{uuid.uuid4()}"
    await client.ask(m.FindCoordinatorRequest(1, [txn], txn), since=1)
    made = await client.ask(m.InitProducerIdRequest(txn, 60_000))
    who = (made.producer_id, made.producer_epoch)
    adding = m.AddPartitionsToTxnRequest
    rows = [adding.AddPartitionsToTxnTopic(name, [0])]
    await client.ask(adding([adding.AddPartitionsToTxnTransaction(txn, *who, False, rows)], txn, *who, rows))
    data = records(attributes=TRANSACTIONAL, producer_id=who[0], producer_epoch=who[1], base_sequence=0)
    await client.ask(write(name, topic_id, data, txn))
    await client.ask(m.AddOffsetsToTxnRequest(txn, *who, group))
    committing = m.TxnOffsetCommitRequest
    row = committing.TxnOffsetCommitRequestPartition(0, 1)
    await client.ask(
        committing(txn, group, *who, topics=[committing.TxnOffsetCommitRequestTopic(topic_id, [row], name)])
    )
    producers = m.DescribeProducersRequest
    found = await client.ask(producers([producers.TopicRequest(name, [0])]))
    assert [one.producer_id for one in found.topics[0].partitions[0].active_producers] == [who[0]]
    described = (await client.ask(m.DescribeTransactionsRequest([txn]))).transaction_states
    assert [one.transaction_state for one in described] == ["Ongoing"]
    listed = (await client.ask(m.ListTransactionsRequest(["Ongoing"]))).transaction_states
    assert txn in {one.transactional_id for one in listed}
    await client.ask(m.EndTxnRequest(txn, *who, True))
    marking = m.WriteTxnMarkersRequest
    marked = [marking.WritableTxnMarkerTopic(name, [0])]
    await client.ask(marking([marking.WritableTxnMarker(who[0], who[1] + 1, False, marked)]))


async def who_administers(client: Client) -> None:
    name = fresh()
    asked_for = (-1, -1) if client.version(ApiKey.CREATE_TOPICS) >= 4 else (1, 1)
    await client.ask(create(new(name, *asked_for)))
    await client.place.settled(name, 1)
    topic_id = await id_of(client.place, name)
    growing = m.CreatePartitionsRequest
    await client.ask(growing([growing.CreatePartitionsTopic(name, 2, None)], 10_000))
    await client.place.settled(name, 2)
    altering = m.AlterConfigsRequest
    config = [altering.AlterableConfig("retention.ms", "1000000")]
    await client.ask(altering([altering.AlterConfigsResource(2, name, config)]))
    changing = m.IncrementalAlterConfigsRequest
    change = [changing.AlterableConfig("retention.ms", 0, "2000000")]
    await client.ask(changing([changing.AlterConfigsResource(2, name, change)]))
    describing = m.DescribeConfigsRequest
    while True:  # Kafka's brokers hear of it later than its controller
        told = await client.ask(describing([describing.DescribeConfigsResource(2, name, ["retention.ms"])]))
        if [row.value for row in told.results[0].configs] == ["2000000"]:
            break
    cluster = await client.ask(m.DescribeClusterRequest())
    assert [one.broker_id for one in cluster.brokers] == [client.place.node_id]
    logs = m.DescribeLogDirsRequest
    told = await client.ask(logs([logs.DescribableLogDirTopic(name, [0, 1])]))
    assert [topic.name for one in told.results for topic in one.topics] == [name]
    moving_dirs = m.AlterReplicaLogDirsRequest
    for path, code in ((told.results[0].log_dir, E.NONE), ("/nowhere", E.LOG_DIR_NOT_FOUND)):
        wanted = moving_dirs.AlterReplicaLogDir(path, [moving_dirs.AlterReplicaLogDirTopic(name, [0])])
        moved = await client.ask(moving_dirs([wanted]), E.LOG_DIR_NOT_FOUND)
        assert [row.error_code for one in moved.results for row in one.partitions] == [code]
    electing = m.ElectLeadersRequest
    await client.ask(electing(0, [electing.TopicPartitions(name, [0])]), E.ELECTION_NOT_NEEDED)
    moving = m.AlterPartitionReassignmentsRequest
    cancel = moving.ReassignablePartition(0, None)
    await client.ask(moving(topics=[moving.ReassignableTopic(name, [cancel])]), E.NO_REASSIGNMENT_IN_PROGRESS)
    await client.ask(m.ListPartitionReassignmentsRequest(topics=None))
    quota = m.AlterClientQuotasRequest
    entity = [quota.EntityData("client-id", name)]
    await client.ask(quota([quota.EntryData(entity, [quota.OpData("producer_byte_rate", 1e9)])]))
    await client.ask(quota([quota.EntryData(entity, [quota.OpData("producer_byte_rate", 0.0, remove=True)])]))
    quotas = m.DescribeClientQuotasRequest
    await client.ask(quotas([quotas.ComponentData("client-id", 0, name)], strict=True))
    users = m.DescribeUserScramCredentialsRequest
    await client.ask(users([users.UserName("nobody")]), E.RESOURCE_NOT_FOUND)
    removing = m.AlterUserScramCredentialsRequest
    await client.ask(removing([removing.ScramCredentialDeletion("nobody", 1)]), E.RESOURCE_NOT_FOUND)
    quorum = m.DescribeQuorumRequest
    await client.ask(quorum([quorum.TopicData("__cluster_metadata", [quorum.PartitionData(0)])]))
    features = m.UpdateFeaturesRequest
    await client.ask(features(10_000, [features.FeatureUpdateKey("group.version", 1)]))
    await client.ask(m.ListConfigResourcesRequest())
    partitions = m.DescribeTopicPartitionsRequest
    told = await client.ask(partitions([partitions.TopicRequest(name)]))
    assert [(topic.name, len(topic.partitions)) for topic in told.topics] == [(name, 2)]
    deleting = m.DeleteTopicsRequest
    await client.ask(deleting([deleting.DeleteTopicState(None, topic_id)], 10_000, [name]))
    await client.place.gone(name)


async def who_wants_what_is_not_set_up(client: Client) -> None:
    """Neither access rules nor logins are, where these tests run; theirs are in test_access.py and test_sasl.py."""
    off = E.SECURITY_DISABLED
    await client.ask(m.DescribeAclsRequest(1, None, 1, None, None, 1, 1), off)
    rule = m.CreateAclsRequest.AclCreation(2, "t", 3, "User:me", "*", 3, 3)
    await client.ask(m.CreateAclsRequest([rule]), off)
    chosen = m.DeleteAclsRequest.DeleteAclsFilter(2, "t", 3, "User:me", "*", 3, 3)
    await client.ask(m.DeleteAclsRequest([chosen]), off)
    # A node takes the handshake all the same, but not the raw tokens that follow version 0 (docs/compatibility.md).
    await client.ask(m.SaslHandshakeRequest("PLAIN"), E.ILLEGAL_SASL_STATE, E.UNSUPPORTED_VERSION)
    await client.ask(m.SaslAuthenticateRequest(b"\0me\0mine"), E.ILLEGAL_SASL_STATE, E.SASL_AUTHENTICATION_FAILED)


async def who_wants_what_is_switched_off(client: Client) -> None:
    tokens = (E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,)  # nobody has logged in
    for request in (
        m.CreateDelegationTokenRequest(),
        m.RenewDelegationTokenRequest(b"token"),
        m.ExpireDelegationTokenRequest(b"token"),
        m.DescribeDelegationTokenRequest(),
    ):
        assert (await client.ask(request, *tokens)).error_code
    voter, listener = uuid.uuid4().bytes, m.AddRaftVoterRequest.Listener("CONTROLLER", "127.0.0.1", 1)
    for request in (
        m.AddRaftVoterRequest(None, 1_000, 7, voter, [listener]),
        m.RemoveRaftVoterRequest(None, 7, voter),
    ):
        assert (await client.ask(request, E.UNSUPPORTED_VERSION)).error_code
    own, another = m.UnregisterControllerRequest(client.place.node_id), m.UnregisterControllerRequest(77)
    assert (await client.ask(own, E.INVALID_REQUEST)).error_code
    assert (await client.ask(another, E.CONTROLLER_ID_NOT_REGISTERED)).error_code
    assert (await client.ask(m.UnregisterBrokerRequest(77), E.BROKER_ID_NOT_REGISTERED)).error_code
    for kind in (
        m.InitializeShareGroupStateRequest,
        m.ReadShareGroupStateRequest,
        m.WriteShareGroupStateRequest,
        m.DeleteShareGroupStateRequest,
        m.ReadShareGroupStateSummaryRequest,
    ):
        await client.ask(kind("g", []))
    await client.ask(m.StreamsGroupTopologyDescriptionUpdateRequest("g"), E.UNSUPPORTED_VERSION)


SCENARIOS: tuple[Callable[[Client], Awaitable[None]], ...] = (
    who_writes_and_reads,
    who_reads_in_a_classic_group,
    who_reads_in_a_group_of_the_new_protocol,
    who_reads_in_a_share_group,
    who_processes_in_a_streams_group,
    who_writes_in_transactions,
    who_administers,
    who_wants_what_is_not_set_up,
    who_wants_what_is_switched_off,
)


async def test_every_offered_version_does_what_clients_of_its_time_ask_for(place: Place) -> None:
    spoken: set[tuple[int, int]] = set()
    for scenario in SCENARIOS:
        for age in range(20):
            async with WireClient(place.client.host, place.client.port) as wire:
                client = Client(place, wire, age)
                await scenario(client)
            if client.spoken <= spoken:
                break
            spoken |= client.spoken
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}  # offered where a collector is configured
    served = [api for api in APIS.values() if api.key not in telemetry]
    assert spoken == {(api.key, version) for api in served for version in range(api.lowest, api.highest + 1)}
