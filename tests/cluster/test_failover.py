"""Three nodes over one PostgreSQL and one store of objects: one of them is killed under load, and clients go on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.conftest import three
from tests.cluster.load import (
    PARTITIONS,
    PATIENCE,
    TOPIC,
    Load,
    Writer,
    await_acknowledged,
    await_leaders,
    leaders,
)
from tests.node_process import NodeProcess
from tests.postgres import Postgres


def commanded(node: NodeProcess, *arguments: str, code: int = 0) -> str:
    """What ``anabranch cluster`` prints."""
    command = [sys.executable, "-m", "bridges", "cluster", *arguments, "--node", node.console]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def states(node: NodeProcess) -> dict[int, tuple[str, bool]]:
    """What each node does, and whether it owns anything."""
    return {one["node_id"]: (one["state"], one["slots"] > 0) for one in members(node)}


def members(node: NodeProcess) -> list[dict[str, Any]]:
    """What `anabranch cluster status` would tell of each node: a process of its own costs more than the question."""
    with urlopen(f"{node.console}/api/cluster", timeout=PATIENCE) as answer:
        return list(json.load(answer)["nodes"])


def metric(node: NodeProcess, name: str) -> float:
    with urlopen(f"{node.console}/metrics", timeout=PATIENCE) as answer:
        (value,) = [line.split()[-1] for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(value)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_is_drained_and_has_its_share_again(nodes: list[NodeProcess]) -> None:
    admin = AdminClient({"bootstrap.servers": ",".join(node.kafka for node in nodes)})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, {1, 2, 3})
    assert "cluster has no node 9" in commanded(nodes[0], "drain", "9", code=1)
    printed = commanded(nodes[0], "drain", "2")
    assert "leaving" in printed
    assert nodes[1].kafka in printed
    assert set(leaders(admin).values()) == {1, 3}
    assert states(nodes[2]) == {1: ("up", True), 2: ("leaving", False), 3: ("up", True)}
    assert metric(nodes[1], "anabranch_cluster_slots_acting") == 0
    assert metric(nodes[1], "anabranch_cluster_slots_given_total") > 0
    assert metric(nodes[0], "anabranch_cluster_slots_unowned") == 0
    writer = Writer(nodes[1].kafka)  # it leads clients to the others
    writer.write(1)
    assert writer.close() == len(writer.acknowledged)
    commanded(nodes[2], "undrain", "2")
    await_leaders(admin, {1, 2, 3})
    assert states(nodes[1])[2] == ("up", True)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_that_starts_tells_clients_nothing_before_it_knows_the_others(nodes: list[NodeProcess]) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[0].kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, {1, 2, 3})
    for _ in range(3):
        nodes[1].stop()
        nodes[1].launch()
        host, port = nodes[1].kafka.rsplit(":", 1)
        while True:  # it is asked as soon as the listener is open
            with suppress(OSError), socket.create_connection((host, int(port)), PATIENCE):
                break
        told = AdminClient({"bootstrap.servers": nodes[1].kafka}).list_topics(TOPIC, timeout=PATIENCE)
        assert set(told.brokers) >= {1, 3}
        assert {one.leader for one in told.topics[TOPIC].partitions.values()} <= set(told.brokers)
        nodes[1].await_ready()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", ["kill -9", "orderly"])
def test_clients_go_on_when_a_node_ends(nodes: list[NodeProcess], end: str) -> None:
    bootstrap = ",".join(node.kafka for node in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, {1, 2, 3})
    with Load(bootstrap) as load:
        await_acknowledged(load.writer, 500)
        load.writer.longest = 0.0  # first openings are not what this is about
        if end == "kill -9":
            nodes[1].kill()
        else:
            assert nodes[1].terminate() == 0
        await_leaders(admin, {1, 3})
        await_acknowledged(load.writer, 500)
        load.end()
    load.judge()
    # How fast it goes is the machine's as well: what is asserted would catch a client that waits for its own timeouts.
    assert load.writer.longest < (30 if end == "kill -9" else 10)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_whose_process_has_ended_is_not_waited_for(tmp_path: Path, postgres: Postgres) -> None:
    with three(tmp_path, postgres, cluster__lease_ms="600000") as nodes:
        admin = AdminClient({"bootstrap.servers": f"{nodes[0].kafka},{nodes[2].kafka}"})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
        await_leaders(admin, {1, 2, 3})
        nodes[1].kill()
        began = time.monotonic()
        await_leaders(admin, {1, 3})
        print(f"others own what it had after {time.monotonic() - began:.1f} s")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_whoever_takes_over_is_not_taken_for_dead_while_somebody_asleep_holds_locks(
    nodes: list[NodeProcess], postgres: Postgres
) -> None:
    admin = AdminClient({"bootstrap.servers": f"{nodes[0].kafka},{nodes[2].kafka}"})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, {1, 2, 3})
    # As a node does that stores what it coordinates, and stops in the middle of that.
    asleep = psycopg.connect(nodes[0].settings["cluster.database"], application_name="anabranch")
    asleep.execute("SELECT owner FROM anabranch.cluster_slots FOR SHARE")
    nodes[1].kill()
    await_leaders(admin, {1, 3})
    assert [node.process is not None and node.process.poll() for node in (nodes[0], nodes[2])] == [None, None]
    with pytest.raises(psycopg.OperationalError):
        asleep.execute("SELECT 1")
    asleep.close()
