"""Clients that do nothing wrong, and measure what they are given while others are hostile.

Each is a thread; latencies are in seconds, one list for each kind of request, taken by :meth:`Worker.lap`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

import grpc
import ydb
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from pravega_front.wire import commands as pravega
from sbp_back import Client, TcpCarrier, tcp_connector
from sbp_back.errors import SbpError
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.raw_client import Closed, RawClient

PATIENCE_S = 60.0
"""An answer that takes longer than this counts as none."""
LATENESS = "lateness"
_STAMP = struct.Struct(">dq")
_EVENT = struct.Struct(">ii")


class Worker(ABC):
    """A thread that works at a steady rate until :attr:`finish`; ``trouble`` says what went wrong."""

    def __init__(self, name: str, per_second: float) -> None:
        self.name = name
        self.finish = threading.Event()
        self.trouble: list[str] = []
        self.requests = 0
        self._interval = 1 / per_second
        self._lock = threading.Lock()
        self._took: dict[str, list[float]] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Finish what is in progress and stop."""
        self.finish.set()
        self._thread.join(3 * PATIENCE_S)
        if self._thread.is_alive():
            self.trouble.append("did not end")

    def lap(self) -> dict[str, list[float]]:
        """The latencies since the last call."""
        with self._lock:
            took, self._took = self._took, {}
        return took

    def record(self, kind: str, seconds: float) -> None:
        with self._lock:
            self._took.setdefault(kind, []).append(seconds)

    def paced(self) -> Iterator[int]:
        """Numbers at the worker's rate; what a slow answer delayed is not caught up with."""
        number = 0
        while not self.finish.is_set():
            yield number
            number += 1
            self.finish.wait(self._interval)

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001  # whatever ended it is a finding of the run
            self.trouble.append(f"ended with {error!r}")

    @abstractmethod
    def work(self) -> None: ...


class Lateness(Worker):
    """Asks nobody: how late this process is, whose threads share processors and Python's interpreter."""

    def __init__(self) -> None:
        super().__init__("lateness", 100)

    def work(self) -> None:
        while not self.finish.is_set():
            due = time.monotonic() + self._interval
            self.finish.wait(self._interval)
            self.record(LATENESS, max(0.0, time.monotonic() - due))


