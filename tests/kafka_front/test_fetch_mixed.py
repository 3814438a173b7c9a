"""Writers of several protocols take turns in one partition: a reader gets as much with each answer as of one writer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from bridges.formats import FORMATS, FormatId
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from tests.kafka_front.node_lab import append, log_of, serving


def batch_of(source: FormatId, count: int, base: int) -> Batch:
    builder = FORMATS[source].builder(base, base + count)
    for number in range(count):
        builder.add(Record(None, b"%d" % (base + number) + bytes(100), timestamp=5, offset=base + number))
    return Batch(memoryview(bytearray(builder.finish())), count, int(source), 5)


@pytest.mark.parametrize("other", [FormatId.PRAVEGA, FormatId.YDB])
@pytest.mark.parametrize(("count", "most"), [(1, 12), (90, 30), (1_000, 40)])
async def test_batches_of_two_protocols_in_turns_come_in_few_answers(
    tmp_path: Path, other: FormatId, count: int, most: int
) -> None:
    turns = 60
    async with serving(tmp_path, {"log.tail_cache_bytes": "64KiB"}) as node:
        await node.catalog.create_topic("t", 1)
        log = log_of(node, "t")
        end = 0
        for _ in range(turns):
            for source in (FormatId.KAFKA, other):
                await append(log, batch_of(source, count, end))
                end += count
        fetches = node.metrics.front("kafka").kind("Fetch")
        values = await read(str(node.addresses["kafka"]), end)
        assert [int(one.rstrip(b"\0")) for one in values] == list(range(end))
        assert fetches.count <= most, "sixty batches of another protocol, one with each answer, would be sixty requests"


async def read(bootstrap: str, end: int) -> list[bytes]:
    """Everything up to ``end``, in another thread: the node is in this one."""
    return await asyncio.to_thread(_read, bootstrap, end)


def _read(bootstrap: str, end: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "fetch.wait.max.ms": 2_000})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    try:
        while len(found) < end:
            for message in consumer.consume(min(5_000, end - len(found)), 10):
                assert message.error() is None
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
        return found
    finally:
        consumer.close()
