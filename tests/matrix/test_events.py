"""What happens to a topic between two writes, and what readers of all protocols are told then: the same, and all of it.

Three protocols write each partition in turn, something happens, they write on, and readers read everything from the
beginning: they are those who join late. Values are told apart, so a record that is lost, doubled, moved or out of its
order is seen, and so is one at another offset in one protocol than in the others.
"""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
import ydb
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from pravega_front.wire import commands as wire
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.ranges import TopicPartition as Partition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.clients.api import Rec
from tests.clients.client_confluent import ConfluentClient
from tests.conftest import TEST_SETTINGS
from tests.matrix.conftest import LISTEN
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale
from tests.pravega_front.raw_client import RawClient as Segments
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import Session, write
from ydb_topic_front.wire.statuses import Status

pytestmark = [pytest.mark.slow]

PATIENCE = 60
SETTINGS = {
    **TEST_SETTINGS,
    "log.retention_check_interval_ms": "50",
    "log.cleaner_interval_ms": "50",
    "ydb.auto_partitioning_interval_ms": "20",
}

Found = dict[tuple[int, int], bytes | None]
"""Values by (partition, offset)."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("events") / "data", settings=SETTINGS, listen=LISTEN)
    with process.lent():
        yield process


class World:
    """One topic, and what was written to it: by partition, the values in their order, and how many went before."""

    def __init__(self, node: NodeProcess, topic: str, partitions: int = 1) -> None:
        self.node = node
        self.topic = topic
        self.kafka = ConfluentClient(node.kafka)
        self.written: dict[int, list[bytes]] = {}
        self.gone: dict[int, int] = {}
        self.sealed: frozenset[int] = frozenset()
        self.segments: dict[int, str] = {}
        self._numbers = count()
        with closing(ControllerClient(node.addresses["pravega"])) as controller:
            controller.createScope(scope="default")
        self.make(partitions)

    def make(self, partitions: int) -> None:
        """The topic, which there is none of."""
        admin = AdminClient({"bootstrap.servers": self.node.kafka})
        new = NewTopic(self.topic, partitions, 1, config={"anabranch.partitions.split": "true"})
        admin.create_topics([new])[self.topic].result(PATIENCE)
        self.written = {number: [] for number in range(partitions)}
        self.gone = dict.fromkeys(self.written, 0)

    def state(self) -> list[dict[str, Any]]:
        """Of each partition what the console tells."""
        with urllib.request.urlopen(f"{self.node.console}/api/topics/{self.topic}", timeout=PATIENCE) as answer:
            return list(json.load(answer)["partitions"])

    def values(self, partition: int, who: str) -> list[bytes]:
        """Two that nobody has written yet."""
        made = [b"%s %d" % (who.encode(), next(self._numbers)) for _ in range(2)]
        self.written[partition] += made
        return made

    def write(self, *partitions: int) -> None:
        """Each protocol writes to each of them."""
        for partition in partitions:
            self.by_kafka(partition)
            self.by_pravega(partition)
            with RawYdb(self.node.ydb) as raw:
                write(raw, self.topic, *self.values(partition, "ydb"), partition=partition)

    def by_kafka(self, partition: int) -> None:
        records = [Rec(value, b"key") for value in self.values(partition, "kafka")]
        self.kafka.produce(self.topic, partition, records, codec="zstd", idempotent=True)

    def by_pravega(self, partition: int) -> None:
        data = b"".join(struct.pack(">ii", 0, len(one)) + one for one in self.values(partition, "pravega"))
        writer = uuid4().bytes
        with Segments(self.node.addresses["pravega-segmentstore"]) as client:
            segment = f"default/{self.topic}/{self.segment(partition)}"
            client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
            client.ask(wire.AppendBlockEnd(writer, len(data), data, 2, 2, 1), wire.DataAppended)

    def segment(self, partition: int) -> str:
        """What Pravega calls a partition that is open. Numbers of a topic made anew go on above the former's."""
        with closing(ControllerClient(self.node.addresses["pravega"])) as controller:
            found = controller.getCurrentSegments(scope="default", stream=self.topic).segmentRanges
        ids = sorted(one.segmentId.segmentId for one in found)
        open_ones = [number for number in sorted(self.written) if number not in self.sealed]
        chosen = ids[open_ones.index(partition)]
        self.segments[partition] = f"{chosen & 0xFFFFFFFF}.#epoch.{chosen >> 32}"
        return self.segments[partition]

    def check(self) -> None:
        """All readers tell the same, and it is what was written."""
        wanted = {number: values[self.gone[number] :] for number, values in self.written.items()}
        counts = {number: len(values) for number, values in wanted.items() if values}
        told = {read.__name__: read(self, counts) for read in READERS}
        for name, found in told.items():
            for number, values in wanted.items():
                assert [value for (part, _), value in sorted(found.items()) if part == number] == values, (name, number)
            assert found == told["by_kafka"], name
        for number in counts:
            assert self.events(number) == wanted[number], number

    def events(self, partition: int) -> list[bytes]:
        """What readers of the segment get, who count bytes."""
        segment = f"default/{self.topic}/{self.segments[partition]}"
        data = b""
        with Segments(self.node.addresses["pravega-segmentstore"]) as client:
            info = client.ask(wire.GetStreamSegmentInfo(1, segment, ""), wire.StreamSegmentInfo)
            while info.start_offset + len(data) < info.write_offset:
                at = info.start_offset + len(data)
                data += client.ask(wire.ReadSegment(segment, at, 1 << 20, "", 1), wire.SegmentRead).data
        found = []
        while data:
            (size,) = struct.unpack_from(">4xi", data)
            found.append(data[8 : 8 + size])
            data = data[8 + size :]
        return found


