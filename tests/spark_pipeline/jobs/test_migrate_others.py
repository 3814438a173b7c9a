"""Migrations from a YDB database and a Pravega scope: offsets, producers that go on, consumers, kills, differences."""

from __future__ import annotations

import asyncio
import datetime
import json
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ydb
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from pravega_client import StreamManager, StreamRetentionPolicy, StreamScalingPolicy

from bridges.formats import FormatId
from bridges.formats import pravega as pravega_format
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.formats.ydb import Head, encode_batch
from spark_pipeline.core import frames
from spark_pipeline.core.errors import EndpointUnavailable, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs.migrate.plan import Plan
from spark_pipeline.jobs.migrate.run import Round, Runner
from tests.kit.wheel import read_events
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.controller_client import stream as stream_of
from tests.spark_pipeline.jobs.migrations import PATIENCE, migrate, moved, planned, reached, rows, target_url
from tests.ydb_topic_front.raw import RawClient

pytestmark = pytest.mark.slow

CUSTOM = 10_007


@pytest.fixture(scope="module")
def source(pipeline_node: NodeProcess) -> Iterator[ydb.Driver]:
    with connected(pipeline_node) as driver:
        yield driver


def connected(node: NodeProcess) -> ydb.Driver:
    driver = ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local")
    driver.wait(timeout=PATIENCE, fail_fast=True)
    return driver


def source_url(node: NodeProcess) -> str:
    return f"ydb://{node.ydb}/local"


def write(
    driver: ydb.Driver,
    path: str,
    producer: str | None,
    partition: int,
    first: int,
    count: int,
    times: int = 20,
    **more: Any,
) -> None:
    """Messages with every third number, from ``first`` on, whose text comes so many ``times``."""
    options = {"auto_seqno": False, "auto_created_at": False, "codec": ydb.TopicCodec.RAW, **more}
    with driver.topic_client.writer(path, producer_id=producer, partition_id=partition, **options) as writer:
        for seq_no in range(first, first + 3 * count, 3):
            writer.write(
                ydb.TopicWriterMessage(
                    f"{producer} {seq_no} " * times,
                    seqno=seq_no,
                    created_at=datetime.datetime.fromtimestamp(1_700_000_000 + seq_no, datetime.UTC),
                    metadata_items={"__key": b"k%d" % seq_no, "trace": b"x"} if seq_no % 2 else None,
                )
            )
        writer.flush()


