"""YDB's topics as an endpoint: a node's own front, and its topics as readers of the other protocols have them."""

from __future__ import annotations

import datetime
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ydb
from click.testing import CliRunner
from confluent_kafka import Producer

from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from spark_pipeline.core.digest import digest
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, OptionError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import Positions, endpoint
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.ydb.client import YdbOptions
from spark_pipeline.endpoints.ydb.endpoint import YdbEndpoint
from spark_pipeline.jobs.archive.command import command as archive
from spark_pipeline.spark.source import BatchReader
from spark_pipeline.spark.source_options import SourceOptions
from tests.node_process import NodeProcess

ALL = Columns.select(headers=True, metadata=True)
FIRST_MS = 1_700_000_000_000
CODECS = (ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP)


@pytest.fixture(scope="module")
def driver(pipeline_node: NodeProcess) -> Iterator[ydb.Driver]:
    made = ydb.Driver(endpoint=f"grpc://{pipeline_node.ydb}", database="/local")
    made.wait(timeout=30, fail_fast=True)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def topic(driver: ydb.Driver, pipeline_node: NodeProcess) -> str:
    """``e.<random>``, of two partitions: what YDB's writers sent in two codecs, and then a Kafka producer."""
    path = f"e/{uuid.uuid4().hex[:8]}"
    client = driver.topic_client
    client.create_topic(
        f"/local/{path}",
        min_active_partitions=2,
        retention_period=datetime.timedelta(hours=5),
        consumers=["c", ydb.TopicConsumer("idle")],
    )
    for partition in range(2):
        for place, codec in enumerate(CODECS):
            with client.writer(
                f"/local/{path}",
                producer_id=f"p-{partition}-{place}",
                partition_id=partition,
                codec=codec,
                auto_seqno=False,
                auto_created_at=False,
            ) as writer:
                for number in range(50):
                    writer.write(
                        ydb.TopicWriterMessage(
                            f"{codec} {number}" * number,
                            seqno=10 * number + 1,
                            created_at=datetime.datetime.fromtimestamp((FIRST_MS + number) / 1000, datetime.UTC),
                            metadata_items={"__key": b"k%d" % number, "h": b"v"} if number % 3 else None,
                        )
                    )
                writer.flush()
    producer = Producer({"bootstrap.servers": pipeline_node.kafka})
    producer.produce(path.replace("/", "."), None, b"gone", 0, headers=[("h", b"x")], timestamp=FIRST_MS + 99)
    assert producer.flush(30) == 0
    with client.reader(f"/local/{path}", "c") as reader:
        for _ in range(2):
            reader.commit_with_ack(reader.receive_batch(timeout=30), timeout=30)
    return path.replace("/", ".")


@pytest.fixture
def source(pipeline_node: NodeProcess) -> Iterator[YdbEndpoint]:
    made = endpoint(f"ydb://{pipeline_node.ydb}/local")
    assert isinstance(made, YdbEndpoint)
    yield made
    made.close()


