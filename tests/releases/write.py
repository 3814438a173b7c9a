"""``python -m tests.releases.write``: keeps data of this release, for the tests of later ones.

``--tree PATH --commit ID --version VERSION``: data of another tree's node.

Clients of three protocols write, the node is killed, and its data directory becomes a file
``tests/releases/VERSION-COMMIT.tar.xz`` with ``expected.json``, which says what clients read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import ydb
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pravega_client import StreamManager

from bridges.version import VERSION, find_commit
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess

PATIENCE = 60
HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NUMBERS = 7
"""Messages and events that the clients of YDB and Pravega write."""
RUN_TREE = str(HERE / "run_tree.py")
_LISTENERS = dict.fromkeys(("kafka", "ydb", "pravega", "pravega-segmentstore", "console"), ANY)


def kept_releases() -> list[Path]:
    """Return the files of kept data, by version."""
    return sorted(HERE.glob("*.tar.xz"), key=lambda path: [int(one) for one in path.name.split("-")[0].split(".")])


def node_on(data: Path, tree: Path | None = None) -> NodeProcess:
    node = NodeProcess(data, settings={**TEST_SETTINGS, "sbp.segment_bytes": "1MiB"}, listen=dict(_LISTENERS))
    if tree is not None:
        node.python = [sys.executable, RUN_TREE, str(tree)]
    return node


def write(node: NodeProcess) -> list[Producer]:
    """Write through every protocol; return producers whose transactions are open while they live."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    topics = [
        NewTopic("flights", 2),
        NewTopic("latest", 1, config={"cleanup.policy": "compact"}),
        NewTopic("events", 1),
    ]
    for made in admin.create_topics([*topics, NewTopic("pairs", 2), NewTopic("open", 1)]).values():
        made.result(PATIENCE)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": node.kafka, "compression.type": codec, "enable.idempotence": True})
        for number in range(20):
            value = f"{codec} {number} ".encode() + bytes(20_000)  # several segments, which compress well
            place = {"partition": number % 2, "timestamp": 1_700_000_000_000 + number}
            producer.produce("flights", value, key=codec, headers={"number": b"%d" % number}, **place)
            producer.produce("latest", b"%d" % number, key=b"%d" % (number % 5))
        assert not producer.flush(PATIENCE)
    producers = [_transact(node, name, end) for name, end in (("kept", "commit"), ("undone", "abort"), ("left", ""))]
    _write_ydb(node)
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")  # its writers end with it
    writer = streams.create_writer("default", "events")
    for number in range(NUMBERS):
        writer.write_event(f"event {number}", routing_key="one")
    writer.flush()
    return producers


def _transact(node: NodeProcess, name: str, end: str) -> Producer:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": name})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for topic, partition in (("pairs", 0), ("pairs", 1)) if end else (("open", 0),):
        producer.produce(topic, name.encode(), partition=partition)
    with closing(Consumer({"bootstrap.servers": node.kafka, "group.id": name})) as consumer:
        place = TopicPartition("flights", 0, 9)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), PATIENCE)
    assert not producer.flush(PATIENCE)
    if end:
        getattr(producer, f"{end}_transaction")(PATIENCE)
    return producer


def _write_ydb(node: NodeProcess) -> None:
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE)
        driver.topic_client.create_topic("messages", consumers=["board"])
        with driver.topic_client.writer("messages", producer_id="tower") as writer:
            for number in range(NUMBERS):
                writer.write_with_ack(ydb.TopicWriterMessage(f"message {number}", metadata_items={"from": "tower"}))
        with driver.topic_client.reader("messages", "board") as reader:
            reader.commit_with_ack(reader.receive_message(timeout=PATIENCE), timeout=PATIENCE)


def read(node: NodeProcess) -> dict[str, Any]:
    """Return what clients of Kafka read: committed records of all topics, and positions of groups."""
    settings = {"bootstrap.servers": node.kafka, "group.id": "all", "enable.partition.eof": True}
    records: dict[str, list[Any]] = {}
    with closing(Consumer(settings)) as consumer:
        for name, topic in sorted(consumer.list_topics(timeout=PATIENCE).topics.items()):
            for partition in sorted(topic.partitions):
                consumer.assign([TopicPartition(name, partition, 0)])
                found = records.setdefault(f"{name}-{partition}", [])
                while (message := consumer.poll(PATIENCE)) is not None and not message.error():
                    headers = [[key, value.decode()] for key, value in message.headers() or ()]
                    key = (message.key() or b"").decode("latin-1")
                    value = message.value().rstrip(b"\0").decode("latin-1")
                    found.append([message.offset(), message.timestamp()[1], key, value, headers])
                if name == "latest":  # it may be compacted at any time
                    found[:] = {key: record for record in found for key in record[2]}.values()
                assert message is not None
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
    positions = {}
    for group, topic in (("kept", "flights"), ("undone", "flights"), ("board", "messages")):
        with closing(Consumer({"bootstrap.servers": node.kafka, "group.id": group})) as consumer:
            positions[group] = consumer.committed([TopicPartition(topic, 0)], PATIENCE)[0].offset
    return {"records": records, "positions": positions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--commit", default=find_commit())
    parser.add_argument("--version", default=VERSION)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        node = node_on(Path(place) / "data", given.tree)
        with node:
            producers = write(node)
            expected = read(node)
            node.kill()
        del producers
        (Path(place) / "expected.json").write_text(json.dumps(expected))
        target = HERE / f"{given.version}-{given.commit[:12]}.tar.xz"
        with tarfile.open(target, "w:xz") as kept:
            for name in ("data", "expected.json"):
                kept.add(Path(place) / name, name, filter=lambda one: None if one.name.endswith("-reserve") else one)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
