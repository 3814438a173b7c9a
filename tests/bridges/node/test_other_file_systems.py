"""A node whose data lies on a file system that cannot say what is in memory (as tmpfs, NFS, 9p and FUSE cannot)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess

MEMORY = Path("/dev/shm")
COUNT = 200


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    if not os.access(MEMORY, os.W_OK):
        pytest.skip("no file system in memory here")
    with TemporaryDirectory(prefix="anbr-node-", dir=MEMORY) as name:
        node = NodeProcess(Path(name) / "node", settings=TEST_SETTINGS)
        with node.lent():
            yield node


def produce(node: NodeProcess, first: int) -> None:
    """Each record in a request of its own; all are acknowledged."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": node.bootstrap, "batch.num.messages": 1})
    for number in range(first, first + COUNT):
        producer.produce(
            "t", b"%d" % number, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert not failed


def consumed(node: NodeProcess, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: list[int] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=20)
            assert messages, f"{len(found)} of {count} records can be read\n{node.tail()}"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(int(message.value() or b""))
    finally:
        consumer.close()
    return found


def test_what_was_acknowledged_can_be_read_on_a_file_system_without_reads_that_never_wait(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
    written = 0
    for kill in (None, False, True):
        if kill is not None:
            node.restart(kill=kill)
            assert consumed(node, written) == list(range(written))
        produce(node, written)
        written += COUNT
        assert consumed(node, written) == list(range(written))
    assert "every read goes through a thread" in node.tail()
