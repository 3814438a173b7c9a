"""What Kafka clients move shows in the node's metrics: records, bytes and errors, by topic and request."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError

from tests.node_process import NodeProcess


def samples(node: NodeProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{node.console}/metrics") as response:
        lines = response.read().decode().splitlines()
    found = (re.fullmatch(r"(\S+) (\S+)", line) for line in lines if not line.startswith("#"))
    return {match[1]: float(match[2]) for match in found if match}


def of_topic(values: dict[str, float], topic: str, direction: str) -> float:
    (value,) = (v for name, v in values.items() if "records" in name and f'"{topic}"' in name and direction in name)
    return value


def too_large(values: dict[str, float]) -> float:
    return sum(v for name, v in values.items() if "MESSAGE_TOO_LARGE" in name and "Produce" in name)


def test_records_in_and_out_are_counted_for_each_topic(shared_node: NodeProcess) -> None:
    options: dict[str, Any] = {"bootstrap_servers": shared_node.kafka, "retries": 0, "enable_idempotence": False}
    producer = KafkaProducer(**options)
    for number in range(30):
        producer.send("traffic", b"%d" % number, partition=0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": shared_node.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("traffic", 0, OFFSET_BEGINNING)])
    assert len(consumer.consume(30, 30)) == 30
    consumer.close()
    values = samples(shared_node)
    assert of_topic(values, "traffic", "appended") == 30
    assert of_topic(values, "traffic", "fetched") >= 30
    large = KafkaProducer(**options, max_request_size=4_000_000)
    with pytest.raises(MessageSizeTooLargeError):
        large.send("traffic", bytes(2_000_000), partition=0).get(30)
    after = samples(shared_node)
    assert too_large(after) == too_large(values) + 1
    assert of_topic(after, "traffic", "appended") == 30
    producer.close()
    large.close()