def test_a_database_moves_and_its_clients_go_on(
    pipeline_node: NodeProcess, source: ydb.Driver, pipeline_target: NodeProcess, tmp_path: Path
) -> None:
    name = f"moved-{uuid.uuid4().hex[:8]}"
    topic, path = f"shop.{name}", f"/local/shop/{name}"
    client = source.topic_client
    client.create_topic(
        path,
        min_active_partitions=3,
        retention_period=datetime.timedelta(days=400),
        supported_codecs=[ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP, CUSTOM],
        attributes={"team": "orders"},
        consumers=["reader", ydb.TopicConsumer("idle", important=True)],
    )
    # A producer lies where nobody would put it by its name, and has used numbers with gaps.
    write(source, path, "orders", 2, 1, 40)
    write(source, path, "orders", 2, 121, 30, codec=ydb.TopicCodec.GZIP)
    write(source, path, "orders", 2, 211, 10, codec=CUSTOM, encoders={CUSTOM: lambda body: body[::-1]})
    write(source, path, "others", 0, 5, 25)
    # A log that begins late, records of another protocol, and gaps.
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    for future in admin.delete_records([KafkaPartition(topic, 0, 7)]).values():
        future.result(PATIENCE)
    producer = Producer({"bootstrap.servers": pipeline_node.kafka})
    for value in (b"one", None):
        producer.produce(topic, value, b"key", 1, headers=[("h", b"v"), ("h", None)])
    assert producer.flush(PATIENCE) == 0
    gapped = with_gaps(pipeline_node)
    read = {0: 11, 1: 1, 2: 40}
    for partition, offset in read.items():
        client.commit_offset(path, "reader", partition, offset)

    plan = planned(source_url(pipeline_node), pipeline_target, tmp_path, topic, gapped)
    done = Plan.load(plan)
    assert done.topic(topic).config == {"retention.ms": str(400 * 86_400_000)}
    assert [(one.start, one.end) for one in done.topic(topic).partitions] == [(7, 25), (0, 2), (0, 80)]
    assert {one.what for one in done.not_carried} >= {"consumers = reader,idle", "attributes.team = orders"}
    assert migrate("run", plan, "--quiet")["lag"] == 0
    verified = migrate("verify", plan, "--quiet")
    assert (verified["differences"], verified["lag"], verified["records"]) == ([], 0, 18 + 2 + 80 + 2)
    with connected(pipeline_target) as here, pytest.raises(ydb.issues.PreconditionFailed):
        write(here, path, "orders", 2, 300, 1)

    write(source, path, "orders", 2, 241, 5)
    report = migrate(
        "cutover", plan, "--silence", "0.5", "--quiet", "--target-option", f"ydb=ydb://{pipeline_target.ydb}/local"
    )
    assert list(report["steps"]) == [
        "reconcile", "drain", "verify", "settings", "groups", "hand over", "smoke read",
    ]  # fmt: skip
    assert report["steps"]["settings"]["topics"][topic]["add_consumers"] == ["reader", "idle"]
    assert report["steps"]["groups"]["set"] == 3
    assert rows(target_url(pipeline_target), topic, 0, 1, 2) == rows(source_url(pipeline_node), topic, 0, 1, 2)

    for side in (source_url(pipeline_node), target_url(pipeline_target)):
        assert [row["offset"] for row in rows(side, gapped, 0)] == [0, 4]

    pipeline_target.restart(kill=True)  # what producers have used is known from the batches alone
    goes_on(pipeline_target, path)
    with connected(pipeline_target) as here:
        told = here.topic_client.describe_topic(path)
        assert told.attributes == {"team": "orders"}
        assert sorted(told.supported_codecs) == [1, 2, CUSTOM]
        assert {one.name: one.important for one in told.consumers} == {"reader": False, "idle": True}
        first: dict[int, int] = {}
        with here.topic_client.reader(path, "reader", decoders={CUSTOM: lambda body: body[::-1]}) as reader:
            while first.keys() != read.keys():
                batch = reader.receive_batch(timeout=PATIENCE)
                first.setdefault(batch.messages[0].partition_id, batch.messages[0].offset)
        assert first == read


def goes_on(pipeline_target: NodeProcess, path: str) -> None:
    """A producer that did not hear of its last message repeats it with the next one; the SDK would leave it out."""
    with RawClient(pipeline_target.ydb) as raw:
        stream = raw.stream("StreamWrite")
        stream.send(init_request={"path": path, "producer_id": "orders", "message_group_id": "orders"})
        opened = stream.receive().init_response
        assert (opened.last_seq_no, opened.partition_id) == (253, 2), "where it was, and as far as it was"
        for seq_no in (253, 256):
            stream.send(write_request={"messages": [{"seq_no": seq_no, "data": b"again, or new"}], "codec": 1})
        repeated, new = (stream.receive().write_response.acks[0] for _ in range(2))
    assert repeated.WhichOneof("message_write_status") == "skipped"
    assert new.written.offset == 85, "behind all that was written at the source"


def with_gaps(node: NodeProcess) -> str:
    """A topic with two records in seven offsets."""
    topic = f"gap-{uuid.uuid4().hex[:8]}"
    importer = Importer(target_url(node), {}, topic)
    epoch = importer.begin(topic, 1, {}).epoch
    for offset in (0, 4):
        importer.append(TopicPartition(topic, 0), epoch, [bytes(encode([Record(b"k", b"v", timestamp=1)], offset))])
    importer.bounds(TopicPartition(topic, 0), epoch, end=7)
    importer.cutover({topic: [7]})
    importer.close()
    return topic


