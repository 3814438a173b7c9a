"""Readers of all protocols, and one of Kafka's transactions, while a topic is split."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import ydb
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from pravega_client import StreamManager

from pravega_front.wire.controller import ScaleProgress
from tests.kit.waiting import wait_until
from tests.kit.wheel import next_slice
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale, stream

PATIENCE = 60
LISTENERS = ("kafka", "ydb", "pravega", "pravega-segmentstore")
HALVES = [[0.0, 0.5], [0.5, 1.0]]
LONG_MS = 15 * 60 * 1000
"""The longest transaction that a node allows unless it is told otherwise."""


def controller_of(node: NodeProcess) -> ControllerClient:
    client = ControllerClient(node.addresses["pravega"])
    client.createScope(scope="default")  # or it is there already
    return client


@dataclass
class Reading:
    """What the reader of one protocol was given: (partition, value), in its order; Pravega's does not tell of which."""

    name: str
    found: list[tuple[int, str]] = field(default_factory=list)
    trouble: list[BaseException] = field(default_factory=list)

    @property
    def values(self) -> list[str]:
        return [value for _, value in self.found]


class Readers:
    """A reader of each protocol, which reads all of a topic from its beginning on while other things happen."""

    def __init__(self, node: NodeProcess, topic: str, partitions: int) -> None:
        self._node, self._topic, self._partitions = node, topic, partitions
        self._over = threading.Event()
        works = {
            "kafka": self._kafka,
            "ydb": partial(self._ydb, "all", True),
            "ydb-old": partial(self._ydb, "old", False),
            "pravega": self._pravega,
        }
        self.readings = {name: Reading(name) for name in works}
        self._threads = [
            threading.Thread(target=self._run, args=(work, self.readings[name]), daemon=True)
            for name, work in works.items()
        ]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        *polling, wheel = self._threads
        for thread in polling:
            thread.join(PATIENCE)
        # The wheel waits until something comes. The others would count that record if they were still polling.
        plainly(self._node, self._topic, self._partitions - 1, "end")
        wheel.join(PATIENCE)

    def _run(self, work: Callable[[Reading], None], reading: Reading) -> None:
        try:
            work(reading)
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            reading.trouble.append(error)

    def _kafka(self, reading: Reading) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._node.kafka,
                "group.id": "kafka",  # one of YDB's consumer's name would share its positions
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self._topic, number, 0) for number in range(self._partitions)])
        try:
            while not self._over.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    value = message.value()
                    assert isinstance(value, bytes)
                    reading.found.append((message.partition() or 0, value.decode()))
        finally:
            consumer.close()

    def _ydb(self, consumer: str, knows_splits: bool, reading: Reading) -> None:
        """``knows_splits``: otherwise parts come when all of what they were split from is confirmed.

        What is confirmed never comes again. A node that ends before it says so may not have stored it.
        """
        doubtful: set[tuple[int, str]] = set()
        driver = ydb.Driver(endpoint=f"grpc://{self._node.ydb}", database="/local")
        with driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            with driver.topic_client.reader(self._topic, consumer, auto_partitioning_support=knows_splits) as reader:
                while not self._over.is_set():
                    try:
                        batch = reader.receive_batch(timeout=0.2)
                    except TimeoutError:
                        continue
                    if batch is None:
                        continue
                    values = [(one.partition_id, one.data.decode()) for one in batch.messages]
                    reading.found += [one for one in values if one not in doubtful]
                    doubtful.difference_update(values)
                    try:
                        reader.commit_with_ack(batch, PATIENCE)
                    except ydb.TopicReaderPartitionExpiredError:
                        doubtful.update(values)

    def _pravega(self, reading: Reading) -> None:
        streams = StreamManager(f"tcp://{self._node.addresses['pravega']}")
        reader = streams.create_reader_group(f"all-{self._topic}", "default", self._topic).create_reader("one")

        async def read() -> None:
            while True:
                events = await next_slice(reader)
                if self._over.is_set():
                    return
                reading.found += [(-1, event.decode()) for event in events]

        asyncio.run(read())

    def until(self, condition: Callable[[Reading], bool]) -> None:
        """Return when it holds for each of them."""
        deadline = time.monotonic() + PATIENCE
        while not all(condition(one) for one in self.readings.values()):
            assert not any(one.trouble for one in self.readings.values()), self.readings
            assert time.monotonic() < deadline, [(o.name, o.found) for o in self.readings.values()]
            time.sleep(0.01)

    def see_nothing_of_it(self) -> None:
        """Of the open transaction. All but Kafka's come to the parts when they have all of what was split."""
        for name, reading in self.readings.items():
            assert reading.values == (["before", "child"] if name == "kafka" else ["before"]), name


