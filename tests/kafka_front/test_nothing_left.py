"""Connections and requests that have ended, however they did, go at once and not when the collector finds them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.node.assembly import Node
from kafka_front.front import KafkaFront
from kafka_front.server import Server
from kafka_front.wire import codec
from kafka_front.wire import messages as m
from tests.kafka_front.node_lab import serving
from tests.left_behind import End, Link, left_of_connections

LENGTH = struct.Struct(">i")
MUCH = 1 << 30


def request(version: int, message: Any) -> bytes:
    return b"".join(codec.encode_request(version, 1, "tester", message))


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def produce(topic: str, records: bytes) -> bytes:
    data = [m.ProduceRequest.PartitionProduceData(0, memoryview(records))]
    topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    return request(9, m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))


def fetch(topic: str, offset: int = 0, wait_ms: int = 0) -> bytes:
    asked = [m.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MUCH)]
    topics = [m.FetchRequest.FetchTopic(topic=topic, partitions=asked)]
    return request(
        12, m.FetchRequest(max_wait_ms=wait_ms, min_bytes=MUCH, max_bytes=MUCH, session_epoch=-1, topics=topics)
    )


METADATA = request(8, m.MetadataRequest(topics=None))
ONE = bytes(encode([Record(b"k", b"v", timestamp=1000)]))
COUNTLESS = struct.pack(">i", 2**31 - 1)
JOIN = request(
    5,
    m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"")],
    ),
)


def sends(data: bytes, answers: int = 0) -> End:
    """Sends ``data`` and goes when so many answers have come."""

    async def end(link: Link) -> None:
        await link.send(data)
        for _ in range(answers):
            await link.frame(LENGTH)
        link.reset()

    return end


def is_cut(data: bytes) -> End:
    """Sends what the server does not put up with."""

    async def end(link: Link) -> None:
        await link.send(data)
        await link.closed()

    return end


ENDS: dict[str, End] = {
    "nothing is said": sends(b""),
    "an answer has come": sends(METADATA, 1),
    "within a small frame": sends(METADATA + METADATA[:10], 1),
    "within a large frame": sends(METADATA + LENGTH.pack(90 << 20) + bytes(100_000), 1),
    "a frame of no length": is_cut(METADATA + LENGTH.pack(-1)),
    "an API nobody knows": is_cut(framed(struct.pack(">hhih", 999, 0, 1, -1))),
    "a version nobody knows": is_cut(framed(struct.pack(">hhih", 3, 99, 1, -1))),
    "half a header": is_cut(framed(struct.pack(">hhih", 3, 8, 1, 3000))),
    "a request that is none": is_cut(framed(struct.pack(">hhih", 1, 11, 1, -1) + COUNTLESS * 64)),
    "a long request that is none": is_cut(framed(struct.pack(">hhih", 3, 8, 1, -1) + COUNTLESS * 20_000)),
    "while one waits": sends(METADATA + fetch("t", wait_ms=60_000), 1),
    "while others wait behind it": sends(METADATA + fetch("t", wait_ms=60_000) + produce("t", ONE) * 8, 1),
    "before what was produced is durable": sends(METADATA + produce("t", ONE) * 4, 1),
    "before a group is complete": sends(METADATA + JOIN, 1),
    "with something read ahead": sends(fetch("t"), 1),
}


def server_of(node: Node) -> Server:
    (front,) = node.fronts
    assert isinstance(front, KafkaFront)
    assert front.server is not None
    assert front.server.server is not None
    return front.server.server


async def test_nothing_is_left_of_a_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        await node.catalog.create_topic("t", 1)
        address = node.addresses["kafka"]
        assert await left_of_connections(server_of(node), (address.host, address.port), ENDS) == {}
