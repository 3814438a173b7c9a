"""What hostile clients send: well-formed requests that ask for too much, and bytes that are no requests at all."""

from __future__ import annotations

import random
import struct
from functools import cache

import cramjam
from crc32c import crc32c

from kafka_front.wire import codec
from kafka_front.wire import messages as m
from pravega_front.wire import commands as pravega
from pravega_front.wire.frames import HEAD, MAX_FRAME, encode
from sbp_back.wire.frame import encode_frame
from sbp_back.wire.model import FetchRequest, PingRequest, RangeInfo, Request
from sbp_back.wire.v02 import DialectV02

NEVER_MS = 2**31 - 1
BULK = "bulk"
BOMBS = "bombs"
GRPC = ("ydb", "pravega")
"""Listeners that speak HTTP/2."""
_HEAD = struct.Struct(">qiib")
_BODY = struct.Struct(">hiqqqhii")


def kafka(version: int, message: object, correlation: int = 1) -> bytes:
    """A whole Kafka request."""
    return b"".join(codec.encode_request(version, correlation, "hostile", message))


def record_batch(records: bytes, count: int, compression: int = 0) -> bytes:
    """A record batch v2 around ``records``, compressed already as ``compression`` (Kafka's number) says."""
    body = _BODY.pack(compression, count - 1, 0, 0, -1, -1, -1, count) + records
    return _HEAD.pack(0, 9 + len(body), -1, 2) + struct.pack(">I", crc32c(body)) + body


def _varint(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def empty_records(count: int) -> bytes:
    """``count`` records without key, value and headers."""
    out = bytearray()
    for number in range(count):
        body = b"\0\0" + _varint(number) + b"\x01\x01\0"
        out += _varint(len(body)) + body
    return bytes(out)


@cache
def bombs() -> tuple[bytes, ...]:
    """Small batches that inflate to very much: a million records, hundreds of megabytes, or both claimed falsely."""
    numbered = empty_records(100_000)
    million = empty_records(1) * 1_000_000
    zeros = bytes(64 * 1024 * 1024)
    return (
        record_batch(bytes(cramjam.zstd.compress(numbered)), 100_000, 4),
        record_batch(bytes(cramjam.zstd.compress(million)), 1_000_000, 4),
        record_batch(bytes(cramjam.gzip.compress(million)), 1_000_000, 1),
        record_batch(bytes(cramjam.zstd.compress(zeros)), 1, 4),
        record_batch(bytes(cramjam.zstd.compress(zeros)), 2**31 - 1, 4),
        record_batch(bytes(cramjam.gzip.compress(zeros)), 7, 1),
        record_batch(bytes(cramjam.lz4.compress(million)), 1_000_000, 3),
        record_batch(b"", 2**31 - 1),
        record_batch(empty_records(10), 2**31 - 1),
    )


def produce(topic: str, batch: bytes, *, acks: int = 1, timeout_ms: int = 30_000) -> bytes:
    """A Produce request with one batch for partition 0."""
    partition = m.ProduceRequest.PartitionProduceData(0, memoryview(batch))
    data = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    return kafka(9, m.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data]))


def fetch(topic: str, partitions: int, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 50 << 20) -> bytes:
    """A Fetch from the beginning of every partition."""
    asked = [
        m.FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=max_bytes)
        for number in range(partitions)
    ]
    topics = [m.FetchRequest.FetchTopic(topic=topic, partitions=asked)]
    request = m.FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, session_epoch=-1, topics=topics
    )
    return kafka(12, request)


@cache
def oversized() -> tuple[bytes, ...]:
    """Requests of Kafka's protocol that name very many things, or things with very long names."""
    topic = m.MetadataRequest.MetadataRequestTopic
    many = [topic(name=f"no-such-topic-{number}") for number in range(100_000)]
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol
    offsets = m.OffsetFetchRequest.OffsetFetchRequestTopic
    numbers = list(range(500_000))
    return (
        kafka(8, m.MetadataRequest(topics=many, allow_auto_topic_creation=False)),
        kafka(8, m.MetadataRequest(topics=[topic(name="x" * 30_000)], allow_auto_topic_creation=True)),
        kafka(
            5,
            m.JoinGroupRequest(
                group_id="oversized",
                session_timeout_ms=6000,
                rebalance_timeout_ms=NEVER_MS,
                protocol_type="consumer",
                protocols=[protocol("range", bytes(4 << 20)) for _ in range(8)],
            ),
        ),
        kafka(5, m.OffsetFetchRequest(group_id="oversized", topics=[offsets(name="t", partition_indexes=numbers)])),
        kafka(1, m.DescribeGroupsRequest(groups=[f"no-such-group-{number}" for number in range(100_000)])),
        fetch(BULK, 100_000),
    )


