"""The node's authorizer is asked on every operation, and what it does not allow has the error that Kafka tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.scram import ScramKeys
from bridges.auth.users import User, change
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from kafka_front.front import KafkaFront
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import log_of
from tests.kafka_front.transactions.test_requests import Producer as TransactionalProducer

OPEN, SHUT, SEEN = "open", "shut", "seen"
TOPIC_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED


@dataclass
class Doorman:
    """Denies what is called ``shut``, reading ``seen`` and, when told so, the node."""

    node_is_open: bool = True
    denied: set[Operation] = field(default_factory=set)
    reads: list[str] = field(default_factory=list)
    asked: set[tuple[str, Operation, Resource]] = field(default_factory=set)

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        return False

    def stand_in(self, principal: Principal) -> Principal | None:
        return principal

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        self.asked.add((str(principal), operation, resource))
        if operation is Operation.READ and resource.kind is ResourceKind.TOPIC:
            self.reads.append(resource.name)
        if operation in self.denied:
            return False
        if resource == NODE:
            return self.node_is_open
        return resource.name != SHUT and (resource.name, operation) != (SEEN, Operation.READ)


@dataclass
class Lab:
    node: Node
    doorman: Doorman

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": str(self.node.addresses["kafka"])}

    def wire(self) -> WireClient:
        address = self.node.addresses["kafka"]
        return WireClient(address.host, address.port)

    def was_asked(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return ("User:ANONYMOUS", operation, Resource(kind, name)) in self.doorman.asked


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    flags = dict.fromkeys(("listen.kafka", "listen.sbp-pd", "listen.sbp-range-server"), "127.0.0.1:0")
    flags |= {"data_dir": str(tmp_path / "data"), "listen.console": "off"}
    (tmp_path / "data").mkdir()
    keys = {"SCRAM-SHA-512": ScramKeys.from_password("x", "SCRAM-SHA-512", 4096)}
    alice = User("alice", PasswordHash.from_password("x", Cost(16, 1, 1)), keys)
    change(tmp_path / "data" / "users.json", lambda users: users.update({"alice": alice}))
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[KafkaFront])
    node.authorizer = doorman = Doorman()
    await node.start()
    for name in (OPEN, SHUT, SEEN):
        await node.catalog.create_topic(name, 1)
    yield Lab(node, doorman)
    await node.stop()


def denied(future: Any) -> int:
    """The code a future of an admin client fails with."""
    with pytest.raises(KafkaException) as failed:
        future.result(30)
    return int(failed.value.args[0].code())


async def test_topics(lab: Lab) -> None:
    def produced() -> dict[str, int | None]:
        producer = Producer(lab.client)
        codes: dict[str, int | None] = {}
        for name in (OPEN, SHUT):
            producer.produce(
                name, b"v", partition=0, on_delivery=lambda error, m: codes.update({m.topic(): error and error.code()})
            )
        assert producer.flush(30) == 0
        return codes

    assert await asyncio.to_thread(produced) == {OPEN: None, SHUT: TOPIC_DENIED}
    assert lab.was_asked(Operation.WRITE, ResourceKind.TOPIC, OPEN)
    log = lab.node.logs.get(SHUT, 0)
    assert log is not None
    await log.ready()
    assert log.high_watermark == 0

    def read(name: str) -> Any:
        consumer = Consumer({**lab.client, "group.id": "g"})
        consumer.assign([TopicPartition(name, 0, 0)])
        message = consumer.poll(30)
        consumer.close()
        return message

    assert (await asyncio.to_thread(read, OPEN)).value() == b"v"
    assert (await asyncio.to_thread(read, SEEN)).error().code() == TOPIC_DENIED
    assert lab.was_asked(Operation.READ, ResourceKind.TOPIC, OPEN)


async def test_administration(lab: Lab) -> None:
    def administer() -> None:
        admin = AdminClient(lab.client)
        assert set(admin.list_topics(timeout=30).topics) == {OPEN, SEEN}
        assert denied(admin.delete_topics([SHUT])[SHUT]) == TOPIC_DENIED
        assert denied(admin.create_topics([NewTopic(SHUT, 1, 1)])[SHUT]) == TOPIC_DENIED
        assert denied(admin.create_partitions([NewPartitions(SHUT, 2)])[SHUT]) == TOPIC_DENIED
        shut = ConfigResource(ResourceType.TOPIC, SHUT)
        assert denied(admin.describe_configs([shut])[shut]) == TOPIC_DENIED
        entry = ConfigEntry("retention.ms", "5", incremental_operation=AlterConfigOpType.SET)
        shut = ConfigResource(ResourceType.TOPIC, SHUT, incremental_configs=[entry])
        assert denied(admin.incremental_alter_configs([shut])[shut]) == TOPIC_DENIED
        broker = ConfigResource(ResourceType.BROKER, "0")
        assert admin.describe_configs([broker])[broker].result(30)
        lab.doorman.node_is_open = False
        assert denied(admin.describe_configs([broker])[broker]) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        admin.delete_topics([OPEN])[OPEN].result(30)

    await asyncio.to_thread(administer)
    assert set(lab.node.catalog.topics) == {SHUT, SEEN}
    assert lab.node.catalog.topic(SHUT).config == {}
    assert len(lab.node.catalog.topic(SHUT).partitions) == 1


async def test_groups(lab: Lab) -> None:
    def refused_commit(group: str, topic: str) -> KafkaException:
        consumer = Consumer({**lab.client, "group.id": group, "enable.auto.commit": False})
        with pytest.raises(KafkaException) as failed:
            consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        consumer.close()
        return failed.value

    def administer() -> None:
        assert refused_commit("g", SEEN).args[0].code() == TOPIC_DENIED
        admin = AdminClient(lab.client)
        assert denied(admin.delete_consumer_groups([SHUT])[SHUT]) == GROUP_DENIED
        assert denied(admin.describe_consumer_groups([SHUT])[SHUT]) == GROUP_DENIED

    await asyncio.to_thread(administer)
    assert not [*lab.node.progress.names()]


async def test_producer_ids_quotas_and_credentials(lab: Lab) -> None:
    quotas = m.DescribeClientQuotasRequest(components=[], strict=False)
    credentials = m.DescribeUserScramCredentialsRequest(users=None)
    async with lab.wire() as client:
        assert (await client.call(4, m.InitProducerIdRequest(transactional_id=None))).error_code == 0
        assert (await client.call(1, quotas)).error_code == 0
        (known,) = (await client.call(0, credentials)).results
        assert (known.user, known.error_code) == ("alice", 0)
        assert [(one.mechanism, one.iterations) for one in known.credential_infos] == [(2, 4096)]
        for operation, version, request in (
            (Operation.IDEMPOTENT_WRITE, 4, m.InitProducerIdRequest(transactional_id=None)),
            (Operation.DESCRIBE_CONFIGS, 1, quotas),
            (Operation.DESCRIBE, 0, credentials),
        ):
            assert ("User:ANONYMOUS", operation, NODE) in lab.doorman.asked
            lab.doorman.denied = {operation}
            refused = await client.call(version, request)
            assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert not getattr(refused, "results", None)
        before = lab.node.authenticator.users
        lab.doorman.denied = {Operation.ALTER}
        deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion("alice", 2)
        (refused,) = (await client.call(0, m.AlterUserScramCredentialsRequest([deletion]))).results
        assert (refused.user, refused.error_code) == ("alice", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        assert lab.node.authenticator.users is before


async def test_transactional_ids(lab: Lab) -> None:
    denied_id, write, describe = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Operation.WRITE, Operation.DESCRIBE
    topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(OPEN, [0])]
    batched = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction("batched", 0, 0, False, topics)
    place = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, 0)
    offsets = [m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(partitions=[place], name=OPEN)]

    def whole(answer: Any) -> int:
        return int(answer.error_code)

    def of_partition(answer: Any) -> int:
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def of_offset(answer: Any) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    cases: list[tuple[Operation, int, Callable[[str], Any], Callable[[Any], int]]] = [
        (write, 5, lambda name: m.InitProducerIdRequest(name, 1000), whole),
        (write, 3, lambda name: m.AddPartitionsToTxnRequest([], name, 0, 0, topics), of_partition),
        (write, 3, lambda name: m.AddOffsetsToTxnRequest(name, 0, 0, OPEN), whole),
        (write, 3, lambda name: m.TxnOffsetCommitRequest(name, OPEN, 0, 0, topics=offsets), of_offset),
        (write, 5, lambda name: m.EndTxnRequest(name, 0, 0, True), whole),
        (describe, 2, lambda name: m.FindCoordinatorRequest(key=name, key_type=1), whole),
    ]
    async with lab.wire() as client:
        for operation, version, request, code in cases:
            kind = type(request(OPEN)).__name__
            lab.doorman.asked.clear()
            assert code(await client.call(version, request(OPEN))) != denied_id, kind
            assert lab.was_asked(operation, ResourceKind.TRANSACTIONAL_ID, OPEN), kind
            assert code(await client.call(version, request(SHUT))) == denied_id, kind
        producer = TransactionalProducer(client, OPEN)
        assert await producer.init() == 0
        producer.name = SHUT
        assert await producer.produce(12, topic=OPEN) == denied_id
        assert lab.node.logs.get(OPEN, 0) is None or log_of(lab.node, OPEN).high_watermark == 0
        described = await client.call(0, m.DescribeTransactionsRequest([OPEN, SHUT]))
        assert [one.error_code for one in described.transaction_states] == [0, denied_id]
        lab.doorman.denied = {describe}
        assert (await client.call(2, m.ListTransactionsRequest())).transaction_states == []
        lab.doorman.denied = set()
        listed = (await client.call(2, m.ListTransactionsRequest())).transaction_states
        assert [one.transactional_id for one in listed] == [OPEN], "what was refused has left nothing"
        # What brokers say to each other is for whoever acts for the cluster.
        lab.doorman.denied = {Operation.CLUSTER_ACTION}
        answer = await client.call(5, m.AddPartitionsToTxnRequest([batched]))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_clients_are_told_what_they_may_do(lab: Lab) -> None:
    cluster = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    metadata = m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name=OPEN)],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    group = m.DescribeGroupsRequest([OPEN], include_authorized_operations=True)
    pages = m.DescribeTopicPartitionsRequest(
        topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=OPEN)], response_partition_limit=10
    )

    async def told() -> list[int]:
        described = await client.call(10, metadata)
        return [
            (await client.call(1, cluster)).cluster_authorized_operations,
            described.cluster_authorized_operations,
            described.topics[0].topic_authorized_operations,
            (await client.call(0, pages)).topics[0].topic_authorized_operations,
            (await client.call(5, group)).groups[0].authorized_operations,
        ]

    def bits(*numbers: int) -> int:
        return sum(1 << number for number in numbers)

    async with lab.wire() as client:
        node, topic = bits(5, 7, 8, 9, 10, 11, 12), bits(3, 4, 5, 6, 7, 8, 10, 11)
        assert await told() == [node, node, topic, topic, bits(3, 6, 8, 10, 11)]
        lab.doorman.denied = {Operation.ALTER, Operation.DELETE}
        node, topic = bits(5, 8, 9, 10, 11, 12), bits(3, 4, 5, 8, 10, 11)
        assert await told() == [node, node, topic, topic, bits(3, 8, 10, 11)]
        lab.doorman.node_is_open = False
        assert (await told())[:2] == [0, 0]
        assert (await client.call(1, cluster)).brokers, "which brokers there are is no secret"


async def test_a_fetch_asks_once_for_each_topic(lab: Lab) -> None:
    for name in ("many", "others"):
        await lab.node.catalog.create_topic(name, 20)
    topic, part = m.FetchRequest.FetchTopic, m.FetchRequest.FetchPartition
    request = m.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        session_epoch=-1,
        topics=[
            topic(topic=name, partitions=[part(partition=index, partition_max_bytes=100) for index in range(20)])
            for name in ("many", "others", SHUT)
        ],
    )
    async with lab.wire() as client:
        answer = await client.call(11, request)
    codes = {one.topic: {partition.error_code for partition in one.partitions} for one in answer.responses}
    assert codes == {"many": {0}, "others": {0}, SHUT: {ErrorCode.TOPIC_AUTHORIZATION_FAILED}}
    assert lab.doorman.reads == ["many", "others", SHUT]
