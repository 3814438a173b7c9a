"""What benchmarks of the data pipeline need besides Spark: topics of records, a trickle, a plain copy loop, CPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BATCH_BYTES = 128 * 1024
"""Most bytes of a batch that records are sent in, whoever keeps them."""
KEY_BYTES = 16
_VALUES = 256
_LOOK_S = 30.0


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic that nothing is deleted from meanwhile."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})])
    made[topic].result(30)


def delete(bootstrap: str, topic: str) -> None:
    """A topic that nobody needs any more: its files are for the server to delete when it likes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def _producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )


def fill(bootstrap: str, topic: str, partitions: int, size: int, count: int) -> None:
    """Write ``count`` records with keys of 16 bytes and random values of ``size`` bytes, to all partitions in turn."""
    producer = _producer(bootstrap)
    values = [os.urandom(size) for _ in range(_VALUES)]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number % _VALUES], b"key %012d" % number, number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} records of {topic} were not written")


@contextmanager
def trickle(bootstrap: str, topic: str, partitions: int, every_s: float = 0.01) -> Iterator[None]:
    """While the block lasts, a record to each partition every ``every_s`` seconds."""
    over = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def run() -> None:
        while not over.wait(every_s):
            for partition in range(partitions):
                producer.produce(topic, b"beat", b"key", partition)
            producer.poll(0)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        producer.flush(30)


def plain_copy(source: str, target: str, topic: str, to: str, partitions: int, count: int) -> float:
    """A consumer and a producer in a loop, as one writes it by hand: ``count`` records; seconds from the first one."""
    consumer = Consumer(
        {
            "bootstrap.servers": source,
            "group.id": f"copy-{to}",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "fetch.message.max.bytes": 8 * 1024 * 1024,
            "queued.max.messages.kbytes": 262_144,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])
    producer = _producer(target)
    copied, began, heard = 0, 0.0, time.monotonic()
    while copied < count:
        messages = consumer.consume(10_000, 0.5)
        if not messages:
            if time.monotonic() > heard + _LOOK_S:
                raise RuntimeError(f"{copied} of {count} records of {topic} came")
            continue
        heard = time.monotonic()
        began = began or heard
        for message in messages:
            error = message.error()
            if error is not None:
                raise RuntimeError(str(error) if isinstance(error, KafkaError) else "a record is none")
            while True:
                try:
                    headers, partition = message.headers() or None, message.partition()
                    assert partition is not None
                    producer.produce(to, message.value(), message.key(), partition, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        copied += len(messages)
    if producer.flush(120):
        raise RuntimeError(f"not all records of {topic} were copied")
    consumer.close()
    return time.monotonic() - began


def cpu(*pids: int) -> float:
    """CPU seconds of processes, of those that they have started, and of those that ended and were waited for."""
    return sum(map(_of_tree, pids))


def _of_tree(pid: int) -> float:
    total = 0.0
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
