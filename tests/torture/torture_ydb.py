"""Writers and readers of YDB's that keep working through crashes and remember what they were told."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import grpc
import ydb
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.torture.torture_load import PATIENCE, GroupMember, Promises, Worker, payload
from ydb_topic_front.wire.messages import StreamWriteFromClient, StreamWriteFromServer

DATABASE = "/local"
_IN_FLIGHT = 5_000
_SUCCESS = 400000
_TURN_S = 0.7
"""How long each protocol reads in alternation."""
_FIRST_S = 10.0
"""How long a reader may wait for what it is sent first, on a busy machine with a node that dies."""

for _name in ("ydb", "ydb.connection", "ydb.aio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # a node that is down is what this is about


class SdkLoad(Worker):
    """The SDK's writer, in an event loop of its own. Messages are deduplicated by the producer's name.

    ``shared``: another writer has the same ``producer``. Each ends the other's session, and what it says with a number
    that the other has used is left out, which is no promise.
    """

    def __init__(
        self,
        address: str,
        seed: int,
        name: str,
        topic: str,
        rate: float,
        finish: threading.Event,
        *,
        producer: str,
        codec: Any,
        partition: int | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__(name, finish)
        self.address, self.seed, self.topic, self.rate = address, seed, topic, rate
        self.producer, self.codec, self.partition, self.shared = producer, codec, partition, shared
        self.promises = Promises(name, topic, True)

    def work(self) -> None:
        """Run the loop."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with ydb.aio.Driver(endpoint=f"grpc://{self.address}", database=DATABASE) as driver:
            await driver.wait(timeout=60)
            writer = driver.topic_client.writer(
                self.topic, producer_id=self.producer, codec=self.codec, partition_id=self.partition
            )
            waiting: set[asyncio.Task[None]] = set()
            number, began = 0, time.monotonic()
            while not self.finish.is_set():
                due = int((time.monotonic() - began) * self.rate)
                while number < due and len(waiting) < _IN_FLIGHT and not self.finish.is_set():
                    answer = await writer.write_with_ack_future(payload(self.seed, self.name, number))
                    task = asyncio.create_task(self._settle(number, answer))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                    number += 1
                    self.promises.sent = number
                await asyncio.sleep(0.005)
            if waiting:
                _, late = await asyncio.wait(waiting, timeout=PATIENCE)
                if late:
                    raise TimeoutError(f"{len(late)} messages of {self.name} were never answered")
            await writer.close(flush=False)

    async def _settle(self, number: int, answer: asyncio.Future[Any]) -> None:
        try:
            result = await answer
        except ydb.Error as error:
            self.promises.refuse(number, error)
            return
        if not isinstance(result, ydb.TopicWriteResult.Written):
            if not self.shared:
                self.promises.keep_anywhere(number)  # stored when it was sent before
        elif self.partition is None:
            self.promises.keep_anywhere(number)
        else:
            self.promises.keep(self.partition, result.offset, number)


