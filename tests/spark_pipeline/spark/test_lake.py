"""Archives and audits on Spark: as tasks that read and write by themselves, and as the sink of a streaming query."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import TaskContext

from spark_pipeline.core.errors import PipelineError, UnknownTopic
from spark_pipeline.jobs.archive.run import ArchiveRun
from spark_pipeline.jobs.archive.stream import ArchiveSink
from spark_pipeline.jobs.archive.verify import verify
from spark_pipeline.jobs.audit.audit import Audit, Side
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.jobs.engine_spark import SparkEngine
from spark_pipeline.lake.archive import Description
from tests.node_process import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COUNT = 4000
NOON = 1_357_041_600_000


@pytest.fixture(scope="module")
def url(pipeline_node: NodeProcess) -> str:
    return f"anabranch://{pipeline_node.addresses['pipeline']}"


@pytest.fixture(scope="module")
def topic(pipeline_node: NodeProcess) -> str:
    """Of two partitions, with records of three days."""
    name = "lake"
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    admin.create_topics([NewTopic(name, 2)])[name].result(30)
    producer = Producer({"bootstrap.servers": pipeline_node.kafka, "compression.type": "zstd", "linger.ms": 5})
    for number in range(COUNT):
        producer.produce(
            name,
            b"value of %d" % number,
            b"key-%d" % (number % 13),
            timestamp=NOON + number * 60_000,
            headers=[("n", b"%d" % number)] if number % 2 else None,
        )
    assert producer.flush(60) == 0
    return name


@pytest.fixture(scope="module")
def engine(spark: SparkSession) -> SparkEngine:
    return SparkEngine(session=spark)


def test_archived_by_tasks_of_spark(
    url: str, topic: str, spark: SparkSession, engine: SparkEngine, tmp_path: Path
) -> None:
    place = str(tmp_path / "archive")
    run = ArchiveRun(url, {}, place, (topic,), Description(), engine, piece_offsets=700)
    told = run.available_now()
    assert (told.rows, told.steps, told.left) == (COUNT, 1, 0)
    report = verify(place, url, {}, [], 3, engine)
    assert report["equal"], report["differences"]
    assert report["records"] == COUNT
    # What Spark itself reads of the files is what it reads of the topic.
    columns = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    options = {"endpoint": url, "subscribe": topic, "includeHeaders": "true"}
    log = spark.read.format("anabranch").options(**options).load().select(*columns)
    files = spark.read.parquet(f"{place}/records").select(*columns)
    from_log, from_files = (sorted(one.collect(), key=lambda row: (row.partition, row.offset)) for one in (log, files))
    assert len(from_log) == COUNT
    assert from_log == from_files


def test_audits_on_spark_tell_what_local_ones_do(url: str, topic: str, engine: SparkEngine) -> None:
    local, spark = (Audit(one).digests(Side(url), [topic]) for one in (LocalEngine(2), engine))
    assert local == spark
    with pytest.raises(UnknownTopic):
        Audit(engine).digests(Side(url), ["nowhere"])


def failing_once(number: int) -> int:
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt of every task ends here")
    return number * number


def refusing(number: int) -> int:
    raise PipelineError(f"{number} is refused")


def test_tasks_are_tried_again_but_not_against_better_knowledge(engine: SparkEngine) -> None:
    assert sorted(engine.map(failing_once, [1, 2, 3])) == [1, 4, 9]
    with pytest.raises(PipelineError, match="7 is refused"):
        list(engine.map(refusing, [7]))
    assert list(engine.map(refusing, [])) == []


class Died(Exception):
    """Stands for the end of the driver."""


@pytest.mark.parametrize("step", ["records:before-commit", "records:after-commit"])
def test_a_query_that_died_around_the_commit(
    step: str, url: str, topic: str, spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Between the commit to the table and Spark's own, and just before: the batch comes again, its records do not."""
    place = str(tmp_path / "archive")
    died = threading.Event()

    def die(now: str) -> None:
        if now == step and not died.is_set():
            died.set()
            raise Died

    options = {
        "endpoint": url,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": "1500",
    }

    def query(sink: Callable[[Any, int], None]) -> None:
        stream = spark.readStream.format("anabranch").options(**options).load().writeStream.foreachBatch(sink)
        started = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert started.awaitTermination(240)

    with pytest.raises(Exception, match="Died"):
        query(ArchiveSink(place, Description("delta"), crash=die))
    assert died.is_set()
    query(ArchiveSink(place, Description("delta")))
    report = verify(place, url, {}, [], 3, LocalEngine(2))
    assert report["equal"], report["differences"]
    assert report["records"] == COUNT
