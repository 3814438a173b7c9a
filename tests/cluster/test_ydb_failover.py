"""Three nodes over one PostgreSQL and one store of objects, and clients of YDB: one node ends under load, and they go
on; what they were told is judged."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import ydb

from tests.cluster.load import PATIENCE, TOPIC, keep_all
from tests.history.checks import arrange, judge, told
from tests.history.history import Outcome, Poll, Recorder, Send, read
from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient

PARTITIONS = 6


class Client(threading.Thread):
    """Does :meth:`work` until it is over; what that raises is a failure that the SDK has shown its user."""

    def __init__(self, name: str, node: NodeProcess, directory: Path) -> None:
        super().__init__(name=name)
        self.node = node
        self.over = threading.Event()
        self.failure: Exception | None = None
        self.longest = 0.0
        self.done = 0
        self.history = Recorder(directory / f"{name}.jsonl", name)
        self._last = 0.0

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

    def did(self, count: int = 1) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last if self._last else 0.0)
        self._last = now
        self.done += count


class Writer(Client):
    """Writes to one partition, one message after the other."""

    def __init__(self, partition: int, node: NodeProcess, directory: Path) -> None:
        super().__init__(f"writer{partition}", node, directory)
        self.partition = partition

    def work(self, driver: ydb.Driver) -> None:
        place, number = f"{TOPIC}/{self.partition}", 0
        with driver.topic_client.writer(TOPIC, producer_id=self.name, partition_id=self.partition) as writer:
            while not self.over.is_set():
                number += 1
                began, value = self.history.now(), f"{self.name}.{number}"
                result = writer.write_with_ack(value, timeout=PATIENCE)
                offset = result.offset if isinstance(result, ydb.TopicWriteResult.Written) else None
                self.history.keep(
                    Send(
                        client=self.name,
                        invoked=began,
                        told=self.history.now(),
                        partition=place,
                        value=value,
                        outcome=Outcome.DONE,
                        order=number,
                        offset=offset,
                    )
                )
                self.did()


class Reader(Client):
    """Reads for a consumer that several have, and commits."""

    def __init__(self, number: int, node: NodeProcess, directory: Path) -> None:
        super().__init__(f"reader{number}", node, directory)
        self.seen: set[str] = set()

    def work(self, driver: ydb.Driver) -> None:
        batches = 0
        with driver.topic_client.reader(TOPIC, "readers") as reader:
            while not self.over.is_set():
                try:
                    batch = reader.receive_batch(timeout=0.2)
                except TimeoutError:
                    continue
                now = self.history.now()
                batches += 1
                values = [(f"{TOPIC}/{one.partition_id}", one.offset, one.data.decode()) for one in batch.messages]
                # What was read and not committed is read again when a partition is somebody else's.
                session = f"{self.name}.{batches}"
                self.history.keep(
                    Poll(client=self.name, invoked=now, told=now, protocol="ydb", session=session, records=values)
                )
                self.seen.update(value for _, _, value in values)
                self.did(len(values))
                reader.commit(batch)


def await_more(clients: list[Writer], count: int) -> None:
    """Return when each has so many more acknowledgements."""
    began = time.monotonic()
    wanted = [client.done + count for client in clients]
    while any(client.done < end for client, end in zip(clients, wanted, strict=True)):
        assert time.monotonic() - began < PATIENCE, [client.failure for client in clients]
        time.sleep(0.05)


def owner_of_most(nodes: list[NodeProcess]) -> NodeProcess:
    """The node that has most of the partitions, and at least one."""
    with RawClient(nodes[0].ydb) as raw:
        told = raw.result("DescribeTopic", path=TOPIC, include_location=True).partitions
    numbers = [one.partition_location.node_id - 1 for one in told]
    return nodes[max(numbers, key=numbers.count) - 1]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["kill -9", "orderly"])
def test_clients_of_ydb_go_on_when_a_node_ends(nodes: list[NodeProcess], end: str, tmp_path: Path) -> None:
    directory = tmp_path / "history"
    with RawClient(nodes[0].ydb) as raw:
        settings = {"min_active_partitions": PARTITIONS}
        raw.result("CreateTopic", path=TOPIC, partitioning_settings=settings, consumers=[{"name": "readers"}])
        until = time.monotonic() + PATIENCE
        while len(raw.result("ListEndpoints").endpoints) < 3:
            assert time.monotonic() < until
            time.sleep(0.1)
        for other in nodes[1:]:
            with RawClient(other.ydb) as asked:
                while asked.call("DescribeTopic", path=TOPIC).status != 400000:
                    assert time.monotonic() < until
                    time.sleep(0.1)
    writers = [Writer(partition, nodes[partition % 3], directory) for partition in range(PARTITIONS)]
    readers = [Reader(number, nodes[number], directory) for number in range(2)]
    clients: list[Client] = [*writers, *readers]
    for client in clients:
        client.start()
    try:
        await_more(writers, 100)
        victim = owner_of_most(nodes)
        for client in clients:
            client.longest = 0.0  # first openings are not what this is about
        if end == "kill -9":
            victim.kill()
        else:
            assert victim.terminate() == 0
        await_more(writers, 100)
        for writer in writers:
            writer.over.set()
        for writer in writers:
            writer.join()
        written = sum(writer.done for writer in writers)
        began = time.monotonic()
        while len(set.union(*(reader.seen for reader in readers))) < written:
            assert time.monotonic() - began < PATIENCE, [reader.failure for reader in readers]
            time.sleep(0.1)
    finally:
        for client in clients:
            client.over.set()
        for client in clients:
            client.join()
    print(
        f"{end}: {written} messages, the longest time without an acknowledgement of one writer "
        f"{max(writer.longest for writer in writers):.1f} s, without a message for a reader "
        f"{max(reader.longest for reader in readers):.1f} s"
    )
    assert [client.failure for client in clients] == [None] * len(clients)
    bootstrap = ",".join(node.kafka for node in nodes if node is not victim)
    with closing(Recorder(directory / "everything.jsonl", "everything")) as recorder:
        assert keep_all(bootstrap, recorder, PARTITIONS) == written
    anomalies = judge(arrange(read(sorted(directory.iterdir()))))
    assert not anomalies, told(anomalies)
    # How fast it goes is the machine's as well: what is asserted would catch clients that wait for their own timeouts.
    assert max(writer.longest for writer in writers) < (30 if end == "kill -9" else 10)
