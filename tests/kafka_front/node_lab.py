"""A node of Kafka's front in the process of a test, its logs, and clients that speak to it by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from anabranch_kit.run.awaited import awaited
from bridges.log.interfaces import Appended
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from kafka_front.front import KafkaFront
from tests.kafka_front.test_session import Client


@asynccontextmanager
async def serving(directory: Path, flags: Mapping[str, str] | None = None) -> AsyncIterator[Node]:
    """A node with its data below ``directory`` that listens for Kafka's clients alone, unless ``flags`` open more."""
    given = {
        "data_dir": str(directory / "data"),
        "listen.kafka": "127.0.0.1:0",
        "listen.console": "off",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
        **(flags or {}),
    }
    node = Node(load(given, environ={}, directory=directory).settings, fronts=[KafkaFront])
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def connect(node: Node) -> Client:
    """A client that sends what it is told."""
    address = node.addresses["kafka"]
    return Client(*await asyncio.open_connection(address.host, address.port))


def log_of(node: Node, topic: str, partition: int = 0) -> PartitionLog:
    """The log of a partition that exists, of whatever kind its topic is."""
    log = node.logs.get(topic, partition) or node.logs.hidden(topic, partition)
    assert log is not None
    return log


async def append(log: PartitionLog, batch: Batch) -> int:
    """Offset of the first record. Raises LogError."""
    appended: Appended = await awaited(lambda done: log.append(batch, done))
    return appended.base
