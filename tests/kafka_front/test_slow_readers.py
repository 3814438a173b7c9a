"""Clients that ask for much and read nothing cost a node little memory, and others are served."""

from __future__ import annotations

import asyncio
import itertools
import socket

import psutil

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from kafka_front.wire import codec
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.test_session import Client
from tests.node_process import NodeProcess

MIB = 1 << 20
READERS = 60
BATCHES = 3300
RECORDS = 16
BATCH = bytes(encode([Record(None, bytes(1000), timestamp=1) for _ in range(RECORDS)]))


def fetch(offset: int, size: int) -> m.FetchRequest:
    partition = m.FetchRequest.FetchPartition(0, fetch_offset=offset, partition_max_bytes=size)
    topic = m.FetchRequest.FetchTopic(topic="t", partitions=[partition])
    return m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size, topics=[topic])


def produce() -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=BATCH)
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return m.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])


async def connect(node: NodeProcess) -> Client:
    host, _, port = node.kafka.rpartition(":")
    return Client(*await asyncio.open_connection(host, int(port)))


async def fill(client: Client, batches: int) -> None:
    name = m.MetadataRequest.MetadataRequestTopic(name="t")
    while (await client.call(9, m.MetadataRequest(topics=[name], allow_auto_topic_creation=True))).topics[0].error_code:
        pass
    for start in range(0, batches, 100):
        for _ in range(min(100, batches - start)):
            client.send(9, produce())
        for _ in range(min(100, batches - start)):
            answer = (await client.receive())[1]
            assert answer.responses[0].partition_responses[0].error_code == 0


def check(response: m.FetchResponse, offset: int) -> int:
    """Whole batches in order from ``offset`` on; returns the offset behind them."""
    (partition,) = response.responses[0].partitions
    assert partition.error_code == 0
    records = bytes(partition.records or b"")
    assert records
    for at in range(0, len(records), len(BATCH)):
        batch = records[at : at + len(BATCH)]
        assert int.from_bytes(batch[:8], "big") == offset
        assert batch[21:] == BATCH[21:]
        offset += RECORDS
    return offset


async def test_readers_that_read_nothing_cost_little_and_others_are_served(node: NodeProcess) -> None:
    client = await connect(node)
    await fill(client, BATCHES)
    process = psutil.Process(node.pid)
    check(await client.call(11, fetch(0, 50 * MIB)), 0)
    base = process.memory_info().rss
    idle: list[socket.socket] = []
    for number in range(READERS):
        host, _, port = node.kafka.rpartition(":")
        reader = socket.create_connection((host, int(port)))
        reader.sendall(b"".join(codec.encode_request(11, 1, "idle", fetch(number * RECORDS, 50 * MIB))))
        idle.append(reader)
    # Another client goes on meanwhile: at the tail, in the middle, and producing.
    end, middle = BATCHES * RECORDS, BATCHES // 2 * RECORDS
    for _ in range(20):
        check(await client.call(11, fetch(end - RECORDS, MIB)), end - RECORDS)
        check(await client.call(11, fetch(middle, MIB)), middle)
        await client.call(9, produce())
        end += RECORDS
    growth = process.memory_info().rss - base
    assert growth < READERS * 2 * MIB, f"{growth / MIB:.0f} MiB for {READERS} readers"
    # What was promised comes when it is read after all.
    last = Client(*await asyncio.open_connection(sock=idle.pop()))
    last.sent[1] = (1, 11)
    assert check((await last.receive())[1], (READERS - 1) * RECORDS) >= (READERS - 1 + 60) * RECORDS
    for reader in idle:
        reader.close()


async def test_a_large_answer_is_the_same_bytes_from_memory_and_from_disk_after_a_restart(node: NodeProcess) -> None:
    client = await connect(node)
    await fill(client, 400)
    for restart, size in itertools.product((False, True), (200_000, 3 * MIB, 50 * MIB)):
        if restart:
            node.terminate()
            node.start()
            client = await connect(node)
        offset = 0
        while offset < 400 * RECORDS:
            offset = check(await client.call(11, fetch(offset, size)), offset)
        assert offset == 400 * RECORDS


async def test_a_damaged_batch_deep_in_a_large_answer_is_told_at_its_own_offset(node: NodeProcess) -> None:
    client = await connect(node)
    await fill(client, 400)
    node.terminate()
    bad = 300 * RECORDS
    [segment] = [path for path in node.data.rglob("*.seg") if BATCH[100:200] in path.read_bytes()]
    content = bytearray(segment.read_bytes())
    at = content.index(bad.to_bytes(8, "big") + BATCH[8:12] + bytes(4), content.index(BATCH[100:200]))
    content[at + 5000] ^= 1
    segment.write_bytes(content)
    node.start()
    offset = cut = 0
    while offset < bad:
        client = await connect(node)
        try:
            offset = check(await client.call(11, fetch(offset, 50 * MIB)), offset)
        except asyncio.IncompleteReadError:
            cut += 1  # the response promised more than there is: the connection was closed instead
            assert cut < 5
    assert offset == bad
    client = await connect(node)
    for size in (1, 1000, 50 * MIB):  # however little is asked for: whoever hears nothing waits there for ever
        answer = await client.call(11, fetch(bad, size))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE, size
    assert check(await client.call(11, fetch(bad + RECORDS, 50 * MIB)), bad + RECORDS) == 400 * RECORDS
