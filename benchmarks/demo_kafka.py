"""What Kafka's clients do in the demonstration: three libraries, each with another codec."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from benchmarks.flights import PARTITIONS, PATIENCE, DemoFailed, Flight, Seen

# --- writing ---------------------------------------------------------------------------------------------------------


def write_confluent(bootstrap: str, topic: str, flights: Sequence[Flight]) -> None:
    """confluent-kafka: idempotent, zstd. Raises DemoFailed on any refused record."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "partitioner": "murmur2_random",  # what the other clients use: a key keeps its partition
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )
    errors: list[str] = []

    def delivered(error: object, _: Message) -> None:
        if error is not None:
            errors.append(str(error))

    for flight in flights:
        while True:
            try:
                producer.produce(
                    topic,
                    flight.value,
                    flight.key,
                    timestamp=flight.timestamp,
                    headers=[("carrier", flight.carrier)],
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(PATIENCE)
    if left or errors:
        raise DemoFailed(f"confluent-kafka: {left} records unanswered, {len(errors)} refused: {errors[:3]}")


def write_kafka_python(bootstrap: str, topic: str, flights: Sequence[Flight]) -> None:
    """kafka-python: acks=all, lz4. Raises the library's error on any refused record."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type="lz4", linger_ms=5, batch_size=65536
    )
    try:
        answers = [
            producer.send(
                topic,
                flight.value,
                flight.key,
                timestamp_ms=flight.timestamp,
                headers=[("carrier", flight.carrier)],
            )
            for flight in flights
        ]
        producer.flush(PATIENCE)
        for answer in answers:
            answer.get(PATIENCE)
    finally:
        producer.close()


async def write_aiokafka(bootstrap: str, topic: str, flights: Sequence[Flight]) -> None:
    """aiokafka: idempotent, gzip. Raises the library's error on any refused record."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        compression_type="gzip",
        linger_ms=5,
        max_batch_size=65536,
    )
    await producer.start()
    try:
        answers = []
        for flight in flights:
            answers.append(
                await producer.send(
                    topic,
                    flight.value,
                    flight.key,
                    timestamp_ms=flight.timestamp,
                    headers=[("carrier", flight.carrier)],
                )
            )
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE)
    finally:
        await producer.stop()


# --- reading ---------------------------------------------------------------------------------------------------------


def _seen(message: Message) -> Seen:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    headers: Any = message.headers() or [("", b"")]
    value, key, partition, offset = message.value(), message.key(), message.partition(), message.offset()
    assert isinstance(value, bytes)
    assert isinstance(key, bytes)
    assert partition is not None
    assert offset is not None
    return Seen(partition, offset, key, value, message.timestamp()[1], headers[0][1])


def _until(enough: Callable[[], bool], grown: Callable[[], int]) -> Iterator[None]:
    """Yield until ``enough``; raise DemoFailed when ``grown`` has not changed for PATIENCE seconds."""
    last, since = grown(), time.monotonic()
    while not enough():
        yield
        if grown() != last:
            last, since = grown(), time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            raise DemoFailed(f"no record came for {PATIENCE} s after {last}")


def read_values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """confluent-kafka, all partitions assigned by hand: values, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"unused-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        for _ in _until(lambda: len(found) >= count, lambda: len(found)):
            for message in consumer.consume(10_000, 0.5):
                value = message.value()
                if message.error() is not None or not isinstance(value, bytes):
                    raise DemoFailed(f"confluent-kafka read {message.error() or value!r}")
                found.append(value)
    finally:
        consumer.close()
    return found


def read_assigned(bootstrap: str, topic: str, count: int) -> list[Seen]:
    """confluent-kafka, all partitions assigned by hand, from the beginning."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"unused-{uuid.uuid4()}", "enable.auto.commit": False}
    )
    seen: list[Seen] = []
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        for _ in _until(lambda: len(seen) >= count, lambda: len(seen)):
            seen.extend(_seen(message) for message in consumer.consume(10_000, 0.5))
    finally:
        consumer.close()
    return seen


