"""A topic is split while one of Kafka's transactions is open in it: the split happens at once, the marker still reaches
the part that was sealed, and readers of all protocols see the transaction whole, or nothing of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import ydb
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pravega_client import StreamManager

from pravega_front.wire.controller import ScaleProgress
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale, stream

PATIENCE = 60
LISTENERS = ("kafka", "ydb", "pravega", "pravega-segmentstore")
HALVES = [[0.0, 0.5], [0.5, 1.0]]
LONG_MS = 15 * 60 * 1000
"""The longest transaction that a node allows unless it is told otherwise."""
SHORT_MS = 8_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = {**dict.fromkeys(LISTENERS, ANY), "console": "off", "sbp-pd": "off", "sbp-range-server": "off"}
    process = NodeProcess(tmp_path_factory.mktemp("split") / "data", settings=TEST_SETTINGS, listen=listen)
    try:
        yield process.start()
    finally:
        process.dispose()


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
        works = {"kafka": self._kafka, "ydb": self._ydb, "pravega": self._pravega}
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
        plainly(
            self._node, self._topic, self._partitions - 1, "end"
        )  # for the wheel, which waits until something comes
        for thread in self._threads:
            thread.join(PATIENCE)

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

    def _ydb(self, reading: Reading) -> None:
        with ydb.Driver(endpoint=f"grpc://{self._node.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            with driver.topic_client.reader(self._topic, "all") as reader:
                while not self._over.is_set():
                    try:
                        batch = reader.receive_batch(timeout=0.2)
                    except TimeoutError:
                        continue
                    if batch is not None:
                        reading.found += [(one.partition_id, one.data.decode()) for one in batch.messages]
                        reader.commit(batch)

    def _pravega(self, reading: Reading) -> None:
        streams = StreamManager(f"tcp://{self._node.addresses['pravega']}")
        reader = streams.create_reader_group(f"all-{self._topic}", "default", self._topic).create_reader("one")

        async def read() -> None:
            while True:
                part = await reader.get_segment_slice_async()
                if self._over.is_set():
                    return
                reading.found += [(-1, bytes(one.data()).decode()) for one in part]
                reader.release_segment(part)

        asyncio.run(read())

    def until(self, condition: Callable[[Reading], bool]) -> None:
        """Return when it holds for each of them."""
        deadline = time.monotonic() + PATIENCE
        while not all(condition(one) for one in self.readings.values()):
            assert not any(one.trouble for one in self.readings.values()), self.readings
            assert time.monotonic() < deadline, [(o.name, o.found) for o in self.readings.values()]
            time.sleep(0.01)


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
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.producer.commit_transaction(10)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


def plainly(node: NodeProcess, topic: str, partition: int, *values: str) -> None:
    """Written by somebody else, in no transaction."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(PATIENCE) == 0
    assert not errors


def split(controller: ControllerClient, topic: str, number: int = 0) -> None:
    """As Pravega's clients do it; how long they wait is the test's."""
    info = stream("default", topic)
    scale(controller, "default", topic, [number], HALVES)
    assert controller.checkScale(streamInfo=info, epoch=0).status == ScaleProgress.SUCCESS


def made(node: NodeProcess, topic: str) -> None:
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    streams.create_scope("default")
    assert streams.create_stream("default", topic, 1)
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.alter_topic(topic, add_consumers=["all"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["commit", "abort", "timeout", "kill, commit", "kill, abort"])
def test_a_transaction_over_a_split_is_whole_for_readers_of_all_protocols(node: NodeProcess, how: str) -> None:
    topic = "over-" + how.replace(", ", "-")
    made(node, topic)
    controller = controller_of(node)
    plainly(node, topic, 0, "before")
    with Readers(node, topic, 3) as readers:
        readers.until(lambda one: one.values == ["before"])
        transaction = Transactional(node, topic, SHORT_MS if how == "timeout" else LONG_MS)
        assert not transaction.write(topic, 0, "t0", "t1")
        plainly(node, topic, 0, "behind")
        begun = time.monotonic()
        split(controller, topic)
        assert time.monotonic() - begun < 3, "the split does not wait for the transaction"
        # Nor does anything else wait: another stream is split, and the parts take records of everybody.
        made(node, f"{topic}-other")
        split(controller, f"{topic}-other")
        plainly(node, topic, 1, "child")
        readers.until(lambda one: one.name != "kafka" or "child" in one.values)
        if how != "timeout":
            assert not transaction.write(topic, 2, "t2"), "it goes on in a part"
            # YDB's and Pravega's readers come to the parts when they have all of what was sealed.
            assert readers.readings["kafka"].values == ["before", "child"]
            assert readers.readings["ydb"].values == readers.readings["pravega"].values == ["before"]
        if how.startswith("kill"):
            node.kill()
            node.start()
        committed = how.endswith("commit")
        if committed:
            transaction.commit()
        elif how.endswith("abort"):
            transaction.producer.abort_transaction(PATIENCE)
        ended = time.monotonic()
        every = {"before", "behind", "child", *(("t0", "t1", "t2") if committed else ())}
        readers.until(lambda one: len(one.values) >= len(every))
        took = time.monotonic() - ended
        controller.close()
    parent = ["before", *(("t0", "t1") if committed else ()), "behind"]
    for reading in readers.readings.values():
        assert not reading.trouble
        assert len(reading.values) == len(every), "each once"
        assert set(reading.values) == every
        assert [value for value in reading.values if value in parent] == parent, "in the order of the log"
    for name in ("ydb", "pravega"):
        assert readers.readings[name].values[: len(parent)] == parent, f"{name}: the parts come behind"
    assert took < (SHORT_MS / 1000 if how == "timeout" else 0) + 10, "no reader waits for longer than for the end"


def test_a_transaction_that_goes_on_in_a_sealed_partition_is_told_at_once(node: NodeProcess) -> None:
    """The error is none that is worth a repetition: the producer aborts and begins again, with the parts' keys."""
    made(node, "goes-on")
    controller = controller_of(node)
    transaction = Transactional(node, "goes-on", LONG_MS)
    assert not transaction.write("goes-on", 0, "lost")
    split(controller, "goes-on")
    (error,) = transaction.write("goes-on", 0, "refused")
    assert error.code() == KafkaError.POLICY_VIOLATION
    with pytest.raises(KafkaException) as refused:
        transaction.producer.commit_transaction(PATIENCE)
    assert refused.value.args[0].txn_requires_abort()
    transaction.producer.abort_transaction(PATIENCE)
    transaction.producer.begin_transaction()
    assert not transaction.write("goes-on", 1, "again")
    transaction.commit()
    with Readers(node, "goes-on", 3) as readers:
        readers.until(lambda one: one.values == ["again"])
    controller.close()


def test_partitions_that_are_added_join_the_transaction_that_is_open(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic("wider", 1, 1)])["wider"].result(PATIENCE)
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.alter_topic("wider", add_consumers=["all"])
    transaction = Transactional(node, "wider", LONG_MS)
    assert not transaction.write("wider", 0, "old")
    admin.create_partitions([NewPartitions("wider", 2)])["wider"].result(PATIENCE)
    assert not transaction.write("wider", 1, "new")
    plainly(node, "wider", 1, "behind")
    found: list[Any] = []
    with Readers(node, "wider", 2) as readers:
        transaction.commit()
        readers.until(lambda one: len(one.values) >= 3)
        found = [sorted(one.values) for one in readers.readings.values()]
    assert found == [["behind", "new", "old"]] * 3
