"""One log: what Pravega's clients wrote is read through Kafka, and the other way round."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pravega_client import StreamManager, StreamReader

from tests.kit.wheel import read_events
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, stream


@pytest.fixture(scope="module")
def streams(node: NodeProcess) -> StreamManager:
    found = StreamManager(f"tcp://{node.addresses['pravega']}")
    found.create_scope("shared")
    return found


def read(reader: StreamReader, count: int) -> list[bytes]:
    return asyncio.run(read_events(reader, count))


def consumed(node: NodeProcess, topic: str, count: int) -> list[tuple[int, bytes | None, bytes]]:
    """The first records of partition 0: offset, key, value."""
    consumer = Consumer(
        {"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[int, bytes | None, bytes]] = []
        while len(found) < count:
            for message in consumer.consume(count, 10.0):
                assert message.error() is None, message.error()
                offset, key, value = message.offset(), message.key(), message.value()
                assert offset is not None
                assert key is None or isinstance(key, bytes)
                assert isinstance(value, bytes)
                found.append((offset, key, value))
        return found
    finally:
        consumer.close()


def produce(node: NodeProcess, topic: str, values: Sequence[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, b"key", partition=0)
    assert producer.flush(30) == 0


def test_kafka_reads_what_pravega_wrote(node: NodeProcess, streams: StreamManager) -> None:
    streams.create_stream("shared", "from-pravega", 1)
    writer = streams.create_writer("shared", "from-pravega", max_inflight_events=100)
    events = [b"event %d" % number for number in range(300)]
    for one in events:
        writer.write_event_bytes(one)
    writer.flush()
    assert consumed(node, "shared.from-pravega", 300) == [(n, None, one) for n, one in enumerate(events)]
    tail = subprocess.run(
        [
            sys.executable,
            "-m",
            "bridges",
            "tail",
            "shared.from-pravega",
            "--from",
            "earliest",
            "--limit",
            "3",
            "--json",
        ],
        env={"ANABRANCH_NODE": node.console, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in tail.stdout.splitlines()]
    assert [line["value"] for line in lines][:3] == ["event 0", "event 1", "event 2"], tail.stderr


def test_pravega_reads_what_kafka_wrote(node: NodeProcess, streams: StreamManager) -> None:
    # The wheel reads no event of no bytes, and nothing behind one: Java's client does (test_java.py).
    produce(node, "shared.from-kafka", [b"one", b"two" * 1000])
    reader = streams.create_reader_group("group", "shared", "from-kafka").create_reader("reader")
    assert read(reader, 2) == [b"one", b"two" * 1000]
    produce(node, "shared.from-kafka", [b"later"])
    assert read(reader, 1) == [b"later"]


def test_both_write_to_one_partition(node: NodeProcess, streams: StreamManager, controller: ControllerClient) -> None:
    streams.create_stream("shared", "both", 1)
    writer = streams.create_writer("shared", "both")
    expected = []
    for number in range(20):
        writer.write_event(f"pravega {number}")
        produce(node, "shared.both", [b"kafka %d" % number])
        expected += [b"pravega %d" % number, b"kafka %d" % number]
    reader = streams.create_reader_group("both", "shared", "both").create_reader("reader")
    assert read(reader, 40) == expected
    found = consumed(node, "shared.both", 40)
    assert [value for _, _, value in found] == expected
    assert [offset for offset, _, _ in found] == list(range(40))
    assert controller.checkStreamExists(scope="shared", stream="both").exists
    assert controller.getCurrentSegments(scope="shared", stream="both").segmentRanges[0].maxKey == 1.0
    assert controller.getStreamConfiguration(scope="shared", stream="from-kafka").streamInfo == stream(
        "shared", "from-kafka"
    )


def test_kafka_sees_a_transaction_once_it_is_committed(node: NodeProcess, streams: StreamManager) -> None:
    streams.create_stream("shared", "transactions", 1)
    writer = streams.create_transaction_writer("shared", "transactions", 1)
    aborted, committed = writer.begin_txn(), writer.begin_txn()
    aborted.write_event("aborted")
    committed.write_event("first")
    committed.write_event("second")
    aborted.abort()
    committed.commit()
    assert [value for _, _, value in consumed(node, "shared.transactions", 2)] == [b"first", b"second"]
