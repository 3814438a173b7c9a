"""Retention waits for important consumers, whatever protocol they read with, and for nobody else."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import ydb
import ydb.aio
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.conftest import NodeFactory
from tests.kit.waiting import until_asked
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN

PATIENCE = 60
AT_ONCE = datetime.timedelta(milliseconds=1)


@pytest.fixture
def node(node_factory: NodeFactory) -> NodeProcess:
    return node_factory(listen=LISTEN, settings={"log.retention_check_interval_ms": "20"})


@pytest.fixture
async def driver(node: NodeProcess) -> AsyncIterator[ydb.aio.Driver]:
    async with ydb.aio.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


async def write(driver: ydb.aio.Driver, topic: str, count: int) -> None:
    async with driver.topic_client.writer(topic) as writer:
        await writer.write_with_ack([str(number) for number in range(count)])


async def start_of(driver: ydb.aio.Driver, topic: str) -> int:
    described = await driver.topic_client.describe_topic(topic, include_stats=True)
    start: int = described.partitions[0].partition_stats.partition_start
    return start


async def trimmed(driver: ydb.aio.Driver, topic: str, offset: int) -> None:
    """Return when the topic begins there."""
    await until_asked(lambda: start_of(driver, topic), lambda start: start == offset, seconds=PATIENCE)


async def reached(driver: ydb.aio.Driver) -> None:
    """Return when the driver has found the node again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(ydb.ConnectionError):
                await driver.topic_client.describe_topic("control")
                return
            await asyncio.sleep(0.05)


async def passes(driver: ydb.aio.Driver) -> None:
    """Return when retention has looked at every topic since this was called: it has done so twice with one that has
    more messages each time, and takes topics one after the other."""
    for _ in range(2):
        described = await driver.topic_client.describe_topic("control", include_stats=True)
        end = described.partitions[0].partition_stats.partition_end
        await write(driver, "control", 1)
        await trimmed(driver, "control", end + 1)


async def test_what_an_important_consumer_has_not_committed_stays(node: NodeProcess, driver: ydb.aio.Driver) -> None:
    client = driver.topic_client
    important = ydb.TopicConsumer("billing", important=True)
    await client.create_topic("kept", retention_period=AT_ONCE, consumers=[important, "other"])
    await client.create_topic("control", retention_period=AT_ONCE, consumers=["billing"])
    await write(driver, "kept", 10)
    await passes(driver)
    assert await start_of(driver, "kept") == 0
    await asyncio.to_thread(node.restart, kill=True)
    await reached(driver)
    await passes(driver)
    async with client.reader("kept", "billing") as reader:
        batch = await asyncio.wait_for(reader.receive_batch(max_messages=4), PATIENCE)
        assert [message.offset for message in batch.messages] == [0, 1, 2, 3]
        await asyncio.wait_for(reader.commit_with_ack(batch), PATIENCE)
    await trimmed(driver, "kept", 4)
    # It is the group of that name of every protocol, and what is kept of the topic says so to all of them.
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "billing"})
    await asyncio.to_thread(consumer.commit, offsets=[TopicPartition("kept", 0, 7)], asynchronous=False)
    consumer.close()
    await trimmed(driver, "kept", 7)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "kept")
    admin = AdminClient({"bootstrap.servers": node.kafka})
    configs = admin.describe_configs([resource])[resource].result(PATIENCE)
    assert configs["anabranch.retention.consumers"].value == '{"billing":0}'
    # Who is not important any more is not waited for.
    await client.alter_topic("kept", alter_consumers=[ydb.TopicAlterConsumer("billing", set_important=False)])
    await trimmed(driver, "kept", 10)
    await write(driver, "kept", 2)
    await trimmed(driver, "kept", 12)
    # And who comes to be important is, from then on.
    late = ydb.TopicConsumer("late", important=True)
    await client.alter_topic("kept", add_consumers=[late])
    await write(driver, "kept", 3)
    await passes(driver)
    assert await start_of(driver, "kept") == 12
    await client.alter_topic("kept", drop_consumers=["late"])
    await trimmed(driver, "kept", 15)


async def test_messages_are_as_old_as_their_writing_whatever_they_say(
    node: NodeProcess, driver: ydb.aio.Driver
) -> None:
    """A backfill of 2020 into a topic that keeps a day, also over a restart, and a clock of 2100 into one that keeps
    nothing."""
    client = driver.topic_client
    await client.create_topic("filled", retention_period=datetime.timedelta(days=1))
    await client.create_topic("ahead", retention_period=AT_ONCE)
    await client.create_topic("control", retention_period=AT_ONCE)
    for topic, year in (("filled", 2020), ("ahead", 2100)):
        created = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)
        async with client.writer(topic, auto_created_at=False) as writer:
            await writer.write_with_ack([ydb.TopicWriterMessage("x" * 1000, created_at=created) for _ in range(300)])
    await trimmed(driver, "ahead", 300)
    await passes(driver)
    assert await start_of(driver, "filled") == 0
    await asyncio.to_thread(node.restart, kill=True)
    await reached(driver)
    await passes(driver)
    assert await start_of(driver, "filled") == 0
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    in_2020 = TopicPartition("filled", 0, 1577836800000)
    (found,) = await asyncio.to_thread(consumer.offsets_for_times, [in_2020], PATIENCE)
    assert found.offset == 0, "a search by time finds what they say"
    consumer.close()
