"""Consumers read from a node of their rack (KIP-392), and exactly right: three nodes, each in a rack of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
import ydb
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.cluster.together import together
from tests.kafka_front.groups.wire_client import WireClient
from tests.node_process import FRONTS, NodeProcess
from tests.postgres import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE = 120.0
PARTITIONS = 6
RECORDS = 600
NEAR = 2
"""The node, and the number of the rack, from which the tests read."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    directory = tmp_path_factory.mktemp("racks")
    (directory / "bucket").mkdir()
    objects = {
        "sbp.durability": "object",
        "sbp.objects": f"file://{directory / 'bucket'}",
        "sbp.object_linger_ms": "10",
    }

    def settings(number: int) -> dict[str, str]:
        return objects | {"sbp.object_log": f"{number}", "node.rack": f"rack{number}"}

    with together(directory, 3, postgres.made(), (*FRONTS, "ydb"), settings) as made:
        yield made


def bootstrap(nodes: list[NodeProcess]) -> str:
    return ",".join(node.kafka for node in nodes)


def make(nodes: list[NodeProcess], topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap(nodes)})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE)


def write(nodes: list[NodeProcess], topic: str, first: int, count: int) -> None:
    """Write numbers to the partitions in turns."""
    producer = Producer({"bootstrap.servers": bootstrap(nodes), "enable.idempotence": True, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


def told(node: NodeProcess, topic: str) -> float:
    """Return how many records of a topic a node has sent to Kafka's clients."""
    with urlopen(f"{node.console}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    wanted = [line for line in lines if line.startswith("anabranch_fetched_records_total{") and f'"{topic}"' in line]
    return sum(float(line.split()[-1]) for line in wanted if '"kafka"' in line)


class Reader:
    """A consumer in the rack of :data:`NEAR`; it fails if a record is missing, or comes twice."""

    def __init__(self, nodes: list[NodeProcess], topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap(nodes), "group.id": "by-hand", "client.rack": f"rack{NEAR}"}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self.count = 0

    def read(self, until: int) -> None:
        while self.count < until:
            message = self._consumer.poll(PATIENCE)
            assert message is not None, f"nothing comes after {self.count} records"
            if message.error() is not None:
                continue
            partition = message.partition()
            assert message.offset() == self._next[partition]
            assert message.value() == b"%d" % (message.offset() * PARTITIONS + partition)
            self._next[partition] += 1
            self.count += 1

    def close(self) -> None:
        self._consumer.close()


def test_librdkafka_reads_at_the_node_of_its_rack(nodes: list[NodeProcess]) -> None:
    make(nodes, "near")
    write(nodes, "near", 0, RECORDS)
    reader = Reader(nodes, "near")
    reader.read(RECORDS)
    write(nodes, "near", RECORDS, RECORDS)  # it waits for these
    reader.read(2 * RECORDS)
    reader.close()
    assert [told(node, "near") for node in nodes] == [0, 2 * RECORDS, 0]


@pytest.mark.java
def test_java_reads_at_the_node_of_its_rack(nodes: list[NodeProcess]) -> None:
    make(nodes, "near-java")
    write(nodes, "near-java", 0, RECORDS)
    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    driver = remote.program.start()
    try:
        settings = {"client.rack": f"rack{NEAR}"}
        client = RemoteClient(bootstrap(nodes), remote.name, remote.abilities, driver, settings)
        got = client.consume_group("near-java", "near-java", RECORDS)
    finally:
        driver.close()
    assert sorted(int(one.value or b"") for one in got) == list(range(RECORDS))
    assert [told(node, "near-java") for node in nodes] == [0, RECORDS, 0]


def fetch(topic: str, partition: int, offset: int, *, rack: str, epoch: int = -1, **fields: Any) -> m.FetchRequest:
    asked = m.FetchRequest
    place = asked.FetchPartition(
        partition=partition, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
    )
    given = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **fields}
    return asked(topics=[asked.FetchTopic(topic=topic, partitions=[place])], rack_id=rack, **given)


async def test_the_owner_names_a_node_of_the_rack_which_answers(nodes: list[NodeProcess]) -> None:
    make(nodes, "wire", 12)
    clients = {number: WireClient(*split(node.kafka)) for number, node in enumerate(nodes, 1)}
    async with clients[1], clients[2], clients[3]:
        request = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="wire")])
        for client in clients.values():
            while (topic := (await client.call(9, request)).topics[0]).error_code:
                await asyncio.sleep(0.01)  # the node has not heard of the topic yet
        assert all(sorted(one.replica_nodes) == [1, 2, 3] == sorted(one.isr_nodes) for one in topic.partitions)
        assert all(one.replica_nodes[0] == one.leader_id for one in topic.partitions)
        number, owner, epoch = next(
            (one.partition_index, one.leader_id, one.leader_epoch) for one in topic.partitions if one.leader_id != NEAR
        )
        rack, near = f"rack{NEAR}", clients[NEAR]

        async def asked(client: WireClient, offset: int, rack: str = rack, **fields: Any) -> Any:
            answer = await client.call(12, fetch("wire", number, offset, rack=rack, **fields))
            assert answer.error_code == 0
            return answer.responses[0].partitions[0]

        told = await asked(clients[owner], 0, max_wait_ms=60_000)
        assert (told.error_code, told.preferred_read_replica, told.records) == (0, NEAR, b"")
        for far in ("", "rack7", f"rack{owner}"):
            assert (await asked(clients[owner], 0, far)).preferred_read_replica == -1
            assert (await asked(near, 0, far)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await asked(clients[owner], 5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await asked(near, 5)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE, "only the owner knows the end"
        assert (await asked(near, -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await asked(near, 0, epoch=epoch + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await asked(near, 0, epoch=epoch)).error_code == 0
        waiting = near.begin(12, fetch("wire", number, 0, rack=rack, max_wait_ms=60_000))
        producer = Producer({"bootstrap.servers": bootstrap(nodes)})
        producer.produce("wire", b"news", partition=number)
        assert producer.flush(PATIENCE) == 0
        (data,) = (await waiting).responses[0].partitions
        assert (data.error_code, data.high_watermark, b"news" in bytes(data.records)) == (0, 1, True)
        with_id = Producer({"bootstrap.servers": bootstrap(nodes), "transactional.id": "near"})
        with_id.init_transactions(PATIENCE)
        for commits in (False, True):
            with_id.begin_transaction()
            with_id.produce("wire", b"%d" % commits, partition=number)
            assert with_id.flush(PATIENCE) == 0
            if not commits:
                held = await asked(near, 1, isolation_level=1)
                assert (held.last_stable_offset, held.high_watermark, held.records) == (1, 2, b"")
                with_id.abort_transaction(PATIENCE)
            else:
                with_id.commit_transaction(PATIENCE)
        data = await asked(near, 1, isolation_level=1)
        assert (data.last_stable_offset, [one.first_offset for one in data.aborted_transactions]) == (5, [1])
        assert (await asked(near, 1)).aborted_transactions is None


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_records_of_other_protocols_are_read_there_too(nodes: list[NodeProcess]) -> None:
    make(nodes, "mixed", 1)
    with ydb.Driver(ydb.DriverConfig(f"grpc://{nodes[0].ydb}", "/local")) as driver:
        driver.wait(PATIENCE)
        with driver.topic_client.writer("mixed", producer_id="one") as writer:
            for number in range(3):
                writer.write(b"%d" % number)
    for rack in ("rack1", "rack2", "rack3"):
        consumer = Consumer({"bootstrap.servers": bootstrap(nodes), "group.id": "by-hand", "client.rack": rack})
        consumer.assign([TopicPartition("mixed", 0, 0)])
        got: list[bytes] = []
        while len(got) < 3:
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error() is None:
                got.append(message.value())
        consumer.close()
        assert got == [b"0", b"1", b"2"]


def test_a_reader_goes_on_exactly_when_its_near_node_is_killed(nodes: list[NodeProcess]) -> None:
    """The last test: a node less."""
    make(nodes, "killed")
    write(nodes, "killed", 0, RECORDS)
    reader = Reader(nodes, "killed")
    reader.read(RECORDS // 2)
    nodes[NEAR - 1].kill()
    left = [node for node in nodes if node is not nodes[NEAR - 1]]
    write(left, "killed", RECORDS, RECORDS)
    reader.read(2 * RECORDS)
    reader.close()
