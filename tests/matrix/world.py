"""A topic of which everything that is written to it is known, and what happens to it between two writes.

Three protocols write to it in turn in `test_events.py`, one client in `test_event_cells.py`.
"""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from pravega_front.wire import commands as wire
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.ranges import TopicPartition as Partition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.clients.api import Rec
from tests.clients.client_confluent import ConfluentClient
from tests.conftest import TEST_SETTINGS
from tests.kit.waiting import wait_until
from tests.matrix.conftest import CONSUMERS, Written, settled, shortened, unlike, wanted_of
from tests.matrix.expected import Protocol
from tests.matrix.kinds import CREATED, UNTOLD, Kind, Told
from tests.matrix.readers import Reader
from tests.matrix.writers import PATIENCE, KafkaWriter, Writer, partitions_of
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale
from tests.pravega_front.raw_client import RawClient as Segments
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import Session, write
from ydb_topic_front.wire.statuses import Status

SETTINGS = {
    **TEST_SETTINGS,
    "log.retention_check_interval_ms": "50",
    "log.cleaner_interval_ms": "50",
    "ydb.auto_partitioning_interval_ms": "20",
}

Found = dict[tuple[int, int], bytes | None]
"""Values by (partition, offset)."""


def frame(event: bytes) -> bytes:
    """As Pravega's clients put it into a segment."""
    return struct.pack(">ii", 0, len(event)) + event


def append_events(node: NodeProcess, segment: str, events: Sequence[bytes]) -> None:
    """Through a client without a library."""
    if not events:
        return
    data, writer = b"".join(map(frame, events)), uuid4().bytes
    with Segments(node.addresses["pravega-segmentstore"]) as client:
        client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
        client.ask(wire.AppendBlockEnd(writer, len(data), data, len(events), len(events), 1), wire.DataAppended)


def read_events(node: NodeProcess, segment: str) -> list[bytes]:
    """What readers of a segment get, who count bytes."""
    data = b""
    with Segments(node.addresses["pravega-segmentstore"]) as client:
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


