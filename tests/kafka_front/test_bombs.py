"""A node and clients that send it small batches of many records: nobody else waits, and too many are not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.run.sliced import SLICE_RECORDS
from bridges.formats import kafka as formats_kafka
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.time_search import TimeSearch
from bridges.node.assembly import Node
from kafka_front.service.produce import requests as produce_service
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.node_lab import connect, log_of, serving
from tests.kit.waiting import until

MOST = 60_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path, {"limits.batch_records": str(MOST)}) as node:
        await node.catalog.create_topic("plain", 1)
        await node.catalog.create_topic("compacted", 2, {"cleanup.policy": "compact"})
        yield node


def bomb(count: int, key: bytes | None = b"") -> bytes:
    return bytes(encode([Record(key, None, timestamp=1000, offset=0)] * count, codec=4))


def one(value: bytes, **stamp: int) -> bytes:
    return bytes(encode([Record(b"k", value, timestamp=1000)], **stamp))


def produce(topic: str, *batches: tuple[int, bytes], timeout_ms: int = 30_000, acks: int = -1) -> m.ProduceRequest:
    partitions = [m.ProduceRequest.PartitionProduceData(index, memoryview(records)) for index, records in batches]
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)],
    )


def outcomes(response: m.ProduceResponse) -> list[tuple[int, int]]:
    (topic,) = response.responses
    return [(partition.error_code, partition.base_offset) for partition in topic.partition_responses]


@pytest.mark.parametrize("topic", ["plain", "compacted"])
async def test_more_records_than_the_limit_are_not_stored(node: Node, topic: str) -> None:
    client = await connect(node)
    assert len(bomb(MOST + 1)) < 1000
    response = await client.call(9, produce(topic, (0, bomb(MOST + 1))))
    assert outcomes(response) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]
    assert log_of(node, topic).high_watermark == 0
    assert node.works.steps == 0
    client.writer.close()


async def test_a_pipelining_producer_keeps_its_order_behind_a_long_check(node: Node) -> None:
    client, other = await connect(node), await connect(node)
    count = 30_000
    sent = [
        client.send(9, produce("compacted", (0, bomb(count)))),
        client.send(9, produce("compacted", (0, one(b"behind")), (1, one(b"elsewhere")))),
        client.send(9, produce("compacted", (0, bomb(count, key=None)))),
        client.send(9, produce("compacted", (0, one(b"last")))),
    ]
    # The other's answer comes although the first connection's batches are still looked at.
    await until(lambda: node.works.steps)
    assert outcomes(await other.call(9, produce("compacted", (0, one(b"other"))))) == [(0, 0)]
    answers = dict([await client.receive() for _ in sent])
    bad = outcomes(answers[sent[2]])
    assert outcomes(answers[sent[0]]) == [(0, 1)]
    assert outcomes(answers[sent[1]]) == [(0, count + 1), (0, 0)]
    assert bad == [(ErrorCode.INVALID_RECORD, -1)]
    assert outcomes(answers[sent[3]]) == [(0, count + 2)]
    named = answers[sent[2]].responses[0].partition_responses[0].record_errors
    assert [error.batch_index for error in named[:2]] == [0, 1]
    assert len(named) == 1000
    assert node.works.steps >= 2 * (count // SLICE_RECORDS - 1)
    client.writer.close()
    other.writer.close()


async def test_a_request_of_many_batches_is_looked_at_a_turn_at_a_time(node: Node) -> None:
    client = await connect(node)
    batches = [(number % 2, bomb(400)) for number in range(50)]
    response = await client.call(9, produce("compacted", *batches))
    expected = [(0, number // 2 * 400) for number in range(50)]
    assert outcomes(response) == expected, "in order, although some were looked at in the request's turn"
    assert node.works.steps > 0
    client.writer.close()


@pytest.mark.usefixtures("slow_turns")
async def test_a_request_of_countless_partitions_is_handed_out_a_share_at_a_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_service, "LONG", 10)
    shares: list[int] = []
    turns = 0
    real = produce_service.accept

    def accept(*args: Any) -> Any:
        while len(shares) <= turns:
            shares.append(0)
        shares[turns] += 1
        return real(*args)

    monkeypatch.setattr(produce_service, "accept", accept)
    client, other = await connect(node), await connect(node)
    many = [(number % 3, one(b"%d" % number)) for number in range(95)]  # partition 2 does not exist
    sent = [
        client.send(9, produce("compacted", *many, timeout_ms=0)),
        client.send(9, produce("compacted", (0, one(b"behind")))),
        client.send(9, produce("compacted", *many[:1], acks=2)),
        client.send(9, produce("compacted", (0, one(b"last")))),
    ]
    await client.writer.drain()
    while not shares or sum(shares) < 66:
        turns += 1
        await asyncio.sleep(0)
    assert max(shares) <= 20, "what one turn had, though the test may see two as one"
    assert outcomes(await other.call(9, produce("compacted", (1, one(b"other")))))[0][0] == 0
    answers = dict([await client.receive() for _ in sent])
    first = outcomes(answers[sent[0]])
    assert len(first) == 95
    assert list(first[2::3]) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)] * 31
    assert first[0::3] == [(0, number) for number in range(32)]
    assert outcomes(answers[sent[1]]) == [(0, 32)]
    assert outcomes(answers[sent[2]]) == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]
    assert outcomes(answers[sent[3]]) == [(0, 33)]
    client.writer.close()
    other.writer.close()


@pytest.mark.usefixtures("slow_turns")
async def test_a_request_of_many_bytes_is_checked_a_share_at_a_time_and_nothing_overtakes_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several batches or in one: its checksum is one call otherwise, of tens of milliseconds for the largest."""
    summed: list[int] = []
    turns = 0
    real = formats_kafka.crc32c

    def crc32c(data: Any, value: int = 0) -> int:
        while len(summed) <= turns:
            summed.append(0)
        summed[turns] += len(data)
        return real(data, value)

    monkeypatch.setattr(produce_service, "LONG_BYTES", 100_000)
    monkeypatch.setattr(formats_kafka, "STEP", 10_000)
    large, some = one(bytes(900_000)), one(bytes(60_000))
    spoilt = large[:-1] + b"?"
    client = await connect(node)
    monkeypatch.setattr(formats_kafka, "crc32c", crc32c)
    sent = [
        client.send(9, produce("plain", (0, large), (0, spoilt))),
        client.send(9, produce("plain", (0, one(b"behind")))),
        client.send(9, produce("plain", *[(0, some)] * 10)),
        client.send(9, produce("plain", (0, one(b"last")))),
    ]
    await client.writer.drain()
    while sum(summed) < 2_400_000:
        turns += 1
        await asyncio.sleep(0)
    assert max(summed) <= 200_000, "what one turn had, though the test may see two as one"
    answers = dict([await client.receive() for _ in sent])
    assert outcomes(answers[sent[0]]) == [(0, 0), (ErrorCode.CORRUPT_MESSAGE, -1)]
    assert outcomes(answers[sent[1]]) == [(0, 1)]
    assert outcomes(answers[sent[2]]) == [(0, 2 + number) for number in range(10)]
    assert outcomes(answers[sent[3]]) == [(0, 12)]
    client.writer.close()


