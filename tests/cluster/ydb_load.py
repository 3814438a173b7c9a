"""Clients of YDB that write and read beside faults, and know what they were told: of the SDK for Python, and programs
of others (tests/ydb_topic_front/sdks)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import ydb

from tests import drivers
from tests.cluster.load import PATIENCE, TOPIC, keep_all
from tests.history.checks import arrange, judge, told
from tests.history.history import Outcome, Poll, Recorder, Send, read
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.sdks.programs import HERE, SDKS

PARTITIONS = 6
READERS, PROGRAMS = "readers", ("ydb-go", "ydb-java")
CONSUMERS = (READERS, *PROGRAMS)
"""Of the SDK for Python, and of each program."""


class Pace:
    """How often somebody is told something new."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.longest = 0.0
        self.done = 0
        self.last = 0.0

    def did(self, count: int = 1) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last if self.last else 0.0)
        self.last = now
        self.done += count


class Client(threading.Thread):
    """Does :meth:`work` until it is over; what that raises is a failure that the SDK has shown its user."""

    def __init__(self, name: str, node: NodeProcess, directory: Path) -> None:
        super().__init__(name=name)
        self.node = node
        self.over = threading.Event()
        self.failure: Exception | None = None
        self.pace = Pace(name)
        self.history = Recorder(directory / f"{name}.jsonl", name)

    def run(self) -> None:
        try:
            with ydb.Driver(endpoint=f"grpc://{self.node.ydb}", database="/local") as driver:
                driver.wait(timeout=PATIENCE, fail_fast=True)
                self.work(driver)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error
        finally:
            self.history.close()

    def work(self, driver: ydb.Driver) -> None:
        raise NotImplementedError


class Writer(Client):
    """Writes to one partition, one message after the other."""

    def __init__(self, partition: int, node: NodeProcess, directory: Path) -> None:
        super().__init__(f"writer{partition}", node, directory)
        self.partition = partition

    def work(self, driver: ydb.Driver) -> None:
        number = 0
        with driver.topic_client.writer(TOPIC, producer_id=self.name, partition_id=self.partition) as writer:
            while not self.over.is_set():
                number += 1
                began, value = self.history.now(), f"{self.name}.{number}"
                result = writer.write_with_ack(value, timeout=PATIENCE)
                offset = result.offset if isinstance(result, ydb.TopicWriteResult.Written) else None
                keep_sent(self.history, began, self.partition, self.name, number, offset)
                self.pace.did()


class Reader(Client):
    """Reads for a consumer that several have, and commits."""

    def __init__(self, number: int, node: NodeProcess, directory: Path) -> None:
        super().__init__(f"reader{number}", node, directory)
        self.seen: set[str] = set()

    def work(self, driver: ydb.Driver) -> None:
        batches = 0
        with driver.topic_client.reader(TOPIC, READERS) as reader:
            while not self.over.is_set():
                try:
                    batch = reader.receive_batch(timeout=0.2)
                except TimeoutError:
                    continue
                batches += 1
                values = [(one.partition_id, one.offset, one.data.decode()) for one in batch.messages]
                # What was read and not committed is read again when a partition is somebody else's.
                keep_read(self.history, f"{self.name}.{batches}", values)
                self.seen.update(value for _, _, value in values)
                self.pace.did(len(values))
                reader.commit(batch)


def keep_sent(
    history: Recorder, began: float, partition: int, client: str, number: int, offset: int | None = None
) -> None:
    history.keep(
        Send(
            client=client,
            invoked=began,
            told=history.now(),
            partition=f"{TOPIC}/{partition}",
            value=f"{client}.{number}",
            outcome=Outcome.DONE,
            order=number,
            offset=offset,
        )
    )


def keep_read(history: Recorder, session: str, values: Sequence[tuple[int, int, str]]) -> None:
    now = history.now()
    records = [(f"{TOPIC}/{partition}", offset, value) for partition, offset, value in values]
    history.keep(Poll(client=history.client, invoked=now, told=now, protocol="ydb", session=session, records=records))


def command_of(sdk: str) -> Sequence[str]:
    """What runs the load of an SDK in another language."""
    if sdk == "ydb-java":
        return drivers.java(sdk, HERE / "java" / "pom.xml", "anabranch.tests.YdbLoad").command()
    (program,) = [one.program for one in SDKS if one.name == sdk]
    return program.command()


