"""What happens to a topic between two writes, and what readers of all protocols are told then: the same, and all of it.

Three protocols write each partition in turn, something happens, they write on, and readers read everything from the
beginning: they are those who join late. Values are told apart, so a record that is lost, doubled, moved or out of its
order is seen, and so is one at another offset in one protocol than in the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import ydb
from confluent_kafka import Consumer, TopicPartition

from pravega_front.wire import commands as wire
from tests.clients.api import Rec
from tests.kit.waiting import wait_until
from tests.matrix.conftest import LISTEN
from tests.matrix.world import (
    AT_ONCE,
    READERS,
    SETTINGS,
    World,
    a_kill,
    a_scale_and_a_merge,
    a_split,
    a_transaction_aborted,
    a_transaction_committed,
    by_console,
    made_anew,
    partitions_added,
    retention,
    truncation,
    truncation_by_pravega,
)
from tests.matrix.writers import PATIENCE
from tests.node_process import NodeProcess
from tests.pravega_front.raw_client import RawClient as Segments
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import Session, write
from ydb_topic_front.wire.statuses import Status

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("events") / "data", settings=SETTINGS, listen=LISTEN)
    with process.lent():
        yield process


EVENTS = (
    *(a_scale_and_a_merge, partitions_added, truncation, truncation_by_pravega, retention),
    *(a_transaction_aborted, a_transaction_committed, made_anew, a_split, a_kill),
)

SECOND = [event for event in EVENTS if event not in (truncation, truncation_by_pravega)]
"""What they take is gone then."""


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__.replace("_", "-"))
def test_all_readers_tell_the_same_before_and_after(event: Callable[[World], None], node: NodeProcess) -> None:
    world = World(node, f"events-{event.__name__.replace('_', '-')}")
    world.write(0)
    world.check()
    event(world)
    world.check()


@pytest.mark.matrix
@pytest.mark.parametrize("second", SECOND, ids=lambda event: event.__name__.replace("_", "-"))
def test_events_one_after_the_other(second: Callable[[World], None], node: NodeProcess) -> None:
    """Behind a truncation within a batch, an aborted transaction and a kill."""
    world = World(node, f"after-{second.__name__.replace('_', '-')}")
    world.write(0)
    for event in (a_transaction_aborted, truncation_by_pravega, a_kill):
        event(world)
        world.check()
    second(world)
    world.check()


def test_a_split_of_ydb_s(node: NodeProcess) -> None:
    """Partitions split under YDB's writer, which does not choose one; all readers are told the same."""
    topic = "events-split"
    world = World(node, "events-beside-split")
    world.topic = topic
    written: list[bytes] = []
    driver: Any = ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local")
    with driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        client = driver.topic_client
        client.create_topic(
            topic,
            consumers=["c"],
            max_active_partitions=4,
            partition_write_speed_bytes_per_second=10_000,
            partition_write_burst_bytes=1 << 40,
            auto_partitioning_settings=ydb.TopicAutoPartitioningSettings(
                strategy=ydb.TopicAutoPartitioningStrategy.SCALE_UP,
                stabilization_window=timedelta(seconds=1),
                up_utilization_percent=50,
                down_utilization_percent=10,
            ),
        )
        with client.writer(topic, producer_id="p", codec=ydb.TopicCodec.RAW) as writer:
            deadline = time.monotonic() + PATIENCE
            while len(world.state()) < 3:
                assert time.monotonic() < deadline, "nothing has split"
                for _ in range(20):
                    written.append(b"%d " % len(written) + b"x" * 500)
                    writer.write_with_ack(written[-1], timeout=PATIENCE)
            for _ in range(20):
                written.append(b"%d " % len(written) + b"x" * 500)
                writer.write_with_ack(written[-1], timeout=PATIENCE)
    first = by_console(world, {})
    counts: dict[int, int] = {}
    for partition, _ in first:
        counts[partition] = counts.get(partition, 0) + 1
    assert sorted(value or b"" for value in first.values()) == sorted(written)
    for number in counts:
        values = [value for (part, _), value in sorted(first.items()) if part == number]
        assert values == [value for value in written if value in set(values)], "a producer's order"
    for read in READERS:
        assert read(world, counts) == first, read.__name__


def test_compaction_by_key_of_two_protocols(node: NodeProcess) -> None:
    """Kafka's keys and YDB's items `__key` are the same keys: the latest of each is left, at its offset, for all."""
    world = World(node, "events-compacted")
    world.kafka.set_config(world.topic, {"cleanup.policy": "compact", **AT_ONCE})
    latest: dict[bytes, bytes] = {}
    with RawYdb(node.ydb) as raw:
        for turn in range(3):
            for number in range(6):
                key, value = b"key %d" % number, b"%d of turn %d" % (number, turn)
                latest[key] = value
                if (number + turn) % 2:
                    world.kafka.produce(world.topic, 0, [Rec(value, key)])
                else:
                    write(raw, world.topic, value, metadata_items=[{"key": "__key", "value": key}])
    wait_until(lambda: len(by_console(world, {})) <= len(latest), "compaction")
    found = by_console(world, {})
    assert sorted(value or b"" for value in found.values()) == sorted(latest.values())
    for read in READERS:
        assert read(world, {0: len(found)}) == found, read.__name__


# --- a name made anew -----------------------------------------------------------------------------------------------


def test_who_remembers_the_former_topic_is_not_given_the_new_one_as_if_it_were(node: NodeProcess) -> None:
    """A group of Kafka's, a consumer of YDB's and a reader of a segment, each half way in a topic that is deleted and
    made anew. Nothing of where they were is true of the new one: they are given all of it."""
    world = World(node, "made-anew")
    for _ in range(3):
        world.write(0)
    group = {"group.id": "k", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": node.kafka, "topic.metadata.refresh.interval.ms": 200, **group})
    consumer.subscribe([world.topic])
    for _ in range(5):
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.error() is None
        consumer.commit(message=message, asynchronous=False)
    with RawYdb(node.ydb) as raw, Segments(node.addresses["pravega-segmentstore"]) as segments:
        raw.result("AlterTopic", path=world.topic, add_consumers=[{"name": "c"}])
        session = Session(raw, world.topic)
        session.started()
        session.read(2)
        former = f"default/{world.topic}/{world.segment(0)}"
        position = segments.ask(wire.GetStreamSegmentInfo(1, former, ""), wire.StreamSegmentInfo).write_offset

        world.kafka.delete_topic(world.topic)
        world.make(1)
        for _ in range(9):
            world.write(0)
        # Pravega: what was a segment is none, whatever lies there now.
        gone = segments.ask(wire.ReadSegment(former, position, 1000, "", 7), wire.NoSuchSegment)
        assert gone.segment == former
        # YDB: the session that read it is ended; one begun now starts at the beginning.
        assert session.refusal()[0] == Status.SCHEME_ERROR
        raw.result("AlterTopic", path=world.topic, add_consumers=[{"name": "c"}])
        again = Session(raw, world.topic)
        assert again.started().committed_offset == 0
        assert [one.data for one in again.read(6)][:6] == world.written[0][:6]
        again.end()
    # Kafka: the member that was there all the time is given the new topic from its beginning.
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    while world.written[0][-1] not in found:
        assert time.monotonic() < deadline, f"the group was given {len(found)} of {len(world.written[0])}"
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    new = [value for value in found if value in set(world.written[0])]
    assert new == world.written[0]
    committed = consumer.committed([TopicPartition(world.topic, 0)], PATIENCE)
    assert committed[0].offset < 0, "the position in the former topic is none in this one"
    consumer.close()
