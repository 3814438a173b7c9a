"""Unchanged Kafka consumers read past batches that only tell the ledger of a number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from bridges.formats.producer import EventStamp, LedgerKind
from bridges.log.interfaces import note
from bridges.log.ledger.rules import Last
from bridges.node.assembly import Node
from tests.kafka_front.node_lab import append, log_of, serving

WRITER = bytes(range(16))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as node:
        yield node


async def tell(node: Node, number: int) -> int:
    return await append(log_of(node, "t"), note(EventStamp(WRITER, number)))


async def test_consumers_read_past_notes_and_the_ledger_keeps_them(tmp_path: Path, node: Node) -> None:
    await node.catalog.create_topic("t", 1, {})
    bootstrap = str(node.addresses["kafka"])

    def produce(value: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("t", value, partition=0)
        assert producer.flush(20) == 0

    assert await tell(node, 1) == 0
    await asyncio.to_thread(produce, "a")
    assert await tell(node, 5) == 2
    assert await tell(node, 9) == 3
    await asyncio.to_thread(produce, "b")
    assert await tell(node, 11) == 5
    await asyncio.to_thread(produce, "c")

    def consume() -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        librdkafka = []
        while len(librdkafka) < 3 and (message := consumer.poll(20)) is not None:
            assert message.error() is None
            librdkafka.append((message.offset(), message.value()))
        consumer.close()
        python = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
        python.assign([PythonPartition("t", 0)])
        python.seek(PythonPartition("t", 0), 0)
        # In this order: nobody asks for a fourth record, which would be waited for.
        read = [(message.offset, message.value) for _, message in zip(range(3), python, strict=False)]
        python.close()
        return librdkafka, read

    expected = [(1, b"a"), (4, b"b"), (6, b"c")]
    assert await asyncio.to_thread(consume) == (expected, expected)
    await node.stop()
    async with serving(tmp_path) as again:
        log = log_of(again, "t")
        await log.ready()
        assert log.last(LedgerKind.EVENT_NUMBER, WRITER) == Last(11, 5)
