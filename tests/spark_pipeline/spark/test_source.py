"""The source in a real Spark session: what only Spark itself can show. The rest is in test_readers.py."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.node_process import NodeProcess
from tests.spark_proof.copied import Copy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def topic(pipeline_node: NodeProcess) -> str:
    return make_topic(pipeline_node, 2)


def make_topic(node: NodeProcess, partitions: int, **config: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
    return name


def produce(node: NodeProcess, topic: str, partition: int, values: Sequence[bytes], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 20})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"k%d" % number, partition, **more)
    assert producer.flush(30) == 0


@pytest.fixture
def load(spark: SparkSession, pipeline_node: NodeProcess) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        reader = spark.read.format("anabranch").option("endpoint", f"anabranch://{pipeline_node.addresses['pipeline']}")
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), value)
        return reader.load()

    return load


def test_rows_of_a_topic(load: Callable[..., DataFrame], pipeline_node: NodeProcess, topic: str) -> None:
    produce(pipeline_node, topic, 0, [b"a", b"b"], timestamp=1_700_000_000_123)
    produce(pipeline_node, topic, 1, [b"c"], timestamp=5, headers=[("h", b"v"), ("n", None)])
    frame = load(subscribe=topic, includeHeaders="true", includeMetadata="true", minPartitions="3")
    rows = {(row["partition"], row["offset"]): row for row in frame.collect()}
    assert set(rows) == {(0, 0), (0, 1), (1, 0)}
    first = rows[0, 0]
    assert (bytes(first["key"]), bytes(first["value"]), first["topic"]) == (b"k0", b"a", topic)
    assert (first["timestamp"].timestamp(), first["timestampType"]) == (1_700_000_000.123, 0)
    assert (first["headers"], first["writer"], first["codec"]) == (None, "kafka", None)
    assert [(one["key"], one["value"]) for one in rows[1, 0]["headers"]] == [("h", b"v"), ("n", None)]


def test_counts_projections_sql_and_an_empty_topic(
    spark: SparkSession, load: Callable[..., DataFrame], pipeline_node: NodeProcess, topic: str
) -> None:
    assert load(subscribe=topic).count() == 0, "Spark reads a partition None where there are none"
    produce(pipeline_node, topic, 0, [b"x" * 100] * 500)
    url = f"anabranch://{pipeline_node.addresses['pipeline']}"
    reader = spark.read.format("anabranch").option("endpoint", url).option("subscribe", topic)
    frame = reader.schema("offset long, value binary").load()
    assert frame.selectExpr("count(1)", "max(offset)", "sum(length(value))").first() == (500, 499, 50_000)
    spark.sql(
        f"create or replace temporary view flights using anabranch options (subscribe '{topic}', endpoint '{url}')"
    )
    assert spark.sql("select count(distinct offset) from flights where partition = 0").first() == (500,)


def test_what_is_wrong_is_said_in_a_sentence(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match="there is no topic 'nowhere'"):
        load(subscribe="nowhere").count()
    with pytest.raises(Exception, match="exactly one of subscribe, subscribePattern and assign"):
        load().count()


def test_a_stream_goes_on_where_its_checkpoint_is(
    spark: SparkSession, pipeline_node: NodeProcess, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    """Rows of two runs, with a partition that is made between them, are each record once."""
    url = f"anabranch://{pipeline_node.addresses['pipeline']}"

    def run() -> None:
        reader = spark.readStream.format("anabranch").option("endpoint", url).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40")
        query = (
            reader.load()
            .select("partition", "offset", "value")
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(200)
        progress.extend(query.recentProgress)

    progress: list[Any] = []
    produce(pipeline_node, topic, 0, [b"%d" % number for number in range(50)])
    produce(pipeline_node, topic, 1, [b"%d" % number for number in range(50)])
    run()
    batches = [one for one in progress if one["numInputRows"]]
    assert [one["numInputRows"] for one in batches] == [40, 40, 20]
    assert json.loads(batches[-1]["sources"][0]["endOffset"]) == {topic: {"0": 50, "1": 50}}
    assert json.loads(batches[0]["sources"][0]["latestOffset"]) == {topic: {"0": 50, "1": 50}}
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    produce(pipeline_node, topic, 2, [b"%d" % number for number in range(10)])
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["partition"], row["offset"], int(row["value"])) for row in rows) == [
        *((partition, number, number) for partition in (0, 1) for number in range(50)),
        *((2, number, number) for number in range(10)),
    ]


def test_a_task_that_fails_is_tried_again_and_reads_the_same(
    spark: SparkSession, load: Callable[..., DataFrame], pipeline_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    produce(pipeline_node, topic, 0, [b"%d" % number for number in range(100)])
    mark = str(tmp_path / "failed once")

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError("this attempt fails")

    frame = load(subscribe=topic).select("offset").mapInArrow(fails_once, "offset long")
    assert frame.selectExpr("count(1)", "count(distinct offset)").first() == (100, 100)
    assert os.path.exists(mark)


def test_a_topic_is_copied_by_a_stream(
    spark: SparkSession, pipeline_node: NodeProcess, tmp_path: Path, checkpoint: str
) -> None:
    """Source and sink together; tests/spark_proof/stream_copy.py kills drivers and nodes meanwhile."""
    copy = Copy(pipeline_node, tmp_path, 300)
    query = (
        spark.readStream.format("anabranch")
        .option("endpoint", copy.url)
        .option("subscribe", copy.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200")
        .option("includeHeaders", "true")
        .load()
        .select("key", "value", "headers", "partition", "timestamp")
        .writeStream.format("anabranch")
        .option("endpoint", copy.url)
        .option("topic", copy.target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert query.exception() is None
    assert len([one for one in query.recentProgress if one["numInputRows"]]) == 2
    assert copy.differences() == []
