"""Transactions of YDB's SDK for Python: topics are copied exactly once, also through deaths of the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ydb
import ydb.aio

from tests.conftest import NodeFactory
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.records import values_of

PATIENCE = 60.0
DATABASE = "/local"


@asynccontextmanager
async def connected(node: NodeProcess) -> AsyncIterator[ydb.aio.Driver]:
    async with ydb.aio.Driver(endpoint=f"grpc://{node.ydb}", database=DATABASE) as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


async def fill(driver: ydb.aio.Driver, topic: str, count: int) -> list[bytes]:
    """Make a topic with so many messages."""
    await driver.topic_client.create_topic(topic, consumers=["c"])
    texts = [b"%d" % number for number in range(count)]
    async with driver.topic_client.writer(topic) as writer:
        await writer.write_with_ack(texts)
    return texts


async def copy(
    driver: ydb.aio.Driver, pool: ydb.aio.QuerySessionPool, reader: ydb.TopicReaderAsyncIO, target: str
) -> int:
    """Copy some messages in one transaction; return their number."""

    async def once(tx: ydb.aio.QueryTxContext) -> int:
        batch = await asyncio.wait_for(reader.receive_batch_with_tx(tx, max_messages=3), PATIENCE)
        writer = driver.topic_client.tx_writer(tx, target)
        await writer.write([message.data for message in batch.messages])
        return len(batch.messages)

    return int(await pool.retry_tx_async(once, retry_settings=ydb.RetrySettings(max_retries=100)))


def position(node: NodeProcess, topic: str) -> int:
    with RawClient(node.ydb) as raw:
        found = raw.result("DescribeConsumer", path=topic, consumer="c", include_stats=True)
    return int(found.partitions[0].partition_consumer_stats.committed_offset)


async def test_a_topic_is_copied_exactly_once_through_deaths_of_the_node(node_factory: NodeFactory, topic: str) -> None:
    node = node_factory(listen=LISTEN)
    deaths = {9, 18}
    async with connected(node) as driver, ydb.aio.QuerySessionPool(driver) as pool:
        texts = await fill(driver, topic, 30)
        await driver.topic_client.create_topic(f"{topic}-copy")
        async with driver.topic_client.reader(topic, "c") as reader:
            while (copied := position(node, topic)) < len(texts):
                running = asyncio.create_task(copy(driver, pool, reader, f"{topic}-copy"))
                if copied in deaths:
                    deaths.remove(copied)
                    await asyncio.to_thread(node.restart, kill=True)
                await asyncio.wait([running])
                if not isinstance(running.exception(), ydb.Error | None):
                    running.result()
    assert not deaths
    assert values_of(node.kafka, f"{topic}-copy", 0, len(texts)) == texts
