"""Kafka clients at a node whose backend is elastic-stream's, as far as its faults are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bridges.node.assembly import Node
from bridges.node.settings.config import load
from kafka_front.front import KafkaFront
from tests.conftest import TEST_SETTINGS
from tests.sbp_document.elastic_stream.servers import ForeignCluster

PATIENCE = 60.0


@dataclass
class World:
    """A node whose clients run in threads beside it."""

    cluster: ForeignCluster
    node: Node

    @property
    def bootstrap(self) -> str:
        return str(self.node.addresses["kafka"])

    def fill(self, topic: str, sizes: list[int], **config: object) -> None:
        """A topic with one batch of one record for each size."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = NewTopic(topic, 1, 1, config={key: str(value) for key, value in config.items()})
        admin.create_topics([wanted])[topic].result(PATIENCE)
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "message.max.bytes": 16_700_000,
                "linger.ms": 0,
                "enable.idempotence": True,
            }
        )
        for size in sizes:
            producer.produce(topic, bytes(size))
            assert producer.flush(PATIENCE) == 0

    def trim(self, topic: str, offset: int) -> int:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        done = admin.delete_records([TopicPartition(topic, 0, offset)], operation_timeout=PATIENCE)
        return int(next(iter(done.values())).result(PATIENCE).low_watermark)

    def read(self, topic: str, count: int, **config: object) -> list[int]:
        """The offsets of ``count`` records from the beginning on."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": topic, "auto.offset.reset": "earliest", **config}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets: list[int] = []
        while len(offsets) < count:
            message = consumer.poll(PATIENCE)
            assert message is not None, offsets
            if message.error() is not None:
                raise KafkaException(message.error())
            offsets.append(message.offset())
        consumer.close()
        return offsets


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    cluster = ForeignCluster(servers=1)
    flags = {
        **TEST_SETTINGS,
        "data_dir": str(tmp_path / "node"),
        "listen.console": "off",
        "listen.kafka": "127.0.0.1:0",
        "sbp.mode": "external",
        "sbp.flavor": "elastic-stream",
        "sbp.pd": await cluster.serve(),
        "sbp.timeout_ms": "8s",
        "log.tail_cache_bytes": "0",
    }
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[KafkaFront])
    await node.start()
    yield World(cluster, node)
    await node.stop()
    await cluster.close()


async def test_records_are_deleted_where_the_backend_cannot_trim(world: World) -> None:
    await asyncio.to_thread(world.fill, "t", [100] * 20)
    assert await asyncio.to_thread(world.trim, "t", 12) == 12
    assert await asyncio.to_thread(world.read, "t", 8) == list(range(12, 20))


async def test_a_consumer_from_the_beginning_goes_on_behind_what_was_reclaimed(world: World) -> None:
    await asyncio.to_thread(world.fill, "t", [100] * 20)
    world.cluster.servers[0].reclaimed = 15
    assert await asyncio.to_thread(world.read, "t", 5) == list(range(15, 20))


async def test_consumers_that_ask_for_much_get_all_of_it(world: World) -> None:
    """What a short record and the long one after it take together fits no frame, and clients ask for both."""
    sizes = [150_000, 16_650_000, 1000, 16_650_000, *[900_000] * 20]
    await asyncio.to_thread(world.fill, "t", sizes, **{"max.message.bytes": 16_700_000})
    for wanted in (20_000_000, 1_000_000):
        config = {"max.partition.fetch.bytes": wanted, "fetch.max.bytes": 40_000_000}
        read = await asyncio.to_thread(partial(world.read, "t", len(sizes), **config))
        assert read == list(range(len(sizes)))
    assert world.cluster.servers[0].dropped > 0
