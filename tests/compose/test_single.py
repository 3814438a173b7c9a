"""compose/single, started as a user does it: one node, Spark and Prometheus, through kills of the node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import ydb

from tests.compose.clients import consume, produce
from tests.compose.engine import Engine, engine
from tests.compose.queries import alerts, panels
from tests.compose.services import Services
from tests.kit.waiting import wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

_PORTS = ("KAFKA", "YDB", "PRAVEGA", "SEGMENTSTORE", "CONSOLE", "SPARK", "PROMETHEUS")
_READ = """
import sys
from pyspark.sql import SparkSession
rows = SparkSession.builder.remote(sys.argv[1]).getOrCreate().read.format("anabranch")
rows = rows.option("endpoint", "anabranch://node:8090").option("subscribe", sys.argv[2]).load()
print(sorted(row.text for row in rows.selectExpr("string(value) as text").collect()))
"""


class Single(Services):
    """The services of compose/single, and where they are reached."""

    def __init__(self, engine: Engine, ports: Mapping[str, int], project: str) -> None:
        images = {
            "ANABRANCH_IMAGE": engine.build("node", "anabranch-test"),
            "SPARK_IMAGE": engine.build("spark", "anabranch-spark-test"),
            "PROMETHEUS_IMAGE": engine.published("prometheus"),
        }
        super().__init__(engine, "single", ports, project, images)

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.ports['KAFKA']}"


@pytest.fixture(scope="module")
def single() -> Iterator[Single]:
    with engine() as docker:
        running = Single(docker, {name: free_port() for name in _PORTS}, f"single{free_port()}")
        try:
            running.compose("up", "--detach")
            running.healthy("node")
            yield running
        finally:
            running.compose("down", "--volumes")


def test_what_clients_of_the_host_write_is_there_after_a_kill(single: Single) -> None:
    produce(single.kafka, "orders", [b"a", b"b"])
    with ydb.Driver(endpoint=f"grpc://127.0.0.1:{single.ports['YDB']}", database="/local") as driver:
        driver.wait(timeout=30)
        with driver.topic_client.writer("orders", producer_id="tower") as writer:
            writer.write(["c"])
    single.container("node").kill()
    single.compose("up", "--detach", "node")
    single.healthy("node")
    produce(single.kafka, "orders", [b"d"])
    assert consume(single.kafka, "orders", 4) == [b"a", b"b", b"c", b"d"]


def test_a_node_runs_without_rights_and_stops_in_order(single: Single) -> None:
    assert single.container("node").exec_run(["id", "-u"]).output.strip() == b"10001"
    single.compose("stop", "node")
    assert single.exit_code("node") == 0
    single.compose("up", "--detach", "node")
    single.healthy("node")


def test_spark_beside_it_reads_what_kafka_wrote(single: Single) -> None:
    produce(single.kafka, "readings", [b"1", b"2", b"3"])
    single.healthy("spark")
    remote = f"sc://127.0.0.1:{single.ports['SPARK']}"
    ran = subprocess.run([sys.executable, "-c", _READ, remote, "readings"], capture_output=True, text=True, timeout=300)
    assert ran.stdout.splitlines()[-1:] == ["['1', '2', '3']"], ran.stderr


def test_prometheus_sees_the_node_and_takes_every_query(single: Single) -> None:
    targets = lambda: [one["health"] for one in single.prometheus("targets")["activeTargets"]]  # noqa: E731
    wait_until(lambda: targets() == ["up"], "the node is scraped")
    rules = single.prometheus("rules")["groups"][0]["rules"]
    assert len(rules) == len(alerts())
    for _, query in panels():
        single.prometheus("query", query=query)
    for query in alerts():
        single.prometheus("query", query=query)
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    assert firing == []
