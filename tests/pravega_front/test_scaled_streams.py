"""A stream that was scaled is read through every protocol: each event by itself, at one offset, once.

Java's writer sends an event of no bytes behind a scale and counts it, so a block claims more events than it holds.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from pravega_client import StreamManager

from pravega_front.wire import commands as wire
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.ranges import TopicPartition as Partition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.conftest import TEST_SETTINGS
from tests.kit.wheel import read_events
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.pravega_front.conftest import needs_node
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.java_client import Java, events
from tests.pravega_front.raw_client import RawClient, event
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import Session

pytestmark = needs_node

SCOPE = "scaled"
PATIENCE = 60.0
LISTENERS = (*FRONTS, "ydb", "pravega", "pravega-segmentstore", "pipeline")

Found = dict[tuple[int, int], bytes]
"""Values by (partition, offset)."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("scaled") / "data"
    process = NodeProcess(directory, settings=TEST_SETTINGS, listen=dict.fromkeys(LISTENERS, ANY))
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture(scope="module")
def controller(node: NodeProcess) -> Iterator[ControllerClient]:
    client = ControllerClient(node.addresses["pravega"])
    client.createScope(scope=SCOPE)
    try:
        yield client
    finally:
        client.close()


def by_kafka(node: NodeProcess, name: str, counts: dict[int, int]) -> Found:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})
    found: Found = {}
    try:
        consumer.assign([TopicPartition(f"{SCOPE}.{name}", number, 0) for number in counts])
        while len(found) < sum(counts.values()):
            message = consumer.poll(PATIENCE)
            assert message is not None, f"{len(found)} of {sum(counts.values())} were read"
            assert message.error() is None, message.error()
            assert message.headers() is None, (message.headers(), message.value())
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            found[partition, offset] = value
    finally:
        consumer.close()
    return found


def by_ydb(node: NodeProcess, name: str, counts: dict[int, int]) -> Found:
    found: Found = {}
    with RawYdb(node.ydb) as raw:
        for number, count in counts.items():
            path = f"{SCOPE}/{name}"
            session = Session(raw, consumer="", topics_read_settings=[{"path": path, "partition_ids": [number]}])
            session.started(read_offset=0)
            messages: list[Any] = []
            while len(messages) < count:
                for data in session.receive("read_response").partition_data:
                    messages += [one for batch in data.batches for one in batch.message_data]
            session.end()
            assert not any(one.metadata_items for one in messages)
            found |= {(number, one.offset): one.data for one in messages}
    return found


def by_spark(node: NodeProcess, name: str, counts: dict[int, int]) -> Found:
    source = endpoint(f"anabranch://{node.addresses['pipeline']}", {})
    topic = f"{SCOPE}.{name}"
    found: Found = {}
    try:
        for part, positions in source.positions([Partition(topic, number) for number in counts]).items():
            wanted = OffsetRange(topic, part.partition, positions.start, positions.stable)
            for batch in source.read(wanted, Columns(("offset", "value", "headers"))):
                for row in batch.to_pylist():
                    assert not row["headers"]
                    found[part.partition, row["offset"]] = row["value"]
    finally:
        source.close()
    return found


def by_console(node: NodeProcess, name: str, counts: dict[int, int]) -> Found:
    found: Found = {}
    for number, count in counts.items():
        path = f"/api/topics/{SCOPE}.{name}/records?offset=earliest&limit={count}&partition={number}"
        with urllib.request.urlopen(node.console + path, timeout=PATIENCE) as answer:
            for line in answer:
                one = json.loads(line)
                assert not one.get("headers"), one
                found[number, one["offset"]] = one["value"].encode()
    return found


OTHERS = (by_kafka, by_ydb, by_spark, by_console)


async def by_pravega(node: NodeProcess, name: str, count: int) -> list[bytes]:
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    reader = streams.create_reader_group(f"readers-{uuid4().hex}", SCOPE, name).create_reader("reader")
    return await read_events(reader, count)


def same_for_all(node: NodeProcess, name: str, wanted: dict[int, list[bytes]]) -> None:
    """Each protocol's readers get the same events of each segment in order, at the same offsets."""
    counts = {number: len(values) for number, values in wanted.items()}
    first: Found | None = None
    for read in OTHERS:
        found = read(node, name, counts)
        for number, values in wanted.items():
            assert [value for (part, _), value in sorted(found.items()) if part == number] == values, read.__name__
        assert first is None or found == first, read.__name__
        first = found
    every = asyncio.run(asyncio.wait_for(by_pravega(node, name, sum(counts.values())), PATIENCE))
    assert Counter(every) == Counter(value for values in wanted.values() for value in values)


def test_blocks_that_count_barriers_are_their_events_for_all_readers(
    node: NodeProcess, controller: ControllerClient
) -> None:
    name = "barriers"
    info = stream(SCOPE, name)
    assert controller.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1}).status == 0
    wanted: dict[int, list[bytes]] = {}

    def write(number: int, epoch: int) -> None:
        values = wanted[number] = [b"%d-%d" % (number, place) for place in range(13)]
        segment = f"{SCOPE}/{name}/{number}.#epoch.{epoch}"
        writer = uuid4().bytes
        with RawClient(node.addresses["pravega-segmentstore"]) as client:
            client.ask(wire.SetupAppend(1, writer, segment, ""), wire.AppendSetup)
            blocks, last, first = [], 0, 0
            # Of each block its events, and how many more it claims. What comes in one write is gathered.
            for size, more in ((2, 0), (3, 1), (1, 5), (0, 1), (4, 0), (2, 1), (1, 1)):
                data = b"".join(map(event, values[first : first + size]))
                first += size
                last += size + more
                blocks.append(wire.AppendBlockEnd(writer, len(data), data, size + more, last, 1))
            client.send(*blocks)
            while client.receive(wire.DataAppended).event_number < last:
                pass

    write(0, 0)
    scale(controller, SCOPE, name, [0], [[0, 0.5], [0.5, 1]])
    write(1, 1)
    write(2, 1)
    scale(controller, SCOPE, name, [1 << 32 | 1, 1 << 32 | 2], [[0, 1]])
    write(3, 2)
    same_for_all(node, name, wanted)


@pytest.mark.java
def test_what_javas_writer_wrote_over_scales_is_its_events_for_all_readers(
    node: NodeProcess, controller: ControllerClient
) -> None:
    java = Java(node.addresses["pravega"], SCOPE)
    try:
        java("create", stream="java", segments=1)
        java("writer", name="w", stream="java")
        java("write", name="w", events=events(0, 500, 20))
        java("scale", stream="java", sealed=[0], ranges=[[0.0, 0.5], [0.5, 1.0]])
        java("write", name="w", events=events(500, 1500, 20))
        java("scale", stream="java", sealed=[1 << 32 | 1, 1 << 32 | 2], ranges=[[0.0, 1.0]])
        java("write", name="w", events=events(1500, 2000, 20))
        java("close_writer", name="w")
    finally:
        java.close()
    # Which event lies where is by its key: as the console has it, each once and in the order of its key.
    found = by_console(node, "java", dict.fromkeys(range(4), 1999))
    assert sorted(int(value) for value in found.values()) == list(range(2000))
    by_segment: dict[int, list[bytes]] = {number: [] for number in range(4)}
    for (number, _), value in sorted(found.items()):
        by_segment[number].append(value)
    same_for_all(node, "java", by_segment)