class Transactional:
    """A producer with an open transaction."""

    def __init__(self, node: NodeProcess, name: str, timeout_ms: int) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": node.kafka,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 200,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(PATIENCE)
        self.producer.begin_transaction()

    def write(self, topic: str, partition: int, *values: str) -> list[KafkaError]:
        """The errors of those that were refused."""
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(error)

        deadline = time.monotonic() + PATIENCE
        while len(self.producer.list_topics(topic, PATIENCE).topics[topic].partitions) <= partition:
            assert time.monotonic() < deadline
        for value in values:
            while True:
                try:
                    self.producer.produce(topic, value, partition=partition, on_delivery=told)
                    break
                except KafkaException as error:
                    # It hears of partitions a moment after that.
                    if error.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                        raise
                    self.producer.poll(0.01)
        assert self.producer.flush(PATIENCE) == 0
        return errors

    def commit(self) -> None:
        self._until_done(self.producer.commit_transaction)

    def abort(self) -> None:
        self._until_done(self.producer.abort_transaction)

    @staticmethod
    def _until_done(call: Callable[[float], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                call(10)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


def plainly(node: NodeProcess, topic: str, partition: int, *values: str) -> None:
    """Written by somebody else, in no transaction."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    # librdkafka fails at once for a partition that the node it asks has not heard of yet.
    wait_until(lambda: partition in producer.list_topics(topic, PATIENCE).topics[topic].partitions)

    def report(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=report)
    assert producer.flush(PATIENCE) == 0
    assert errors == []


def split(controller: ControllerClient, topic: str, number: int = 0) -> None:
    """As Pravega's clients do it; how long they wait is the test's."""
    info = stream("default", topic)
    scale(controller, "default", topic, [number], HALVES)
    assert controller.checkScale(streamInfo=info, epoch=0).status == ScaleProgress.SUCCESS


def made(node: NodeProcess, topic: str) -> None:
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    streams.create_scope("default")
    assert streams.create_stream("default", topic, 1)
    add_consumers(node, topic)


def add_consumers(node: NodeProcess, topic: str) -> None:
    """Those of YDB's readers."""
    driver = ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local")
    with driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.alter_topic(topic, add_consumers=["all", "old"])


def end(readers: Readers, transaction: Transactional, how: str) -> float:
    """End it in the way that ``how`` ends with, and return when readers have all that there is; how long that took."""
    if how.endswith("commit"):
        transaction.commit()
    elif how.endswith("abort"):
        transaction.abort()
    ended = time.monotonic()
    every, _ = expected(how)
    readers.until(lambda one: len(one.values) >= len(every))
    return time.monotonic() - ended


def expected(how: str) -> tuple[set[str], list[str]]:
    """All values; and those of the partition that was split, in their order."""
    t0, t2 = (["t0", "t1"], ["t2"]) if how.endswith("commit") else ([], [])
    parent = ["before", *t0, "behind"]
    return {*parent, *t2, "child"}, parent


def judge(readers: Readers, how: str) -> None:
    """Each reader was given everything once, in the order of the log."""
    every, parent = expected(how)
    for reading in readers.readings.values():
        assert not reading.trouble
        assert len(reading.values) == len(every), (reading.name, reading.values)
        assert set(reading.values) == every
        assert [value for value in reading.values if value in parent] == parent, reading.name
        if reading.name != "kafka":
            assert reading.values[: len(parent)] == parent, f"{reading.name}: the parts come behind"
