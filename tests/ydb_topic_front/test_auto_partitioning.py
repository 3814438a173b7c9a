"""Partitions split by themselves when SDKs write fast, and SDKs' writers and readers follow."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import ydb
import ydb.aio

from tests.conftest import TEST_SETTINGS
from tests.kit.waiting import until_asked
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN

PATIENCE = 60
WINDOW = datetime.timedelta(seconds=2)
UP = ydb.TopicAutoPartitioningStrategy.SCALE_UP
PAUSED = ydb.TopicAutoPartitioningStrategy.PAUSED
SPEED = 10_000
"""Bytes a second: half of it for two seconds are 10,000 bytes."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {**TEST_SETTINGS, "ydb.auto_partitioning_interval_ms": "20"}
    with NodeProcess(tmp_path_factory.mktemp("ydb-auto") / "data", settings=settings, listen=LISTEN).lent() as node:
        yield node


@pytest.fixture
async def driver(node: NodeProcess) -> AsyncIterator[ydb.aio.Driver]:
    async with ydb.aio.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


async def make(driver: ydb.aio.Driver, topic: str, most: int, strategy: ydb.TopicAutoPartitioningStrategy = UP) -> None:
    await driver.topic_client.create_topic(
        topic,
        consumers=["c"],
        max_active_partitions=most,
        partition_write_speed_bytes_per_second=SPEED,
        partition_write_burst_bytes=1 << 40,  # the test is not about being slowed down
        auto_partitioning_settings=ydb.TopicAutoPartitioningSettings(
            strategy=strategy, stabilization_window=WINDOW, up_utilization_percent=50, down_utilization_percent=10
        ),
    )


async def active(driver: ydb.aio.Driver, topic: str) -> list[int]:
    described = await driver.topic_client.describe_topic(topic)
    return [one.partition_id for one in described.partitions if one.active]


async def test_writers_and_readers_follow(driver: ydb.aio.Driver) -> None:
    """Four producers write until there are four partitions; everything is read once, each producer's in order."""
    await make(driver, "t", 4)
    written: dict[str, int] = {}
    enough = asyncio.Event()

    async def write(producer: str) -> None:
        async with driver.topic_client.writer("t", producer_id=producer, codec=ydb.TopicCodec.RAW) as writer:
            while not enough.is_set():
                await writer.write_with_ack(b"x" * 2_000)
                written[producer] = written.get(producer, 0) + 1

    read: dict[str, list[int]] = {}
    places: set[tuple[int, int]] = set()

    async def keep_reading() -> None:
        async with driver.topic_client.reader("t", "c") as reader:
            while True:
                batch = await reader.receive_batch()
                for message in batch.messages:
                    read.setdefault(message.producer_id, []).append(message.seqno)
                    assert (message.partition_id, message.offset) not in places
                    places.add((message.partition_id, message.offset))
                reader.commit(batch)

    reading = asyncio.create_task(keep_reading())
    writing = [asyncio.create_task(write(f"producer {number}")) for number in range(4)]
    try:
        async with asyncio.timeout(PATIENCE):
            while len(await active(driver, "t")) < 4:
                assert not any(task.done() for task in (reading, *writing))
                await asyncio.sleep(0.02)
            enough.set()
            await asyncio.gather(*writing)
            while sum(map(len, read.values())) < sum(written.values()):
                assert not reading.done()
                await asyncio.sleep(0.02)
    finally:
        for task in (reading, *writing):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    assert read == {producer: list(range(1, count + 1)) for producer, count in written.items()}
    described = await driver.topic_client.describe_topic("t")
    sealed = [one for one in described.partitions if not one.active]
    assert len(sealed) == 3, "halves were halved again"
    assert all(len(one.child_partition_ids) == 2 for one in sealed)


async def test_nothing_splits_that_must_not(driver: ydb.aio.Driver) -> None:
    await make(driver, "paused", 8, PAUSED)
    await make(driver, "full", 1)
    await make(driver, "slow", 8)
    await make(driver, "fast", 2)
    client = driver.topic_client
    async with (
        client.writer("paused", codec=ydb.TopicCodec.RAW) as paused,
        client.writer("full", codec=ydb.TopicCodec.RAW) as full,
        client.writer("slow", codec=ydb.TopicCodec.RAW) as slow,
        client.writer("fast", codec=ydb.TopicCodec.RAW) as fast,
    ):
        await slow.write_with_ack(b"x")
        async with asyncio.timeout(PATIENCE):
            # Topics are looked at one after the other, the fast one last.
            while len(await active(driver, "fast")) < 2:
                for writer in (paused, full, fast):
                    await writer.write_with_ack(b"x" * 2_000)
        for topic in ("paused", "full", "slow"):
            assert await active(driver, topic) == [0], topic
        # What was paused splits when it goes on.
        await client.alter_topic(
            "paused", alter_auto_partitioning_settings=ydb.TopicAlterAutoPartitioningSettings(set_strategy=UP)
        )
        async with asyncio.timeout(PATIENCE):
            while await active(driver, "paused") == [0]:
                await paused.write_with_ack(b"x" * 2_000)


async def test_what_is_cold_is_merged(driver: ydb.aio.Driver) -> None:
    """Down to the least number, and what was written before is read in order, whatever became of its partition."""
    client = driver.topic_client
    await client.create_topic(
        "merged",
        consumers=["c"],
        min_active_partitions=2,
        max_active_partitions=8,
        auto_partitioning_settings=ydb.TopicAutoPartitioningSettings(
            strategy=UP, stabilization_window=datetime.timedelta(seconds=1)
        ),
    )
    await client.alter_topic("merged", set_min_active_partitions=8)
    assert len(await active(driver, "merged")) == 8
    producers = [f"producer {number}" for number in range(16)]

    async def write() -> None:
        for producer in producers:
            async with client.writer("merged", producer_id=producer) as writer:
                await writer.write_with_ack("x")

    await write()
    down = ydb.TopicAutoPartitioningStrategy.SCALE_UP_AND_DOWN
    await client.alter_topic(
        "merged",
        set_min_active_partitions=2,
        alter_auto_partitioning_settings=ydb.TopicAlterAutoPartitioningSettings(set_strategy=down),
    )
    await until_asked(lambda: active(driver, "merged"), lambda found: len(found) <= 2, seconds=PATIENCE)
    await write()
    read: dict[str, list[int]] = {}
    async with client.reader("merged", "c") as reader:
        while sum(map(len, read.values())) < 2 * len(producers):
            batch = await asyncio.wait_for(reader.receive_batch(), PATIENCE)
            for message in batch.messages:
                read.setdefault(message.producer_id, []).append(message.seqno)
            reader.commit(batch)
    assert read == {producer: [1, 2] for producer in producers}
    assert len(await active(driver, "merged")) == 2
