"""The Python SDK reads: alone, with others, again after a break, and from where it was told."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import ydb
import ydb.aio

from tests.conftest import NodeFactory
from tests.kit.waiting import until
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN

PATIENCE = 90


@pytest.fixture
async def driver(ydb_node: NodeProcess) -> AsyncIterator[ydb.aio.Driver]:
    async with ydb.aio.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


async def make(driver: ydb.aio.Driver, topic: str, partitions: int = 1) -> None:
    await driver.topic_client.create_topic(topic, min_active_partitions=partitions, consumers=["c"])


async def write(driver: ydb.aio.Driver, topic: str, *bodies: str, partition: int | None = None) -> None:
    async with driver.topic_client.writer(topic, partition_id=partition) as writer:
        for body in bodies:
            await writer.write(ydb.TopicWriterMessage(body, metadata_items={"number": body}))


async def receive(reader: ydb.TopicReaderAsyncIO, count: int, commit: bool = True) -> list[ydb.TopicReaderMessage]:
    found: list[ydb.TopicReaderMessage] = []
    while len(found) < count:
        batch = await asyncio.wait_for(reader.receive_batch(), PATIENCE)
        found += batch.messages
        if commit:
            await asyncio.wait_for(reader.commit_with_ack(batch), PATIENCE)
    return found


async def test_it_reads_and_commits(driver: ydb.aio.Driver, topic: str) -> None:
    await make(driver, topic)
    bodies = [f"body {number} " * 50 for number in range(100)]  # some are compressed
    await write(driver, topic, *bodies)
    async with driver.topic_client.reader(topic, "c") as reader:
        first = await receive(reader, 100)
    assert [message.data.decode() for message in first] == bodies
    assert [message.offset for message in first] == list(range(100))
    assert first[0].metadata_items == {"number": bodies[0].encode()}
    assert first[0].producer_id == first[0].message_group_id != ""
    assert first[5].seqno == 6
    await write(driver, topic, "later")
    async with driver.topic_client.reader(topic, "c") as reader:
        (later,) = await receive(reader, 1, commit=False)
        assert later.data == b"later"
    async with driver.topic_client.reader(topic, "c") as reader:
        (again,) = await receive(reader, 1)
        assert again.data == b"later"


async def test_a_commit_that_is_repeated_before_its_answer_is_refused(driver: ydb.aio.Driver, topic: str) -> None:
    """YDB's servers forbid it, so whoever did it there would have been told; the SDK leaves out what was answered."""
    await make(driver, topic)
    await write(driver, topic, "0")
    async with driver.topic_client.reader(topic, "c") as reader:
        batch = await asyncio.wait_for(reader.receive_batch(), PATIENCE)
        await asyncio.wait_for(reader.commit_with_ack(batch), PATIENCE)
        await asyncio.wait_for(reader.commit_with_ack(batch), PATIENCE)
        await write(driver, topic, "1")
        batch = await asyncio.wait_for(reader.receive_batch(), PATIENCE)
        reader.commit(batch)
        with suppress(ydb.Error):  # the answer to the first may have come before the end, and does for the second
            await asyncio.wait_for(reader.commit_with_ack(batch), PATIENCE)
        with pytest.raises(ydb.BadRequest, match="committed before"):
            await asyncio.wait_for(reader.receive_batch(), PATIENCE)


async def shared(driver: ydb.aio.Driver, topic: str, sessions: int) -> None:
    """Return when so many sessions have partitions of the topic."""
    async with asyncio.timeout(PATIENCE):
        while True:
            described = await driver.topic_client.describe_consumer(topic, "c", include_stats=True)
            owners = {one.partition_consumer_stats.read_session_id for one in described.partitions}
            if len(owners - {""}) == sessions and "" not in owners:
                return
            await asyncio.sleep(0.02)


async def test_two_readers_share_what_there_is(driver: ydb.aio.Driver, topic: str) -> None:
    await make(driver, topic, 4)
    seen: dict[int, list[str]] = {0: [], 1: []}
    done = asyncio.Event()

    async def read(number: int) -> None:
        async with driver.topic_client.reader(topic, "c") as reader:
            while True:
                message = await reader.receive_message()
                assert message is not None
                seen[number].append(message.data.decode())
                reader.commit(message)
                if len({*seen[0], *seen[1]}) == 400:
                    done.set()

    readers = [asyncio.create_task(read(number)) for number in seen]
    try:
        await shared(driver, topic, 2)
        for round_ in range(10):
            for partition in range(4):
                await write(driver, topic, *(f"{partition}-{round_}-{n}" for n in range(10)), partition=partition)
        await asyncio.wait_for(done.wait(), PATIENCE)
    finally:
        for reader in readers:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
    assert seen[0]
    assert seen[1]


async def test_a_position_that_was_set_is_gone_to_at_once(driver: ydb.aio.Driver, topic: str) -> None:
    await make(driver, topic)
    await write(driver, topic, *map(str, range(10)))
    client = driver.topic_client
    async with client.reader(topic, "c") as reader:
        await receive(reader, 10)
        await client.commit_offset(topic, "c", 0, 4)
        assert [message.offset for message in await receive(reader, 6)] == [4, 5, 6, 7, 8, 9]
        described = await client.describe_consumer(topic, "c", include_stats=True)
        assert described.partitions[0].partition_consumer_stats.committed_offset == 10


