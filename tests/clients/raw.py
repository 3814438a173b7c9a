"""Requests written by hand, so that no client library stands between: stored batch headers, offered APIs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FETCH_KEY, FETCH_VERSION = 1, 10  # the first version that may carry zstd
BATCH_HEADER = struct.Struct(">qiibihiqqqhii")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """What the header of one record batch says."""

    base_offset: int
    leader_epoch: int
    codec: str
    transactional: bool
    control: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    size: int


def stored_batches(bootstrap: str, topic: str, partition: int, start: int, end: int) -> list[StoredBatch]:
    """The batches that hold the offsets from ``start`` up to ``end``, which must all be there already."""
    host, _, port = bootstrap.rpartition(":")
    batches: list[StoredBatch] = []
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        while start < end:
            connection.sendall(_request(topic, partition, start))
            (size,) = struct.unpack(">i", exactly(connection, 4))
            found = list(_batches(_records(exactly(connection, size))))
            if not found:
                raise AssertionError(f"no batch at offset {start} of {topic}-{partition}")
            batches += found
            start = found[-1].base_offset + found[-1].count
    return batches


def offered_apis(bootstrap: str) -> dict[int, tuple[int, int]]:
    """API key -> lowest and highest version, as the broker advertises them."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">ihhih3s", 13, 18, 0, 7, 3, b"raw"))
        (size,) = struct.unpack(">i", exactly(connection, 4))
        body = exactly(connection, size)
    _correlation, error, count = struct.unpack_from(">ihi", body)
    assert error == 0
    return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", body[10 : 10 + 6 * count])}


def _request(topic: str, partition: int, offset: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhih3s", FETCH_KEY, FETCH_VERSION, 7, 3, b"raw")
    body += struct.pack(">iiiibii", -1, 1000, 1, 1 << 20, 0, 0, -1)  # session 0, epoch -1: no session
    body += struct.pack(f">ih{len(name)}siiiqqi", 1, len(name), name, 1, partition, -1, offset, -1, 1 << 20)
    body += struct.pack(">i", 0)  # forgotten topics
    return struct.pack(">i", len(body)) + body


def exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        received = connection.recv(size - len(parts))
        if not received:
            raise AssertionError("the broker closed the connection")
        parts += received
    return bytes(parts)


def _records(response: bytes) -> bytes:
    _correlation, _throttle, refused, _session, topics, name_size = struct.unpack_from(">iihiih", response)
    if refused:
        raise AssertionError(f"fetch refused with error {refused}")
    at = struct.calcsize(">iihiih") + name_size
    partitions, _partition, error, _high, _stable, _start, aborted = struct.unpack_from(">iihqqqi", response, at)
    if (topics, partitions, error) != (1, 1, 0):
        raise AssertionError(f"unexpected answer: {topics} topics, {partitions} partitions, error {error}")
    at += struct.calcsize(">iihqqqi") + 16 * max(aborted, 0)
    (size,) = struct.unpack_from(">i", response, at)
    return response[at + 4 : at + 4 + max(size, 0)]


def _batches(records: bytes) -> Iterator[StoredBatch]:
    at = 0
    while at + BATCH_HEADER.size <= len(records):
        (
            base,
            length,
            epoch,
            magic,
            _crc,
            attributes,
            _delta,
            _first,
            _max,
            producer,
            producer_epoch,
            sequence,
            count,
        ) = BATCH_HEADER.unpack_from(records, at)
        if at + 12 + length > len(records):
            return  # a batch cut off at the end of the answer
        if magic != 2:
            raise AssertionError(f"magic {magic}")
        yield StoredBatch(
            base_offset=base,
            leader_epoch=epoch,
            codec=CODECS[attributes & 7],
            transactional=bool(attributes & 0x10),
            control=bool(attributes & 0x20),
            producer_id=producer,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            count=count,
            size=12 + length,
        )
        at += 12 + length
