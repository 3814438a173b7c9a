"""Kafka clients that write and read beside faults, and know what they were told."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

PATIENCE = 120
PARTITIONS = 12
TOPIC = "flights"


def leaders(admin: AdminClient) -> dict[int, int]:
    described = admin.list_topics(TOPIC, timeout=PATIENCE).topics[TOPIC]
    return {number: partition.leader for number, partition in described.partitions.items()}


def await_leaders(admin: AdminClient, wanted: set[int]) -> dict[int, int]:
    began = time.monotonic()
    while set((found := leaders(admin)).values()) != wanted:
        assert time.monotonic() - began < PATIENCE, found
        time.sleep(0.2)
    return found


class Writer:
    """Produces to all partitions in turns; knows what was acknowledged, and the longest time without anything."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[object] = []
        self.longest = 0.0
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self._last: dict[int, float] = {}
        self._count = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})

    def _told(self, error: object, message: object) -> None:
        if error:
            self.failed.append(error)
            return
        now = time.monotonic()
        partition = message.partition()
        self.longest = max(self.longest, now - self._last.get(partition, now))
        self._last[partition] = now
        self.acknowledged[partition, message.offset()] = message.value()
        self.ends[partition] = message.offset() + 1

    def write(self, seconds: float = PATIENCE, over: threading.Event | None = None) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (over is not None and over.is_set()):
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"%d" % self._count, partition=partition, on_delivery=self._told)
                self._count += 1
            self._producer.poll(0.01)

    def close(self) -> int:
        """The number of records written."""
        assert self._producer.flush(PATIENCE) == 0
        return self._count


class Reader(threading.Thread):
    """A member of a group; ``seen`` is shared by its members."""

    def __init__(self, bootstrap: str, seen: dict[tuple[int, int], int]) -> None:
        super().__init__()
        self.seen = seen
        self.longest = 0.0
        self.over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([TOPIC])
        last = 0.0
        while not self.over.is_set():
            message = self._consumer.poll(0.2)
            if message is None or message.error():
                continue
            now = time.monotonic()
            self.longest = max(self.longest, now - last if last else 0.0)
            last = now
            place = (message.partition(), message.offset())
            self.seen[place] = self.seen.get(place, 0) + 1
        self._consumer.close()


def await_acknowledged(writer: Writer, more: int) -> None:
    """Return when each partition has so many more records."""
    began = time.monotonic()
    wanted = {partition: writer.ends[partition] + more for partition in range(PARTITIONS)}
    while any(writer.ends[partition] < end for partition, end in wanted.items()):
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)


def read_all(bootstrap: str) -> dict[tuple[int, int], bytes]:
    options = {"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False}
    consumer = Consumer({**options, "enable.partition.eof": True, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: dict[tuple[int, int], bytes] = {}
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        else:
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found