def read_group(bootstrap: str, topic: str, count: int, members: int) -> tuple[list[Seen], list[int], int]:
    """A confluent-kafka group; what it read, how many records each member read, and the sum of committed offsets.

    The members join while records flow, so that the group rebalances in between; each commits what it has read before
    it gives partitions away, so nothing is read twice. After a third of the records all wait for the last member.
    """
    group = f"demo-{uuid.uuid4()}"
    seen: list[Seen] = []
    shares = [0] * members
    holders: set[int] = set()  # members with an assignment
    lock = threading.Lock()
    finished = threading.Event()
    errors: list[BaseException] = []

    def member(number: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "partition.assignment.strategy": "range",
            }
        )

        def granted(_: Consumer, partitions: list[TopicPartition]) -> None:
            if partitions:
                holders.add(number)

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            held = [position for position in consumer.position(partitions) if position.offset >= 0]
            if held:
                consumer.commit(offsets=held, asynchronous=False)

        try:
            consumer.subscribe([topic], on_assign=granted, on_revoke=revoked)
            paused = False
            while not finished.is_set():
                got = [_seen(message) for message in consumer.consume(2_000, 0.2)]
                with lock:
                    seen.extend(got)
                    shares[number] += len(got)
                waiting = len(seen) > count // 3 and len(holders) < members
                if waiting:
                    consumer.pause(consumer.assignment())
                elif paused:
                    consumer.resume(consumer.assignment())
                paused = waiting
        except BaseException as error:
            errors.append(error)
            finished.set()
            raise
        finally:
            consumer.close()

    threads = [threading.Thread(target=member, args=(number,), name=f"member-{number}") for number in range(members)]
    for thread in threads:
        thread.start()
    try:
        for _ in _until(lambda: len(seen) >= count or finished.is_set(), lambda: len(seen)):
            finished.wait(0.05)
    finally:
        finished.set()
        for thread in threads:
            thread.join()
    if errors:
        raise DemoFailed(f"a member of the group ended with {errors[0]!r}")
    return seen, shares, committed_sum(bootstrap, topic, group)


def committed_sum(bootstrap: str, topic: str, group: str) -> int:
    """Sum of the group's committed offsets over all partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        positions = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 30)
        return sum(max(0, position.offset) for position in positions)
    finally:
        consumer.close()


async def read_group_aiokafka(bootstrap: str, topic: str, count: int, members: int) -> list[Seen]:
    """An aiokafka group whose members are all there before the first record is read."""
    group = f"demo-{uuid.uuid4()}"
    seen: list[Seen] = []
    assigned: dict[int, int] = {}
    complete = asyncio.Event()

    class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
        """Tells when the members hold all partitions between them."""

        def __init__(self, number: int) -> None:
            self.number = number

        async def on_partitions_revoked(self, revoked: Iterable[object]) -> None:
            assigned.pop(self.number, None)

        async def on_partitions_assigned(self, got: Iterable[object]) -> None:
            assigned[self.number] = len(list(got))
            if len(assigned) == members and sum(assigned.values()) == PARTITIONS and all(assigned.values()):
                complete.set()

    consumers = [
        AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        for _ in range(members)
    ]
    try:
        for number, consumer in enumerate(consumers):
            await consumer.start()
            consumer.subscribe([topic], listener=Assigned(number))
        await asyncio.wait_for(complete.wait(), PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while len(seen) < count:
            if time.monotonic() > deadline:
                raise DemoFailed(f"aiokafka read {len(seen)} of {count} records in {PATIENCE} s")
            for consumer in consumers:
                for messages in (await consumer.getmany(timeout_ms=50)).values():
                    seen += [
                        Seen(m.partition, m.offset, m.key, m.value, m.timestamp, m.headers[0][1]) for m in messages
                    ]
    finally:
        for consumer in consumers:
            await consumer.stop()
    return seen


def read_kafka_python(bootstrap: str, topic: str, partition: int, count: int) -> list[Seen]:
    """kafka-python, one partition assigned by hand."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    place = PythonTopicPartition(topic, partition)
    seen: list[Seen] = []
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        for _ in _until(lambda: len(seen) >= count, lambda: len(seen)):
            for messages in consumer.poll(timeout_ms=500, max_records=5_000).values():
                seen.extend(Seen(m.partition, m.offset, m.key, m.value, m.timestamp, m.headers[0][1]) for m in messages)
    finally:
        consumer.close()
    return seen