class PlainLoad(Worker):
    """A writer without a producer's name: what was not acknowledged before a crash is sent again, and may be doubled.

    No SDK for Python writes like this, so it speaks gRPC itself.
    """

    def __init__(self, address: str, seed: int, name: str, topic: str, rate: float, finish: threading.Event) -> None:
        super().__init__(name, finish)
        self.address, self.seed, self.topic, self.rate = address, seed, topic, rate
        self.promises = Promises(name, topic, False)
        self._unanswered: list[int] = []
        self._next = 0

    def work(self) -> None:
        """One session after the other."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        self._began = time.monotonic()
        deadline = float("inf")
        async with grpc.aio.insecure_channel(self.address, [("grpc.max_reconnect_backoff_ms", 200)]) as channel:
            while not self.finish.is_set() or self._unanswered:
                if self.finish.is_set():
                    deadline = min(deadline, time.monotonic() + PATIENCE)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(self._unanswered)} messages of {self.name} were never answered")
                # The second is what gRPC says of a write to a stream that has ended meanwhile.
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._session(channel)
                await asyncio.sleep(0.02)

    async def _session(self, channel: Any) -> None:
        stream = channel.stream_stream("/Ydb.Topic.V1.TopicService/StreamWrite")(
            metadata=[("x-ydb-database", DATABASE)]
        )
        await self._send(stream, StreamWriteFromClient(init_request={"path": self.topic}))
        if (await self._receive(stream)) is None:
            return
        again = self._unanswered
        self._unanswered = []
        while again or self._unanswered or not self.finish.is_set():
            numbers, again = again[:200], again[200:]
            due = int((time.monotonic() - self._began) * self.rate)
            while not again and len(numbers) < 50 and self._next < due and not self.finish.is_set():
                numbers.append(self._next)
                self._next += 1
            self.promises.sent = self._next
            if not numbers:
                await asyncio.sleep(0.005)
                continue
            self._unanswered = numbers + again
            messages = [
                {"seq_no": place, "data": payload(self.seed, self.name, number), "uncompressed_size": 1}
                for place, number in enumerate(numbers, 1)
            ]
            await self._send(stream, StreamWriteFromClient(write_request={"messages": messages, "codec": 1}))
            answer = await self._receive(stream)
            if answer is None:
                return
            response = answer.write_response
            for number, ack in zip(numbers, response.acks, strict=True):
                self.promises.keep(response.partition_id, ack.written.offset, number)
            self._unanswered = list(again)
        await stream.done_writing()

    async def _send(self, stream: Any, message: Any) -> None:
        await stream.write(message.SerializeToString())

    async def _receive(self, stream: Any) -> Any:
        """The next message; None when the stream has ended, or says that it does."""
        raw = await stream.read()
        if raw is grpc.aio.EOF:
            return None
        message = StreamWriteFromServer.FromString(raw)
        return message if message.status == _SUCCESS else None


class YdbMember(GroupMember):
    """A reader of a consumer that comes and goes, and commits what it has read."""

    stay = 1.5
    """Seconds of one reader's life."""

    def work(self) -> None:
        """Read for a while, go away, come again."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with ydb.aio.Driver(endpoint=f"grpc://{self.bootstrap}", database=DATABASE) as driver:
            await driver.wait(timeout=60)
            while not self.finish.is_set():
                await self.read_for(driver, self.stay)

    async def read_for(self, driver: Any, seconds: float) -> None:
        """One reader's life: so long from the first of what it was sent, however long it takes to be served."""
        end = time.monotonic() + _FIRST_S
        first = True
        last_commit = 0.0
        reader = driver.topic_client.reader(self.topic, self.group)
        try:
            while time.monotonic() < end and not self.finish.is_set():
                try:
                    batch = await asyncio.wait_for(reader.receive_batch(), 0.2)
                except TimeoutError:
                    continue
                if first:
                    first, end = False, time.monotonic() + seconds
                for message in batch.messages:
                    self.keep_value(message.partition_id, message.offset, message.data)
                if time.monotonic() - last_commit < 0.1:
                    reader.commit(batch)  # confirmed with one of those that follow
                    continue
                if not await confirmed(reader, batch):
                    continue  # nothing was promised
                last_commit = time.monotonic()
                last = batch.messages[-1]
                with self.lock:
                    self.commits[last.partition_id] = max(self.commits.get(last.partition_id, 0), last.offset + 1)
        finally:
            with suppress(TimeoutError, ydb.Error):
                await asyncio.wait_for(reader.close(flush=False), 5)


async def confirmed(reader: Any, batch: Any) -> bool:
    """Whether a commit is confirmed in time. One that is not goes on: the SDK cannot close a reader of which a commit
    was cancelled."""
    commit = asyncio.ensure_future(reader.commit_with_ack(batch))
    commit.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait({commit}, timeout=5)
    return commit.done() and not commit.cancelled() and commit.exception() is None


class Alternating(YdbMember):
    """Reads under one name as a consumer of YDB's and as a group of Kafka's in turn, each from where the other was."""

    def __init__(
        self, address: str, bootstrap: str, topic: str, partitions: int, group: str, name: str, finish: threading.Event
    ) -> None:
        super().__init__(address, topic, group, name, finish)
        self.kafka, self.partitions = bootstrap, partitions

    async def _work(self) -> None:
        async with ydb.aio.Driver(endpoint=f"grpc://{self.bootstrap}", database=DATABASE) as driver:
            await driver.wait(timeout=60)
            while not self.finish.is_set():
                before = self.promised()
                await self.read_for(driver, _TURN_S)
                self._check_order(before, "YDB")
                before = self.promised()
                await asyncio.to_thread(self._kafka_turn)
                self._check_order(before, "Kafka")

    def _check_order(self, before: Mapping[int, int], who: str) -> None:
        for partition, offset in self.first_seen.items():
            committed = before.get(partition, 0)
            if offset < committed:
                place = f"{self.topic}[{partition}]"
                self.conflicts.append(f"{who} began to read {place} at {offset}, though {committed} was committed")
        self.first_seen = {}

    def _kafka_turn(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        reached: dict[int, int] = {}
        end = time.monotonic() + _FIRST_S
        try:
            places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
            known = consumer.committed(places, 5)
            consumer.assign([TopicPartition(one.topic, one.partition, max(0, one.offset)) for one in known])
            while time.monotonic() < end and not self.finish.is_set():
                found = consumer.consume(500, 0.1)
                if found and not reached:
                    end = time.monotonic() + _TURN_S
                for message in found:
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    if message.error() is None and partition is not None and offset is not None:
                        assert isinstance(value, bytes)
                        self.keep_value(partition, offset, value)
                        reached[partition] = offset + 1
            if reached:
                self._commit(consumer, reached)
        except KafkaException:
            pass  # the node is down
        finally:
            consumer.close()


def prepare(address: str, consumers: Mapping[str, str]) -> None:
    """Make the consumers known that read topics: YDB's readers must be. ``consumers`` are by topic."""
    with ydb.Driver(endpoint=f"grpc://{address}", database=DATABASE) as driver:
        driver.wait(timeout=60)
        for topic, consumer in consumers.items():
            driver.topic_client.alter_topic(topic, add_consumers=[consumer])
