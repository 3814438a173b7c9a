"""A disk below its low-water mark: producers get a retriable error, nothing is lost, readers go on."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaProtocolError

from tests.node_process import NodeProcess

MORE_THAN_ANY_DISK = str(1 << 60)


def produce(bootstrap: str, values: list[str], timeout_ms: int) -> list[KafkaError | None]:
    outcomes: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": timeout_ms, "linger.ms": 0}
    )
    for value in values:
        producer.produce("t", value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(60)
    return outcomes


def consume(bootstrap: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(30)
        assert message is not None, f"only {len(values)} of {count} records came"
        assert message.error() is None, message.error()
        values.append(message.value().decode())
    consumer.close()
    return values


def restart(node: NodeProcess, low_water: str | None) -> None:
    node.terminate()
    node.settings.pop("sbp.low_water_bytes", None)
    if low_water is not None:
        node.settings["sbp.low_water_bytes"] = low_water
    node.start()


def test_a_full_disk_refuses_writes_and_serves_reads(node: NodeProcess) -> None:
    before = [f"before-{i}" for i in range(20)]
    assert produce(node.kafka, before, 30_000) == [None] * 20
    restart(node, MORE_THAN_ANY_DISK)
    impatient = KafkaProducer(bootstrap_servers=node.kafka, retries=0, enable_idempotence=False)
    with pytest.raises(KafkaProtocolError) as refusal:
        impatient.send("t", b"refused", partition=0).get(60)
    impatient.close()
    assert refusal.value.retriable
    assert "room" in str(refusal.value), "the client is told why"
    assert consume(node.kafka, 20) == before
    restart(node, None)
    assert produce(node.kafka, ["after"], 30_000) == [None]
    assert consume(node.kafka, 21) == [*before, "after"]
