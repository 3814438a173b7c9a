"""Clients of a soak beside those of tests/torture/mixed_clients.py: members of groups, YDB's readers that commit,
Spark's stream, the console; and who asks every process whether it is well."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition

from benchmarks.probe import waited_for_processor
from tests.history.history import Outcome
from tests.torture.mixed_clients import QUIET, Client, Scene, YdbReader, told_value
from tests.torture.torture_load import Worker
from tests.torture.torture_ydb import confirmed

HEALTH_S = 2.0
"""Whoever asks for /healthz has an answer by then."""
SILENT_S = 20.0
"""A process that has not answered by then counts as frozen."""
_COMMIT_S = 0.5
_LOOK_S = 2.0
_LIFE_S = (8.0, 30.0)


class Member(Client):
    """One of a group of Kafka's, of either ``protocol``: goes away now and then, and comes again."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event, protocol: str) -> None:
        super().__init__(scene, name, finish)
        self.group = name.partition(".")[0]
        self.protocol = protocol
        self.session = 0
        self._next: dict[int, int] = {}
        """By partition, the offset behind what was given."""

    def work(self) -> None:
        while not self.finish.is_set():
            self.live(time.monotonic() + self.random.uniform(*_LIFE_S))

    def live(self, end: float) -> None:
        """One member's life."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.scene.bootstrap,
                "group.id": self.group,
                "group.protocol": self.protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                **QUIET,
            }
        )
        consumer.subscribe([self.scene.topic], on_assign=self._assigned, on_revoke=self._revoked)
        commit_at = 0.0
        try:
            while not self.finish.is_set() and time.monotonic() < end:
                invoked = self.history.now()
                given = [one for one in consumer.consume(500, 0.2) if one.error() is None]
                if given:
                    records = [
                        (f"{one.topic()}/{one.partition()}", one.offset() or 0, told_value(one.value()))
                        for one in given
                    ]
                    self.polled("kafka", str(self.session), invoked, records)
                    self._next |= {one.partition() or 0: (one.offset() or 0) + 1 for one in given}
                if time.monotonic() > commit_at:
                    self._commit(consumer, self._next)
                    commit_at = time.monotonic() + _COMMIT_S
        finally:
            consumer.close()

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.session += 1  # another member may have gone on where this one was before

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._commit(consumer, [place.partition for place in places])
        for place in places:
            self._next.pop(place.partition, None)

    def _commit(self, consumer: Consumer, partitions: Iterable[int]) -> None:
        """Not what the consumer calls its position: in the middle of a call to ``consume`` that is behind records
        which librdkafka throws away when their partition is revoked before it returns."""
        for partition in [one for one in partitions if one in self._next]:
            self.commit_place(consumer, self.group, TopicPartition(self.scene.topic, partition, self._next[partition]))


class YdbConsumer(YdbReader):
    """Commits what it reads for its consumer; each of its readers goes on where the one before came to. Kafka, asked
    for the group of that name, tells the same position."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event) -> None:
        super().__init__(scene, name, finish)
        self._look_at = 0.0
        self._kafka = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": name, **QUIET})

    def work(self) -> None:
        try:
            super().work()
        finally:
            self._kafka.close()

    def life(self) -> float:
        return self.random.uniform(*_LIFE_S)

    async def given(self, reader: Any, batch: Any) -> None:
        """Every batch is committed: behind one that is not, a position does not move."""
        invoked = self.history.now()
        outcome = Outcome.DONE if await confirmed(reader, batch) else Outcome.UNKNOWN
        last = batch.messages[-1]
        self.stored(self.name, f"{self.scene.topic}/{last.partition_id}", last.offset + 1, outcome, invoked)
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            place = TopicPartition(self.scene.topic, last.partition_id)
            await asyncio.to_thread(self.look_up, self._kafka, self.name, [place])


