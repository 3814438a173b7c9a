"""Nodes and range servers led to a placement driver that is not theirs: they notice, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sbp_back.client.client import Client
from sbp_back.client.leader import pd_carrier
from sbp_back.transport.tcp_carrier import tcp_connector
from tests.external.cluster import SERVER_SETTINGS, Cluster, Server, read_all, value
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Make = Callable[[int], Cluster]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Server]:
    """A placement driver of somebody else, running, whose stream 0 was deleted."""
    pd = Server("pd", tmp_path / "other-pd", [], SERVER_SETTINGS)
    pd.start()
    asyncio.run(make_streams(pd.address, 1))
    asyncio.run(delete_stream(pd.address, 0))
    yield pd
    pd.dispose()


def client(pd: str) -> Client:
    return Client(pd_carrier(pd), tcp_connector())


async def make_streams(pd: str, count: int) -> None:
    backend = client(pd)
    for _ in range(count):
        await backend.create_stream()
    await backend.close()


async def delete_stream(pd: str, stream_id: int) -> None:
    backend = client(pd)
    await backend.delete_stream(stream_id)
    await backend.close()


def identity(pd: Server) -> str:
    with sqlite3.connect(pd.data / "pd.sqlite") as db:
        (found,) = db.execute("SELECT value FROM identity").fetchone()
    return str(found)


def fill(node: NodeProcess, topic: str) -> dict[tuple[int, int], int]:
    """Forty records; where they are."""
    producer = Producer({"bootstrap.servers": node.kafka})
    for n in range(40):
        producer.produce(topic, value(n), partition=0)
    assert producer.flush(60) == 0
    return {(0, n): n for n in range(40)}


def ended(process: NodeProcess) -> tuple[int, str]:
    """Exit code of a process that ends by itself, and what it said."""
    done = subprocess.run(process.command(), capture_output=True, timeout=90, check=False)
    return done.returncode, done.stderr.decode()


def refused_to_compare(server: Server) -> bool:
    """Whether its log says that it does not ask a placement driver what to delete."""
    lines = (line for line in server.tail().splitlines() if "cannot reconcile its ranges" in line)
    return any("but what this range server keeps belongs to" in line for line in lines)


def post(node: NodeProcess, topic: str) -> tuple[int, dict[str, object]]:
    """Append a record over HTTP: status and body."""
    line = json.dumps({"value": value(40).decode(), "partition": 0}).encode()
    request = urllib.request.Request(f"{node.console}/api/topics/{topic}/records", line + b"\n", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=90) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_node_led_to_another_placement_driver_refuses_to_start(cluster_of: Make, other: Server) -> None:
    cluster = cluster_of(1)
    node = cluster.node
    written = fill(node, "t")
    assert node.terminate() == 0
    # Streams of the same numbers are there, too.
    asyncio.run(make_streams(other.address, 5))
    node.settings.update({"sbp.pd": other.address, "sbp.timeout_ms": "60s"})
    code, said = ended(node)
    assert code == 4, said
    assert f"this is placement driver {identity(other)}, but the topics of this node are in" in said
    assert f"placement driver {identity(cluster.pd)}: streams of the same numbers are other data there" in said
    assert "Traceback" not in said
    # Its own, at another address: a placement driver is not where it listens.
    cluster.pd.terminate()
    cluster.pd.addresses = {}
    cluster.pd.start()
    for server in cluster.servers:
        server.terminate()
        server.arguments = ["--pd", cluster.pd.address]
        server.start()
    node.settings["sbp.pd"] = cluster.pd.address
    node.start()
    assert read_all(node.kafka, "t", 1) == written
    assert cluster.alive() == 1


def test_another_placement_driver_found_later_makes_partitions_unavailable(cluster_of: Make, other: Server) -> None:
    """It could not be reached when the node started, and turns out to be the wrong one."""
    cluster = cluster_of(1)
    node = cluster.node
    written = fill(node, "t")
    assert node.terminate() == 0
    asyncio.run(make_streams(other.address, 5))
    right, wrong = cluster.pd, other
    right.terminate()
    wrong.terminate()
    node.settings["sbp.timeout_ms"] = "20s"
    node.start()
    assert "the placement driver does not answer" in node.tail()
    wrong.addresses["sbp-pd"] = right.address
    wrong.start()
    status, body = post(node, "t")
    assert (status, body["kind"]) == (503, "LogUnavailable")
    sentence = f"this is placement driver {identity(wrong)}, but the topics of this node are in placement driver"
    wait_until(lambda: sentence in node.tail(), "the log says what is wrong")
    assert json.loads(urllib.request.urlopen(f"{node.console}/api/topics", timeout=60).read()), "the node lives"
    # Set right while the node runs.
    wrong.terminate()
    right.start()
    wait_until(lambda: cluster.alive() == 1, "the range server reports again")
    wait_until(lambda: post(node, "t")[0] == 200, "works again by itself")
    found = read_all(node.kafka, "t", 1)
    assert written.items() <= found.items()
    assert set(found.values()) == set(range(41))


def test_a_range_server_led_to_another_placement_driver_keeps_its_data(cluster_of: Make, other: Server) -> None:
    cluster = cluster_of(1)
    server = cluster.servers[0]
    cluster.create_topic("t", 1)
    written = fill(cluster.node, "t")
    assert asyncio.run(cluster.placement("t", 1)) == {0: [0]}, (
        "the other one says of this very stream that it was deleted"
    )
    assert server.terminate() == 0
    server.arguments = ["--pd", other.address]
    code, said = ended(server)
    assert code == 4, said
    assert f"this is placement driver {identity(other)}, but what this range server keeps belongs to" in said
    assert f"placement driver {identity(cluster.pd)}" in said
    assert "Traceback" not in said
    assert other.metric("anabranch_pd_range_servers_alive") == 0
    server.arguments = ["--pd", cluster.pd.address]
    server.start()
    wait_until(lambda: cluster.alive() == 1, "it reports")
    cluster.node.restart()  # what it has in memory proves nothing
    assert read_all(cluster.node.kafka, "t", 1) == written


def test_a_range_server_meets_another_placement_driver_where_its_own_was(cluster_of: Make, other: Server) -> None:
    cluster = cluster_of(1)
    server = cluster.servers[0]
    written = fill(cluster.node, "t")
    address = cluster.pd.address
    for process in (server, cluster.pd, other):
        assert process.terminate() == 0
    server.start()  # it has its number and needs nobody
    other.addresses["sbp-pd"] = address
    other.start()
    wait_until(lambda: refused_to_compare(server), "the log says what is wrong")
    assert other.metric("anabranch_pd_range_servers_alive") == 0
    other.terminate()
    cluster.pd.start()
    wait_until(lambda: cluster.alive() == 1, "it reports to its own again")
    cluster.node.restart()
    assert read_all(cluster.node.kafka, "t", 1) == written


def test_a_node_without_topics_goes_wherever_it_is_led(cluster_of: Make, other: Server) -> None:
    cluster = cluster_of(1)
    node = cluster.node
    assert node.terminate() == 0
    node.settings["sbp.pd"] = other.address
    node.start()
    assert node.terminate() == 0
    server = Server("range-server", cluster.directory / "new", ["--pd", other.address], SERVER_SETTINGS)
    try:
        server.start()
        node.start()
        written = fill(node, "t")
        assert read_all(node.kafka, "t", 1) == written
    finally:
        server.dispose()
