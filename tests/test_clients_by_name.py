"""Who writes and who reads: clients of every protocol by name, at one node, workers, and nodes of which one ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import ydb
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pravega_client import StreamManager

from tests.cluster.conftest import three
from tests.conftest import TEST_SETTINGS
from tests.kit.waiting import wait_until
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres

PATIENCE = 60
FRONTS = ("kafka", "ydb", "pravega", "pravega-segmentstore", "console")
LISTEN = {**dict.fromkeys(FRONTS, ANY), "sbp-pd": "off", "sbp-range-server": "off"}


def ask(node: NodeProcess, path: str, method: str = "GET", body: bytes | None = None) -> Any:
    request = Request(f"{node.console}{path}", data=body, method=method, headers={"User-Agent": "curl/8"})
    with urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def clients_of(node: NodeProcess, topic: str, **query: str) -> list[dict[str, Any]]:
    asked = "&".join(f"{key}={quote(value)}" for key, value in query.items())
    return list(ask(node, f"/api/topics/{topic}/clients?{asked}")["clients"])


def command(node: NodeProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bridges", *words, "--node", node.console]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Users:
    """A writer and a reader of each protocol on one topic, all of them connected until :meth:`close`."""

    def __init__(self, node: NodeProcess, topic: str, partitions: int = 1) -> None:
        self.node, self.topic, self.partitions = node, topic, partitions
        self._stack = ExitStack()
        kafka = {"bootstrap.servers": node.kafka}
        admin = AdminClient(kafka)
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE)
        self.producer = Producer(kafka | {"client.id": "<b>billing</b>"})
        self.consumer = Consumer(kafka | {"client.id": "reports", "group.id": "g", "auto.offset.reset": "earliest"})
        self._stack.callback(self.consumer.close)
        self.consumer.subscribe([topic])
        self.driver = self._stack.enter_context(ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local"))
        self.driver.wait(timeout=PATIENCE, fail_fast=True)
        self.driver.topic_client.alter_topic(topic, add_consumers=["c"])
        self.writer = self._stack.enter_context(self.driver.topic_client.writer(topic, producer_id="meter-7"))
        self.reader = self._stack.enter_context(self.driver.topic_client.reader(topic, "c"))
        self.streams = StreamManager(f"tcp://{node.addresses['pravega']}")
        self.pravega = self.streams.create_writer("default", topic)
        self.write()

    def write(self) -> None:
        for partition in range(self.partitions):
            self.producer.produce(self.topic, b"from kafka", partition=partition)
        assert self.producer.flush(PATIENCE) == 0
        self.writer.write_with_ack("from ydb", timeout=PATIENCE)
        self.pravega.write_event("from pravega", routing_key="key")
        self.pravega.flush()
        ask(self.node, f"/api/topics/{self.topic}/records", "POST", b'{"value": "from http"}\n')

    def read(self, count: int) -> None:
        found = 0
        while found < count:
            message = self.consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None, message.error()
            found += 1
        found = 0
        while found < count:
            batch = self.reader.receive_batch(timeout=PATIENCE)
            found += len(batch.messages)
            self.reader.commit(batch)

    def close(self) -> None:
        self._stack.close()


def named(rows: list[dict[str, Any]], protocol: str, direction: str) -> dict[str, Any]:
    found = [one for one in rows if (one["protocol"], one["direction"]) == (protocol, direction)]
    assert len(found) == 1, (protocol, direction, rows)
    return found[0]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("one") / "data", settings=TEST_SETTINGS, listen=LISTEN)
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture(scope="module")
def users(node: NodeProcess) -> Iterator[Users]:
    made = Users(node, "flights")
    made.read(4)
    try:
        yield made
    finally:
        made.close()


def test_writers_and_readers_of_every_protocol_have_their_names(node: NodeProcess, users: Users) -> None:
    rows = clients_of(node, "flights")
    kafka = named(rows, "kafka", "writes")
    assert kafka["client"] == "<b>billing</b>"
    assert kafka["software"].startswith(("librdkafka", "confluent-kafka-python"))
    assert kafka["address"].startswith("127.0.0.1:")
    assert (kafka["partitions"], kafka["records"]) == ([0], 1)
    assert kafka["bytes"] > 0
    assert kafka["records_per_s"] >= 0
    reader = named(rows, "kafka", "reads")
    assert (reader["client"], reader["records"]) == ("reports", 4)
    writer = named(rows, "ydb", "writes")
    assert writer["client"] == "meter-7"
    assert writer["software"].startswith("ydb-python-sdk/")
    assert (named(rows, "ydb", "reads")["records"], writer["records"]) == (4, 1)
    pravega = named(rows, "pravega", "writes")
    assert len(pravega["client"]) == 36
    assert (pravega["records"], pravega["partitions"]) == (1, [0])
    http = named(rows, "http", "writes")
    assert (http["id"], http["software"], http["records"], http["address"]) == (None, "curl/8", 1, "127.0.0.1")
    assert [one["protocol"] for one in clients_of(node, "flights", protocol="ydb")] == ["ydb", "ydb"]
    assert {one["client"] for one in clients_of(node, "flights", search="BILL")} == {"<b>billing</b>"}
    assert clients_of(node, "flights", user="nobody") == []


def test_a_raw_reader_of_pravega_is_there_while_it_waits(node: NodeProcess, users: Users) -> None:
    from pravega_front.wire import commands as wire
    from tests.pravega_front.raw_client import RawClient

    with RawClient(node.addresses["pravega-segmentstore"]) as raw:
        raw.send(wire.ReadSegment("default/flights/0.#epoch.0", 0, 1 << 20, "", 1))
        raw.receive(wire.SegmentRead)
        assert named(clients_of(node, "flights"), "pravega", "reads")["bytes"] > 0


def test_commands_show_the_same(node: NodeProcess, users: Users) -> None:
    shown = command(node, "topic", "clients", "flights")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:3] == ["DIRECTION", "PROTOCOL", "CLIENT"]
    assert any(line.split()[:3] == ["reads", "kafka", "reports"] for line in lines)
    listed = json.loads(command(node, "connection", "list", "--protocol", "ydb", "--json").stdout)
    assert {one["client"] for one in listed} >= {"meter-7"}
    table = command(node, "connection", "list", "--topic", "flights").stdout
    assert "meter-7" in table
    assert "flights" in table


def test_an_ended_connection_is_that_one_alone_and_its_client_comes_back(node: NodeProcess, users: Users) -> None:
    before = {one["id"] for one in ask(node, "/api/connections?topic=flights")["connections"]}
    victim = named(clients_of(node, "flights"), "kafka", "writes")["id"]
    assert victim in before
    refused = command(node, "connection", "end", "0-1", "--yes")
    assert refused.returncode != 0
    assert "there is no connection '0-1'" in refused.stderr
    ended = command(node, "connection", "end", victim, "--yes")
    assert ended.returncode == 0, ended.stderr
    wait_until(lambda: victim not in {one["id"] for one in ask(node, "/api/connections")["connections"]})
    after = {one["id"] for one in ask(node, "/api/connections?topic=flights")["connections"]}
    assert before - after == {victim}
    assert "an operator has ended the connection" in node.log.read_text()
    users.write()  # the client connects again by itself
    users.read(4)
    writers = [one for one in clients_of(node, "flights", protocol="kafka") if one["direction"] == "writes"]
    # The connection that has ended is remembered for a while, and is marked as such.
    assert [one["id"] is None for one in writers] == [False, True]
    for direction in ("writes", "reads"):
        ask(node, f"/api/connections/{named(clients_of(node, 'flights'), 'ydb', direction)['id']}", "DELETE")
    users.write()
    users.read(4)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_each_worker_shows_the_clients_of_all(tmp_path: Path) -> None:
    settings = {**TEST_SETTINGS, "node.workers": "2", "node.worker_port_step": "0"}
    process = NodeProcess(
        tmp_path / "data", settings=settings, listen=dict.fromkeys((*FRONTS, "sbp-range-server"), ANY)
    )
    try:
        with closing(Users(process.start(), "spread", 8)) as users:
            users.read(11)
            for address in [one for name, one in process.addresses.items() if name.partition("/")[0] == "console"]:
                process.addresses["console"] = address
                rows = clients_of(process, "spread")
                writers = [one for one in rows if (one["protocol"], one["direction"]) == ("kafka", "writes")]
                # A connection to each worker, which owns half of the partitions.
                assert sorted(number for one in writers for number in one["partitions"]) == list(range(8))
                assert len({one["node"] for one in writers}) == 2
                assert {one["protocol"] for one in rows} == {"kafka", "ydb", "pravega", "http"}
            for one in writers:
                ask(process, f"/api/connections/{one['id']}", "DELETE")
    finally:
        process.dispose()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_cannot_be_asked_is_named(tmp_path: Path, postgres: Postgres) -> None:
    listeners = (*FRONTS, "sbp-pd", "sbp-range-server")
    with three(tmp_path, postgres, listeners) as nodes, closing(Users(nodes[0], "spread", 12)) as users:
        users.read(15)  # though their groups may move to other nodes meanwhile

        def is_spread() -> bool:
            """Write to all partitions; return whether each node owns some by now, and so has a connection."""
            users.write()
            rows = clients_of(nodes[0], "spread", protocol="kafka")
            return {one["node"] for one in rows if one["direction"] == "writes"} == {1, 2, 3}

        wait_until(is_spread)
        seen = {}
        for node in nodes:
            rows = clients_of(node, "spread")
            seen[node.console] = {(one["id"], one["protocol"]) for one in rows if one["direction"] == "writes"}
            writers = [one for one in rows if (one["protocol"], one["direction"]) == ("kafka", "writes")]
            assert {one["node"] for one in writers} == {1, 2, 3}
        assert len({frozenset(one) for one in seen.values()}) == 1
        other = next(one for one in writers if one["node"] == 3)
        assert ask(nodes[1], f"/api/connections/{other['id']}", "DELETE") == {"ended": other["id"]}
        nodes[2].kill()
        found = ask(nodes[0], "/api/topics/spread/clients")
        assert found["unanswered"] == [3]
        assert {one["node"] for one in found["clients"] if one["protocol"] == "kafka"} <= {1, 2}
        with pytest.raises(HTTPError) as refused:
            ask(nodes[0], "/api/connections/3-17", "DELETE")
        assert refused.value.code == 503
