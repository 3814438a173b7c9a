"""The source in a real Spark session: batch queries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.node_process import NodeProcess

if TYPE_CHECKING:
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
    frame = load(subscribe=topic, includeHeaders="true")
    assert frame.count() == 3
    rows = {(row["partition"], row["offset"]): row for row in frame.collect()}
    assert set(rows) == {(0, 0), (0, 1), (1, 0)}
    first = rows[0, 0]
    assert (bytes(first["key"]), bytes(first["value"]), first["topic"]) == (b"k0", b"a", topic)
    assert (first["timestamp"].timestamp(), first["timestampType"]) == (1_700_000_000.123, 0)
    assert first["headers"] is None
    assert [(one["key"], one["value"]) for one in rows[1, 0]["headers"]] == [("h", b"v"), ("n", None)]
