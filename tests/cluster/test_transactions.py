"""Kafka transactions over three nodes: whatever is killed or paused, each is committed or aborted whole."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, await_leaders, keep_all
from tests.history.checks import arrange, judge, told
from tests.history.history import Commit, Committed, End, Outcome, Recorder, Send, read
from tests.node_process import NodeProcess

CALL_S = 10
"""How long a client waits for a call, before it makes it again."""
PLACES = [f"{TOPIC}/{number}" for number in range(PARTITIONS)]


class Client(threading.Thread):
    """Transactions of one transactional id, one after the other, over some partitions each; a third of them are
    aborted. With ``positions`` each commits, as a position of a group of its own, how many there have been."""

    def __init__(self, bootstrap: str, number: int, directory: Path, over: threading.Event, *, positions: bool) -> None:
        super().__init__(name=f"client{number}")
        self.number = number
        self.positions = positions
        self.committed = 0
        self.known = 0
        """Those whose outcome its producer was told."""
        self.unknown = 0
        self.longest = 0.0
        self.error: BaseException | None = None
        self._servers = bootstrap
        self._over = over
        self._random = random.Random(number)
        self._recorder = Recorder(directory / f"client{number}.jsonl", self.name)
        self._groups = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group})
        self._producer: Producer | None = None
        self._orders = dict.fromkeys(PLACES, 0)

    @property
    def group(self) -> str:
        return f"group{self.number}"

    def run(self) -> None:
        try:
            count = 0
            last = time.monotonic()
            while not self._over.is_set():
                self._transaction(count)
                count += 1
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            self.error = error
        finally:
            self._recorder.close()

    def _open(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self._servers,
                    "transactional.id": f"txn{self.number}",
                    "transaction.timeout.ms": 20_000,
                    "linger.ms": 1,
                    "reconnect.backoff.max.ms": 500,
                    "socket.timeout.ms": 10_000,  # a node that sleeps answers nothing: a minute each, by default
                }
            )
            _until_done(lambda: self._made(self._producer).init_transactions(CALL_S))
        return self._producer

    @staticmethod
    def _made(producer: Producer | None) -> Producer:
        assert producer is not None
        return producer

    def _transaction(self, count: int) -> None:
        name = f"{self.number}.{count}"
        commit = self._random.random() > 0.33
        sends: list[Send] = []
        began = self._recorder.now()
        outcome = Outcome.UNKNOWN
        try:
            producer = self._open()
            producer.begin_transaction()
            for place in self._random.sample(PLACES, 4):
                value = f"{name}.{place}"
                self._orders[place] += 1
                send = Send(
                    client=self.name,
                    invoked=self._recorder.now(),
                    told=0.0,
                    partition=place,
                    value=value,
                    outcome=Outcome.UNKNOWN,
                    order=self._orders[place],
                    transaction=name,
                )
                sends.append(send)
                producer.produce(TOPIC, value.encode(), partition=int(place.partition("/")[2]), on_delivery=_told(send))
            position = TopicPartition(TOPIC, self.number % PARTITIONS, count + 1)
            if self.positions:
                _until_done(
                    lambda: producer.send_offsets_to_transaction(
                        [position], self._groups.consumer_group_metadata(), CALL_S
                    )
                )
            if commit:
                _until_done(lambda: producer.commit_transaction(CALL_S))
            else:
                _until_done(lambda: producer.abort_transaction(CALL_S))
            outcome = Outcome.DONE
        except KafkaException as error:
            commit, outcome = self._after(error, commit)
        told = self._recorder.now()
        for send in sends:
            send.told = told
            self._recorder.keep(send)
        self._recorder.keep(
            End(client=self.name, invoked=began, told=told, transaction=name, commit=commit, outcome=outcome)
        )
        if commit and self.positions:
            place = f"{TOPIC}/{self.number % PARTITIONS}"
            self._recorder.keep(
                Commit(
                    client=self.name,
                    invoked=began,
                    told=told,
                    group=self.group,
                    partition=place,
                    offset=count + 1,
                    outcome=outcome,
                )
            )
        self.known += outcome is Outcome.DONE
        self.unknown += outcome is Outcome.UNKNOWN
        self.committed += commit and outcome is Outcome.DONE

    def _after(self, error: KafkaException, commit: bool) -> tuple[bool, Outcome]:
        """What is known when a call has failed for good."""
        found = error.args[0]
        if found.txn_requires_abort():
            try:
                _until_done(lambda: self._made(self._producer).abort_transaction(CALL_S))
                return False, Outcome.DONE
            except KafkaException:
                pass
        # Fenced by its coordinator, whose time was over: a new producer of the id finds out nothing about the last one.
        self._producer = None
        return commit, Outcome.UNKNOWN


def _told(send: Send):  # type: ignore[no-untyped-def]
    def told(error: KafkaError | None, message: object) -> None:
        if error is None:
            send.outcome = Outcome.DONE
            send.offset = message.offset()  # type: ignore[attr-defined]

    return told


def _until_done(call) -> None:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() - began > PATIENCE:
                raise
        else:
            return


def read_everything(bootstrap: str, directory: Path, clients: list[Client]) -> None:
    """What a reader of committed data is given from beginning to end, and every group's position."""
    recorder = Recorder(directory / "reader.jsonl", "reader")
    keep_all(bootstrap, recorder)
    for client in clients if clients[0].positions else ():
        group = Consumer({"bootstrap.servers": bootstrap, "group.id": client.group})
        number = client.number % PARTITIONS
        invoked = recorder.now()
        (found,) = group.committed([TopicPartition(TOPIC, number)], timeout=PATIENCE)
        group.close()
        recorder.keep(
            Committed(
                client="reader",
                invoked=invoked,
                told=recorder.now(),
                group=client.group,
                partition=f"{TOPIC}/{number}",
                offset=None if found.offset < 0 else found.offset,
            )
        )
    recorder.close()