class World:
    """One topic, and what was written to it: by partition, the values in their order, and how many went before."""

    one_segment = False

    def __init__(self, node: NodeProcess, topic: str, partitions: int = 1) -> None:
        self.node = node
        self.topic = topic
        self.kafka = ConfluentClient(node.kafka)
        self.written: dict[int, list[bytes]] = {}
        self.gone: dict[int, int] = {}
        self.sealed: frozenset[int] = frozenset()
        self.segments: dict[int, str] = {}
        self.transaction: Producer | None = None
        self._numbers = count()
        with closing(ControllerClient(node.addresses["pravega"])) as controller:
            controller.createScope(scope="default")
        self.make(partitions)

    def make(self, partitions: int) -> None:
        """The topic, which there is none of."""
        admin = AdminClient({"bootstrap.servers": self.node.kafka})
        # Of Kafka's records what is old is told by their own times, which are long past.
        config = {"anabranch.partitions.split": "true", "retention.ms": "-1"}
        new = NewTopic(self.topic, partitions, 1, config=config)
        admin.create_topics([new])[self.topic].result(PATIENCE)
        with RawYdb(self.node.ydb) as raw:
            raw.result("AlterTopic", path=self.topic, add_consumers=[{"name": one} for one in CONSUMERS])
        self.written = {number: [] for number in range(partitions)}
        self.gone = dict.fromkeys(self.written, 0)

    def state(self) -> list[dict[str, Any]]:
        """Of each partition what the console tells."""
        return partitions_of(self.node, self.topic)

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
        append_events(self.node, f"default/{self.topic}/{self.segment(partition)}", self.values(partition, "pravega"))

    def segment(self, partition: int) -> str:
        """What Pravega calls a partition that is open. Numbers of a topic made anew go on above the former's."""
        with closing(ControllerClient(self.node.addresses["pravega"])) as controller:
            found = controller.getCurrentSegments(scope="default", stream=self.topic).segmentRanges
        ids = sorted(one.segmentId.segmentId for one in found)
        open_ones = [number for number in sorted(self.written) if number not in self.sealed]
        chosen = ids[open_ones.index(partition)]
        self.segments[partition] = f"{chosen & 0xFFFFFFFF}.#epoch.{chosen >> 32}"
        return self.segments[partition]

    def left(self) -> dict[int, list[bytes]]:
        """What readers are to find."""
        return {number: values[self.gone[number] :] for number, values in self.written.items()}

    def check(self) -> None:
        """All readers tell the same, and it is what was written."""
        wanted = self.left()
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
        return read_events(self.node, f"default/{self.topic}/{self.segments[partition]}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies."""

    partition: int
    offset: int
    kind: Kind


class OneWriter(World):
    """A topic that one client writes to; of each record what readers should tell of it is known, not of its value
    alone."""

    def __init__(self, node: NodeProcess, topic: str, writer: Writer) -> None:
        self.writer = writer
        self.one_segment = writer.one_segment
        self.placed: dict[bytes, Place] = {}
        self.begin = time.time_ns() // 1_000_000
        self._made = count()
        super().__init__(node, topic)
        self._others = KafkaWriter(self.kafka)

    @property
    def keyed(self) -> bool:
        """Whether its protocol has keys."""
        return self._kind(0).key is not None

    def write(self, *partitions: int) -> None:
        """Six records to each of them; nothing where there are several and the client knows but one."""
        if not self.writer.routes:
            for partition in partitions if len(self.written) - len(self.sealed) == 1 or not self.one_segment else ():
                assert self._write(self.writer, partition) == partition
            return
        left = set(partitions)
        for key in range(100):
            left.discard(self._write(self.writer, key))
            if not left:
                return
        raise AssertionError(f"no key of 100 leads to {left}")

    def beside(self, partition: int, records: int) -> None:
        """Another client writes, with keys."""
        kinds = [rich(next(self._made)) for _ in range(records)]
        offsets = self.kafka.produce(
            self.topic, partition, [Rec(one.value, one.key, one.headers, one.created) for one in kinds]
        )
        self._place(partition, offsets, kinds)

    def _write(self, writer: Writer, partition: int) -> int:
        kinds = [self._kind(next(self._made)) for _ in range(6)]
        before = self._ends()
        writer.write(self.topic, kinds, partition)
        (where,) = [number for number, end in self._ends().items() if end > before.get(number, 0)]
        self._place(where, [before[where] + offset for offset in writer.offsets(kinds)], kinds)
        return where

    def _place(self, partition: int, offsets: Sequence[int], kinds: Sequence[Kind]) -> None:
        for offset, kind in zip(offsets, kinds, strict=True):
            assert kind.value is not None
            self.placed[kind.value] = Place(partition, offset, kind)
            self.written[partition].append(kind.value)

    def _kind(self, number: int) -> Kind:
        """The most that the client can say."""
        return next(kind for kind in (rich(number), bare(number), framed(number)) if not self.writer.refuses(kind))

    def _ends(self) -> dict[int, int]:
        return {one["partition"]: one["end_offset"] for one in self.state()}

    def check(self) -> None:
        """What the console tells is what was written, at its offset."""
        found = by_console(self, {})
        for number, values in self.left().items():
            some = {offset: value for (part, offset), value in sorted(found.items()) if part == number}
            assert list(some.values()) == values, number
            for offset, value in some.items():
                assert value is not None
                assert value not in self.placed or self.placed[value].offset == offset

    def differences(self, reader: Reader) -> Iterator[str]:
        """What a reader tells otherwise than it should, in words."""
        wanted = self.left()
        got = reader.read_each(self.topic, {number: len(values) for number, values in wanted.items() if values})
        where = {value: number for number, values in wanted.items() for value in values}
        told: dict[int, list[Told]] = {number: [] for number in wanted}
        order: list[int] = []
        for partition, one in got:
            number = where.get(one.value or b"", -1)
            if number < 0 or partition not in (None, number):
                yield f"{shortened(one.value)} in partition {partition}, and should be in {number}"
                continue
            told[number].append(one)
            order.append(number)
        console = {value: offset for (_, offset), value in by_console(self, {}).items()}
        for number, values in wanted.items():
            if [one.value for one in told[number]] != values:
                yield f"of partition {number}: {[one.value for one in told[number]]}, and should be {values}"
                continue
            for one in told[number]:
                assert one.value is not None
                yield from self._unlike(reader, one, console[one.value])
        if reader.follows:
            yield from self._out_of_order(order)

    def _unlike(self, reader: Reader, told: Told, offset: int) -> Iterator[str]:
        assert told.value is not None
        place = self.placed.get(told.value)
        if place is None:  # of those who wrote meanwhile
            if told.offset not in (UNTOLD, offset):
                yield f"{told.value!r}: offset is {told.offset}, and should be {offset}"
            return
        writer = self._others if place.kind.name == "rich" and not self.keyed else self.writer
        wanted = wanted_of(writer, reader, place.kind, place.offset)
        source = Written({}, {}, self.begin, time.time_ns() // 1_000_000)
        for line in unlike(wanted, settled(told, wanted, writer, reader, source)):
            yield f"{told.value!r}: {line}"

    def _out_of_order(self, order: Sequence[int]) -> Iterator[str]:
        """What came of a partition is read when all of that is."""
        for one in self.state():
            for parent in one["parents"]:
                if one["partition"] in order and parent in order:
                    last = len(order) - 1 - order[::-1].index(parent)
                    if order.index(one["partition"]) < last:
                        yield f"{one['partition']} is read before the end of {parent}"


def rich(number: int) -> Kind:
    """A record with a key, of three, a header and a time."""
    headers = (("h", b"%d" % number),)
    return Kind("rich", b"value %d" % number, b"key %d" % (number % 3), headers, CREATED + number)


def bare(number: int) -> Kind:
    """A record of nothing but its value."""
    return Kind("bare", b"value %d" % number, None, (), CREATED + number)


def framed(number: int) -> Kind:
    """Bytes that are an event."""
    value = b"value %d" % number
    return Kind("framed", value, None, sent=frame(value), bytes_alone=True)


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


# --- what happens ---------------------------------------------------------------------------------------------------


def a_scale_and_a_merge(world: World) -> None:
    """By Pravega's controller."""
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
    """By Kafka's admin client."""
    admin = AdminClient({"bootstrap.servers": world.node.kafka})
    admin.create_partitions([NewPartitions(world.topic, 3)])[world.topic].result(PATIENCE)
    world.written |= {1: [], 2: []}
    world.gone |= {1: 0, 2: 0}
    world.write(2, 0, 1)


def truncation(world: World) -> None:
    """Kafka's DeleteRecords."""
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
    wait_until(lambda: all(one["start_offset"] == one["end_offset"] for one in world.state()), "retention")
    world.kafka.set_config(world.topic, {"retention.ms": "-1"})
    world.gone[0] = len(world.written[0])
    world.write(0)


def a_transaction_aborted(world: World) -> None:
    _transaction(world, commit=False)


def a_transaction_committed(world: World) -> None:
    _transaction(world, commit=True)


def a_transaction_open(world: World) -> None:
    """As it stays until the node ends it: readers are told of nothing behind its beginning, whoever wrote it."""
    world.transaction = _open(world)
    before = list(world.written[0])
    world.write(0)
    world.written[0] = before


def _open(world: World) -> Producer:
    longest = {"transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": world.node.kafka, "transactional.id": world.topic, **longest})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for number in range(2):
        producer.produce(world.topic, b"open %d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0
    return producer


def _transaction(world: World, *, commit: bool) -> None:
    producer = _open(world)
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


def a_split(world: World) -> None:
    """By YDB's rules: a partition that is written to faster than it should be becomes two."""
    load: list[bytes] = []
    with RawYdb(world.node.ydb) as raw:
        _split_by_rate(raw, world.topic, on=True)
        for turn in count():
            if len(world.state()) > 2:
                break
            load += _loaded(raw, world.topic, 20 * turn)
        _split_by_rate(raw, world.topic, on=False)
    stored: dict[int, list[bytes]] = {number: [] for number in range(len(world.state()))}
    for (number, _), value in sorted(by_console(world, {}).items()):
        if value is not None and value.startswith(LOAD):
            stored[number].append(value)
    assert set(load) <= {value for values in stored.values() for value in values}
    for number, values in stored.items():
        world.written.setdefault(number, []).extend(values)
        world.gone.setdefault(number, 0)
    world.sealed = frozenset(one["partition"] for one in world.state() if not one["active"])
    world.write(*(number for number in stored if number not in world.sealed))


def _split_by_rate(raw: RawYdb, topic: str, *, on: bool) -> None:
    speed = {"set_stabilization_window": {"seconds": 1}, "set_up_utilization_percent": 50}
    auto = {"set_strategy": 2 if on else 4, "set_partition_write_speed": {**speed, "set_down_utilization_percent": 10}}
    raw.result(
        "AlterTopic",
        path=topic,
        set_partition_write_speed_bytes_per_second=10_000,
        set_partition_write_burst_bytes=1 << 40,
        alter_partitioning_settings={"set_max_active_partitions": 2, "alter_auto_partitioning_settings": auto},
    )


LOAD = b"load "


def _loaded(raw: RawYdb, topic: str, first: int) -> list[bytes]:
    """Twenty messages to wherever the node chooses; those that were acknowledged before a split ended the stream."""
    bodies = [LOAD + b"%d " % number + b"x" * 500 for number in range(first, first + 20)]
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": topic})
    messages = [{"seq_no": number, "data": body} for number, body in enumerate(bodies, 1)]
    stream.send(write_request={"messages": messages, "codec": 1})
    stream.half_close()
    answered = [one for one in stream.rest() if one.status == Status.SUCCESS]
    return bodies[: sum(len(one.write_response.acks) for one in answered)]


def compaction(world: OneWriter) -> None:
    """Of each key the latest is left, at its offset, and what has none. Batches of YDB's stay whole; where Pravega's
    clients have been told of bytes, everything stays."""
    world.kafka.set_config(world.topic, {"cleanup.policy": "compact", **AT_ONCE})
    if world.keyed:
        world.write(0)
    else:
        world.beside(0, 6)
    seen: dict[str, Any] = {}

    def over() -> bool:
        (state,) = world.state()
        seen.update(state["compaction"] or {})
        return seen.get("state") == "refused" or seen.get("clean_offset") == state["end_offset"]

    wait_until(over, "compaction")
    if seen["state"] == "refused":
        assert world.writer.protocol == Protocol.PRAVEGA
        return
    keys = {value: world.placed[value].kind.key for value in world.written[0]}
    latest = {key: value for value, key in keys.items() if key is not None}
    stays = {value for value, key in keys.items() if key is None or latest[key] == value}
    if world.writer.protocol == Protocol.YDB:
        stays.update(value for value in by_console(world, {}).values() if value is not None)
    world.written[0] = [value for value in world.written[0] if value in stays]


AT_ONCE = {"min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"}
"""Compaction does not wait."""


def a_kill(world: World) -> None:
    """kill -9."""
    world.node.restart(kill=True)
    world.check()
    world.write(0)


def made_anew(world: World) -> None:
    """The topic is deleted, and there is another of its name, with more partitions where who writes allows it."""
    world.kafka.delete_topic(world.topic)
    world.sealed = frozenset()
    world.make(1 if world.one_segment else 2)
    world.write(*world.written)
