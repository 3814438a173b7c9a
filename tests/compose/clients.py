"""Unchanged clients: those whose histories are judged (tests/torture/mixed_clients.py), against a cluster with faults,
and one that writes and reads a topic of one partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.history.checks import arrange, judge, told
from tests.history.history import Commit, Outcome, Poll, Send, Told, read
from tests.torture.mixed_clients import Client, Ends, Reader, Scene, Writer, YdbReader, YdbWriter, read_whole
from tests.torture.torture_ydb import prepare

PARTITIONS = 6
PATIENCE = 120.0


def produce(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failed: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(120) == 0
    assert not failed


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """Return so many records from the start of a topic of one partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 60)
        assert messages, f"{len(found)} of {count} records came"
        found += [message for message in messages if message.error() is None]
    consumer.close()
    return [message.value() for message in found]


class Watched(Writer):
    """A writer that knows how long each of its partitions went without an acknowledgement."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event) -> None:
        super().__init__(scene, name, finish)
        self.last: dict[str, float] = {}
        self.longest = 0.0
        self.refused: list[Send] = []

    def keep(self, event: Told) -> None:
        if isinstance(event, Send) and event.partition is not None:
            if event.outcome is Outcome.DONE:
                before = self.last.get(event.partition, event.told)
                self.longest = max(self.longest, event.told - before)
                self.last[event.partition] = event.told
            else:
                self.refused.append(event)
        super().keep(event)


class Clients:
    """Writers and readers of one topic, Kafka's and YDB's, from its making to the judgement."""

    def __init__(self, bootstrap: str, ydb: str, directory: Path, topic: str) -> None:
        self.scene = Scene(bootstrap, ydb, directory, 1, topic, PARTITIONS, "", "")
        self.finish = threading.Event()
        self.writers = [Watched(self.scene, f"{topic}-writer-{number}", self.finish) for number in range(2)]
        self.others: list[Client] = [
            Reader(self.scene, f"{topic}-reader", self.finish, committed=False),
            Reader(self.scene, f"{topic}-committed-reader", self.finish, committed=True),
            Ends(self.scene, f"{topic}-ends", self.finish),
            YdbWriter(self.scene, f"{topic}-ydb-writer", self.finish),
            YdbReader(self.scene, f"{topic}-ydb-reader", self.finish),
        ]

    @property
    def all(self) -> Sequence[Client]:
        return [*self.writers, *self.others]

    def begin(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.scene.bootstrap})
        admin.create_topics([NewTopic(self.scene.topic, PARTITIONS)])[self.scene.topic].result(PATIENCE)
        prepare(self.scene.ydb, {self.scene.topic: f"{self.scene.topic}-ydb-reader"})
        for client in self.all:
            client.start()
        self.progress()
        for writer in self.writers:
            writer.longest = 0.0

    def progress(self) -> float:
        """Return when every partition has taken records that were sent from now on, and every client has got on; after
        how many seconds."""
        began = time.monotonic()
        done = {client.name: client.done for client in self.all}
        while True:
            places = {f"{self.scene.topic}/{number}" for number in range(PARTITIONS)}
            later = {
                place
                for writer in self.writers
                for place, when in list(writer.last.items())
                if when > began and place in places
            }
            waiting = [client.name for client in self.all if client.done == done[client.name]]
            if later == places and not waiting:
                return time.monotonic() - began
            assert time.monotonic() - began < PATIENCE, f"no progress: {waiting or places - later}"
            for client in self.all:
                assert client.trouble is None, f"{client.name} ended early: {client.trouble!r}"
            time.sleep(0.1)

    def end(self, allowed: Sequence[str] = ()) -> list[str]:
        """Let everybody finish, read all, and judge: what is wrong, in words, but for kinds that are ``allowed``."""
        self.finish.set()
        for client in self.all:
            client.join(180)
            assert not client.is_alive(), f"{client.name} did not end"
            assert client.trouble is None, f"{client.name}: {client.trouble!r}"
        events: list[Told] = list(read(sorted(self.scene.directory.glob(f"{self.scene.topic}-*.jsonl"))))
        records = read_whole(self.scene, self.scene.topic, PARTITIONS)
        now = time.monotonic()
        events.append(
            Poll(client="all", invoked=now, told=now, protocol="kafka", session="1", records=records, whole=True)
        )
        places = [f"{self.scene.topic}/{number}" for number in range(PARTITIONS)]
        sends = [event for event in events if isinstance(event, Send) and event.outcome is Outcome.DONE]
        commits = [event for event in events if isinstance(event, Commit) and event.outcome is Outcome.DONE]
        self.longest = max(writer.longest for writer in self.writers)
        print(
            f"{self.scene.topic}: {len(sends)} records acknowledged, {len(commits)} positions committed, longest time "
            f"without an acknowledgement of a partition {self.longest:.1f} s"
        )
        assert len(sends) > 1000, "hardly anything was acknowledged: nothing was tested"
        found = judge(arrange(events, wholly=places), allowed)
        return told(found).splitlines() if found else []

    def unanswered(self) -> list[Send]:
        """Records whose writer was shown an error."""
        return [send for writer in self.writers for send in writer.refused]