def await_known(clients: list[Client], more: int) -> None:
    """Return when each client was told the outcome of so many transactions more."""
    began = time.monotonic()
    wanted = {client: client.known + more for client in clients}
    while behind := [one.name for one, known in wanted.items() if one.known < known]:
        assert time.monotonic() - began < PATIENCE, behind
        assert not any(client.error for client in clients), [client.error for client in clients]
        time.sleep(0.05)


def transaction_command(node: NodeProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bridges", "transaction", *arguments, "--node", node.console, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def listed(node: NodeProcess, *arguments: str) -> Any:
    """What the command tells."""
    done = transaction_command(node, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def transactions(nodes: list[NodeProcess], directory: Path, *, positions: bool = False) -> Iterator[list[Client]]:
    """Clients at work while the block lasts; then what they and a reader were told is judged."""
    # librdkafka waits for ever for a group's coordinator that is killed meanwhile (docs/compatibility.md).
    bootstrap = ",".join(node.kafka for node in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, {1, 2, 3})
    over = threading.Event()
    clients = [Client(bootstrap, number, directory, over, positions=positions) for number in range(6)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        over.set()
        for client in clients:
            client.join()
    assert [client.error for client in clients] == [None] * len(clients)
    read_everything(bootstrap, directory, clients)
    anomalies = judge(arrange(read(sorted(directory.iterdir())), wholly=PLACES))
    longest = max(client.longest for client in clients)
    print(f"{sum(client.known for client in clients)} transactions, the longest took {longest:.1f} s")
    assert not anomalies, told(anomalies)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_transactions_are_whole_when_nodes_are_killed(nodes: list[NodeProcess], tmp_path: Path) -> None:
    with transactions(nodes, tmp_path / "history") as clients:
        await_known(clients, 5)
        # Each transaction writes everywhere: of each node some lose their coordinator, some an owner, some both.
        for node in nodes[:2]:
            node.kill()
            await_known(clients, 2)
            node.start()
            await_known(clients, 3)
        known = {one["transactional_id"]: one["state"] for one in listed(nodes[2], "list")}
        assert set(known) == {f"txn{number}" for number in range(len(clients))}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_that_wakes_up_after_others_went_on_decides_nothing(nodes: list[NodeProcess], tmp_path: Path) -> None:
    with transactions(nodes, tmp_path / "history") as clients:
        await_known(clients, 5)
        process = nodes[1].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await_known(clients, 3)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) != 0  # it was taken for dead
        await_known(clients, 3)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ids_come_with_their_slots_when_nodes_leave_in_order(nodes: list[NodeProcess], tmp_path: Path) -> None:
    with transactions(nodes, tmp_path / "history") as clients:
        await_known(clients, 5)
        for node in nodes:
            assert node.terminate() == 0
            node.start()
            await_known(clients, 2)
    # Nobody was told that a transaction failed because nodes went and came.
    assert all(client.unknown == 0 for client in clients)
