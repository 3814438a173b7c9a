"""Producers and consumers that keep working through crashes and remember what they were told.

Every record's content follows from the seed, the producer's name and the record's number, so that the log can be
checked against the acknowledgements alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError

PATIENCE = 120.0  # seconds in which, with the node up again, everything sent must be answered
Place = tuple[str, int]  # topic, partition


def payload(seed: int, producer: str, number: int) -> bytes:
    """The value of a record: its name and number, then 0 to 1500 bytes of which half can be compressed."""
    digest = hashlib.sha512(f"{seed}/{producer}/{number}".encode()).digest()
    size = int.from_bytes(digest[:2], "big") % 1500
    filler = (digest + bytes(len(digest))) * (size // 128 + 1)
    return f"{producer}:{number}:".encode() + filler[:size]


def parse(value: bytes) -> tuple[str, int]:
    """Producer and number of a record. Raises ValueError when it is none of ours."""
    name, number, _ = value.split(b":", 2)
    return name.decode(), int(number)


@dataclass(slots=True)
class Promises:
    """What one producer was told: for each place the (offset, number) of every acknowledged record, in that order."""

    name: str
    topic: str
    exactly_once: bool
    sent: int = 0
    acknowledged: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    anywhere: list[int] = field(default_factory=list)
    """Numbers that were acknowledged without a place."""
    refused: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, partition: int, offset: int, number: int) -> None:
        """The broker has acknowledged record ``number``."""
        with self.lock:
            self.acknowledged.setdefault((self.topic, partition), []).append((offset, number))

    def keep_anywhere(self, number: int) -> None:
        """The server has acknowledged record ``number`` and not said, or not anew, where it is."""
        with self.lock:
            self.anywhere.append(number)

    def refuse(self, number: int, why: object) -> None:
        """The client has given record ``number`` up."""
        with self.lock:
            self.refused.append(f"record {number}: {why!r}")

    @property
    def count(self) -> int:
        """Acknowledged records."""
        with self.lock:
            return sum(len(records) for records in self.acknowledged.values()) + len(self.anywhere)


class Worker(threading.Thread):
    """A thread that works until ``finish`` is set; ``trouble`` holds what ended it before."""

    def __init__(self, name: str, finish: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.finish = finish
        self.trouble: BaseException | None = None

    def run(self) -> None:
        """Work; keep an unexpected end for the verdict."""
        try:
            self.work()
        except BaseException as error:
            self.trouble = error
            raise

    def work(self) -> None:
        """What the thread does."""
        raise NotImplementedError

    def paced(self, rate: float) -> Iterator[int]:
        """Numbers from 0 at about ``rate`` per second, in bursts, until the end of the run."""
        number = 0
        began = time.monotonic()
        while not self.finish.is_set():
            due = int((time.monotonic() - began) * rate)
            while number < due and not self.finish.is_set():
                yield number
                number += 1
            self.finish.wait(0.005)


@dataclass(slots=True, frozen=True)
class Plan:
    """What a producer does: where to, how often, with which codec, and whether idempotent."""

    name: str
    topic: str
    partitions: int
    rate: float
    codec: str
    exactly_once: bool


class ConfluentLoad(Worker):
    """confluent-kafka (librdkafka), acks=all, idempotent or not."""

    def __init__(self, bootstrap: str, seed: int, plan: Plan, finish: threading.Event) -> None:
        super().__init__(plan.name, finish)
        self.bootstrap, self.seed, self.plan = bootstrap, seed, plan
        self.promises = Promises(plan.name, plan.topic, plan.exactly_once)

    def work(self) -> None:
        """Send at the plan's rate; at the end wait for every answer."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "acks": "all",
            "enable.idempotence": self.plan.exactly_once,
            "compression.type": self.plan.codec,
            "linger.ms": 2,
            "message.timeout.ms": 300_000,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,  # a node that is down is what this is about
        }
        if not self.plan.exactly_once:
            settings["max.in.flight"] = 1  # without idempotence more than one would lose the order in retries
        producer = Producer(settings)
        for number in self.paced(self.plan.rate):

            def answered(error: object, message: Message, number: int = number) -> None:
                partition, offset = message.partition(), message.offset()
                if error is not None or partition is None or offset is None:
                    self.promises.refuse(number, error)
                else:
                    self.promises.keep(partition, offset, number)

            value = payload(self.seed, self.plan.name, number)
            while True:
                try:
                    producer.produce(
                        self.plan.topic, value, partition=number % self.plan.partitions, on_delivery=answered
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
                    if self.finish.is_set():
                        break
            self.promises.sent = number + 1
            producer.poll(0)
        left = producer.flush(PATIENCE)
        if left:
            raise TimeoutError(f"{left} records of {self.plan.name} were never answered")


class KafkaPythonLoad(Worker):
    """kafka-python, acks=all, not idempotent, one request on the way."""

    def __init__(self, bootstrap: str, seed: int, plan: Plan, finish: threading.Event) -> None:
        super().__init__(plan.name, finish)
        self.bootstrap, self.seed, self.plan = bootstrap, seed, plan
        self.promises = Promises(plan.name, plan.topic, False)

    def work(self) -> None:
        """Send at the plan's rate; at the end wait for every answer."""
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=False,
            max_in_flight_requests_per_connection=1,
            compression_type=self.plan.codec,
            linger_ms=5,
            retries=1_000_000,
            retry_backoff_ms=50,
            delivery_timeout_ms=300_000,
            max_block_ms=300_000,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=200,
        )
        answers = []
        for number in self.paced(self.plan.rate):
            value = payload(self.seed, self.plan.name, number)
            answer = producer.send(self.plan.topic, value, partition=number % self.plan.partitions)
            answer.add_callback(lambda place, n=number: self.promises.keep(place.partition, place.offset, n))
            answer.add_errback(lambda error, n=number: self.promises.refuse(n, error))
            self.promises.sent = number + 1
            answers = [old for old in answers if not old.is_done] if number % 5000 == 0 else answers
            answers.append(answer)
        producer.flush(PATIENCE)
        for answer in answers:
            with contextlib.suppress(PythonKafkaError):  # already in the list of refused records
                answer.get(PATIENCE)
        producer.close(10)


