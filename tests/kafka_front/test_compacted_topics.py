"""Compacted topics as Kafka's clients see them, while they are compacted, and while the node is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

FAST = {"log.cleaner_interval_ms": "50", "sbp.segment_bytes": "1MiB", "logging.level": "info"}


def make(node: NodeProcess, name: str, **config: str) -> None:
    # With Kafka's default it depends on how fast they write whether what is left is dirty enough for another pass.
    always = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    given = always | {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, 1, 1, config=given)])[name].result(30)


def read(node: NodeProcess, name: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all that readers of committed data get now, whose offsets must grow."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 200_000,
        }
    )
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, f"nothing more came behind {found[-1:]}"
            if message.error():
                break
            offset = message.offset()
            assert offset is not None
            assert not found or offset > found[-1][0], "offsets grow"
            found.append((offset, message.key(), message.value()))
    finally:
        consumer.close()
    return found


def described(node: NodeProcess, name: str) -> dict[str, object]:
    command = [sys.executable, "-m", "bridges", "topic", "describe", name, "--node", node.console, "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    view: dict[str, object] = told["partitions"][0]["compaction"]
    return view


@pytest.fixture(params=["disk", pytest.param("objects", marks=pytest.mark.long)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Of a node whose log is there."""
    objects = {
        "sbp.durability": "object",
        "sbp.objects": f"file://{tmp_path / 'objects'}",
        "sbp.object_cache_bytes": "8MiB",
        "sbp.object_linger_ms": "1",
        "sbp.object_range_bytes": "256KiB",
    }
    return FAST | (objects if request.param == "objects" else {})


def test_a_topic_shrinks_and_is_the_same_after_kill_9(
    node_factory: Callable[..., NodeProcess], settings: dict[str, str]
) -> None:
    node = node_factory(settings=settings)
    make(node, "t", delete_retention_ms="100")
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True, "compression.type": "zstd"})
    for n in range(20_000):
        producer.produce("t", b"value %d" % n * 20, b"%d" % (n % 300))
        if n % 1000 == 0:
            producer.poll(0)
    for n in range(100):
        producer.produce("t", None, b"%d" % n)
    assert producer.flush(60) == 0
    wanted = [(n, b"%d" % (n % 300), b"value %d" % n * 20) for n in range(19_700, 20_000) if n % 300 >= 100]
    wait_until(lambda: read(node, "t") == wanted, "compaction")
    node.restart(kill=True)
    assert read(node, "t") == wanted
    view = described(node, "t")
    assert view["state"] in ("waiting", "cleaning")
    assert view["clean_offset"] == 20_100
    producer.produce("t", b"again", b"5")
    assert producer.flush(60) == 0
    wait_until(lambda: read(node, "t") == [*wanted, (20_100, b"5", b"again")], "the next record")


@pytest.mark.slow
def test_kill_9_at_any_moment_of_compaction_loses_and_brings_back_nothing(
    node_factory: Callable[..., NodeProcess], settings: dict[str, str]
) -> None:
    node = node_factory(settings=settings)
    make(node, "t")
    producer = Producer(
        {"bootstrap.servers": node.kafka, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 120_000}
    )
    acknowledged: dict[bytes, int] = {}
    wrong: list[object] = []
    rng = random.Random(1)
    number = 0

    def write(first: int, count: int) -> None:
        for n in range(first, first + count):
            key = b"%d" % rng.randint(0, 200)

            def done(error: object, _message: object, key: bytes = key, n: int = n) -> None:
                if error is not None:
                    wrong.append(error)
                else:
                    acknowledged[key] = max(acknowledged.get(key, -1), n)

            producer.produce("t", b"%d " % n + bytes(rng.randint(0, 800)), key, on_delivery=done)
            if n % 20 == 0:
                producer.poll(0.01)
        if producer.flush(120):
            wrong.append("not all were acknowledged")

    moments = random.Random(2)
    for _ in range(5):
        writer = threading.Thread(target=write, args=(number, 2000))
        writer.start()
        time.sleep(moments.uniform(0.1, 1.5))
        node.restart(kill=True)
        writer.join()
        number += 2000
        assert not wrong
        last: dict[bytes, int] = {}
        for _, key, value in read(node, "t"):
            assert key is not None
            assert value is not None
            written = int(value.split(b" ")[0])
            assert written > last.get(key, -1), "a key's records keep their order, and none is there twice"
            last[key] = written
        assert last == acknowledged
    wait_until(lambda: len(read(node, "t")) == len(acknowledged), "compaction")


def test_a_reader_follows_a_topic_that_is_compacted_all_the_time(node_factory: Callable[..., NodeProcess]) -> None:
    node = node_factory(settings=FAST)
    make(node, "t")
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    reader = {"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False}
    consumers = [Consumer(reader | {"isolation.level": level}) for level in ("read_committed", "read_uncommitted")]
    for consumer in consumers:
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    seen: list[dict[bytes, int]] = [{} for _ in consumers]
    offsets = [-1 for _ in consumers]
    written = 0
    while written < 4000 or min(offsets) < written - 1:
        if written < 4000:
            for _ in range(20):
                producer.produce("t", b"%d" % written, b"%d" % (written % 50))
                written += 1
            assert producer.flush(30) == 0
        for number, consumer in enumerate(consumers):
            for message in consumer.consume(20, 0.05):
                offset, key, value = message.offset(), message.key(), message.value()
                assert not message.error()
                assert offset is not None
                assert key is not None
                assert offset > offsets[number], "offsets grow"
                assert value == b"%d" % offset, "what is at an offset is what was written there"
                assert int(value) % 50 == int(key)
                offsets[number] = offset
                seen[number][key] = offset
    assert all(one == {b"%d" % key: 3950 + key for key in range(50)} for one in seen)
    assert described(node, "t")["removed_bytes"] != 0, "it was compacted meanwhile"
    for consumer in consumers:
        consumer.close()


def test_transactions_on_a_compacted_topic(node_factory: Callable[..., NodeProcess]) -> None:
    node = node_factory(settings=FAST)
    make(node, "t")
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "one"})
    producer.init_transactions(30)
    for turn in range(40):
        producer.begin_transaction()
        for key in range(5):
            producer.produce("t", b"%d" % turn, b"%d" % key)
        if turn % 4 == 3:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    last = [(b"%d" % key, b"38") for key in range(5)]
    wait_until(lambda: [one[1:] for one in read(node, "t")] == last, "compaction")
    producer.begin_transaction()
    producer.produce("t", b"open", b"0")
    producer.flush(30)
    plain = Producer({"bootstrap.servers": node.kafka})
    plain.produce("t", b"behind", b"1")
    assert plain.flush(30) == 0
    node.restart(kill=True)
    assert [one[1:] for one in read(node, "t")] == last, "neither what is open nor what lies behind"
    producer.abort_transaction(60)
    wait_until(lambda: [one[1:] for one in read(node, "t")] == [last[0], *last[2:], (b"1", b"behind")], "compaction")
