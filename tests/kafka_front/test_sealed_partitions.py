"""What unchanged Kafka clients see of partitions that were split (docs/design.md, "Partitions that split")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.errors import PolicyViolationError

from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import KeyRange
from bridges.node.assembly import Node
from tests.kafka_front.node_lab import serving

HALVES = [KeyRange.of_doubles(0.0, 0.5), KeyRange.of_doubles(0.5, 1.0)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as node:
        yield node


async def split(node: Node) -> str:
    """A topic of two partitions, the first of which gave way to 2 and 3 when it had three records."""
    await node.catalog.create_topic("t", 2, {SPLIT: "true"})
    bootstrap = str(node.addresses["kafka"])

    def fill() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(3):
            producer.produce("t", str(number), partition=0)
        assert producer.flush(20) == 0

    await asyncio.to_thread(fill)
    told = asyncio.Event()
    node.catalog.on_change.append(lambda change: told.set())
    await node.catalog.change_partitions("t", [0], HALVES)
    while node.catalog.pending_seals:
        told.clear()
        await told.wait()
    return bootstrap


@pytest.mark.parametrize("idempotent", [True, False])
async def test_librdkafka_gives_up_at_once_and_is_told_where_to_write(node: Node, idempotent: bool) -> None:
    bootstrap = await split(node)

    def produce() -> tuple[list[tuple[KafkaError | None, int]], int]:
        outcomes: list[tuple[KafkaError | None, int]] = []

        def told(error: KafkaError | None, message: Message) -> None:
            outcomes.append((error, message.partition()))

        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "message.timeout.ms": 300_000}
        producer = Producer(settings)
        for partition in (0, 1, 2, 3):
            producer.produce("t", "x", partition=partition, on_delivery=told)
        left = producer.flush(30)
        # What goes elsewhere goes on.
        for partition in (1, 2, 3):
            producer.produce("t", "y", partition=partition, on_delivery=told)
        return outcomes, left + producer.flush(30)

    outcomes, left = await asyncio.to_thread(produce)
    assert left == 0
    failed = [(error, partition) for error, partition in outcomes if error is not None]
    assert [partition for _, partition in failed] == [0]
    assert failed[0][0].code() == KafkaError.POLICY_VIOLATION
    assert not failed[0][0].retriable()
    assert len(outcomes) == 7


@pytest.mark.parametrize("idempotent", [True, False])
async def test_kafka_python_gives_up_at_once(node: Node, idempotent: bool) -> None:
    bootstrap = await split(node)

    def produce() -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=idempotent, delivery_timeout_ms=300_000, acks="all"
        )
        try:
            with pytest.raises(PolicyViolationError, match=r"partition 2, 3"):
                producer.send("t", b"x", partition=0).get(30)
            if idempotent:
                return [0, 0, 0]  # after an error that is not to be retried, whichever, this one sends nothing any more
            return [producer.send("t", b"y", partition=n).get(30).offset for n in (1, 2, 3)]
        finally:
            producer.close(10)

    assert await asyncio.to_thread(produce) == [0, 0, 0]


async def test_a_sealed_partition_is_listed_and_read_to_its_end_like_any_other(node: Node) -> None:
    bootstrap = await split(node)

    def look() -> tuple[dict[int, int], list[tuple[int, bytes]], list[bytes], tuple[int, int]]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        described = admin.list_topics("t", 20).topics["t"]
        leaders = {number: one.leader for number, one in described.partitions.items()}
        settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        consumer.assign([TopicPartition("t", n, 0) for n in range(4)])
        read, ended = [], set()
        while len(ended) < 4:
            message = consumer.poll(20)
            assert message is not None
            error = message.error()
            if error is None:
                read.append((message.partition(), message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
        watermarks = consumer.get_watermark_offsets(TopicPartition("t", 0), 20)
        consumer.close()
        other = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
        other.assign([PythonPartition("t", 0)])
        values = [next(other).value for _ in range(3)]
        other.close()
        return leaders, read, values, watermarks

    leaders, read, values, watermarks = await asyncio.to_thread(look)
    assert leaders == dict.fromkeys(range(4), node.settings.node.id)
    assert read == [(0, b"0"), (0, b"1"), (0, b"2")]
    assert values == [b"0", b"1", b"2"]
    assert watermarks == (0, 3)


async def test_admin_requests_count_sealed_partitions_and_add_whole_ones(node: Node) -> None:
    bootstrap = await split(node)

    def ask() -> tuple[str, bool]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
        entry = admin.describe_configs([resource])[resource].result(20)[SPLIT]
        admin.create_partitions([NewPartitions("t", 6)])["t"].result(20)
        return entry.value, entry.is_default

    assert await asyncio.to_thread(ask) == ("true", False)
    partitions = node.catalog.topic("t").partitions
    assert [one.index for one in partitions] == list(range(6))
    assert [one.keys.doubles for one in partitions[4:]] == [(0.0, 1.0), (0.0, 1.0)]
