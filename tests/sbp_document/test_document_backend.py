"""Nodes whose backend speaks only the document's dialect (``sbp.dialect=v0.1``), while processes come and go.

Clients of the fronts pass there as well: `test_document_fronts.py`, and for one client `tests/clients`.
"""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import KafkaError

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from sbp_back import ErrorCode as ErrorCodes
from sbp_back import parse_address
from sbp_document import DocumentClient
from tests.conftest import NodeFactory
from tests.external.cluster import Load
from tests.kafka_front.groups.wire_client import WireClient
from tests.kit.waiting import until_asked, wait_until
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TIMEOUT_MS = "6000"


@pytest.fixture
def factory(tmp_path: Path) -> Iterator[NodeFactory]:
    factory = NodeFactory(tmp_path)
    yield factory
    factory.dispose()


def start(factory: NodeFactory, **settings: str) -> tuple[NodeProcess, NodeProcess]:
    """A node, and the one that keeps its data."""
    node = factory.on("document", settings={"sbp.timeout_ms": TIMEOUT_MS, **settings})
    return node, factory.nodes[0]


def create(node: NodeProcess, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(60)


def values(node: NodeProcess, topic: str, count: int, partition: int = 0) -> list[tuple[int, bytes]]:
    """Offset and value of the first ``count`` records of a partition."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None, f"{len(found)} of {count} records came"
        assert message.error() is None, message.error()
        offset, content = message.offset(), message.value()
        assert offset is not None
        assert content is not None
        found.append((offset, content))
    consumer.close()
    return found


def produce(node: NodeProcess, topic: str, *contents: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    for content in contents:
        producer.produce(topic, content, partition=0)
    assert producer.flush(60) == 0


def test_the_log_says_what_is_not_promised(factory: NodeFactory) -> None:
    node, _ = start(factory)
    said = node.tail()
    assert "a second writer of a partition's stream is not fenced" in said
    assert "cannot be told from a new one" in said


@pytest.mark.parametrize("victim", ["backend", "node", "both"])
def test_whoever_dies_under_load_nothing_acknowledged_is_lost_or_doubled(factory: NodeFactory, victim: str) -> None:
    node, backend = start(factory)
    create(node, "t", 6)
    load = Load(node.kafka, "t", 6)
    load.start()
    for _ in range(3):
        load.more(700)
        if victim == "both":
            factory.restart(kill=True)
        else:
            (node if victim == "node" else backend).restart(kill=True)
    load.more(700)
    load.finish()
    load.verify(node.kafka)
    factory.restart(kill=False)
    load.verify(node.kafka)


def test_clients_are_told_to_try_again_while_the_backend_is_away(factory: NodeFactory) -> None:
    node, backend = start(factory)
    create(node, "t", 1)
    # It is impatient from here on: on a busy machine not even a topic can be made as soon as that.
    node.terminate()
    node.settings["sbp.timeout_ms"] = "1000"
    node.start()
    produce(node, "t", b"before")
    backend.kill()
    impatient = KafkaProducer(bootstrap_servers=node.kafka, retries=0, enable_idempotence=False)
    with pytest.raises(KafkaError) as refusal:
        impatient.send("t", b"refused", partition=0).get(60)
    impatient.close()
    assert refusal.value.retriable
    backend.start()
    produce(node, "t", b"after")
    assert [content for _, content in values(node, "t", 2)] == [b"before", b"after"]


def test_a_node_starts_before_its_backend(factory: NodeFactory) -> None:
    node, backend = start(factory)
    create(node, "t", 1)
    produce(node, "t", b"before")
    node.kill()
    backend.kill()
    node.launch()
    node.await_ready()
    backend.start()
    produce(node, "t", b"after")
    assert [content for _, content in values(node, "t", 2)] == [b"before", b"after"]


def test_another_writer_is_not_fenced_and_its_records_stand_between_ours(factory: NodeFactory) -> None:
    node, backend = start(factory)
    create(node, "t", 1)
    produce(node, "t", b"ours")

    async def append_theirs() -> None:
        client = DocumentClient.connect(*parse_address(backend.addresses["sbp-v0.1"]))
        # The only topic's only partition: the first stream there is.
        await client.append(0, [b"theirs", b"too"])
        await client.close()

    asyncio.run(append_theirs())
    assert values(node, "t", 3) == [(0, b"ours"), (1, b"theirs"), (2, b"too")], "seen without an append of ours"
    asyncio.run(append_theirs())
    produce(node, "t", b"ours again", b"and again")
    expected = [b"ours", b"theirs", b"too", b"theirs", b"too", b"ours again", b"and again"]
    assert values(node, "t", 7) == list(enumerate(expected))
    assert "another writer appends to this partition" in node.tail()
    # Our last batches were sent with the offsets they were expected to get: they are put right when they are read.
    node.restart(kill=True)
    produce(node, "t", b"later")
    assert values(node, "t", 8) == list(enumerate([*expected, b"later"]))


def test_a_node_may_change_the_dialect(factory: NodeFactory) -> None:
    """The streams are the same, and so is what a Kafka client finds in them."""
    node, backend = start(factory)
    create(node, "t", 1)
    produce(node, "t", *(b"v0.1 %d" % n for n in range(50)))
    node.terminate()
    node.settings["sbp.dialect"] = "0.2"
    node.settings["sbp.pd"] = backend.addresses["sbp-pd"]
    node.start()
    produce(node, "t", *(b"0.2 %d" % n for n in range(50)))
    node.terminate()
    node.settings["sbp.dialect"] = "v0.1"
    node.settings["sbp.pd"] = backend.addresses["sbp-v0.1"]
    node.start()
    produce(node, "t", b"back")
    expected = [*(b"v0.1 %d" % n for n in range(50)), *(b"0.2 %d" % n for n in range(50)), b"back"]
    assert values(node, "t", 101) == list(enumerate(expected))


def huge_batch(count: int) -> bytearray:
    """A small batch that says it holds ``count`` records, and inflates to as much as so many would take."""
    data = encode([Record(None, b"x", timestamp=1)], codec=1)[:61]
    data += gzip.compress(bytes(8 * count), mtime=0)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c.crc32c(memoryview(data)[21:]))
    return data


async def produce_raw(node: NodeProcess, topic: str, data: bytearray) -> int:
    """The code a batch is answered with."""
    request = m.ProduceRequest
    part = request.PartitionProduceData(0, memoryview(data))
    async with WireClient(*parse_address(node.kafka)) as client:
        message = request(None, -1, 30_000, [request.TopicProduceData(name=topic, partition_data=[part])])
        response = await client.call(9, message)
    return int(response.responses[0].partition_responses[0].error_code)


def test_a_batch_that_no_frame_carries_is_refused_and_the_partition_goes_on(factory: NodeFactory) -> None:
    """Three million records may be a small batch for Kafka; here each needs at least eight bytes."""
    node, _ = start(factory, **{"limits.batch_records": "4000000"})
    create(node, "t", 1)
    produce(node, "t", b"before")
    assert asyncio.run(produce_raw(node, "t", huge_batch(3_000_000))) == ErrorCode.MESSAGE_TOO_LARGE
    assert asyncio.run(produce_raw(node, "t", huge_batch(100_000))) == ErrorCode.NONE
    produce(node, "t", b"after")
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (0, 100_002)
    consumer.close()


def test_retention_and_deletion_reach_the_backend(factory: NodeFactory) -> None:
    settings = {"log.retention_check_interval_ms": "100"}
    node, backend = start(factory, **settings)
    create(node, "t", 1, **{"retention.ms": "1", "segment.ms": "1"})
    produce(node, "t", *(b"old %d" % n for n in range(20)))
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused"})
    wait_until(lambda: consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (20, 20), "retention")
    consumer.close()

    async def deleted() -> None:
        client = DocumentClient.connect(*parse_address(backend.addresses["sbp-v0.1"]))
        assert (await client.list_ranges(0))[0].start == 20
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.delete_topics(["t"])["t"].result(30)
        gone = ErrorCodes.NOT_FOUND
        await until_asked(lambda: client.describe_streams([0]), lambda found: found[0].status.code == gone)
        await client.close()

    asyncio.run(asyncio.wait_for(deleted(), 60))


def test_a_node_led_to_a_listener_of_the_other_dialect_says_so(factory: NodeFactory) -> None:
    _, backend = start(factory)
    addresses = backend.addresses
    for dialect, listener, said in (
        ("v0.1", "sbp-pd", "this listener speaks sbp-0.2"),
        ("0.2", "sbp-v0.1", "as a listener of sbp-v0.1 does that is taken for one of sbp-0.2"),
    ):
        settings = {"sbp.mode": "external", "sbp.dialect": dialect, "sbp.pd": addresses[listener]}
        node = factory(f"wrong-{dialect}", settings=settings, listen={"kafka": "127.0.0.1:0", "console": "off"})
        assert said in node.tail()


def test_snapshots_of_partitions_are_believed_when_the_node_starts_again(factory: NodeFactory) -> None:
    node, _ = start(factory)
    create(node, "t", 1)
    for runs in range(1, 4):
        produce(node, "t", *(b"%d" % number for number in range(20)))
        node.restart()
        assert len(values(node, "t", 20 * runs)) == 20 * runs
    assert "snapshot not used" not in node.log.read_text()