class ConsoleReader(Client):
    """Polls the console as its page does, and reads the topic through it."""

    PAGES = (
        "/metrics",
        "/api/status",
        "/api/topics",
        "/api/groups",
        "/api/transactions",
        "/api/history",
    )

    def __init__(self, scene: Scene, name: str, finish: threading.Event, consoles: Sequence[str]) -> None:
        super().__init__(scene, name, finish)
        self.consoles = consoles

    def work(self) -> None:
        at = dict.fromkeys(range(self.scene.partitions), 0)
        while not self.finish.is_set():
            console = self.random.choice(self.consoles)
            _get(console, self.random.choice((*self.PAGES, f"/api/topics/{self.scene.topic}")), 30.0)
            partition = self.random.choice(list(at))
            invoked = self.history.now()
            where = f"/api/topics/{self.scene.topic}/records?partition={partition}&offset={at[partition]}&limit=1000"
            records = list(self._records(_get(console, where, 30.0)))
            if records:
                self.polled("http", "1", invoked, records)
                at[partition] = records[-1][1] + 1
            self.finish.wait(0.2)

    def _records(self, lines: bytes) -> Iterator[tuple[str, int, str]]:
        for line in lines.splitlines():
            told = json.loads(line)
            if "offset" not in told:
                raise ValueError(f"the console's last line is {line.decode()}")
            value = told["value"].encode() if "value" in told else base64.b64decode(told["value_base64"])
            yield f"{self.scene.topic}/{told['partition']}", told["offset"], told_value(value)


def _get(console: str, path: str, patience: float) -> bytes:
    """The body. Raises OSError, ValueError for another status than 200."""
    link = http.client.HTTPConnection(console, timeout=patience)
    try:
        link.request("GET", path)
        response = link.getresponse()
        body = response.read()
        if response.status != 200:
            raise ValueError(f"{console}{path} answered {response.status}: {body[:500].decode(errors='replace')}")
        return body
    finally:
        link.close()


class SparkReader(Client):
    """A streaming query of Spark's in a process of its own (spark_query.py), which keeps the history itself."""

    def __init__(self, scene: Scene, name: str, finish: threading.Event, endpoint: str, directory: Path) -> None:
        super().__init__(scene, name, finish)
        self.endpoint, self.checkpoint = endpoint, directory / "checkpoint"
        self.log = directory / "spark.log"

    def work(self) -> None:
        command = [sys.executable, "-m", "tests.soak.spark_query", "--endpoint", self.endpoint]
        command += ["--topic", self.scene.topic, "--checkpoint", str(self.checkpoint)]
        command += ["--history", str(self.scene.directory / "spark-query.jsonl")]
        with self.log.open("wb") as log:
            query = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
            )
        assert query.stdin is not None
        assert query.stdout is not None
        threading.Thread(target=self._end, args=(query,), daemon=True).start()
        try:
            for line in query.stdout:
                if line.startswith("given "):
                    self.done += 1
                    self.reached |= json.loads(line.removeprefix("given "))
            if query.wait(60) or not self.finish.is_set():
                raise RuntimeError(f"Spark's query ended with {query.returncode}: {self.log.read_text()[-3000:]}")
        finally:
            query.kill()

    def _end(self, query: subprocess.Popen[str]) -> None:
        self.finish.wait()
        assert query.stdin is not None
        query.stdin.close()


class Health(Worker):
    """Asks one process again and again whether it is well. ``late``: sentences about answers that came late, or not.

    How long the process, or who asks it, waits for a processor on a busy machine does not count.
    """

    def __init__(self, node: str, console: str, pid: int, finish: threading.Event) -> None:
        super().__init__(f"health of {node}", finish)
        self.node, self.console, self.pid = node, console, pid
        self.done = 0
        self.longest = 0.0
        self.late: list[str] = []
        self.is_silent = False
        """It has not answered for so long that it will not."""

    def work(self) -> None:
        while not self.is_silent and not self.finish.wait(0.25):
            self.ask()

    def ask(self) -> None:
        """Ask once."""
        began, waited = time.monotonic(), self._waited()
        try:
            _get(self.console, "/healthz", SILENT_S)
        except (OSError, ValueError) as error:
            self.is_silent = True
            self.late.append(f"{self.node} did not answer /healthz in {time.monotonic() - began:.1f} s: {error!r}")
            return
        took = time.monotonic() - began - (self._waited() - waited)
        self.done += 1
        self.longest = max(self.longest, took)
        if took > HEALTH_S:
            self.late.append(f"{self.node} answered /healthz after {took:.2f} s")

    def _waited(self) -> float:
        return waited_for_processor(self.pid) + waited_for_processor(os.getpid(), threading.get_native_id())


class Memory(Worker):
    """Keeps what each process has resident: (when, bytes)."""

    def __init__(self, pids: Mapping[str, int], finish: threading.Event) -> None:
        super().__init__("memory", finish)
        self.samples: dict[str, list[tuple[float, int]]] = {name: [] for name in pids}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def work(self) -> None:
        while not self.finish.wait(1.0):
            now = time.monotonic()
            for name, process in self._processes.items():
                self.samples[name].append((now, process.memory_info().rss))
