"""Topics as a migration meets them, made in a real Kafka: codecs, compaction's gaps, transactions, late beginnings.

Each maker gives the topic's name and leaves it with a known property, which it makes sure of itself: a test of gaps in
a topic without gaps would show nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from spark_pipeline.core.kafka_batches import heads
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.ranges import TopicPartition as Part
from spark_pipeline.endpoints.kafka.endpoint import KafkaEndpoint

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Source:
    """A broker that topics are made on."""

    bootstrap: str

    @property
    def url(self) -> str:
        """As migrations are told it."""
        return f"kafka://{self.bootstrap}"

    def admin(self) -> AdminClient:
        """An admin client."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def producer(self, **settings: Any) -> Producer:
        """A producer of small batches, so that there are many."""
        return Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 1, "batch.num.messages": 50, "acks": "all", **settings}
        )

    def create(self, prefix: str, partitions: int = 1, **config: str) -> str:
        """A new topic; underscores in names of configurations stand for dots."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()  # it must outlive its futures
        for future in admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values():
            future.result(30)
        return name


def of_codec(source: Source, codec: str, *, partitions: int = 2, records: int = 500, size: int = 100) -> str:
    """Records of all shapes, compressed with ``codec``: without key, without value, with headers."""
    # Its timestamps are old: without this the broker's retention would take them during the test.
    topic = source.create(f"codec-{codec}", partitions, retention_ms="-1")
    producer = source.producer(**{"compression.type": codec})
    for number in range(records):
        producer.produce(
            topic,
            None if number % 7 == 0 else bytes([number % 251]) * (number % size + 1),
            None if number % 5 == 0 else f"k{number % 50}",
            number % partitions,
            headers=[("n", str(number).encode()), ("empty", None)] if number % 3 == 0 else None,
            timestamp=1_700_000_000_000 + number,
        )
    assert producer.flush(60) == 0
    return topic


def transactional(source: Source, *, rounds: int = 6, records: int = 40) -> str:
    """Committed and aborted transactions, whose markers take offsets, among records of none."""
    topic = source.create("transactions", 2)
    plain = source.producer()
    producer = source.producer(**{"transactional.id": topic, "enable.idempotence": True})
    producer.init_transactions(60)
    for turn in range(rounds):
        producer.begin_transaction()
        for number in range(records):
            producer.produce(topic, f"t{turn}-{number}", f"k{number % 10}", number % 2)
            if number % 10 == 0:
                plain.produce(topic, f"p{turn}-{number}", None, number % 2)
        plain.flush(30)
        producer.flush(30)  # one that is aborted before anything of it was sent leaves no trace
        if turn % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    return topic


def beginning_late(source: Source, *, records: int = 600, first: int = 333) -> str:
    """Its log begins at offset ``first``, in the middle of a batch."""
    topic = source.create("late", 1)
    # One producer call of many records: batches of 50 that do not end at ``first``.
    producer = source.producer()
    for number in range(records):
        producer.produce(topic, f"value {number}", f"k{number}", 0)
    assert producer.flush(60) == 0
    admin = source.admin()
    deleted = admin.delete_records([TopicPartition(topic, 0, first)])
    assert [future.result(30).low_watermark for future in deleted.values()] == [first]
    return topic


def compacted(source: Source, *, wait_seconds: float = 120.0) -> str:
    """The cleaner has taken whole batches out of it, and records out of others; it ends with a gap in front."""
    topic = source.create(
        "compacted",
        1,
        cleanup_policy="compact",
        segment_bytes="1048576",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="100",
    )
    producer = source.producer(**{"batch.num.messages": 20})
    sent = 0
    for turn in range(12):
        for number in range(100):
            # Most keys come again; one in twenty-five stays.
            key = f"once-{turn}-{number}" if number % 25 == 0 else f"k{number % 10}"
            producer.produce(topic, f"turn {turn} record {number}", key, 0)
            sent += 1
        assert producer.flush(60) == 0
        time.sleep(0.12)  # a segment's age: brokers roll one that is older than this at the next record
    part = Part(topic, 0)
    endpoint = KafkaEndpoint(source.url, {})
    try:
        deadline = time.monotonic() + wait_seconds
        while True:
            end = endpoint.positions([part])[part].high_watermark
            taken = gaps(endpoint, OffsetRange(topic, 0, 0, end))
            if taken:
                return topic
            if time.monotonic() > deadline:
                raise AssertionError("the broker's cleaner took nothing")
            time.sleep(0.5)
    finally:
        endpoint.close()


def gaps(endpoint: KafkaEndpoint, range: OffsetRange) -> list[tuple[int, int]]:
    """Where no batch lies."""
    found: list[tuple[int, int]] = []
    at = range.start
    for part in endpoint.read_sets(range):
        for head in heads(part.payload, range.topic):
            if head.base_offset > at:
                found.append((at, head.base_offset))
            at = head.end_offset
    return found


def a_group(source: Source, topics: list[str], records: int = 100) -> tuple[str, dict[tuple[str, int], int]]:
    """A group that has read some of ``topics`` and committed it: its name, and the positions."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    consumer = Consumer(
        {
            "bootstrap.servers": source.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(topics)
    seen = 0
    deadline = time.monotonic() + 60
    while seen < records and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            seen += 1
    assert seen == records
    committed = consumer.commit(asynchronous=False)
    consumer.close()
    return group, {(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}


def read_all(bootstrap: str, topic: str, *, isolation: str = "read_committed", seconds: float = 60.0) -> list[tuple]:
    """Every record that a Kafka consumer gets: partition, offset, key, value, headers, timestamp."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, one, -2) for one in partitions])
        ended: set[int] = set()
        found: list[tuple] = []
        deadline = time.monotonic() + seconds
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} was not read to its end: {len(found)} records"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add(message.partition())
                continue
            found.append(
                (
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.headers(),
                    message.timestamp(),
                )
            )
        return sorted(found, key=lambda row: row[:2])
    finally:
        consumer.close()


MAKERS: dict[str, Callable[[Source], str]] = {
    **{codec: (lambda source, codec=codec: of_codec(source, codec)) for codec in CODECS},
    "transactions": transactional,
    "late": beginning_late,
    "compacted": compacted,
}
