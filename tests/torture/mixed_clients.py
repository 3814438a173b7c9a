"""Clients of one topic that keep a history of everything they do (tests/history): writers of three protocols, Kafka's
transactions, a consume-transform-produce loop, transfers between accounts, readers of committed and of all data."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ydb
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from msgspec.structs import replace

from tests.history.history import Commit, Committed, End, Outcome, Poll, Recorder, Send, Tail, Told
from tests.torture.torture_load import Worker
from tests.torture.torture_pravega import PravegaMember, TransactionLoad, WriterLoad
from tests.torture.torture_ydb import DATABASE

TRANSACTION_MS = 6_000
"""After so long the coordinator aborts what its producer does not end."""
_ANSWER_S = 20.0
_NEVER = 1e12
QUIET: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,  # a node that is down is what this is about
    # When its only broker is gone librdkafka begins anew, and send_offsets_to_transaction waits for ever for the one
    # it has given up (docs/compatibility.md).
    "metadata.recovery.strategy": "none",
}
ACCOUNTS = 8
MONEY = 1_000
"""What each account has at first."""


@dataclass(slots=True, frozen=True)
class Scene:
    """Where clients go and what they use: ``topic`` is everybody's, the other two are Kafka's. ``rate``: records a
    second of each writer."""

    bootstrap: str
    ydb: str
    directory: Path
    seed: int
    topic: str
    partitions: int
    derived: str
    accounts: str
    rate: float = 200.0


class Client(Worker):
    """A worker with a history of its own. What it was doing when it was told to end it still finishes."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event) -> None:
        super().__init__(name, finish)
        self.scene = scene
        self.random = random.Random(f"{scene.seed}/{name}")
        self.history = Recorder(scene.directory / f"{name}.jsonl", name)
        self.done = 0
        """Calls that were answered well: what progress is measured by."""
        self.reached: dict[str, int] = {}
        """The highest offset that was read of each partition."""
        self.numbers = iter(range(10**9))
        self.pending: dict[str, Send] = {}
        """What was written and not answered yet."""

    def keep(self, event: Told) -> None:
        self.history.keep(event)

    def sent(
        self, topic: str, partition: int, value: str, invoked: float, transaction: str | None = None, order: int = 0
    ) -> Callable[[object, Message], None]:
        """What a delivery report is given to."""

        send = Send(
            client=self.name,
            invoked=invoked,
            told=invoked,
            partition=f"{topic}/{partition}",
            value=value,
            outcome=Outcome.UNKNOWN,
            order=order,
            transaction=transaction,
        )
        self.pending[value] = send

        def answered(error: object, message: Message) -> None:
            if self.pending.pop(value, None) is None:
                return
            if error is None:
                self.done += 1
                self.keep(replace(send, told=self.history.now(), outcome=Outcome.DONE, offset=message.offset()))
            else:
                self.keep(replace(send, told=self.history.now()))

        return answered

    def forsake(self) -> None:
        """Whoever was asked answers no more: what is pending may be there or not."""
        pending, self.pending = self.pending, {}
        for send in pending.values():
            self.keep(replace(send, told=self.history.now()))

    def polled(
        self,
        protocol: str,
        session: str,
        invoked: float,
        records: list[tuple[str, int, str]],
        committed: bool = True,
    ) -> None:
        """Records were given, in this order."""
        self.done += 1
        for partition, offset, _ in records:
            self.reached[partition] = max(self.reached.get(partition, -1), offset)
        self.keep(
            Poll(
                client=self.name,
                invoked=invoked,
                told=self.history.now(),
                protocol=protocol,
                session=session,
                records=records,
                committed=committed,
            )
        )

    def stored(self, group: str, partition: str, offset: int, outcome: Outcome, invoked: float) -> None:
        """A group's position was to be stored."""
        told = self.history.now()
        self.keep(
            Commit(
                client=self.name,
                invoked=invoked,
                told=told,
                group=group,
                partition=partition,
                offset=offset,
                outcome=outcome,
            )
        )

    def commit_place(self, consumer: Consumer, group: str, place: TopicPartition) -> None:
        """Store a position through Kafka, and wait for the answer."""
        invoked, outcome = self.history.now(), Outcome.UNKNOWN
        with suppress(KafkaException):
            answer = consumer.commit(offsets=[place], asynchronous=False)
            if answer and answer[0].error is None:
                outcome = Outcome.DONE
        self.stored(group, f"{place.topic}/{place.partition}", place.offset, outcome, invoked)

    def look_up(self, consumer: Consumer, group: str, places: list[TopicPartition]) -> list[TopicPartition]:
        """Where the consumer's group is, by the node's answer; empty if there is none now."""
        invoked = self.history.now()
        try:
            known = consumer.committed(places, _ANSWER_S)
        except KafkaException:
            return []
        if any(one.error is not None for one in known):
            return []
        for one in known:
            self.keep(
                Committed(
                    client=self.name,
                    invoked=invoked,
                    told=self.history.now(),
                    group=group,
                    partition=f"{one.topic}/{one.partition}",
                    offset=one.offset if one.offset >= 0 else None,
                )
            )
        return known

    def produce(self, producer: Producer, topic: str, partition: int, transaction: str | None, text: str = "") -> None:
        """One record with a value of its own, made of the client's name, a number and ``text``."""
        number = next(self.numbers)
        value = f"{self.name}:{number}:{text}"
        report = self.sent(topic, partition, value, self.history.now(), transaction, number)
        producer.produce(topic, value.encode(), partition=partition, on_delivery=report)