def test_it_is_killed_halfway_and_follows(
    pipeline_node: NodeProcess, source: ydb.Driver, pipeline_target: NodeProcess, tmp_path: Path
) -> None:
    topic = f"killed-{uuid.uuid4().hex[:8]}"
    source.topic_client.create_topic(f"/local/{topic}", min_active_partitions=2)
    for partition in range(2):
        write(source, f"/local/{topic}", f"p{partition}", partition, 1, 500, times=300)
    plan = planned(source_url(pipeline_node), pipeline_target, tmp_path, topic)
    run = [sys.executable, "-m", "bridges", "migrate", "run", str(plan), "--quiet"]
    importer = Importer(target_url(pipeline_target), {}, Plan.load(plan).migration)
    try:
        job = subprocess.Popen([*run, "--throttle", "300KB/s"], stdout=subprocess.DEVNULL)
        try:
            moved(importer, topic, job)
            pipeline_target.restart(kill=True)
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
        ends = [one.high_watermark for one in importer.state(topic).partitions]
        assert min(ends) < 500, "it was killed before it was done"
        job = subprocess.Popen([*run, "--follow"], stdout=subprocess.PIPE, text=True)
        try:
            reached(importer, topic, [500, 500], job)
            write(source, f"/local/{topic}", "p0", 0, 1501, 3)
            reached(importer, topic, [503, 500], job)
            job.send_signal(signal.SIGINT)
            assert json.loads(job.communicate(timeout=PATIENCE)[0])["interrupted"]
            assert job.returncode == 0
        finally:
            job.kill()
            job.wait()
    finally:
        importer.close()
    assert migrate("verify", plan, "--quiet")["differences"] == []
    assert rows(target_url(pipeline_target), topic, 0, 1) == rows(source_url(pipeline_node), topic, 0, 1)
    assert migrate("abort", plan, "--delete")["deleted"] == [topic]


class Flaky(Runner):
    """A run whose source answers every other time."""

    def __init__(self) -> None:
        self.rounds = 0

    def round(self) -> Round:
        self.rounds += 1
        if self.rounds % 2:
            raise EndpointUnavailable("it is being restarted")
        return Round(copied=1)


def test_who_follows_waits_for_a_source_that_is_away() -> None:
    flaky = Flaky()
    flaky.run(follow=True, stopped=lambda: flaky.rounds >= 4)
    assert flaky.rounds == 4
    with pytest.raises(EndpointUnavailable):
        Flaky().run(follow=False)
    with pytest.raises(EndpointUnavailable):
        Flaky().run(follow=True, stopped=lambda: True)


@pytest.mark.parametrize(
    ("seq_no", "body", "reason"),
    [
        (4, b"orders 4 " * 20, None),
        (4, b"changed", "value differ"),
        (5, b"orders 4 " * 20, "seq differ"),
    ],
)
def test_what_differs_is_found(
    pipeline_node: NodeProcess,
    source: ydb.Driver,
    pipeline_target: NodeProcess,
    tmp_path: Path,
    seq_no: int,
    body: bytes,
    reason: str | None,
) -> None:
    """A batch that somebody else brings in the place of the second message."""
    topic = f"differs-{uuid.uuid4().hex[:8]}"
    source.topic_client.create_topic(f"/local/{topic}")
    write(source, f"/local/{topic}", "orders", 0, 1, 1)
    plan = planned(source_url(pipeline_node), pipeline_target, tmp_path, topic)
    assert migrate("run", plan, "--quiet")["lag"] == 0
    write(source, f"/local/{topic}", "orders", 0, 4, 1)
    importer = Importer(target_url(pipeline_target), {}, Plan.load(plan).migration)
    created = b"\x12\x06\x08" + bytes([0x84, 0xE2, 0xCF, 0xAA, 0x06])
    message = b"\x08" + bytes([seq_no]) + created + b"\x1a" + length(body)
    forged = encode_batch(
        Head(False, 1, 1, seq_no, seq_no, 1_700_000_004_000, b"orders", b""), b"\x0a" + length(message)
    )
    out = bytearray()
    frames.put_batch(out, 1, 1, forged)
    importer.append(TopicPartition(topic, 0), importer.state(topic).epoch, [out], int(FormatId.YDB))
    importer.close()
    told = migrate("verify", plan, "--quiet", code=0 if reason is None else 2)
    if reason is None:
        assert told["differences"] == []
    else:
        (one,) = told["differences"]
        assert (one["partition"], one["offset"]) == (0, 1)
        assert reason in one["reason"]


