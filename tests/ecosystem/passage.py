"""Records that go from a topic through an application into another one, while both it and the server are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.java_server import JavaServer
from tests.ecosystem.brokers import kill
from tests.node_process import NodeProcess

PATIENCE_S = 240.0
"""How long the next records may take: a killed member is missed after its session only."""


class WentWrong(AssertionError):
    """What came out is not what was promised."""


@dataclass(frozen=True, slots=True)
class Came:
    """A committed record: where it lies, and what it says."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


Settled = Callable[[Sequence[Came]], bool]


class Writer(threading.Thread):
    """Writes all values to a topic, at a rate; :meth:`finish` returns when each is acknowledged, which an idempotent
    producer repeats until it is."""

    def __init__(
        self, bootstrap: str, topic: str, values: Sequence[bytes], per_second: int, *, keyed_by_value: bool = False
    ) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 300_000}
        self._producer = Producer({**settings, "linger.ms": 5})
        self._topic, self._values, self._per_second, self._by_value = topic, values, per_second, keyed_by_value
        self.acknowledged = 0
        self.trouble: list[str] = []
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        for number, value in enumerate(self._values):
            key = value if self._by_value else str(number).encode()
            self._producer.produce(self._topic, value, key, on_delivery=self._told)
            due = began + (number + 1) / self._per_second
            self._producer.poll(max(0.0, due - time.monotonic()))

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.trouble.append(str(error))

    def finish(self) -> None:
        """Raises WentWrong when something was not acknowledged."""
        self.join()
        self._producer.flush(300)
        if self.acknowledged != len(self._values) or self.trouble:
            raise WentWrong(f"{self.acknowledged} of {len(self._values)} were acknowledged: {self.trouble[:3]}")


class Reader:
    """What is committed in a topic, from its beginning; to be closed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 2) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed"})
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self.came: list[Came] = []

    def _look(self) -> bool:
        """Take what has come; whether anything has."""
        found = [message for message in self._consumer.consume(1000, 0.5) if message.error() is None]
        for message in found:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.came.append(Came(partition, offset, message.key(), message.value()))
        return bool(found)

    def until(self, count: int, application: JavaServer | None = None) -> None:
        """Read until there are so many. Raises WentWrong when none comes for too long, or the application ends."""
        last = time.monotonic()
        while len(self.came) < count:
            now = time.monotonic()
            if self._look():
                last = now
            if application is not None and application.process is not None and application.process.poll() is not None:
                raise WentWrong(f"the application ended by itself:\n{application.tail()[-4000:]}")
            if now - last > PATIENCE_S:
                told = application.tail()[-4000:] if application is not None else ""
                raise WentWrong(f"{len(self.came)} of {count} records came, and no more in {PATIENCE_S:g} s\n{told}")

    def rest(self, seconds: float = 3.0) -> list[Came]:
        """All there is, once nothing has come for a while: what comes twice may come late."""
        last = time.monotonic()
        while time.monotonic() - last < seconds:
            if self._look():
                last = time.monotonic()
        return self.came

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()


@dataclass(frozen=True, slots=True)
class Passage:
    """What to write, and how much is to come out where."""

    values: Sequence[bytes]
    into: str
    out: str
    expected: int
    per_second: int = 400
    partitions: int = 2
    keyed_by_value: bool = False


class Writing(Protocol):
    """What is being written meanwhile."""

    def finish(self) -> None:
        """Return when all is written."""


def carry(
    server: NodeProcess | JavaServer,
    application: JavaServer,
    passage: Passage,
    lost: Callable[[], None] = lambda: None,
    settled: Settled = lambda _: True,
) -> list[Came]:
    """What :func:`carry_through` does, with records that are written to a topic."""

    def write() -> Writing:
        by_value = passage.keyed_by_value
        return Writer(server.bootstrap, passage.into, passage.values, passage.per_second, keyed_by_value=by_value)

    return carry_through(server, application, passage, write, lost, settled)


def carry_through(
    server: NodeProcess | JavaServer,
    application: JavaServer,
    passage: Passage,
    write: Callable[[], Writing],
    lost: Callable[[], None] = lambda: None,
    settled: Settled = lambda _: True,
) -> list[Came]:
    """All that is committed in the end, in the order of reading; ``write`` begins to write once the application serves,
    and it goes on until so much has come and ``settled`` says of it that it is all.

    After a quarter of it the application is killed, after half the server, after three quarters both; ``lost`` is
    called while the application is dead for the first time, to take away what it keeps on its disk.
    """
    reader = Reader(server.bootstrap, passage.out, passage.partitions)
    try:
        with application:
            writing = write()
            reader.until(passage.expected // 4, application)
            _die(application)
            lost()
            application.start()
            reader.until(passage.expected // 2, application)
            kill(server)
            reader.until(passage.expected * 3 // 4, application)
            _die(application)
            kill(server)
            application.start()
            writing.finish()
            reader.until(passage.expected, application)
            until = time.monotonic() + PATIENCE_S
            while not settled(reader.came):
                if time.monotonic() > until:
                    raise WentWrong(f"not settled after {PATIENCE_S:g} s\n{application.tail()[-4000:]}")
                reader.rest(0.5)
            return reader.rest()
    finally:
        reader.close()


def _die(application: JavaServer) -> None:
    os.kill(application.pid, signal.SIGKILL)
    application.stop()


def each_once(came: Iterable[Came], values: Iterable[bytes]) -> None:
    """Raises WentWrong unless each value is there exactly once."""
    often: dict[bytes | None, int] = defaultdict(int)
    for one in came:
        often[one.value] += 1
    wanted = set(values)
    missing = sorted(wanted - often.keys())
    doubled = sorted(str(value) for value, count in often.items() if count > 1)
    strange = sorted(str(value) for value in often.keys() - wanted)
    if missing or doubled or strange:
        raise WentWrong(
            f"{len(missing)} missing {missing[:3]}, {len(doubled)} doubled {doubled[:3]}, "
            f"{len(strange)} that nobody wrote {strange[:3]}"
        )
