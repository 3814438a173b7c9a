"""A node whose database goes away: what changes metadata is refused for a while, what is open is written and read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import NodeFactory
from tests.postgres import Postgres

PATIENCE = 60


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One that the test stops."""
    server = Postgres()
    try:
        yield server
    finally:
        server.close()


class Clients:
    """A producer, a reader without a group's members, whose positions are committed all the same, and an operator."""

    def __init__(self, bootstrap: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE)
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        options = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
        self.reader = Consumer({**options, "auto.offset.reset": "earliest"})
        self.reader.assign([TopicPartition("t", 0, 0)])
        self.position = 0

    def pass_through(self, values: list[bytes]) -> None:
        """They are written, acknowledged and read."""
        failed: list[object] = []
        for value in values:
            self.producer.produce("t", value, on_delivery=lambda error, _: error and failed.append(error))
        assert self.producer.flush(PATIENCE) == 0
        assert failed == []
        found = []
        while len(found) < len(values):
            message = self.reader.poll(PATIENCE)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value())
        assert found == values
        self.position += len(values)

    def commit(self) -> None:
        self.reader.commit(offsets=[TopicPartition("t", 0, self.position)], asynchronous=False)

    def committed(self) -> int:
        (found,) = self.reader.committed([TopicPartition("t", 0)], PATIENCE)
        return int(found.offset)

    def close(self) -> None:
        self.reader.close()


def test_what_is_open_goes_on_without_the_database_and_the_rest_when_it_is_back(
    node_factory: NodeFactory, server: Postgres
) -> None:
    node = node_factory(settings={"cluster.database": server.url()})
    clients = Clients(node.kafka)
    clients.pass_through([b"before%d" % number for number in range(20)])
    clients.commit()
    for round_ in range(2):
        server.stop()
        clients.pass_through([b"away%d.%d" % (round_, number) for number in range(50)])
        with pytest.raises(KafkaException) as refused:
            clients.commit()
        assert refused.value.args[0].code() == KafkaError.COORDINATOR_NOT_AVAILABLE  # which clients try again
        made = clients.admin.create_topics([NewTopic(f"new{round_}", 1)], operation_timeout=2, request_timeout=5)
        with pytest.raises(KafkaException) as refused:
            made[f"new{round_}"].result(PATIENCE)
        assert refused.value.args[0].code() == KafkaError.NOT_CONTROLLER  # which Java tries again by itself
        assert node.process is not None
        assert node.process.poll() is None
        server.start()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                clients.commit()
                break
            except KafkaException:
                assert time.monotonic() < deadline
        assert clients.committed() == clients.position
        clients.admin.create_topics([NewTopic(f"later{round_}", 1)])[f"later{round_}"].result(PATIENCE)
    clients.close()
    node.restart(kill=True)
    again = Consumer({"bootstrap.servers": node.kafka, "group.id": "g"})
    (found,) = again.committed([TopicPartition("t", 0)], PATIENCE)
    assert found.offset == 120
    again.close()


def test_commits_whose_connections_are_cut_again_and_again_are_there_once_they_are_acknowledged(
    node_factory: NodeFactory, server: Postgres
) -> None:
    node = node_factory(settings={"cluster.database": server.url()})
    clients = Clients(node.kafka)
    clients.pass_through([b"%d" % number for number in range(10)])
    stop, cut = threading.Event(), 0

    def cutting() -> None:
        nonlocal cut
        with psycopg.connect(server.url(), autocommit=True) as connection:
            query = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'"
            )
            while not stop.wait(0.2):  # so that some connections live long enough for a transaction
                row = connection.execute(query).fetchone()
                cut += 0 if row is None else row[0]

    thread = threading.Thread(target=cutting)
    thread.start()
    acknowledged = 0
    try:
        deadline = time.monotonic() + 5
        number = 0
        while time.monotonic() < deadline or not acknowledged or not cut:
            assert time.monotonic() < deadline + PATIENCE
            number += 1
            try:
                clients.reader.commit(offsets=[TopicPartition("t", 0, number)], asynchronous=False)
                acknowledged = number
            except KafkaException:
                continue
    finally:
        stop.set()
        thread.join()
    print(f"{number} commits asked for, {acknowledged} the last acknowledged, {cut} connections cut")
    found = clients.committed()
    assert acknowledged <= found <= number
    clients.close()
    node.restart(kill=True)
    again = Consumer({"bootstrap.servers": node.kafka, "group.id": "g"})
    (kept,) = again.committed([TopicPartition("t", 0)], PATIENCE)
    assert kept.offset == found
    again.close()
