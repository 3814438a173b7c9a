"""Topics that are no user's: what is seen of them, and what is not, by clients that know nothing of kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient

from bridges.catalog.topics.topic import TopicKind, TopicNotFound
from bridges.formats import FormatId
from bridges.log.partition.partition_log import Batch
from bridges.node.assembly import Node
from bridges.node.floors.upkeep import enforce_retention
from tests.kafka_front.node_lab import append, log_of, serving

CONSOLE = {"listen.console": "127.0.0.1:0"}
HIDDEN = (TopicKind.TRANSIENT, TopicKind.TABLE)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """With a topic of each kind, which has the kind's name and one record."""
    async with serving(tmp_path, CONSOLE) as node:
        for kind in TopicKind:
            await node.catalog.create_topic(kind.value, 1, kind=kind)
            one = raw(kind.value.encode())
            one.own = True
            await append(log_of(node, kind.value), one)
        yield node


def raw(value: bytes) -> Batch:
    return Batch(value, 1, int(FormatId.RAW))


async def test_only_users_and_internal_topics_are_listed(node: Node) -> None:
    bootstrap = str(node.addresses["kafka"])

    def ask() -> tuple[set[str], dict[str, bool], set[KafkaError | None]]:
        listed = set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics)
        other = KafkaAdminClient(bootstrap_servers=bootstrap)
        internal = {one["name"]: one["is_internal"] for one in other.describe_topics(["user", "internal"])}
        other.close()
        settings = {"bootstrap.servers": bootstrap, "allow.auto.create.topics": False, "group.id": "g"}
        consumer = Consumer(settings)
        errors = {consumer.list_topics(kind.value, 20).topics[kind.value].error for kind in HIDDEN}
        consumer.close()
        return listed, internal, errors

    listed, internal, errors = await asyncio.to_thread(ask)
    assert listed == {"user", "internal"}
    assert internal == {"user": False, "internal": True}
    assert {error.code() for error in errors if error is not None} == {KafkaError.UNKNOWN_TOPIC_OR_PART}
    async with aiohttp.ClientSession() as session:
        address = f"http://{node.addresses['console']}/api/topics"
        async with session.get(address) as response:
            told = await response.text()
        assert "internal" in told
        assert "transient" not in told
        for method in ("GET", "DELETE"):
            async with session.request(method, f"{address}/transient") as response:
                assert response.status == 404


async def test_hidden_topics_cannot_be_read_written_changed_or_deleted_by_name(node: Node) -> None:
    bootstrap = str(node.addresses["kafka"])

    def attempt() -> list[KafkaError]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        failures: list[KafkaError] = []
        for kind in HIDDEN:
            name = kind.value
            for future in (
                admin.delete_topics([name])[name],
                admin.create_partitions([NewPartitions(name, 2)])[name],
                admin.delete_records([TopicPartition(name, 0, 1)])[TopicPartition(name, 0, 1)],
            ):
                with pytest.raises(KafkaException) as refused:
                    future.result(20)
                failures.append(refused.value.args[0])
            with pytest.raises(KafkaException) as refused:
                admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
            assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        return failures

    failures = await asyncio.to_thread(attempt)
    assert {failure.code() for failure in failures} <= {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    }
    for kind in HIDDEN:
        assert node.logs.get(kind.value, 0) is None
        log = node.logs.hidden(kind.value, 0)
        assert log is not None
        assert (log.log_start_offset, log.high_watermark) == (0, 1)


async def test_kafka_reads_an_internal_topic_and_does_not_write_it(node: Node) -> None:
    bootstrap = str(node.addresses["kafka"])

    def use() -> tuple[list[KafkaError | None], bytes | None]:
        outcomes: list[KafkaError | None] = []

        def told(error: KafkaError | None, message: Message) -> None:
            outcomes.append(error)

        producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 300_000})
        producer.produce("internal", "x", partition=0, on_delivery=told)
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition("internal", 0, 0)])
        message = consumer.poll(20)
        consumer.close()
        return outcomes, None if message is None else message.value()

    outcomes, value = await asyncio.to_thread(use)
    assert [error.code() for error in outcomes if error is not None] == [KafkaError.TOPIC_EXCEPTION]
    assert value == b"internal"


async def test_an_internal_topic_is_changed_by_its_protocol_alone(node: Node) -> None:
    """Written, trimmed and deleted, by Kafka's admin and by the console."""
    bootstrap = str(node.addresses["kafka"])

    def attempt() -> list[int]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        place = TopicPartition("internal", 0, 1)
        codes = []
        for future in (admin.delete_topics(["internal"])["internal"], admin.delete_records([place])[place]):
            with pytest.raises(KafkaException) as refused:
                future.result(20)
            codes.append(refused.value.args[0].code())
        return codes

    assert await asyncio.to_thread(attempt) == [KafkaError.TOPIC_EXCEPTION] * 2
    topic = f"http://{node.addresses['console']}/api/topics/internal"
    async with aiohttp.ClientSession() as session:
        async with session.delete(topic) as response:
            assert (response.status, (await response.json())["kind"]) == (409, "TopicInternal")
        async with session.post(f"{topic}/records", data=b'{"value": "x"}\n') as response:
            assert (response.status, (await response.json())["kind"]) == (409, "TopicInternal")
    log = log_of(node, "internal")
    assert (log.log_start_offset, log.high_watermark) == (0, 1)
    await node.catalog.delete_topic("internal", own=True)
    assert "internal" not in node.catalog.topics


async def test_kinds_and_hidden_logs_last_and_retention_leaves_them_alone(tmp_path: Path) -> None:
    made = {}
    async with serving(tmp_path) as first:
        for kind in TopicKind:
            made[kind] = await first.catalog.create_topic(kind.value, 1, {"retention.ms": "1"}, kind=kind)
        for kind in HIDDEN:
            assert await append(log_of(first, kind.value), raw(b"kept")) == 0
        await append(log_of(first, "user"), raw(b"trimmed"))

    async with serving(tmp_path) as again:
        catalog = again.catalog
        assert set(catalog.topics) == {"user", "internal"}
        assert set(catalog.hidden) == {"transient", "table"}
        assert set(catalog.by_id) == {made[kind].topic_id.bytes for kind in TopicKind if kind.listed}
        assert catalog.partition_count == 4
        for kind in TopicKind:
            assert (catalog.topics | catalog.hidden)[kind.value].kind is kind
        assert catalog.topic("user").names == {"pravega": "default/user", "ydb": "user"}
        assert catalog.hidden["table"].names == {}
        await enforce_retention(again.floors, 2**42)
        assert log_of(again, "user").log_start_offset == 1
        for kind in HIDDEN:
            log = log_of(again, kind.value)
            assert (await log.read_batches(0, 100))[0].payload == b"kept"
            with pytest.raises(TopicNotFound):
                catalog.topic(kind.value)
            await catalog.delete_topic(kind.value)
            assert again.logs.hidden(kind.value, 0) is None
            assert not log.is_open
        assert not catalog.hidden
