"""What YDB's and Pravega's clients do in the demonstration: the same topics, through other protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import ydb
from kafka.partitioner.default import murmur2
from pravega_client import StreamManager

from benchmarks.flights import PARTITIONS, PATIENCE, DemoFailed, Flight, Seen
from tests.kit.wheel import read_events

T = TypeVar("T")

CONSUMER = "demo"
"""YDB's consumer, which is also Kafka's group of this name."""
COPIER = "demo-copy"
"""The consumer whose positions a transaction commits."""


def home(key: bytes) -> int:
    """The partition where Kafka's clients write a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % PARTITIONS)


def _topics(driver: Any) -> Any:
    """The SDK's client of topics: its own hints do not tell what a driver has when it is entered."""
    return driver.topic_client


def write_ydb(endpoint: str, topic: str, flights: Sequence[Flight]) -> None:
    """YDB's SDK, gzip: a producer for each partition; keys and headers are metadata items. Raises the SDK's errors."""
    parts: list[list[Flight]] = [[] for _ in range(PARTITIONS)]
    for flight in flights:
        parts[home(flight.key)].append(flight)
    with ydb.Driver(endpoint=f"grpc://{endpoint}", database="/local") as opened:
        opened.wait(timeout=PATIENCE, fail_fast=True)
        client = _topics(opened)
        client.alter_topic(topic, add_consumers=[CONSUMER])
        for partition, part in enumerate(parts):
            producer = f"demo-{partition}"
            with client.writer(
                topic, producer_id=producer, partition_id=partition, auto_created_at=False, codec=ydb.TopicCodec.GZIP
            ) as writer:
                for begin in range(0, len(part), 1000):
                    writer.write([_message(flight) for flight in part[begin : begin + 1000]])
                writer.flush(timeout=PATIENCE)


def _message(flight: Flight) -> Any:
    items: dict[str, str | bytes] = {"__key": flight.key, "carrier": flight.carrier}
    moment = datetime.fromtimestamp(flight.timestamp / 1000, UTC)
    return ydb.TopicWriterMessage(flight.value, metadata_items=items, created_at=moment)


def read_ydb(endpoint: str, topic: str, count: int, told: Callable[[Any], T]) -> list[T]:
    """YDB's SDK as a reader of the consumer: what ``told`` makes of each message. All of it is committed when the
    reader has closed."""
    seen: list[T] = []
    with ydb.Driver(endpoint=f"grpc://{endpoint}", database="/local") as opened:
        opened.wait(timeout=PATIENCE, fail_fast=True)
        client = _topics(opened)
        with client.reader(topic, CONSUMER) as reader:
            while len(seen) < count:
                batch = reader.receive_batch(timeout=PATIENCE)
                if batch is None:
                    raise DemoFailed(f"YDB's reader got nothing for {PATIENCE} s after {len(seen)} of {count}")
                seen += [told(message) for message in batch.messages]
                reader.commit(batch)
    return seen


def copy_ydb(endpoint: str, topic: str, target: str, count: int) -> list[bytes]:
    """YDB's SDK: copy so many messages of a topic to a new one, in one transaction with the consumer's positions, after
    another transaction that is rolled back. The values copied."""
    copied: list[bytes] = []
    driver = ydb.Driver(endpoint=f"grpc://{endpoint}", database="/local")
    with driver, ydb.QuerySessionPool(driver) as pool:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        client = _topics(driver)
        client.alter_topic(topic, add_consumers=[COPIER])
        client.create_topic(target, min_active_partitions=PARTITIONS)
        with pool.checkout(timeout=PATIENCE) as session, session.transaction() as rolled_back:
            rolled_back.begin()
            writer = client.tx_writer(rolled_back, target)
            writer.write([b"never read"] * count)
            writer.flush(timeout=PATIENCE)
            rolled_back.rollback()
        with client.reader(topic, COPIER) as reader:

            def copy(tx: Any) -> None:
                writer = client.tx_writer(tx, target)
                copied.clear()
                while len(copied) < count:
                    left = count - len(copied)
                    batch = reader.receive_batch_with_tx(tx, max_messages=left, timeout=PATIENCE)
                    copied.extend(message.data for message in batch.messages)
                writer.write(list(copied))

            pool.retry_tx_sync(copy)
    return copied


def seen_of(message: Any) -> Seen:
    """A message that came from Kafka's clients or YDB's."""
    items = message.metadata_items
    created: datetime = message.created_at
    stamp = round(created.replace(tzinfo=created.tzinfo or UTC).timestamp() * 1000)
    return Seen(message.partition_id, message.offset, items["__key"], message.data, stamp, items["carrier"])


def read_pravega(controller: str, topic: str, count: int) -> list[bytes]:
    """Pravega's Rust client as a reader group: the events, which are the records' values."""
    streams = StreamManager(f"tcp://{controller}")
    reader = streams.create_reader_group(f"{topic}-group", "default", topic).create_reader("reader")
    found = asyncio.run(asyncio.wait_for(read_events(reader, count), PATIENCE))
    reader.reader_offline()
    return found


def write_pravega(controller: str, stream: str, flights: Sequence[Flight]) -> None:
    """Pravega's Rust client: events with the keys as routing keys, into a stream that is made if need be."""
    streams = StreamManager(f"tcp://{controller}")
    streams.create_stream("default", stream, PARTITIONS)
    writer = streams.create_writer("default", stream, max_inflight_events=1000)
    for flight in flights:
        writer.write_event_bytes(flight.value, routing_key=flight.key.decode())
    writer.flush()