async def test_reading_from_a_time_on(driver: ydb.aio.Driver, topic: str) -> None:
    await make(driver, topic)
    await write(driver, topic, *map(str, range(5)))
    async with driver.topic_client.reader(topic, "c") as reader:
        (*_, last) = await receive(reader, 5, commit=False)
    # What comes next is written later than the last one, to the millisecond.
    await until(lambda: datetime.datetime.now(datetime.UTC).timestamp() > last.written_at.timestamp() + 0.002)
    await write(driver, topic, "new")
    selector = ydb.TopicReaderSelector(topic, read_from=last.written_at + datetime.timedelta(milliseconds=1))
    async with driver.topic_client.reader(selector, "c") as reader:
        (found,) = await receive(reader, 1)
        assert found.data == b"new"
    async with driver.topic_client.reader(topic, "c") as reader:
        await write(driver, topic, "last")
        assert [message.data for message in await receive(reader, 1)] == [b"last"], "what was left out is committed too"


async def test_without_a_consumer(driver: ydb.aio.Driver, topic: str) -> None:
    await make(driver, topic, 2)
    await write(driver, topic, *map(str, range(5)), partition=1)

    class From(ydb.TopicReaderEvents.EventHandler):
        async def on_partition_get_start_offset(
            self, event: ydb.TopicReaderEvents.OnPartitionGetStartOffsetRequest
        ) -> ydb.TopicReaderEvents.OnPartitionGetStartOffsetResponse:
            return ydb.TopicReaderEvents.OnPartitionGetStartOffsetResponse(3)

    selector = ydb.TopicReaderSelector(topic, partitions=[1])
    async with driver.topic_client.reader(selector, consumer=None, event_handler=From()) as reader:
        assert [message.data for message in await receive(reader, 2, commit=False)] == [b"3", b"4"]


def test_the_synchronous_reader(ydb_node: NodeProcess, topic: str) -> None:
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.create_topic(topic, consumers=["c"])
        with driver.topic_client.writer(topic) as writer:
            writer.write([str(number) for number in range(1000)])
        found: list[bytes] = []
        with driver.topic_client.reader(topic, "c") as reader:
            while len(found) < 1000:
                batch = reader.receive_batch(timeout=PATIENCE)
                found += [message.data for message in batch.messages]
                reader.commit_with_ack(batch)
        assert found == [b"%d" % number for number in range(1000)]
        with pytest.raises(ydb.Error), driver.topic_client.reader(topic, "nobody") as refused:
            refused.receive_message(timeout=PATIENCE)


def test_what_was_committed_stays_so_when_the_node_dies(node_factory: NodeFactory) -> None:
    """The reader goes on by itself, gets all of it, and nothing again of what was confirmed to be committed."""
    node = node_factory(listen=LISTEN)
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.create_topic("t", consumers=["c"], min_active_partitions=2)
        for partition in range(2):
            with driver.topic_client.writer("t", partition_id=partition) as writer:
                writer.write([f"{partition} {number}" for number in range(500)])
        seen: set[tuple[int, int]] = set()
        confirmed: set[tuple[int, int]] = set()
        with driver.topic_client.reader("t", "c") as reader:
            for deaths in range(2):
                while len(seen) < (500, 1000)[deaths]:
                    batch = reader.receive_batch(max_messages=50, timeout=PATIENCE)
                    places = {(message.partition_id, message.offset) for message in batch.messages}
                    assert not places & confirmed
                    seen |= places
                    with suppress(ydb.TopicReaderPartitionExpiredError, ydb.Error):  # the node has died meanwhile
                        reader.commit_with_ack(batch, timeout=PATIENCE)
                        confirmed |= places
                if not deaths:
                    node.restart(kill=True)
        described = driver.topic_client.describe_consumer("t", "c", include_stats=True)
        assert {one.partition_consumer_stats.committed_offset for one in described.partitions} == {500}


async def test_it_is_told_how_far_consumers_are(driver: ydb.aio.Driver, topic: str) -> None:
    began = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    await make(driver, topic, partitions=2)
    await write(driver, topic, *"abcde", partition=1)
    client = driver.topic_client
    async with client.reader(topic, "c") as reader:
        first = await asyncio.wait_for(reader.receive_message(), PATIENCE)
        await asyncio.wait_for(reader.commit_with_ack(first), PATIENCE)
        during = await client.describe_consumer(topic, "c", include_stats=True, include_location=True)
    empty, told = (one.partition_consumer_stats for one in during.partitions)
    assert (empty.committed_offset, told.committed_offset, told.last_read_offset) == (0, 1, 4)
    assert told.read_session_id == empty.read_session_id != ""
    assert told.connection_node_id > 0
    assert told.last_read_time >= told.partition_read_session_create_time >= began - datetime.timedelta(seconds=1)
    assert told.max_committed_time_lag >= datetime.timedelta(0)
    assert told.bytes_read.per_minute > 0 == empty.bytes_read.per_minute
    assert during.partitions[1].partition_stats.partition_end == 5
    assert during.partitions[1].partition_location.generation > 0
    after = await client.describe_consumer(topic, "c", include_stats=True)
    assert after.partitions[1].partition_consumer_stats.read_session_id == ""
    assert after.partitions[1].partition_consumer_stats.committed_offset == 1
    (consumer,) = (await client.describe_topic(topic, include_stats=True)).consumers
    assert consumer.consumer_stats.bytes_read.per_minute == told.bytes_read.per_minute
    assert consumer.consumer_stats.min_partitions_last_read_time == told.last_read_time
    assert consumer.consumer_stats.max_read_time_lag == after.consumer.consumer_stats.max_read_time_lag