def length(data: bytes) -> bytes:
    """Behind a varint of its length."""
    size = len(data)
    return (bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])) + data


# --- Pravega ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scope(pipeline_node: NodeProcess) -> str:
    """A scope of the source, which has no streams yet."""
    name = f"s{uuid.uuid4().hex[:8]}"
    StreamManager(f"tcp://{pipeline_node.addresses['pravega']}").create_scope(name)
    return name


def scope_url(node: NodeProcess, scope: str) -> str:
    return f"pravega://{node.addresses['pravega']}/{scope}"


def events(streams: StreamManager, scope: str, stream: str, count: int) -> list[bytes]:
    """What a new reader group gets."""
    group = streams.create_reader_group(f"g{uuid.uuid4().hex[:8]}", scope, stream)
    return asyncio.run(asyncio.wait_for(read_events(group.create_reader("reader"), count), PATIENCE))


def test_a_scope_moves_and_its_clients_go_on(
    pipeline_node: NodeProcess, scope: str, pipeline_target: NodeProcess, tmp_path: Path
) -> None:
    topic = f"{scope}.events"
    streams = StreamManager(f"tcp://{pipeline_node.addresses['pravega']}")
    policy = StreamRetentionPolicy.by_time(5_000_000)
    streams.create_stream_with_policy(scope, "events", StreamScalingPolicy.fixed_scaling_policy(2), policy, ["red"])
    writer = streams.create_writer(scope, "events")
    for number in range(300):
        writer.write_event_bytes(b"%d " % number * (number % 50 + 1), routing_key=f"key-{number % 20}")
    writer.write_event_bytes(bytes(5_000_000), routing_key="key-1")
    writer.flush()
    plan = planned(scope_url(pipeline_node, scope), pipeline_target, tmp_path, topic)
    assert Plan.load(plan).topic(topic).config == {"retention.ms": "5000000"}
    assert {one.what for one in Plan.load(plan).not_carried} >= {"positions of reader groups", "tags = red"}
    assert migrate("run", plan, "--quiet")["lag"] == 0
    verified = migrate("verify", plan, "--quiet")
    assert (verified["differences"], verified["lag"], verified["records"]) == ([], 0, 301)

    # What is new comes with the cut-over, and so does that a segment begins later by now.
    writer.write_event("last", routing_key="key-1")
    writer.flush()
    before = rows(scope_url(pipeline_node, scope), topic, 0, 1)
    first = [row["offset"] for row in before if row["partition"] == 0][7]
    controller = ControllerClient(pipeline_node.addresses["pravega"])
    controller.truncateStream(streamInfo=stream_of(scope, "events"), cut={0: first, 1: 0})
    controller.close()
    report = migrate("cutover", plan, "--silence", "0.5", "--quiet")
    assert list(report["steps"]) == ["reconcile", "drain", "verify", "groups", "hand over", "smoke read"]
    kept = [row for row in before if row["partition"] or row["offset"] >= first]
    assert rows(target_url(pipeline_target), topic, 0, 1) == kept

    pipeline_target.restart(kill=True)
    here = StreamManager(f"tcp://{pipeline_target.addresses['pravega']}")
    again = here.create_writer(scope, "events")
    again.write_event("new", routing_key="key-1")
    again.flush()
    assert sorted(events(here, scope, "events", len(kept) + 1)) == sorted([b"new", *(row["value"] for row in kept)])
    there, mine = (
        [row for row in rows(scope_url(node, scope), topic, 1) if row["value"] != b"new"]
        for node in (pipeline_node, pipeline_target)
    )
    assert mine == there, "a segment that was not truncated has the same positions in bytes"