class Writer(Client):
    """An idempotent producer of Kafka's."""

    def work(self) -> None:
        settings = {"bootstrap.servers": self.scene.bootstrap, "enable.idempotence": True, "linger.ms": 2, **QUIET}
        producer = Producer(settings | {"message.timeout.ms": 120_000})
        for _ in self.paced(self.scene.rate):
            self.produce(producer, self.scene.topic, self.random.randrange(self.scene.partitions), None)
            producer.poll(0)
        producer.flush(120)
        self.forsake()


class Transactional(Client):
    """A transactional producer that begins anew where an error says so."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event) -> None:
        super().__init__(scene, name, finish)
        self.turn = 0

    def producer(self) -> Producer:
        """Initialised: whoever had the id before is fenced."""
        producer = Producer(
            {
                "bootstrap.servers": self.scene.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "message.timeout.ms": TRANSACTION_MS,
                "linger.ms": 2,
                **QUIET,
            }
        )
        while True:
            try:
                producer.init_transactions(_ANSWER_S)
                return producer
            except KafkaException as error:
                if not _may_come(error) and not error.args[0].retriable():
                    raise
                if self.finish.is_set():
                    raise

    def work(self) -> None:
        producer = self.producer()
        while not self.finish.is_set():
            self.turn += 1
            transaction = f"{self.name}/{self.turn}"
            try:
                producer.begin_transaction()
                commit = self.fill(producer, transaction)
                self.end(producer, transaction, commit)
            except KafkaException as error:
                self.give_up(producer, transaction, error)
                producer = self.renewed(producer, error)
            self.finish.wait(self.random.expovariate(self.scene.rate / 10))
        self.forsake()

    def fill(self, producer: Producer, transaction: str) -> bool:
        """Write what belongs to a transaction; whether it is to be committed. Raises KafkaException."""
        for _ in range(self.random.randint(1, 20)):
            self.produce(producer, self.scene.topic, self.random.randrange(self.scene.partitions), transaction)
        if self.random.random() < 0.02:
            self.finish.wait(TRANSACTION_MS / 1000 + 1)  # too long: it is aborted meanwhile
        return self.random.random() < 0.8

    def end(self, producer: Producer, transaction: str, commit: bool) -> None:
        """Raises KafkaException: then nobody knows."""
        producer.flush(_ANSWER_S)
        invoked = self.history.now()
        outcome = Outcome.UNKNOWN
        try:
            (producer.commit_transaction if commit else producer.abort_transaction)(_ANSWER_S)
            outcome = Outcome.DONE
            self.done += 1
        finally:
            self.ended(transaction, commit, outcome, invoked)

    def give_up(self, producer: Producer, transaction: str, error: KafkaException) -> None:
        """Abort what can be aborted. Only what says so itself is known to be."""
        if error.args[0].fatal():
            return
        with suppress(KafkaException):
            invoked = self.history.now()
            producer.abort_transaction(_ANSWER_S)
            self.ended(transaction, False, Outcome.DONE, invoked)

    def renewed(self, producer: Producer, error: KafkaException) -> Producer:
        """A producer that can go on."""
        try:
            producer.begin_transaction()
            producer.abort_transaction(_ANSWER_S)
        except KafkaException:
            self.forsake()
            return self.producer()
        return producer

    def ended(self, transaction: str, commit: bool, outcome: Outcome, invoked: float) -> None:
        told = self.history.now()
        self.keep(
            End(client=self.name, invoked=invoked, told=told, transaction=transaction, commit=commit, outcome=outcome)
        )


class Transfers(Transactional):
    """Money goes from one account to another, both balances in one transaction: their sum never changes.

    Who comes back after an error reads what was committed: nothing is known of the last transfer then.
    """

    def fill(self, producer: Producer, transaction: str) -> bool:
        balances = getattr(self, "balances", None) or balances_of(self.scene)
        self.balances = dict(balances) or dict.fromkeys(range(ACCOUNTS), MONEY)
        first = not balances
        one, other = self.random.sample(range(ACCOUNTS), 2)
        amount = self.random.randint(1, 50)
        after = self.balances | {one: self.balances[one] - amount, other: self.balances[other] + amount}
        for account in range(ACCOUNTS) if first else (one, other):
            number = next(self.numbers)
            text = json.dumps({"account": account, "balance": after[account]})
            value = f"{self.name}:{number}:{text}"
            report = self.sent(self.scene.accounts, 0, value, self.history.now(), transaction, number)
            producer.produce(self.scene.accounts, value.encode(), str(account).encode(), 0, on_delivery=report)
        commit = first or self.random.random() < 0.8
        if commit:
            self.next = after
        else:
            self.next = dict(self.balances)
        return commit

    def end(self, producer: Producer, transaction: str, commit: bool) -> None:
        try:
            super().end(producer, transaction, commit)
            self.balances = self.next
        except KafkaException:
            self.balances = {}
            raise

    def give_up(self, producer: Producer, transaction: str, error: KafkaException) -> None:
        self.balances = {}
        super().give_up(producer, transaction, error)


def balances_of(scene: Scene) -> dict[int, int]:
    """What is committed, by account; nothing if no transfer was. Raises KafkaException."""
    found: dict[int, int] = {}
    for _, _, value in read_whole(scene, scene.accounts, 1):
        told = json.loads(value.split(":", 2)[2])
        found[told["account"]] = told["balance"]
    return found


class Transformer(Transactional):
    """Consumes everybody's topic, writes a record for each of its records and commits its position, all in one
    transaction: whatever happens, each record of the source has one in the other topic."""

    def work(self) -> None:
        producer = self.producer()
        consumer = Consumer(
            {
                "bootstrap.servers": self.scene.bootstrap,
                "group.id": "transformer",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                **QUIET,
            }
        )
        try:
            while not self.finish.is_set():
                self.turn += 1
                transaction = f"{self.name}/{self.turn}"
                try:
                    if not consumer.assignment():
                        self.assign(consumer)
                    given = [one for one in consumer.consume(100, 0.2) if one.error() is None]
                    if not given:
                        continue
                    producer.begin_transaction()
                    for message in given:
                        value = message.value()
                        assert isinstance(value, bytes)
                        self.produce(producer, self.scene.derived, message.partition() or 0, transaction, source(value))
                    producer.send_offsets_to_transaction(
                        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), _ANSWER_S
                    )
                    self.end(producer, transaction, True)
                except KafkaException as error:
                    self.give_up(producer, transaction, error)
                    producer = self.renewed(producer, error)
                    consumer.unassign()
        finally:
            self.forsake()
            consumer.close()

    def assign(self, consumer: Consumer) -> None:
        """Go on where the last transaction that was committed ended. Raises KafkaException."""
        places = [TopicPartition(self.scene.topic, number) for number in range(self.scene.partitions)]
        known = consumer.committed(places, _ANSWER_S)
        if any(one.error is not None for one in known):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        consumer.assign([TopicPartition(one.topic, one.partition, max(0, one.offset)) for one in known])


def source(value: bytes) -> str:
    """Name and number of a record, which tell it from all others."""
    return ":".join(value.decode(errors="replace").split(":", 2)[:2])


class Reader(Client):
    """Reads the topic from its beginning on and commits as a group; now and then it begins where that says."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event, committed: bool) -> None:
        super().__init__(scene, name, finish)
        self.committed = committed
        self.session = 0

    def work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.scene.bootstrap,
                "group.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed" if self.committed else "read_uncommitted",
                "fetch.wait.max.ms": 100,
                **QUIET,
            }
        )
        places = [TopicPartition(self.scene.topic, number) for number in range(self.scene.partitions)]
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in places])
        try:
            while not self.finish.is_set():
                invoked = self.history.now()
                given = [one for one in consumer.consume(500, 0.2) if one.error() is None]
                if given:
                    records = [
                        (f"{one.topic()}/{one.partition()}", one.offset() or 0, told_value(one.value()))
                        for one in given
                    ]
                    self.polled("kafka", str(self.session), invoked, records, self.committed)
                chance = self.random.random()
                if chance < 0.2:
                    self.commit(consumer)
                elif chance < 0.22:
                    self.begin_anew(consumer, places)
        finally:
            consumer.close()

    def commit(self, consumer: Consumer) -> None:
        for place in consumer.position(consumer.assignment()):
            if place.offset >= 0:
                self.commit_place(consumer, self.name, place)

    def begin_anew(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Go on where the group's position is."""
        known = self.look_up(consumer, self.name, places)
        if known:
            self.session += 1
            consumer.assign([TopicPartition(one.topic, one.partition, max(0, one.offset)) for one in known])


class Ends(Client):
    """Asks where partitions end."""

    def work(self) -> None:
        settings = {"bootstrap.servers": self.scene.bootstrap, "isolation.level": "read_uncommitted", **QUIET}
        consumer = Consumer(settings | {"group.id": self.name})
        while not self.finish.wait(0.2):
            partition = self.random.randrange(self.scene.partitions)
            invoked = self.history.now()
            try:
                found = consumer.get_watermark_offsets(TopicPartition(self.scene.topic, partition), 5, cached=False)
            except KafkaException:
                continue
            self.done += 1
            told = self.history.now()
            name = f"{self.scene.topic}/{partition}"
            self.keep(Tail(client=self.name, invoked=invoked, told=told, partition=name, end=found[1]))
        consumer.close()


class YdbWriter(Client):
    """The SDK's writer with a producer's name, into one partition."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        path = self.scene.topic.replace(".", "/")
        async with ydb.aio.Driver(endpoint=f"grpc://{self.scene.ydb}", database=DATABASE) as driver:
            await driver.wait(timeout=60)
            writer = driver.topic_client.writer(path, producer_id=self.name, partition_id=0, codec=ydb.TopicCodec.RAW)
            waiting: set[asyncio.Task[None]] = set()
            for number in self.bursts():
                if number is None:
                    await asyncio.sleep(0.01)
                    continue
                value, invoked = f"{self.name}:{number}:", self.history.now()
                answer = await writer.write_with_ack_future(value.encode())
                task = asyncio.create_task(self._settle(number, value, invoked, answer))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            if waiting:
                await asyncio.wait(waiting, timeout=60)
            await writer.close(flush=False)

    def bursts(self) -> Iterator[int | None]:
        """Numbers when they are due, None while nothing is."""
        began, number = time.monotonic(), 0
        while not self.finish.is_set():
            if number < (time.monotonic() - began) * self.scene.rate:
                yield number
                number += 1
            else:
                yield None

    async def _settle(self, number: int, value: str, invoked: float, answer: asyncio.Future[Any]) -> None:
        outcome, offset = Outcome.UNKNOWN, None
        with suppress(ydb.Error):
            result = await answer
            outcome = Outcome.DONE
            self.done += 1
            # Of one that was stored when it was sent before nobody says where.
            offset = result.offset if isinstance(result, ydb.TopicWriteResult.Written) else None
        self.keep(
            Send(
                client=self.name,
                invoked=invoked,
                told=self.history.now(),
                partition=f"{self.scene.topic}/0",
                value=value,
                outcome=outcome,
                order=number,
                offset=offset,
            )
        )


class YdbReader(Client):
    """A reader of YDB's for a consumer that commits nothing: what connects again begins at the beginning."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        life = 0
        async with ydb.aio.Driver(endpoint=f"grpc://{self.scene.ydb}", database=DATABASE) as driver:
            await driver.wait(timeout=60)
            while not self.finish.is_set():
                life += 1
                await self.live(driver, str(life))

    async def live(self, driver: Any, session: str) -> None:
        """One reader, until it is to end."""
        path = self.scene.topic.replace(".", "/")
        reader = driver.topic_client.reader(path, self.name)
        last: dict[int, int] = {}
        end = time.monotonic() + self.life()
        try:
            while not self.finish.is_set() and time.monotonic() < end:
                invoked = self.history.now()
                try:
                    batch = await asyncio.wait_for(reader.receive_batch(), 0.5)
                except TimeoutError:
                    continue
                records = [
                    (f"{self.scene.topic}/{one.partition_id}", one.offset, told_value(one.data))
                    for one in batch.messages
                ]
                first = batch.messages[0]
                if last.get(first.partition_id, -1) >= first.offset:
                    session += "+"  # the SDK has connected again, and begins where nothing is committed
                last[first.partition_id] = batch.messages[-1].offset
                self.polled("ydb", session, invoked, records)
                await self.given(reader, batch)
        finally:
            with suppress(TimeoutError, ydb.Error):
                await asyncio.wait_for(reader.close(flush=False), 5)

    def life(self) -> float:
        """How many seconds one reader lives at most."""
        return float("inf")

    async def given(self, reader: Any, batch: Any) -> None:
        """What is done with what was read."""


def told_value(value: object) -> str:
    """The value by which a record is known in histories: without what only makes it longer."""
    assert isinstance(value, bytes)
    parts = value.split(b":", 2)
    if parts[0].startswith(b"pravega"):
        return f"{parts[0].decode()}:{int(parts[1])}:"
    return value.decode()


def read_whole(scene: Scene, topic: str, partitions: int) -> list[tuple[str, int, str]]:
    """All committed records of a topic, in order for each partition. Raises KafkaException, TimeoutError."""
    consumer = Consumer(
        {
            "bootstrap.servers": scene.bootstrap,
            "group.id": "whole",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    found: list[tuple[str, int, str]] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 180
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while len(ended) < partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read whole")
            for message in consumer.consume(5_000, 0.2):
                error = message.error()
                if error is None:
                    found.append((f"{topic}/{message.partition()}", message.offset() or 0, told_value(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
        return found
    finally:
        consumer.close()


Place = tuple[str, int, str]
"""Of a record: partition, offset, and the value by which it is known."""


def history_of_writer(load: WriterLoad | TransactionLoad, places: Mapping[str, Place]) -> Iterator[Told]:
    """What Pravega's writer was told, which is of no places: ``places`` has those of all records that are there, by
    name and number. When it was asked nobody has kept."""
    transactions = load.transactions.every.values() if isinstance(load, TransactionLoad) else ()
    of = {number: f"{load.name}/{one.first}" for one in transactions for number in range(one.first, one.end)}
    for number in range(load.promises.sent):
        place = places.get(f"{load.name}:{number}")
        yield Send(
            client=load.name,
            invoked=0.0,
            # A transaction's records come to the log at some time behind its commit.
            told=_NEVER if number in of else load.answered.get(number, _NEVER),
            partition=None if place is None else place[0],
            value=f"{load.name}:{number}:",
            outcome=Outcome.DONE if number in load.answered else Outcome.UNKNOWN,
            order=number,
            transaction=of.get(number),
        )
    for one in transactions:
        yield End(
            client=load.name,
            invoked=0.0,
            told=_NEVER,
            transaction=f"{load.name}/{one.first}",
            commit=one.fate in ("asked", "committed"),
            outcome=Outcome.UNKNOWN if one.fate == "asked" else Outcome.DONE,
        )


def history_of_reader(member: PravegaMember, places: Mapping[str, Place]) -> Poll:
    """What Pravega's readers of a group were given, at the places that records have."""
    events = (f"{name}:{number}" for name, number in member.events)
    now = time.monotonic()
    return Poll(
        client=member.name,
        invoked=now,
        told=now,
        protocol="pravega",
        session="1",
        records=[places.get(event, ("nowhere", -1, event)) for event in events],
    )


def _may_come(error: KafkaException) -> bool:
    """Whether it says no more than that no node answers at the moment."""
    codes = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    return error.args[0].code() in codes
