"""Pravega's streams as an endpoint: a node's own front, written to by the wheel, and by Kafka."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pravega_client import StreamManager

from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, OptionError, UnknownTopic, UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.endpoints.pravega.client import PravegaOptions
from spark_pipeline.endpoints.pravega.endpoint import PravegaEndpoint
from spark_pipeline.jobs.archive.command import command as archive
from spark_pipeline.jobs.audit.audit import Audit, Side
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.spark.source import StreamReader
from spark_pipeline.spark.source_options import SourceOptions
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.spark_pipeline.endpoints.test_ydb import rows

ALL = Columns.select(headers=True, metadata=True)
BIG = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def scope(pipeline_node: NodeProcess) -> str:
    """A scope with ``events``, of two segments, which hold events of many sizes."""
    name = f"s{uuid.uuid4().hex[:8]}"
    streams = StreamManager(f"tcp://{pipeline_node.addresses['pravega']}")
    streams.create_scope(name)
    streams.create_stream(name, "events", 2)
    writer = streams.create_writer(name, "events")
    for number in range(200):
        writer.write_event_bytes(b"%d " % number * (number % 9 + 1), routing_key=f"key-{number}")
    writer.write_event_bytes(bytes(BIG), routing_key="key-0")
    writer.write_event_bytes(b"behind", routing_key="key-0")
    writer.flush()
    return name


@pytest.fixture
def source(pipeline_node: NodeProcess, scope: str) -> Iterator[PravegaEndpoint]:
    made = endpoint(url(pipeline_node, scope))
    assert isinstance(made, PravegaEndpoint)
    yield made
    made.close()


def url(node: NodeProcess, scope: str) -> str:
    return f"pravega://{node.addresses['pravega']}/{scope}"


def test_events_lie_where_their_bytes_do(pipeline_node: NodeProcess, source: PravegaEndpoint, scope: str) -> None:
    topic = f"{scope}.events"
    ours = rows({"endpoint": f"anabranch://{pipeline_node.addresses['pipeline']}"}, topic)
    through = rows({"protocol": "pravega", "endpoint": url(pipeline_node, scope), "minPartitions": "16"}, topic)
    assert len(ours) == 202
    assert [(row["partition"], row["value"]) for row in through] == [(row["partition"], row["value"]) for row in ours]
    for number in (0, 1):
        mine = [row for row in through if row["partition"] == number]
        at = 0
        for row in mine:
            assert row["offset"] == at, "an event begins where the one before it ends"
            at += 8 + len(row["value"])
        (told,) = source.positions([TopicPartition(topic, number)]).values()
        assert (told.start, told.stable, told.high_watermark, told.size) == (0, at, at, at)
    assert {row["writer"] for row in through} == {"pravega"}
    assert all(row["key"] is None and row["headers"] is None and row["producer"] is None for row in through)
    middle = [row for row in through if row["partition"] == 0][20]
    part = OffsetRange(topic, 0, middle["offset"], middle["offset"] + 1)
    (batch,) = source.read(part, ALL)
    assert batch.to_pylist() == [middle]
    with pytest.raises(UnreadableBatch, match="there is no event's header"):
        list(source.read(OffsetRange(topic, 0, middle["offset"] + 3, middle["offset"] + 100), ALL))


def test_what_there_is(pipeline_node: NodeProcess, source: PravegaEndpoint, scope: str) -> None:
    topic = f"{scope}.events"
    found = source.topics()
    assert found.keys() == {topic}
    assert (found[topic].partitions, found[topic].states) == ((0, 1), {0: "active", 1: "active"})
    assert found[topic].config["scaling"] == "fixed"
    assert source.some_topics([topic, "nothing"]).keys() == {topic}
    assert source.groups() == {}
    for part in (TopicPartition(topic, 2), TopicPartition("nothing", 0)):
        with pytest.raises(UnknownTopic):
            source.positions([part])
    with pytest.raises(OptionError, match="no times"):
        source.find_timestamp({TopicPartition(topic, 0): 5})
    nowhere = endpoint(url(pipeline_node, "nowhere"))
    with pytest.raises(UnknownTopic):
        nowhere.topics()
    nowhere.close()


def test_segments_that_were_scaled_and_truncated(
    pipeline_node: NodeProcess, source: PravegaEndpoint, scope: str
) -> None:
    streams = StreamManager(f"tcp://{pipeline_node.addresses['pravega']}")
    streams.create_stream(scope, "scaled", 1)
    writer = streams.create_writer(scope, "scaled")
    for number in range(10):
        writer.write_event(f"{number}")
    writer.flush()
    controller = ControllerClient(pipeline_node.addresses["pravega"])
    ranges = [{"start": 0.0, "end": 0.5}, {"start": 0.5, "end": 1.0}]
    controller.scale(streamInfo=stream(scope, "scaled"), sealedSegments=[0], newKeyRanges=ranges)
    topic = f"{scope}.scaled"
    found = source.some_topics([topic])[topic]
    assert found.partitions == (0, 1, 2)
    assert found.states == {0: "sealed", 1: "active", 2: "active"}
    assert found.parents == {1: (0,), 2: (0,)}
    parts = [TopicPartition(topic, number) for number in found.partitions]
    assert [one.high_watermark for one in source.positions(parts).values()] == [90, 0, 0]
    controller.truncateStream(streamInfo=stream(scope, "scaled"), cut={0: 36})
    with pytest.raises(OffsetsGone) as gone:
        list(source.read(OffsetRange(topic, 0, 0, 90), ALL))
    assert gone.value.start == 36
    (batch,) = source.read(OffsetRange(topic, 0, 36, 90), Columns(("offset", "value")))
    assert batch.to_pylist()[0] == {"offset": 36, "value": b"4"}
    controller.truncateStream(streamInfo=stream(scope, "scaled"), cut={1 + (1 << 32): 0, 2 + (1 << 32): 0})
    assert source.some_topics([topic])[topic].partitions == (0, 1, 2)
    assert [(one.start, one.stable) for one in source.positions(parts).values()] == [(0, 0), (0, 0), (0, 0)]
    controller.close()


def test_a_stream_of_micro_batches(pipeline_node: NodeProcess, scope: str) -> None:
    """Whatever is written by Kafka is an event as well; what came since is read next, never cut."""
    name = f"{scope}.streamed"
    streams = StreamManager(f"tcp://{pipeline_node.addresses['pravega']}")
    streams.create_stream(scope, "streamed", 1)
    options = {
        "protocol": "pravega",
        "endpoint": url(pipeline_node, scope),
        "subscribe": name,
        "worker.freeze": "false",
    }
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    reader = StreamReader(SourceOptions.parse(options, streaming=True), Columns(("offset", "value")))
    start = reader.initialOffset()
    producer = Producer({"bootstrap.servers": pipeline_node.kafka})
    for value in (b"one", b"", b"three"):
        producer.produce(name, value, b"key", 0)
        assert producer.flush(30) == 0
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        (piece,) = reader.partitions(start, end)
        assert [row["value"] for batch in reader.read(piece) for row in batch.to_pylist()] == [value]
        start = end
    assert start == {name: {"0": 8 + 3 + 8 + 8 + 5}}
    reader.stop()


def test_an_audit_counts_all_events_of_a_stream(pipeline_node: NodeProcess, scope: str) -> None:
    side = Side(url(pipeline_node, scope))
    told = Audit(LocalEngine(1), ("value",)).whole(side, [f"{scope}.events"], 2)
    assert told["records"] == 202


def test_addresses_and_nobody_there() -> None:
    made = PravegaOptions.parse("pravega+tls://store.example/prod", {"user": "me", "password": "secret"})
    assert (made.address, made.scope, made.tls) == ("store.example:9090", "prod", True)
    assert "secret" not in repr(made)
    for wrong in ("pravega://host", "pravega://host/a/b", "pravega:///scope", "pravega://host:x/scope"):
        with pytest.raises(OptionError):
            PravegaOptions.parse(wrong, {})
    with pytest.raises(EndpointUnavailable):
        endpoint("pravega://127.0.0.1:1/scope", {"timeoutMs": "500"}).topics()


def test_it_is_archived(pipeline_node: NodeProcess, scope: str, tmp_path: Path) -> None:
    address, name = url(pipeline_node, scope), f"{scope}.events"
    place = str(tmp_path / "archive")
    for words in (["run", "--from", address, "--to", place, "--topics", name], ["verify", place, "--from", address]):
        done = CliRunner().invoke(archive, words)
        assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == 202
