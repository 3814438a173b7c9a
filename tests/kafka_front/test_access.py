"""The node's authorizer is asked on every operation, and what it does not allow has the error that Kafka tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from bridges.node.assembly import Node
from bridges.node.config import load
from kafka_front.front import KafkaFront

OPEN, SHUT, SEEN = "open", "shut", "seen"
TOPIC_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED


@dataclass
class Doorman:
    """Denies what is called ``shut``, reading ``seen`` and, when told so, the node."""

    node_is_open: bool = True
    asked: set[tuple[str, Operation, Resource]] = field(default_factory=set)

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        self.asked.add((str(principal), operation, resource))
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

    def was_asked(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return ("User:ANONYMOUS", operation, Resource(kind, name)) in self.doorman.asked


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    flags = dict.fromkeys(("listen.kafka", "listen.sbp-pd", "listen.sbp-range-server"), "127.0.0.1:0")
    flags |= {"data_dir": str(tmp_path / "data"), "listen.console": "off"}
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
    assert not lab.node.progress.names()