@pytest.mark.usefixtures("slow_turns")
async def test_a_defect_in_a_turn_costs_one_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_service, "LONG", 10)
    real = produce_service.accept

    def accept(records: Any, *args: Any) -> Any:
        if b"defect" in bytes(records):
            raise RuntimeError("a defect")
        return real(records, *args)

    monkeypatch.setattr(produce_service, "accept", accept)
    client = await connect(node)
    many = [(0, one(b"%d" % number)) for number in range(25)]
    bad = client.send(9, produce("plain", *many, (0, one(b"defect"))))
    good = client.send(9, produce("plain", (0, one(b"behind"))))
    answers = dict([await client.receive() for _ in range(2)])
    assert {code for code, _ in outcomes(answers[bad])} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert outcomes(answers[good]) == [(0, 25)]
    client.writer.close()


async def test_lookups_and_others_go_on_beside_stored_bombs(node: Node) -> None:
    client, other = await connect(node), await connect(node)
    for _ in range(4):
        assert outcomes(await client.call(9, produce("plain", (0, bomb(MOST)))))[0][0] == 0
    ask = m.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            m.ListOffsetsRequest.ListOffsetsTopic(
                name="plain", partitions=[m.ListOffsetsRequest.ListOffsetsPartition(0, timestamp=1000)]
            )
        ],
    )
    before = node.works.steps
    (found,) = (await client.call(5, ask)).topics[0].partitions
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, 1000)
    assert node.works.steps == before, "the first record is found in the first slice"
    assert outcomes(await other.call(9, produce("plain", (0, one(b"x"))))) == [(0, 4 * MOST)]
    client.writer.close()
    other.writer.close()


async def test_a_client_that_leaves_stops_its_search(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await connect(node)
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: object) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(TimeSearch, "first", endless)
    partition = m.ListOffsetsRequest.ListOffsetsPartition(0, timestamp=5)
    topic = m.ListOffsetsRequest.ListOffsetsTopic(name="plain", partitions=[partition])
    client.send(5, m.ListOffsetsRequest(replica_id=-1, topics=[topic]))
    await asyncio.wait_for(started.wait(), 10)
    client.writer.close()
    await asyncio.wait_for(ended.wait(), 10)