def by_kafka(world: World, counts: dict[int, int]) -> Found:
    others = {number: wanted for number, wanted in counts.items() if number}
    got = world.kafka.consume(world.topic, others) if others else []
    if 0 in counts:  # where transactions are
        got += world.kafka.consume_committed(world.topic, counts[0])
    return {(one.partition, one.offset): one.value for one in got}


def by_ydb(world: World, counts: dict[int, int]) -> Found:
    found: Found = {}
    with RawYdb(world.node.ydb) as raw:
        for number, wanted in counts.items():
            settings = [{"path": world.topic, "partition_ids": [number]}]
            session = Session(raw, consumer="", topics_read_settings=settings)
            session.started(read_offset=0)
            found |= {(number, one.offset): one.data for one in session.read(wanted)}
            session.end()
    return found


def by_spark(world: World, counts: dict[int, int]) -> Found:
    with closing(endpoint(f"anabranch://{world.node.addresses['pipeline']}", {})) as source:
        found: Found = {}
        for part, at in source.positions([Partition(world.topic, number) for number in counts]).items():
            wanted = OffsetRange(world.topic, part.partition, at.start, at.stable)
            for batch in source.read(wanted, Columns(("offset", "value"))):
                found |= {(part.partition, row["offset"]): row["value"] for row in batch.to_pylist()}
        return found


def by_console(world: World, counts: dict[int, int]) -> Found:
    path = f"/api/topics/{world.topic}/records?offset=earliest&limit=100000"
    with urllib.request.urlopen(world.node.console + path, timeout=PATIENCE) as answer:
        rows = [json.loads(line) for line in answer]
    return {(row["partition"], row["offset"]): row["value"].encode() for row in rows}


READERS = (by_kafka, by_ydb, by_spark, by_console)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait for what the node does by itself."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE} s"
        time.sleep(0.05)


# --- what happens ---------------------------------------------------------------------------------------------------


def a_scale_and_a_merge(world: World) -> None:
    with closing(ControllerClient(world.node.addresses["pravega"])) as controller:
        scale(controller, "default", world.topic, [0], [[0, 0.5], [0.5, 1]])
        world.written |= {1: [], 2: []}
        world.gone |= {1: 0, 2: 0}
        world.sealed = frozenset({0})
        world.write(1, 2)
        world.check()
        scale(controller, "default", world.topic, [1 << 32 | 1, 1 << 32 | 2], [[0, 1]])
    world.written[3], world.gone[3] = [], 0
    world.sealed = frozenset({0, 1, 2})
    world.write(3)


