"""A node inside the test's own process with the pipeline's front, and its client, which is synchronous, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bridges.formats import FormatId
from bridges.formats.kafka import CONTROL, HEADER_SIZE, TRANSACTIONAL, encode, iterate, parse_header
from bridges.formats.producer import InTransaction, ProducerStamp
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from spark_pipeline.core.client.node_answers import NodeTopics
from spark_pipeline.core.client.node_client import NodeClient, NodeOptions
from spark_pipeline.core.encoding.kafka import EncodedBatch
from spark_pipeline.node.front import PipelineFront
from spark_pipeline.node.sinks.writes import Writes

T = TypeVar("T")


@dataclass
class Lab:
    """A node and its client."""

    node: Node
    client: NodeClient

    @property
    def topics(self) -> NodeTopics:
        return NodeTopics(self.client)

    @property
    def writes(self) -> Writes:
        (front,) = self.node.fronts
        assert isinstance(front, PipelineFront)
        assert front.server is not None
        return front.server.core.writes

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        found = self.node.logs.get(topic, partition)
        assert found is not None
        return found

    async def ask(self, what: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call something that blocks."""
        return await asyncio.to_thread(what, *arguments, **named)

    async def append(self, topic: str, values: Sequence[bytes], timestamp: int = 1_000, partition: int = 0) -> Appended:
        payload = encode([Record(None, value, timestamp=timestamp) for value in values])
        return await appended(self.log(topic, partition), Batch(payload, len(values), int(FormatId.KAFKA), timestamp))

    async def append_in_transaction(self, topic: str, producer: int, first: int, values: Sequence[bytes]) -> Appended:
        records = [Record(None, value, timestamp=2_000) for value in values]
        stamp = ProducerStamp(producer, 0, first, len(values))
        payload = encode(records, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0, base_sequence=first)
        part = InTransaction(producer, 0)
        return await appended(
            self.log(topic), Batch(payload, len(values), int(FormatId.KAFKA), 2_000, stamp, transaction=part)
        )

    async def end_transaction(self, topic: str, producer: int, *, commit: bool) -> Appended:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.log(topic).append_marker(
            producer, 0, commit, lambda at, error: done.set_result(at) if error is None else done.set_exception(error)
        )
        return await done

    async def close(self) -> None:
        self.client.close()
        await self.node.stop()


async def appended(log: PartitionLog, batch: Batch) -> Appended:
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    log.append(batch, lambda at, error: done.set_result(at) if error is None else done.set_exception(error))
    return await done


def node_of(path: Path, **flags: str) -> Node:
    """A node that is not started yet; only what the pipeline needs is open."""
    flags = {
        "data_dir": str(path / "data"),
        "listen.console": "off",
        "listen.pipeline": "127.0.0.1:0",
        "listen.sbp-pd": "127.0.0.1:0",
        "listen.sbp-range-server": "127.0.0.1:0",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
        **{key.replace("__", "."): value for key, value in flags.items()},
    }
    return Node(load(flags, environ={}, directory=path, fronts=(PipelineFront,)).settings)


def client_of(node: Node, **options: str) -> NodeClient:
    return NodeClient(NodeOptions.parse(f"anabranch://{node.addresses['pipeline']}", options))


async def open_lab(path: Path, **flags: str) -> Lab:
    node = node_of(path, **flags)
    await node.start()
    return Lab(node, client_of(node))


def batch_of(*values: bytes, timestamp: int = 1_000, key: bytes | None = None) -> EncodedBatch:
    payload = bytes(encode([Record(key, value, timestamp=timestamp) for value in values]))
    return EncodedBatch(payload[HEADER_SIZE:], len(values), timestamp, timestamp)


async def committed(lab: Lab, topic: str, partition: int = 0) -> list[bytes]:
    """The values that readers of committed data see."""
    log = lab.log(topic, partition)
    await log.ready()
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        for batch in await log.read_committed(offset, 1 << 20):
            offset = batch.end_offset
            header = parse_header(batch.payload)
            if not header.attributes & CONTROL and header.record_count:
                found += [one.value for one in iterate(batch.payload) if one.value is not None]
    return found
