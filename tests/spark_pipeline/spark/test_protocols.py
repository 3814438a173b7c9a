"""The same topic through every protocol that the source speaks: the same rows."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_pipeline.core.rows import Columns
from spark_pipeline.spark.source import BatchReader, StreamReader
from spark_pipeline.spark.source_options import SourceOptions
from tests.node_process import NodeProcess

COLUMNS = Columns.select(headers=True)


@pytest.fixture(scope="module")
def topic(pipeline_node: NodeProcess) -> str:
    """A topic of two partitions with records of every kind."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": pipeline_node.kafka, "compression.type": codec, "linger.ms": 50})
        for number in range(100):
            headers = [("codec", codec.encode()), ("none", None)][: number % 3]
            key = None if number % 5 == 0 else b"key %d" % number
            value = None if number % 7 == 0 else codec.encode() * number
            producer.produce(name, value, key, number % 2, headers=headers, timestamp=1_700_000_000_000 + number)
        assert producer.flush(30) == 0
    return name


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    reader = BatchReader(SourceOptions.parse(options, streaming=False), COLUMNS)
    found = [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def sbp(node: NodeProcess, topic: str) -> dict[str, str]:
    return {"endpoint": f"anabranch://{node.addresses['pipeline']}", "subscribe": topic, "worker.freeze": "false"}


def kafka(node: NodeProcess, topic: str) -> dict[str, str]:
    return {
        "protocol": "kafka",
        "kafka.bootstrap.servers": node.kafka,
        "subscribe": topic,
        "worker.freeze": "false",
        "kafka.group.id": "of no meaning here",
    }


def test_kafka_gives_the_same_rows(pipeline_node: NodeProcess, topic: str) -> None:
    ours = rows(sbp(pipeline_node, topic))
    assert len(ours) == 500
    assert rows(kafka(pipeline_node, topic)) == ours


def test_a_stream_over_kafka_stands_where_one_over_sbp_does(pipeline_node: NodeProcess, topic: str) -> None:
    """A checkpoint of one is good for the other."""
    starts = []
    for options in (sbp(pipeline_node, topic), kafka(pipeline_node, topic)):
        options["startingTimestamp"] = "1700000000050"
        reader = StreamReader(SourceOptions.parse(options, streaming=True), COLUMNS)
        start = reader.initialOffset()
        starts.append((start, reader.latestOffset(start, reader.getDefaultReadLimit())))
        reader.stop()
    assert starts[0] == starts[1]