def partitions_added(world: World) -> None:
    admin = AdminClient({"bootstrap.servers": world.node.kafka})
    admin.create_partitions([NewPartitions(world.topic, 3)])[world.topic].result(PATIENCE)
    world.written |= {1: [], 2: []}
    world.gone |= {1: 0, 2: 0}
    world.write(2, 0, 1)


def truncation(world: World) -> None:
    world.kafka.delete_records(world.topic, 0, 3)
    world.gone[0] = 3
    world.check()
    world.write(0)


def truncation_by_pravega(world: World) -> None:
    """Within a Kafka batch's bytes: what begins before the position is gone."""
    segment = f"default/{world.topic}/{world.segment(0)}"
    with Segments(world.node.addresses["pravega-segmentstore"]) as client:
        bytes_of_four = sum(8 + len(value) for value in world.written[0][:4])
        client.ask(wire.TruncateSegment(1, segment, bytes_of_four, ""), wire.SegmentTruncated)
    world.gone[0] = 4
    world.check()
    world.write(0)


def retention(world: World) -> None:
    world.kafka.set_config(world.topic, {"retention.ms": "1"})
    eventually(lambda: all(one["start_offset"] == one["end_offset"] for one in world.state()), "retention")
    world.kafka.set_config(world.topic, {"retention.ms": "-1"})
    world.gone[0] = len(world.written[0])
    world.write(0)


def a_transaction_aborted(world: World) -> None:
    _transaction(world, commit=False)


def a_transaction_committed(world: World) -> None:
    _transaction(world, commit=True)


def _transaction(world: World, *, commit: bool) -> None:
    """While it is open readers are told of nothing behind its beginning, whoever wrote it."""
    producer = Producer({"bootstrap.servers": world.node.kafka, "transactional.id": world.topic})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for number in range(2):
        producer.produce(world.topic, b"open %d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0
    before = list(world.written[0])
    world.write(0)
    after, world.written[0] = world.written[0], before
    world.check()
    if commit:
        producer.commit_transaction(PATIENCE)
        world.written[0] = [*before, b"open 0", b"open 1", *after[len(before) :]]
    else:
        producer.abort_transaction(PATIENCE)
        world.written[0] = after


def a_kill(world: World) -> None:
    world.node.restart(kill=True)
    world.check()
    world.write(0)


def made_anew(world: World) -> None:
    world.kafka.delete_topic(world.topic)
    world.make(2)
    world.write(0, 1)


EVENTS = (
    *(a_scale_and_a_merge, partitions_added, truncation, truncation_by_pravega, retention),
    *(a_transaction_aborted, a_transaction_committed, made_anew, a_kill),
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
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        client: Any = driver.topic_client
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
    slow = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"}
    world.kafka.set_config(world.topic, slow)
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
    eventually(lambda: len(by_console(world, {})) <= len(latest), "compaction")
    found = by_console(world, {})
    assert sorted(value or b"" for value in found.values()) == sorted(latest.values())
    for read in READERS:
        assert read(world, {0: len(found)}) == found, read.__name__


# --- a name made anew -----------------------------------------------------------------------------------------------


def test_who_remembers_the_former_topic_is_not_given_the_new_one_as_if_it_were(node: NodeProcess) -> None:
    """A group of Kafka's, a consumer of YDB's of the same name, and a reader of a segment, each half way in a topic
    that is deleted and made anew. Nothing of where they were is true of the new one: they are given all of it."""
    world = World(node, "made-anew")
    for _ in range(3):
        world.write(0)
    group = {"group.id": "c", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": node.kafka, "topic.metadata.refresh.interval.ms": 200, **group})
    consumer.subscribe([world.topic])
    for _ in range(5):
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
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
