"""The source in a real Spark session: what only Spark itself can show. The rest is in test_readers.py."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from spark_pipeline.lake.archive import Archive
from spark_pipeline.spark.data_source import AnabranchDataSource
from spark_pipeline.spark.session import SETTINGS
from spark_pipeline.spark.source import BatchReader, columns_of
from spark_pipeline.spark.source_options import SourceOptions
from tests.node_process import NodeProcess
from tests.spark_pipeline.spark.dying import die_once
from tests.spark_proof.copied import Copy
from tests.spark_proof.page import README, examples, placed, run_python

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


def test_the_session_has_the_settings_that_matter(spark: SparkSession) -> None:
    """Static ones cannot be set once there is a session: they must have come with it."""
    for name, value in SETTINGS.items():
        assert spark.conf.get(name) == value, name
    assert spark.sparkContext.master == "local[2,3]", "three attempts: failed tasks are tried again in these tests"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable, "otherwise workers are what the path has as python3"


def test_filters_work_whether_spark_may_push_them_down_or_not(
    spark: SparkSession, load: Callable[..., DataFrame], pipeline_node: NodeProcess, topic: str
) -> None:
    """With a reader that takes filters a query fails where the setting is off, which is the default."""
    produce(pipeline_node, topic, 0, [b"a", b"b", b"c"])
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    try:
        for value in ("false", "true"):
            spark.conf.set(name, value)
            assert load(subscribe=topic).where("value = 'b' and offset is not null").count() == 1
    finally:
        spark.conf.set(name, before)


def test_triggers_that_spark_has_not_for_such_sources_are_refused(
    spark: SparkSession, pipeline_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    """docs/spark.md says so; if Spark offers them one day, this tells."""
    options = {"endpoint": f"anabranch://{pipeline_node.addresses['pipeline']}", "subscribe": topic}
    rows = spark.readStream.format("anabranch").options(**options).load()
    for trigger, complaint in (
        ({"continuous": "1 second"}, "(?i)continuous"),
        ({"realTime": "5 minutes"}, "STREAMING_REAL_TIME_MODE"),
    ):
        checkpoint = str(tmp_path / next(iter(trigger)))
        writer = rows.writeStream.format("console").outputMode("update").option("checkpointLocation", checkpoint)
        with pytest.raises(Exception, match=complaint):
            writer.trigger(**trigger).start().awaitTermination(60)


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

    def run(starting: str) -> None:
        reader = spark.readStream.format("anabranch").option("endpoint", url).option("subscribe", topic)
        reader = reader.option("startingOffsets", starting).option("maxOffsetsPerTrigger", "40")
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
    run("earliest")
    batches = [one for one in progress if one["numInputRows"]]
    assert [one["numInputRows"] for one in batches] == [40, 40, 20]
    assert json.loads(batches[-1]["sources"][0]["endOffset"])[topic] == {"0": 50, "1": 50}
    assert json.loads(batches[0]["sources"][0]["latestOffset"]) == {topic: {"0": 50, "1": 50}}
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    produce(pipeline_node, topic, 2, [b"%d" % number for number in range(10)])
    run("latest")  # counts only where there is no checkpoint
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


def test_a_worker_that_dies_reads_the_same_again(
    spark: SparkSession, pipeline_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    """kill -9 of Spark's Python worker in the middle of its task."""
    produce(pipeline_node, topic, 0, [b"x" * 1000] * 500)
    mark = str(tmp_path / "killed")

    class DyingReader(BatchReader):
        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            for batch in super().read(partition):
                yield batch
                die_once(mark)

    class Dying(AnabranchDataSource):
        @classmethod
        def name(cls) -> str:
            return "anabranch-dying"

        def reader(self, schema: Any) -> BatchReader:
            return DyingReader(SourceOptions.parse(self.options, streaming=False), columns_of(schema))

    spark.dataSource.register(Dying)
    options = {"endpoint": f"anabranch://{pipeline_node.addresses['pipeline']}", "subscribe": topic}
    frame = spark.read.format("anabranch-dying").options(**options, **{"arrow.batch.bytes": "100k"}).load()
    assert frame.selectExpr("count(1)", "count(distinct offset)").first() == (500, 500)
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


def test_the_readmes_example(
    spark: SparkSession, pipeline_node: NodeProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(pipeline_node, topic, 0, [b"AA100 has landed", b"BA202 is late"])
    address = pipeline_node.addresses["pipeline"]
    (example,) = [one for one in examples(README) if one.language == "python" and "spark_pipeline" in one.code]
    run_python(placed(example.code, {"127.0.0.1:8090": address, '"flights"': f'"{topic}"'}), {"spark": spark})
    rows = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [[word.strip() for word in row] for row in rows] == [
        ["offset", "value"],
        ["0", "AA100 has landed"],
        ["1", "BA202 is late"],
    ]


def test_the_pages_examples_in_python(
    spark: SparkSession, pipeline_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    """As they stand in docs/spark.md, and in their order; tests/spark_proof/examples.py runs its commands too."""
    copy = make_topic(pipeline_node, 1)
    produce(pipeline_node, topic, 0, [b"UA 1545", b"AA 1141", b'{"flight": "UA 1", "late": 5}'])
    address = pipeline_node.addresses["pipeline"]
    places = {
        "localhost:8090": address,
        "127.0.0.1:8090": address,
        '"flights-copy"': f'"{copy}"',
        '"subscribe", "flights"': f'"subscribe", "{topic}"',
        **{place: f"{tmp_path}{place}" for place in ("/tmp/flights", "/data/", "/var/lib/")},
    }
    names: dict[str, Any] = {"spark": spark}
    ran = []
    for example in examples():
        if example.language == "python" and example.section != "Clusters" and "ydb://" not in example.code:
            run_python(placed(example.code, places), names)
            ran.append(example.section)
    assert ran == ["Session", "Source", "Sink", "Sink", "Archive", "Archive"]
    assert names["query"].exception() is None
    assert spark.read.parquet(f"{tmp_path}/tmp/flights").count() == 3
    options = {"endpoint": f"anabranch://{address}", "subscribe": copy}
    assert spark.read.format("anabranch").options(**options).load().count() == 3
    assert sum(file.rows for file in Archive.open(f"{tmp_path}/data/lake/ua").records.files()) == 2
    assert spark.read.parquet(f"{tmp_path}/data/flights").selectExpr("read.flight", "read.late").collect() == [
        ("UA 1", 5)
    ]
    assert spark.read.parquet(f"{tmp_path}/data/dead-letters").count() == 2
