"""What unchanged Kafka consumers see of committed, aborted and open transactions (docs/protocols/kafka.md, rules 37, 38
and 46)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka._model import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from anabranch_kit.run.awaited import awaited
from bridges.errors import AbortedNotAtHand
from bridges.formats import FormatId
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from bridges.node.assembly import Node
from tests.bridges.log.blocks_lab import small_blocks
from tests.kafka_front.node_lab import append, log_of, serving

LEVELS = ["read_committed", "read_uncommitted"]
T = TypeVar("T")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as node:
        yield node


async def write(log: PartitionLog, producer: int | None, *values: bytes) -> int:
    records = [Record(None, value, timestamp=1_000_000) for value in values]
    if producer is None:
        return await append(log, Batch(encode(records), len(values), int(FormatId.KAFKA), 1_000_000))
    payload = encode(records, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0)
    part = InTransaction(producer, 0)
    return await append(log, Batch(payload, len(values), int(FormatId.KAFKA), 1_000_000, transaction=part))


async def end(log: PartitionLog, producer: int, *, commit: bool) -> int:
    appended: Appended = await awaited(lambda done: log.append_marker(producer, 0, commit, done))
    return appended.base


async def fill(node: Node) -> PartitionLog:
    """Interleaved transactions; the one of producer 3 is open, from offset 12 on."""
    await node.catalog.create_topic("t", 1, {})
    log = log_of(node, "t")
    await write(log, 1, b"a0", b"a1")  # 0, 1: aborted
    await write(log, 2, b"c0")  # 2: committed
    await write(log, None, b"p0")  # 3
    await write(log, 1, b"a2")  # 4
    await end(log, 1, commit=False)  # 5
    await write(log, 1, b"c1")  # 6: the same producer commits this one
    await write(log, 2, b"c2")  # 7
    await end(log, 2, commit=True)  # 8
    await end(log, 1, commit=True)  # 9
    await write(log, 1, b"a3")  # 10
    await end(log, 1, commit=False)  # 11
    await write(log, 3, b"o0")  # 12
    await write(log, None, b"p1")  # 13
    await log.ready()
    assert (log.last_stable_offset, log.high_watermark) == (12, 14)
    return log


ALL = [b"a0", b"a1", b"c0", b"p0", b"a2", b"c1", b"c2", b"a3", b"o0", b"p1"]
COMMITTED = [b"c0", b"p0", b"c1", b"c2"]


def consume(bootstrap: str, level: str, offset: int = OFFSET_BEGINNING, **more: object) -> list[bytes]:
    """Everything up to the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": level,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "enable.auto.commit": False,
            **more,
        }
    )
    consumer.assign([TopicPartition("t", 0, offset)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, f"only {found} in half a minute"
            if message.error():
                if message.error().name() == "_PARTITION_EOF":
                    return found
                raise KafkaException(message.error())
            value = message.value()
            assert isinstance(value, bytes)
            found.append(value)
    finally:
        consumer.close()


@pytest.mark.parametrize("checked", ["true", "false"])
async def test_librdkafka_reads_what_its_isolation_level_says(node: Node, checked: str) -> None:
    log = await fill(node)
    bootstrap = str(node.addresses["kafka"])

    def read(level: str, offset: int = OFFSET_BEGINNING, **more: object) -> asyncio.Future[list[bytes]]:
        return asyncio.ensure_future(asyncio.to_thread(consume, bootstrap, level, offset, **more))

    assert await read("read_uncommitted", **{"check.crcs": checked}) == ALL
    assert await read("read_committed", **{"check.crcs": checked}) == COMMITTED
    # From the middle of an aborted transaction, and with a read for every batch.
    assert await read("read_committed", 4) == [b"c1", b"c2"]
    assert await read("read_committed", 1, **{"max.partition.fetch.bytes": 1}) == COMMITTED
    log.tail.clear()
    assert await read("read_committed") == COMMITTED, "from the backend as from memory"
    await end(log, 3, commit=True)
    assert await read("read_committed") == [*COMMITTED, b"o0", b"p1"]
    await log.trim(5)
    assert await read("read_committed") == [b"c1", b"c2", b"o0", b"p1"]


async def test_what_was_aborted_is_told_from_the_database_too(node: Node) -> None:
    with small_blocks():
        await node.catalog.create_topic("t", 1, {})
        log = log_of(node, "t")
        expected = []
        for at in range(60):
            await write(log, 1, b"no")
            await write(log, 2, b"c%d" % at)
            expected.append(b"c%d" % at)
            await end(log, 1, commit=False)
            await end(log, 2, commit=True)
        await node.logs.aborted.drain()
        assert log.state.transactions.persisted > 200
        bootstrap = str(node.addresses["kafka"])
        for more in ({}, {"max.partition.fetch.bytes": 1}, {"fetch.wait.max.ms": 0}):
            for cache in (1 << 20, 1):
                node.logs.aborted.drop(log.stream_id)
                node.logs.aborted.most = cache
                found = await asyncio.to_thread(consume, bootstrap, "read_committed", **more)
                assert found == expected
        with pytest.raises(AbortedNotAtHand):
            log.aborted(0, log.high_watermark)
        batches = await log.read_committed(0, 1 << 20)
        assert 0 < len(batches) < 60


async def test_a_consumer_that_waits_is_served_when_the_transaction_ends(node: Node) -> None:
    log = await fill(node)
    bootstrap = str(node.addresses["kafka"])
    at_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    def follow() -> list[bytes]:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
        )
        place = PythonPartition("t", 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found: list[bytes] = []
        try:
            while len(found) < 6:
                for records in consumer.poll(timeout_ms=30_000).values():
                    found += [record.value for record in records]
                if found == COMMITTED:
                    assert consumer.end_offsets([place]) == {place: 12}
                    loop.call_soon_threadsafe(at_end.set)
            return found
        finally:
            consumer.close()

    following = asyncio.create_task(asyncio.to_thread(follow))
    await at_end.wait()
    await end(log, 3, commit=True)
    assert await following == [*COMMITTED, b"o0", b"p1"]


async def test_offsets_are_told_by_isolation_level(node: Node) -> None:
    log = await fill(node)
    bootstrap = str(node.addresses["kafka"])

    def ask(spec: OffsetSpec, level: IsolationLevel) -> int:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        answer = admin.list_offsets({TopicPartition("t", 0): spec}, isolation_level=level)
        return next(iter(answer.values())).result(30).offset

    async def told(spec: OffsetSpec) -> tuple[int, int]:
        levels = (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        first, second = [await asyncio.to_thread(ask, spec, level) for level in levels]
        return first, second

    assert await told(OffsetSpec.latest()) == (14, 12)
    assert await told(OffsetSpec.earliest()) == (0, 0)
    assert await told(OffsetSpec.for_timestamp(1_000_000)) == (0, 0)
    records = [Record(None, b"later", timestamp=2_000_000)]
    await append(log, Batch(encode(records), 1, int(FormatId.KAFKA), 2_000_000))
    assert await told(OffsetSpec.for_timestamp(2_000_000)) == (14, -1)
    await end(log, 3, commit=True)
    assert await told(OffsetSpec.for_timestamp(2_000_000)) == (14, 14)
    assert await told(OffsetSpec.latest()) == (16, 16)


@pytest.mark.parametrize("level", LEVELS)
async def test_large_answers_that_are_read_while_they_are_sent(node: Node, level: str) -> None:
    await node.catalog.create_topic("t", 1, {})
    log = log_of(node, "t")
    expected: list[bytes] = []
    for number in range(60):
        value = b"%03d" % number + bytes(100_000)
        commit = number % 3 == 0
        await write(log, number % 2, value)
        await end(log, number % 2, commit=commit)
        if commit or level == "read_uncommitted":
            expected.append(value[:3])
    large = {
        "fetch.max.bytes": 40_000_000,
        "max.partition.fetch.bytes": 40_000_000,
        "queued.max.messages.kbytes": 100_000,
    }
    found = await asyncio.to_thread(lambda: consume(str(node.addresses["kafka"]), level, **large))
    assert [value[:3] for value in found] == expected


async def test_a_restart_knows_the_transactions(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        await fill(node)
    async with serving(tmp_path) as node:
        bootstrap = str(node.addresses["kafka"])
        assert await asyncio.to_thread(consume, bootstrap, "read_committed") == COMMITTED
        assert await asyncio.to_thread(consume, bootstrap, "read_uncommitted") == ALL