class KafkaProducing(Worker):
    """Idempotent, one record at a time; remembers every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, per_second: float) -> None:
        super().__init__("kafka producer", per_second)
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "delivery.timeout.ms": int(PATIENCE_S * 1000),
                "log_level": 2,
            }
        )
        self.acknowledged: dict[int, int] = {}

    def _answered(self, error: object, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        began, number = _STAMP.unpack_from(value)
        if error is not None:
            self.trouble.append(f"record {number} was not stored: {error}")
            return
        offset = message.offset()
        assert offset is not None
        self.acknowledged[number] = offset
        self.record("kafka produce", time.monotonic() - began)

    def work(self) -> None:
        for number in self.paced():
            value = _STAMP.pack(time.monotonic(), number) + bytes(200)
            self._producer.produce(self._topic, value, on_delivery=self._answered)
            self.requests += 1
            self._producer.poll(0)
        if self._producer.flush(PATIENCE_S):
            self.trouble.append("records were never answered")


class KafkaConsuming(Worker):
    """Reads what the producer writes and measures from its making to its arrival."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__("kafka consumer", 1.0)
        self._topic = topic
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "hostile-run", "log_level": 2})
        self.read: list[tuple[int, int]] = []

    def work(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self.finish.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                self.trouble.append(f"{message.error()}")
                continue
            value, offset = message.value(), message.offset()
            assert isinstance(value, bytes)
            assert offset is not None
            began, number = _STAMP.unpack_from(value)
            self.record("kafka end to end", time.monotonic() - began)
            self.read.append((offset, number))
            self.requests += 1
        self._consumer.close()


class SbpAppending(Worker):
    """Appends one entry at a time over TCP and reads it back."""

    def __init__(self, pd: tuple[str, int], per_second: float) -> None:
        super().__init__("sbp client", per_second)
        self._pd = pd

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        client = Client(TcpCarrier(*self._pd), tcp_connector())
        stream = await client.create_stream()
        writer = await client.open(stream.stream_id, epoch=1)
        while not self.finish.is_set():
            durable: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
            began = time.monotonic()
            offset = writer.append(b"%d" % self.requests, 1, 0, 0, durable.set_result)
            error = await asyncio.wait_for(durable, PATIENCE_S)
            if error is not None:
                self.trouble.append(f"append: {error}")
                break
            self.record("sbp append", time.monotonic() - began)
            began = time.monotonic()
            entries = await asyncio.wait_for(client.fetch_entries(stream.stream_id, offset, 4096), PATIENCE_S)
            self.record("sbp fetch", time.monotonic() - began)
            if [bytes(entry.payload) for entry in entries] != [b"%d" % self.requests]:
                self.trouble.append(f"offset {offset} holds something else")
            self.requests += 1
            await asyncio.sleep(self._interval)
        await writer.close()
        await client.close()


class YdbWriting(Worker):
    """Writes one message at a time with YDB's SDK, and waits for its acknowledgement."""

    def __init__(self, address: str, topic: str, per_second: float) -> None:
        super().__init__("ydb writer", per_second)
        self._address, self._topic = address, topic

    def work(self) -> None:
        with ydb.Driver(endpoint=f"grpc://{self._address}", database="/local") as driver:
            driver.wait(timeout=PATIENCE_S)
            with driver.topic_client.writer(self._topic, producer_id="good", codec=ydb.TopicCodec.RAW) as writer:
                before = -1
                for number in self.paced():
                    began = time.monotonic()
                    result = writer.write_with_ack(b"%d" % number, timeout=PATIENCE_S)
                    self.record("ydb write", time.monotonic() - began)
                    if not isinstance(result, ydb.TopicWriteResult.Written) or result.offset <= before:
                        self.trouble.append(f"message {number}: {result} behind offset {before}")
                    else:
                        before = result.offset
                    self.requests += 1


class PravegaWriting(Worker):
    """Appends one event at a time to a segment of Pravega's. Comes back after the end of a connection, as Pravega's
    clients do, and goes on behind the number that it is told then."""

    def __init__(self, address: str, segment: str, per_second: float) -> None:
        super().__init__("pravega writer", per_second)
        self._address, self._segment = address, segment
        self._id = b"well-behaved!!!!"

    def work(self) -> None:
        numbers = iter(self.paced())
        number = next(numbers, None)
        while number is not None:
            with contextlib.suppress(Closed, ConnectionError), RawClient(self._address, PATIENCE_S) as client:
                setup = pravega.SetupAppend(1, self._id, self._segment, "")
                last = client.ask(setup, pravega.AppendSetup).last_event_number
                while number is not None:
                    if number + 1 > last:
                        self._append(client, number + 1)
                    number = next(numbers, None)

    def _append(self, client: RawClient, number: int) -> None:
        began = time.monotonic()
        data = _EVENT.pack(0, _STAMP.size) + _STAMP.pack(began, number)
        answer = client.ask(pravega.AppendBlockEnd(self._id, len(data), data, 1, number, 1), pravega.DataAppended)
        self.record("pravega append", time.monotonic() - began)
        self.requests += 1
        if answer.event_number != number or answer.current_segment_write_offset != number * len(data):
            self.trouble.append(f"event {number}: {answer}")


class PravegaReading(Worker):
    """Reads what the writer appends, at the end of its segment."""

    def __init__(self, address: str, segment: str) -> None:
        super().__init__("pravega reader", 1.0)
        self._address, self._segment = address, segment
        self._position = 0
        self._last = 0

    def work(self) -> None:
        while not self.finish.is_set():
            with contextlib.suppress(Closed, ConnectionError), RawClient(self._address, PATIENCE_S) as client:
                while not self.finish.is_set():
                    read = pravega.ReadSegment(self._segment, self._position, 1 << 20, "", 1)
                    self._take(bytes(client.ask(read, pravega.SegmentRead).data))

    def _take(self, data: bytes) -> None:
        size = _EVENT.size + _STAMP.size
        whole = len(data) // size * size
        for at in range(0, whole, size):
            began, number = _STAMP.unpack_from(data, at + _EVENT.size)
            self.record("pravega end to end", time.monotonic() - began)
            self._last += 1
            if number != self._last:
                self.trouble.append(f"event {number} where {self._last} was to come")
        self._position += whole
        self.requests += 1


class PravegaAsking(Worker):
    """Asks Pravega's controller for a stream's segments; once more, as Pravega's clients do, when it has no time."""

    def __init__(self, address: str, stream: str, per_second: float) -> None:
        super().__init__("pravega caller", per_second)
        self._address, self._stream = address, stream

    def work(self) -> None:
        client = ControllerClient(self._address)
        for _ in self.paced():
            began = time.monotonic()
            while True:
                try:
                    found = client.getCurrentSegments(scope="default", stream=self._stream)
                    break
                except grpc.RpcError as error:
                    again = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
                    if not again or time.monotonic() > began + PATIENCE_S:
                        raise
                    time.sleep(0.01)
            self.record("pravega call", time.monotonic() - began)
            if len(found.segmentRanges) != 1:
                self.trouble.append(f"the controller tells {found}")
            self.requests += 1
        client.close()


class HealthAsking(Worker):
    """Asks over HTTP whether the node is well, each time on a connection of its own."""

    def __init__(self, console: tuple[str, int], per_second: float) -> None:
        super().__init__("http client", per_second)
        self._console = console

    def work(self) -> None:
        for _ in self.paced():
            began = time.monotonic()
            link = http.client.HTTPConnection(*self._console, timeout=PATIENCE_S)
            link.request("GET", "/healthz")
            status = link.getresponse().status
            link.close()
            self.record("http", time.monotonic() - began)
            if status != 200:
                self.trouble.append(f"/healthz answered {status}")
            self.requests += 1