class AiokafkaLoad(Worker):
    """aiokafka, idempotent, in an event loop of its own."""

    def __init__(self, bootstrap: str, seed: int, plan: Plan, finish: threading.Event) -> None:
        super().__init__(plan.name, finish)
        self.bootstrap, self.seed, self.plan = bootstrap, seed, plan
        self.promises = Promises(plan.name, plan.topic, plan.exactly_once)

    def work(self) -> None:
        """Run the loop."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=self.plan.exactly_once,
            compression_type=self.plan.codec,
            linger_ms=2,
            request_timeout_ms=120_000,
            retry_backoff_ms=20,
        )
        await producer.start()
        waiting: set[asyncio.Task[None]] = set()

        async def send(number: int) -> None:
            value = payload(self.seed, self.plan.name, number)
            try:
                answer = await producer.send(self.plan.topic, value, partition=number % self.plan.partitions)
            except AioKafkaError as error:
                self.promises.refuse(number, error)
                return
            task = asyncio.create_task(settle(number, answer))
            waiting.add(task)
            task.add_done_callback(waiting.discard)

        async def settle(number: int, answer: asyncio.Future[object]) -> None:
            try:
                place = await answer
            except AioKafkaError as error:
                self.promises.refuse(number, error)
                return
            self.promises.keep(place.partition, place.offset, number)  # type: ignore[attr-defined]

        number = 0
        began = time.monotonic()
        try:
            while not self.finish.is_set():
                due = int((time.monotonic() - began) * self.plan.rate)
                while number < due and not self.finish.is_set():
                    if len(waiting) > 20_000:
                        break  # the node is down: what is on the way is enough
                    await send(number)
                    number += 1
                    self.promises.sent = number
                await asyncio.sleep(0.005)
            if waiting:
                _, late = await asyncio.wait(waiting, timeout=PATIENCE)
                if late:
                    raise TimeoutError(f"{len(late)} records of {self.plan.name} were never answered")
        finally:
            await producer.stop()


class GroupMember(Worker):
    """A member of a group that reads one topic and commits synchronously; remembers records and commits."""

    def __init__(self, bootstrap: str, topic: str, group: str, name: str, finish: threading.Event) -> None:
        super().__init__(name, finish)
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.seen: dict[tuple[int, int], bytes] = {}  # (partition, offset) -> digest of the value
        self.first_seen: dict[int, int] = {}  # partition -> first offset since this was emptied
        self.conflicts: list[str] = []
        self.commits: dict[int, int] = {}  # partition -> highest offset whose commit was acknowledged
        self.lock = threading.Lock()

    def work(self) -> None:
        """Read and commit until the end; errors of a node that is down are expected."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        last_commit = time.monotonic()
        reached: dict[int, int] = {}
        try:
            while not self.finish.is_set():
                for message in consumer.consume(500, 0.1):
                    if message.error() is None:
                        self._keep(message)
                        partition, offset = message.partition(), message.offset()
                        assert partition is not None
                        assert offset is not None
                        reached[partition] = offset + 1
                if reached and time.monotonic() - last_commit > 0.1:
                    self._commit(consumer, reached)
                    reached = {}
                    last_commit = time.monotonic()
        finally:
            consumer.close()

    def _keep(self, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert isinstance(value, bytes)
        assert partition is not None
        assert offset is not None
        self.keep_value(partition, offset, value)

    def keep_value(self, partition: int, offset: int, value: bytes) -> None:
        """A record was read: the one at its place must always be the same."""
        self.first_seen.setdefault(partition, offset)
        digest = hashlib.blake2b(value, digest_size=16).digest()
        before = self.seen.setdefault((partition, offset), digest)
        if before != digest:
            self.conflicts.append(f"{self.topic}[{partition}] offset {offset} was read with two contents")

    def _commit(self, consumer: Consumer, reached: dict[int, int]) -> None:
        offsets = [TopicPartition(self.topic, partition, offset) for partition, offset in reached.items()]
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # not acknowledged: nothing was promised
        with self.lock:
            for place in done or []:
                if place.error is None:
                    self.commits[place.partition] = max(self.commits.get(place.partition, 0), place.offset)

    def promised(self) -> dict[int, int]:
        """Partition -> the highest offset whose commit was acknowledged so far."""
        with self.lock:
            return dict(self.commits)