def sbp(request: Request, stream_id: int = 1) -> bytes:
    """A whole frame of sbp-0.2."""
    opcode, header, payload = DialectV02().encode_request(request)
    return b"".join(encode_frame(opcode, 0, stream_id, header, payload))


def sbp_fetches(where: RangeInfo, count: int, wait_ms: int) -> bytes:
    """``count`` pipelined FETCH requests of 16 MB each, from the start of a range."""
    request = FetchRequest(where, where.start, max_wait_ms=wait_ms, max_bytes=16 << 20)
    return b"".join(sbp(request, number * 2 + 1) for number in range(count))


def sbp_ping(size: int) -> bytes:
    """A PING with a payload, which the server gives back."""
    return sbp(PingRequest(b"", bytes(size)))


def pravega_commands(*commands: pravega.Command) -> bytes:
    """Commands to Pravega's segment store."""
    return b"".join(bytes(part) for command in commands for part in encode(command))


def pravega_segment(topic: str, number: int) -> str:
    """What Pravega calls a topic's partition."""
    return f"default/{topic}/{number}.#epoch.0"


def pravega_reads(partitions: int) -> bytes:
    """Pipelined reads from the starts of many segments."""
    names = [pravega_segment(BULK, number) for number in range(partitions)]
    return pravega_commands(*(pravega.ReadSegment(name, 0, 8 << 20, "", 1) for name in names))


@cache
def half_frame(listener: str) -> bytes:
    """The beginning of a large request: the length of all of it, and about a megabyte."""
    if listener == "kafka":
        whole = produce(BOMBS, record_batch(bytes(1 << 20), 1))
        return struct.pack(">i", 90 << 20) + whole[4:]
    if listener == "console":
        return b"POST /api/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n" + bytes(1 << 20)
    if listener == "pravega-segmentstore":
        return one_request(listener) + HEAD.pack(pravega.AppendBlock.code, MAX_FRAME - HEAD.size) + bytes(1 << 20)
    if listener in GRPC:
        return one_request(listener) + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(1 << 20)
    return struct.pack(">I", (16 << 20) - 64) + sbp_ping(1 << 20)[4:]


def one_request(listener: str) -> bytes:
    """A small and correct request."""
    if listener == "kafka":
        return kafka(8, m.MetadataRequest(topics=None))
    if listener == "console":
        return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    if listener == "pravega-segmentstore":
        return pravega_commands(pravega.Hello(17, 5), pravega.KeepAlive())
    if listener in GRPC:  # how HTTP/2 begins, empty settings, and a ping
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0\x08\6\0\0\0\0\0" + bytes(8)
    return sbp_ping(64)


def garbage(rng: random.Random, listener: str) -> bytes:
    """Bytes that are no request, in several ways."""
    request = bytearray(one_request(listener))
    kind = rng.randrange(7)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 4096))
    if kind == 1:
        return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(508)  # a TLS hello
    if kind == 2:
        return b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * rng.randrange(2000) + b"\r\n"
    if kind == 3:
        return struct.pack(">i", rng.choice((-1, 0, 1, 7, NEVER_MS))) + rng.randbytes(64)
    if kind == 4:  # a count of two thousand million where a list begins
        body = struct.pack(">hhih", rng.choice((0, 1, 2, 3, 8, 9, 11)), rng.randrange(9), 1, -1)
        body += struct.pack(">i", NEVER_MS) * 64
        return struct.pack(">i", len(body)) + body
    for _ in range(rng.randrange(1, 8)):
        request[rng.randrange(4, len(request))] = rng.randrange(256)
    return bytes(request) * (100 if kind == 5 else 1)