def rows(options: dict[str, str], topic: str) -> list[dict[str, Any]]:
    given = {"subscribe": topic, "worker.freeze": "false", **options}
    reader = BatchReader(SourceOptions.parse(given, streaming=False), ALL)
    found = [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def test_the_source_gives_the_same_rows_as_over_sbp(pipeline_node: NodeProcess, topic: str) -> None:
    """All columns: keys, headers, times, producers and their numbers, decoded values."""
    ours = rows({"endpoint": f"anabranch://{pipeline_node.addresses['pipeline']}"}, topic)
    through = rows({"protocol": "ydb", "endpoint": f"ydb://{pipeline_node.ydb}/local"}, topic)
    assert len(ours) == 201
    last = ours[100]
    assert (last["value"], last["writer"], through[100]["writer"]) == (None, "kafka", "ydb")
    for row in (last, through[100]):
        for name in ("writer", "producer", "seq"):  # of what Kafka wrote YDB's readers are told other ones
            del row[name]
    assert through == ours


def test_what_there_is(source: YdbEndpoint, topic: str) -> None:
    found = source.topics()[topic]
    assert (found.partitions, found.states) == ((0, 1), {0: "active", 1: "active"})
    assert found.config == {"retention_period": "18000s", "consumers": "c,idle"}
    assert source.some_topics([topic, "e.nothing"]).keys() == {topic}
    parts = [TopicPartition(topic, number) for number in range(2)]
    positions = source.positions(parts)
    assert [(one.start, one.stable, one.high_watermark) for one in positions.values()] == [(0, 101, 101), (0, 100, 100)]
    assert all(isinstance(one, Positions) and one.size > 0 for one in positions.values())
    committed = source.groups()["c"]
    assert committed.keys() <= set(parts)
    assert 0 < sum(committed.values()) <= 201
    assert source.groups()["idle"] == {}
    with pytest.raises(UnknownTopic):
        source.positions([TopicPartition(topic, 2)])
    with pytest.raises(UnknownTopic):
        source.positions([TopicPartition("nothing", 0)])
    with pytest.raises(UnknownTopic):
        list(source.read(OffsetRange("nothing", 0, 0, 1), ALL))


def test_offsets_by_time(source: YdbEndpoint, topic: str) -> None:
    part = TopicPartition(topic, 0)
    for at, expected in ((0, 0), (FIRST_MS + 7, 7), (FIRST_MS + 99, 100), (FIRST_MS + 100, None)):
        assert source.find_timestamp({part: at}) == {part: expected}


def test_ranges_and_batches(source: YdbEndpoint, topic: str) -> None:
    whole = digest(source.read(OffsetRange(topic, 1, 0, 100), ALL))
    (block,) = whole.values()
    assert (block.count, block.first, block.last) == (100, 0, 99)
    some = [row["offset"] for batch in source.read(OffsetRange(topic, 1, 17, 61), ALL) for row in batch.to_pylist()]
    assert some == list(range(17, 61))
    raw = list(source.read_raw(OffsetRange(topic, 1, 17, 61)))
    assert (raw[0].base_offset, raw[-1].end_offset, {one.flags for one in raw}) == (17, 61, {int(FormatId.YDB)})
    assert list(source.read_raw(OffsetRange(topic, 1, 5, 5))) == []


def test_gaps_are_told(source: YdbEndpoint, pipeline_node: NodeProcess) -> None:
    """Offsets without a message, in the middle and at the end: reading up to them comes to an end."""
    topic = f"gap-{uuid.uuid4().hex[:8]}"
    importer = Importer(f"anabranch://{pipeline_node.addresses['pipeline']}", {}, topic)
    epoch = importer.begin(topic, 1, {}).epoch
    for offset in (0, 4):
        importer.append(TopicPartition(topic, 0), epoch, [bytes(encode([Record(b"k", b"v", timestamp=1)], offset))])
    importer.bounds(TopicPartition(topic, 0), epoch, end=7)
    importer.cutover({topic: [7]})
    importer.close()
    (at,) = source.positions([TopicPartition(topic, 0)]).values()
    assert (at.start, at.stable) == (0, 7)
    found = [row for batch in source.read(OffsetRange(topic, 0, 0, 7), ALL) for row in batch.to_pylist()]
    assert [(row["offset"], row["key"], row["value"]) for row in found] == [(0, b"k", b"v"), (4, b"k", b"v")]
    assert list(source.read_raw(OffsetRange(topic, 0, 5, 7))) == []


def test_offsets_that_are_gone(source: YdbEndpoint, pipeline_node: NodeProcess, driver: ydb.Driver) -> None:
    from confluent_kafka import TopicPartition as KafkaPartition
    from confluent_kafka.admin import AdminClient

    topic = f"gone-{uuid.uuid4().hex[:8]}"
    driver.topic_client.create_topic(topic)
    with driver.topic_client.writer(topic) as writer:
        writer.write([str(number) for number in range(10)])
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    for future in admin.delete_records([KafkaPartition(topic, 0, 6)]).values():
        future.result(30)
    with pytest.raises(OffsetsGone) as gone:
        list(source.read(OffsetRange(topic, 0, 2, 10), ALL))
    assert gone.value.start == 6
    assert sum(batch.num_rows for batch in source.read(OffsetRange(topic, 0, 6, 10), ALL)) == 4


def test_addresses_and_options() -> None:
    made = YdbOptions.parse("ydb+tls://db.example/ru/home", {"user": "me", "password": "secret", "timeoutMs": "500"})
    assert (made.address, made.database, made.tls, made.timeout) == ("db.example:2136", "/ru/home", True, 0.5)
    assert "secret" not in repr(made)
    for url in ("ydb://host", "ydb:///local", "ydb://me@host/local", "ydb://host/local?a=b", "ydb://host:x/local"):
        with pytest.raises(OptionError):
            YdbOptions.parse(url, {})
    with pytest.raises(OptionError, match="no number of milliseconds"):
        YdbOptions.parse("ydb://host/local", {"timeoutMs": "soon"})
    with pytest.raises(OptionError, match="cannot be read"):
        endpoint("ydb+tls://127.0.0.1:1/local", {"tls.ca": "/no/such/file"}).topics()


def test_an_endpoint_that_does_not_answer_is_told_as_unavailable() -> None:
    with pytest.raises(EndpointUnavailable):
        endpoint("ydb://127.0.0.1:1/local", {"timeoutMs": "300"}).topics()


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("spark_pipeline.endpoints.ydb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ydb", None)
    with pytest.raises(OptionError, match=r"pip install 'anabranch\[ydb\]'"):
        endpoint("ydb://localhost/local")


def test_it_is_archived(pipeline_node: NodeProcess, topic: str, tmp_path: Path) -> None:
    address, name = f"ydb://{pipeline_node.ydb}/local", topic
    place = str(tmp_path / "archive")
    for words in (["run", "--from", address, "--to", place, "--topics", name], ["verify", place, "--from", address]):
        done = CliRunner().invoke(archive, words)
        assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == 201
