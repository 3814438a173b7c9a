"""The sink in a real Spark session: batch and stream, failures of tasks and drivers, a node that is killed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_pipeline.core.client.node_answers import NodeTopics
from spark_pipeline.core.client.node_client import NodeClient, NodeOptions
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.spark.data_source import AnabranchDataSource
from spark_pipeline.spark.sink import AnabranchBatchWriter, AnabranchStreamWriter, settings_of
from tests.node_process import NodeProcess
from tests.spark_pipeline.spark.dying import die_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

FORMAT = "anabranch"


class Topics:
    """Makes topics of the node, and reads them as everybody does."""

    def __init__(self, node: NodeProcess) -> None:
        self.url = f"anabranch://{node.addresses['pipeline']}"
        self._console = node.console

    def make(self, name: str, partitions: int, **config: str) -> str:
        import json
        import urllib.request

        body = json.dumps({"name": name, "partitions": partitions, "config": config}).encode()
        request = urllib.request.Request(f"{self._console}/api/topics", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request):
            return name

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """What is committed, in the order of offsets of each partition."""
        source = endpoint(self.url)
        parts = [TopicPartition(topic, number) for number in source.topics()[topic].partitions]
        found: list[dict[str, Any]] = []
        for part, at in source.positions(parts).items():
            assert at.stable == at.high_watermark, f"{part} has a transaction open"
            whole = OffsetRange(topic, part.partition, at.start, at.stable)
            for batch in source.read(whole, Columns.select(headers=True)):
                found += batch.to_pylist()
        source.close()
        return found

    def values(self, topic: str) -> Counter[bytes]:
        return Counter(row["value"] for row in self.rows(topic))


@pytest.fixture(scope="module")
def topics(pipeline_node: NodeProcess) -> Topics:
    return Topics(pipeline_node)


def test_a_batch_goes_to_partitions_by_key_and_says_everything(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make("batch", 3)
    rows = spark.sql(
        "select cast(id % 7 as string) as key, cast(id as string) as value, "
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers, "
        "timestamp_millis(1700000000000 + id) as timestamp from range(0, 1000, 1, 4)"
    )
    rows.write.format(FORMAT).mode("append").option("endpoint", topics.url).option("topic", topic).save()
    found = topics.rows(topic)
    assert sorted(int(row["value"]) for row in found) == list(range(1000))
    from bridges.catalog.topics.lineage import choose_partition

    for row in found:
        assert row["partition"] == choose_partition(row["key"], 3)
        assert row["headers"] == [{"key": "h", "value": b"x"}]
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(1_700_000_000_000 + int(row["value"]))


def test_what_is_wrong_is_said_in_a_sentence(spark: SparkSession, topics: Topics) -> None:
    rows = spark.sql("select cast(id as string) as value from range(3)")

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format(FORMAT).mode(mode).options(**{"endpoint": topics.url, **options}).save()

    for frame, mode, options, complaint in (
        (rows, "append", {}, "give the option 'topic', or the rows a column 'topic'"),
        (rows, "append", {"topic": "nowhere"}, "there is no topic 'nowhere' to write to"),
        (rows, "overwrite", {"topic": "x"}, "a topic is appended to"),
        (rows.withColumnRenamed("value", "v"), "append", {"topic": "x"}, "no column 'value'"),
        (rows.selectExpr("1.5D as value"), "append", {"topic": "x"}, "column 'value' is of type double"),
        (rows, "append", {"topic": "x", "endpoint": "http://h"}, "is no address of a node"),
        (rows, "append", {"topic": "x", "compression": "rar"}, "compression = 'rar' is none of"),
        (rows, "append", {"topic": "x", "queryId": "q"}, "queryId and batchId are given together"),
    ):
        with pytest.raises(Exception, match=complaint):
            write(frame, mode, **options)
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        rows.write.format(FORMAT).options(endpoint=topics.url, topic="x").save()  # Spark's own default is `error`
    name = "spark.sql.execution.arrow.compression.codec"
    before = spark.conf.get(name)
    try:
        spark.conf.set(name, "lz4")
        with pytest.raises(Exception, match="lz4"):
            write(rows, topic="x")
    finally:
        spark.conf.set(name, before)


def test_attempts_that_fail_leave_nothing_behind(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.make("retried", 2)
    marks = str(tmp_path)

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            Path(marks, "failed").touch()
            raise ValueError("this attempt fails when all of its rows were written")

    rows = spark.sql("select cast(id as string) as value from range(0, 20000, 1, 4)").mapInArrow(
        fail_once, "value string"
    )
    options = {"endpoint": topics.url, "topic": topic, "request.bytes": "131072"}
    rows.write.format(FORMAT).mode("append").options(**options).save()
    assert Path(marks, "failed").exists()
    values = topics.values(topic)
    assert (len(values), values.total()) == (20_000, 20_000)


def test_a_worker_that_dies_leaves_nothing_behind(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """kill -9 of Spark's Python worker when it has written half of its rows; what it has open is aborted by the next
    commit of its batch, since nobody else is there to do it."""
    mark = str(tmp_path / "killed")

    class DyingWriter(AnabranchBatchWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            def dying() -> Iterator[Any]:
                for number, batch in enumerate(iterator):
                    yield batch
                    if number == 3:
                        die_once(mark)

            return super().write(dying())

    class Dying(AnabranchDataSource):
        @classmethod
        def name(cls) -> str:
            return "anabranch-dying-sink"

        def writer(self, schema: Any, overwrite: bool) -> AnabranchBatchWriter:
            return DyingWriter(settings_of(self.options, schema, overwrite))

    spark.dataSource.register(Dying)
    topic = topics.make("died", 2)
    rows = spark.sql("select cast(id as string) as value from range(0, 200000, 1, 1)")
    options = {"endpoint": topics.url, "topic": topic, "request.bytes": "131072"}
    rows.write.format("anabranch-dying-sink").mode("append").options(**options).save()
    assert Path(mark).exists()
    values = topics.values(topic)
    assert (len(values), values.total()) == (200_000, 200_000)


def stream(spark: SparkSession, path: Path, topics: Topics, topic: str, source: str = FORMAT) -> Any:
    """A query that copies files, one for each micro-batch. Which row is in which task may change when it is repeated:
    a batch is decided as a whole, so nothing depends on it."""
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(path / "in")).select("value")
    rows = rows.repartition(2)
    options = {"endpoint": topics.url, "topic": topic, "checkpointLocation": str(path / "checkpoint")}
    return rows.writeStream.format(source).options(**options).trigger(availableNow=True).start()


def lines(path: Path, files: int, each: int) -> Counter[bytes]:
    (path / "in").mkdir()
    for number in range(files):
        text = "".join(f"{number}:{line}\n" for line in range(each))
        (path / "in" / f"{number}.txt").write_text(text)
    return Counter(b"%d:%d" % (number, line) for number in range(files) for line in range(each))


def test_a_driver_that_fails_after_its_commit_starts_again_without_a_duplicate(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    marks = tmp_path / "failed"

    class FailingWriter(AnabranchStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:
            super().commit(messages, batchId)
            if batchId == 1 and not marks.exists():
                marks.touch()
                raise ValueError("the driver fails between the commit and Spark's own")

    class Failing(AnabranchDataSource):
        @classmethod
        def name(cls) -> str:
            return "anabranch-failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> AnabranchStreamWriter:
            return FailingWriter(settings_of(self.options, schema, overwrite))

    spark.dataSource.register(Failing)
    topic = topics.make("crashed", 2)
    expected = lines(tmp_path, 4, 50)
    first = stream(spark, tmp_path, topics, topic, "anabranch-failing")
    with pytest.raises(Exception, match="the driver fails between"):
        first.awaitTermination(120)
    # Its abort came behind its commit, and has undone nothing.
    assert topics.values(topic).total() == 100
    again = stream(spark, tmp_path, topics, topic, "anabranch-failing")
    assert again.awaitTermination(120)
    assert topics.values(topic) == expected


def test_a_stream_goes_on_when_its_node_is_killed(
    spark: SparkSession, new_pipeline_node: Callable[[str], NodeProcess], tmp_path: Path
) -> None:
    node = new_pipeline_node("node")
    topics = Topics(node)
    topic = topics.make("killed", 2)
    expected = lines(tmp_path, 12, 20)
    query = stream(spark, tmp_path, topics, topic)
    client = NodeTopics(NodeClient(NodeOptions.parse(topics.url)))
    for after in (40, 130):
        while sum(one.stable for one in client.positions([(topic, 0), (topic, 1)]).values()) < after:
            if not query.isActive:
                break
        node.restart(kill=True)
    assert query.awaitTermination(180)
    assert query.exception() is None
    assert topics.values(topic) == expected


def test_a_checkpoint_that_is_one_batch_old_loses_nothing_silently(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make("one-batch-old", 1)
    lines(tmp_path, 3, 50)
    query = stream(spark, tmp_path, topics, topic)
    assert query.awaitTermination(60)
    assert topics.values(topic).total() == 150
    for log in ("offsets", "commits", "sources/0"):
        for name in ("2", ".2.crc"):
            (tmp_path / "checkpoint" / log / name).unlink(missing_ok=True)
    for file in (tmp_path / "in").iterdir():  # whichever was the last one
        file.write_text("another row\n" * 20)
    query = stream(spark, tmp_path, topics, topic)
    with pytest.raises(Exception, match=r"batch 2 of query .* was committed with 50 rows, and comes with 20"):
        query.awaitTermination(60)
    assert topics.values(topic).total() == 150


def test_foreach_batch_names_what_is_written_once(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make("named", 1)
    rows = spark.sql("select cast(id as string) as value from range(10)")
    options = {"endpoint": topics.url, "topic": topic, "queryId": "mine", "batchId": "7"}
    for _ in range(2):
        rows.write.format(FORMAT).mode("append").options(**options).save()
    assert topics.values(topic).total() == 10
    other = topics.make("named-too", 1)
    rows.write.format(FORMAT).mode("append").options(**{**options, "topic": other}).save()
    assert topics.values(other).total() == 10, "one batch is written to both"
    with pytest.raises(Exception, match="batch 7 of query mine for named was committed with 10 rows, and comes with 4"):
        rows.limit(4).write.format(FORMAT).mode("append").options(**options).save()
    skipping = {**options, "lowerBatches": "skip"}
    rows.limit(4).write.format(FORMAT).mode("append").options(**skipping).save()
    rows.limit(0).write.format(FORMAT).mode("append").options(**{**options, "batchId": "8"}).save()
    assert topics.values(topic).total() == 10


def test_a_checkpoint_whose_progress_was_cleared_loses_nothing_silently(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make("cleared", 1)
    expected = lines(tmp_path, 3, 5)
    query = stream(spark, tmp_path, topics, topic)
    assert query.awaitTermination(60)
    assert topics.values(topic) == expected
    for progress in ("offsets", "commits", "sources"):
        shutil.rmtree(tmp_path / "checkpoint" / progress)
    query = stream(spark, tmp_path, topics, topic)
    with pytest.raises(Exception, match="comes with batch 0 for cleared, and has committed batch"):
        query.awaitTermination(60)
    assert topics.values(topic) == expected