class Program(threading.Thread):
    """A writer for each of some partitions and a reader, in a program of another language (``sdks/go/load.go``)."""

    def __init__(self, sdk: str, partitions: Sequence[int], node: NodeProcess, directory: Path) -> None:
        super().__init__(name=sdk)
        self.failures: list[str] = []
        self.writers = {f"{sdk}-{partition}": Pace(f"{sdk}-{partition}") for partition in partitions}
        self.reader = Pace(f"{sdk} reader")
        self.seen: set[str] = set()
        self._over: set[str] = set()
        self.history = Recorder(directory / f"{sdk}.jsonl", sdk)
        self.errors: list[str] = []
        arguments = [f"{node.ydb}/local", f"/local/{TOPIC}", f"{sdk}-", sdk, *map(str, partitions)]
        self._process = subprocess.Popen(
            [*command_of(sdk), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self.errors += self._process.stderr

    def run(self) -> None:
        assert self._process.stdout is not None
        # When it sends is not known here, where its words come late: not before it began.
        began = self.history.now()
        for line in self._process.stdout:
            kind, *words = line.split(maxsplit=3)
            match kind, words:
                case "acked", [name, number]:
                    partition = int(name.rpartition("-")[2])
                    keep_sent(self.history, began, partition, name, int(number))
                    self.writers[name].did()
                case "read", [partition, offset, value]:
                    value = value.strip()
                    session = f"{self.name}.{self.reader.done}"
                    keep_read(self.history, session, [(int(partition), int(offset), value)])
                    self.seen.add(value)
                    self.reader.did()
                case "over", [name]:
                    self._over.add(name)
                case _:
                    self.failures.append(line)
        self.history.close()

    def finish(self) -> None:
        """Have its writers stop; returns when they have."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        wait_until(lambda: self._over == set(self.writers), lambda: (self.failures, self.errors[-20:]))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.join()
        self._listening.join()


class Load:
    """What works on the topic. ``directory``: for what its clients were told."""

    def __init__(self, nodes: list[NodeProcess], directory: Path, programs: Sequence[str]) -> None:
        self.nodes = nodes
        self.directory = directory
        self.writers = [Writer(partition, nodes[partition % 3], directory) for partition in range(PARTITIONS)]
        self.readers = [Reader(number, nodes[number], directory) for number in range(2)]
        # Each through another node, to partitions of all three.
        self.programs = [
            Program(sdk, range(PARTITIONS), nodes[number], directory) for number, sdk in enumerate(programs)
        ]
        self.written = 0

    @property
    def paces(self) -> list[Pace]:
        """Of all writers."""
        own = [writer.pace for writer in self.writers]
        return own + [pace for program in self.programs for pace in program.writers.values()]

    @property
    def reading(self) -> list[Pace]:
        return [reader.pace for reader in self.readers] + [program.reader for program in self.programs]

    def start(self) -> None:
        for thread in (*self.writers, *self.readers, *self.programs):
            thread.start()

    def forget(self) -> None:
        """What was before is not what the longest time is asked of."""
        for pace in (*self.paces, *self.reading):
            pace.longest = 0.0

    def tell(self, what: str) -> None:
        """Print the longest times."""
        told = ", ".join(
            f"{sdk}: without an acknowledgement {max(pace.longest for pace in writers):.1f} s, "
            f"without a message {max(pace.longest for pace in readers):.1f} s"
            for sdk, writers, readers in self._by_sdk()
        )
        print(f"{what}: {sum(pace.done for pace in self.paces)} messages; {told}")

    def _by_sdk(self) -> Iterator[tuple[str, list[Pace], list[Pace]]]:
        if self.writers:
            yield "python", [one.pace for one in self.writers], [one.pace for one in self.readers]
        for program in self.programs:
            yield program.name, list(program.writers.values()), [program.reader]

    def await_more(self, count: int) -> None:
        """Return when each writer has so many more acknowledgements."""
        wanted = {pace: pace.done + count for pace in self.paces}
        wait_until(lambda: all(pace.done >= end for pace, end in wanted.items()), self.failures)

    def failures(self) -> list[object]:
        """What the SDKs have shown their users."""
        found: list[object] = [one.failure for one in (*self.writers, *self.readers) if one.failure]
        return found + [line for program in self.programs for line in program.failures]

    def finish(self) -> None:
        """Stop writing, and return when every consumer has read all of it."""
        for writer in self.writers:
            writer.over.set()
        for writer in self.writers:
            writer.join()
        for program in self.programs:
            program.finish()
        self.written = sum(pace.done for pace in self.paces)
        seen: list[Callable[[], int]] = [lambda: len(set.union(*(one.seen for one in self.readers)))]
        seen += [lambda program=program: len(program.seen) for program in self.programs]  # type: ignore[misc]
        wait_until(
            lambda: all(one() >= self.written for one in seen),
            lambda: (
                self.failures(),
                f"{self.written} were written; python's and each program's consumer read",
                [one() for one in seen],
            ),
        )

    def end(self) -> None:
        for client in (*self.writers, *self.readers):
            client.over.set()
        for client in (*self.writers, *self.readers):
            client.join()
        for program in self.programs:
            program.kill()

    def judge(self, alive: list[NodeProcess]) -> None:
        """Nothing that was acknowledged is lost, nothing is there twice, and no client has shown its user an error."""
        failures = self.failures()
        assert not failures, failures
        with closing(Recorder(self.directory / "everything.jsonl", "everything")) as recorder:
            assert keep_all(",".join(node.kafka for node in alive), recorder, PARTITIONS) == self.written
        anomalies = judge(arrange(read(sorted(self.directory.iterdir()))))
        assert not anomalies, told(anomalies)


@contextmanager
def load(nodes: list[NodeProcess], directory: Path, programs: Sequence[str] = ()) -> Iterator[Load]:
    """Clients at work while the block lasts, on a topic that is made for them."""
    with RawClient(nodes[0].ydb) as raw:
        settings = {"min_active_partitions": PARTITIONS}
        consumers = [{"name": name} for name in CONSUMERS]
        raw.result("CreateTopic", path=TOPIC, partitioning_settings=settings, consumers=consumers)
        wait_until(lambda: len(raw.result("ListEndpoints").endpoints) == len(nodes))
    for other in nodes[1:]:
        with RawClient(other.ydb) as asked:
            wait_until(lambda asked=asked: asked.call("DescribeTopic", path=TOPIC).status == 400000)  # type: ignore[misc]
    made = Load(nodes, directory, programs)
    made.start()
    try:
        yield made
    finally:
        made.end()


def owner_of_most(nodes: list[NodeProcess]) -> NodeProcess:
    """The node that has most of the partitions, and at least one."""
    numbers = list(owners(nodes[0]).values())
    return nodes[max(numbers, key=numbers.count) - 1]


def owners(asked: NodeProcess) -> dict[int, int]:
    """By partition, the id of the node that owns it, as one of them tells."""
    with RawClient(asked.ydb) as raw:
        told = raw.result("DescribeTopic", path=TOPIC, include_location=True).partitions
    return {one.partition_id: one.partition_location.node_id - 1 for one in told}
