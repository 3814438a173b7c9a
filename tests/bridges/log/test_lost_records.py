"""Records that the log has lost below an end that is remembered elsewhere: a gap for readers, and told to operators."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import NodeFactory
from tests.node_process import NodeProcess
from tests.numbers import consumed, produce

LOG = ("wal", "ckpt")


def keep_log(node: NodeProcess) -> Path:
    older = node.data.with_name("older")
    for name in LOG:
        shutil.copytree(node.data / "sbp" / name, older / name)
    return older


def end(node: NodeProcess) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "w"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=20)[1])
    finally:
        consumer.close()


def put_back(node: NodeProcess, older: Path) -> None:
    for name in LOG:
        shutil.rmtree(node.data / "sbp" / name)
        shutil.copytree(older / name, node.data / "sbp" / name)


def test_a_partition_whose_log_is_older_than_its_end_goes_on_behind_what_is_lost(node_factory: NodeFactory) -> None:
    """As after a loss of power without flushes, with a release that did not flush the log before an end was told."""
    node = node_factory()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
    produce(node, range(20))
    node.terminate()
    older = keep_log(node)
    node.start()
    produce(node, range(20, 50))
    node.kill()
    node.start()
    assert consumed(node, 49) == {one: one for one in range(50)}  # which opens the partition: its range has ended at 50
    node.kill()
    put_back(node, older)
    node.start()
    assert end(node) == 50
    produce(node, range(50, 60))
    assert consumed(node, 59) == {one: one for one in (*range(20), *range(50, 60))}
    assert "acknowledged records are lost" in node.tail()
    assert "offsets 20 to 49 of stream" in node.tail()
    node.restart(kill=True)
    assert consumed(node, 59) == {one: one for one in (*range(20), *range(50, 60))}


def test_consumers_miss_nothing_that_is_appended_where_a_log_without_flushes_has_lost_its_end(
    node_factory: NodeFactory,
) -> None:
    """Positions are kept in another file: they may survive a loss of power that takes the end of the log."""
    node = node_factory(settings={"sbp.durability": "os"})
    produce(node, range(10))
    node.terminate()
    older = keep_log(node)
    node.start()
    produce(node, range(10, 20))
    config = {"bootstrap.servers": node.bootstrap, "group.id": "g", "auto.offset.reset": "error"}
    consumer = Consumer(config)
    consumer.commit(offsets=[TopicPartition("t", 0, 20)], asynchronous=False)
    consumer.close()
    node.terminate()
    put_back(node, older)
    node.start()
    assert end(node) == 10
    produce(node, range(100, 115))
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    found = []
    while len(found) < 15:
        (message,) = consumer.consume(1, timeout=30) or (None,)
        assert message is not None, f"nothing behind {found[-1:]}\n{node.tail()}"
        assert message.error() is None, message.error()
        found.append(int(message.value() or b""))
    consumer.close()
    assert found == list(range(100, 115))
    assert "consumers had read further than the log goes" in node.tail()