def test_a_scope_is_brought_by_a_job_that_is_killed(
    pipeline_node: NodeProcess, scope: str, pipeline_target: NodeProcess, tmp_path: Path
) -> None:
    topic = f"{scope}.killed"
    streams = StreamManager(f"tcp://{pipeline_node.addresses['pravega']}")
    streams.create_stream(scope, "killed", 1)
    writer = streams.create_writer(scope, "killed", max_inflight_events=200)
    for number in range(1500):
        writer.write_event_bytes(b"%d " % number * 200)
    writer.flush()
    plan = planned(scope_url(pipeline_node, scope), pipeline_target, tmp_path, topic)
    run = [sys.executable, "-m", "bridges", "migrate", "run", str(plan), "--quiet", "--throttle", "200KB/s"]
    importer = Importer(target_url(pipeline_target), {}, Plan.load(plan).migration)
    try:
        job = subprocess.Popen(run, stdout=subprocess.DEVNULL)
        try:
            moved(importer, topic, job)
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
        (end,) = (one.high_watermark for one in importer.state(topic).partitions)
        assert 0 < end < Plan.load(plan).offsets
        assert migrate("resume", plan, "--quiet")["lag"] == 0
        found = rows(target_url(pipeline_target), topic, 0)
        assert [row["value"] for row in found] == [b"%d " % number * 200 for number in range(1500)]
        assert migrate("verify", plan, "--quiet")["differences"] == []

        # Another event than the source has, at the place of the next one.
        end = Plan.load(plan).offsets
        event = struct.pack(">iI", 0, 4) + b"mine"
        forged = pravega_format.encode([bytes(4), event], len(event), pravega_format.Shape.SCATTERED, 1)
        out = bytearray()
        frames.put_batch(out, end, len(event), forged)
        epoch = importer.state(topic).epoch
        importer.append(TopicPartition(topic, 0), epoch, [out], int(FormatId.PRAVEGA))
        writer.write_event("true")
        writer.flush()
        (one,) = migrate("verify", plan, "--quiet", code=2)["differences"]
        assert (one["offset"], one["reason"]) == (end, "value differ")
    finally:
        importer.close()


def test_spark_is_started_before_a_source_is_connected_to(
    pipeline_node: NodeProcess, source: ydb.Driver, pipeline_target: NodeProcess, tmp_path: Path, monkeypatch: Any
) -> None:
    """Java is started by a fork, which may end in one of gRPC's threads: "Java gateway process exited"."""
    topic = f"forked-{uuid.uuid4().hex[:8]}"
    source.topic_client.create_topic(f"/local/{topic}")
    plan = planned(source_url(pipeline_node), pipeline_target, tmp_path, topic)
    opened: list[str] = []

    def started(app: str, master: str | None) -> None:
        opened.append("session")
        raise PipelineError("this is as far as it goes")

    monkeypatch.setattr("spark_pipeline.jobs.engine_spark.session", started)
    monkeypatch.setattr("spark_pipeline.jobs.migrate.run.migration_source", lambda *_: opened.append("source"))
    told = migrate("run", plan, "--quiet", "--engine", "spark", code=1)
    assert told["error"] == "this is as far as it goes"
    assert opened == ["session"]
