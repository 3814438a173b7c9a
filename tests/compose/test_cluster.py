"""compose/cluster, started as a user does it: clients go on, and what they were told stays true, whatever ends, stands
still or is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.compose.clients import Clients
from tests.compose.engine import engine
from tests.compose.queries import alerts, panels
from tests.compose.services import Services
from tests.kit.waiting import wait_until
from tests.ports import free_port
from tests.s3_server import PROGRAM

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

NODES = ("node1", "node2", "node3")
_PORTS = ("KAFKA", "YDB", "PRAVEGA", "SEGMENTSTORE", "CONSOLE")


class Cluster(Services):
    """Its services, and what may happen to them."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[f'KAFKA{number}']}" for number in (1, 2, 3))

    def kill(self, service: str) -> None:
        """As a loss of power: SIGKILL, and it is started again."""
        self.container(service).kill()
        self.compose("up", "--detach", "--no-deps", service)

    def still(self, service: str, seconds: float) -> None:
        """All its processes stand still for a while."""
        container = self.container(service)
        container.pause()
        time.sleep(seconds)
        container.unpause()

    def cut_off(self, service: str, networks: tuple[str, ...], seconds: float) -> None:
        """Nothing comes to it or goes from it in these networks for a while."""
        container = self.container(service)
        cut = {name: self.engine.client.networks.get(f"{self.project}_{name}") for name in networks}
        for network in cut.values():
            network.disconnect(container)
        time.sleep(seconds)
        for name, network in cut.items():
            network.connect(container, aliases=[service, *([f"{service}.backend"] if name == "backend" else [])])

    def leaders(self) -> set[int]:
        """Nodes that lead partitions of the load's topic."""
        listed = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics("load", timeout=30).topics["load"]
        return {partition.leader for partition in listed.partitions.values()}

    def whole(self) -> None:
        """Return when all nodes are healthy and lead something."""
        for node in NODES:
            self.healthy(node)
        wait_until(lambda: self.leaders() == {1, 2, 3}, "all nodes lead partitions")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with engine() as docker:
        ports = {f"{name}{number}": free_port() for name in _PORTS for number in (1, 2, 3)}
        ports["PROMETHEUS"] = free_port()
        more = {
            "ANABRANCH_IMAGE": docker.build("node", "anabranch-test"),
            "LOAD_IMAGE": docker.build("load", "anabranch-load-test"),
            "PROMETHEUS_IMAGE": docker.published("prometheus"),
            "POSTGRES_IMAGE": docker.published("postgres"),
            "STORE_IMAGE": docker.published("versitygw", Path(PROGRAM.command()[0])),
            "LOAD_RATE": "100",
        }
        running = Cluster(docker, "cluster", ports, f"cluster{free_port()}", more)
        try:
            running.compose("up", "--detach")
            yield running
        finally:
            running.compose("down", "--volumes")


@pytest.fixture
def clients(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Clients]:
    cluster.whole()
    clients = Clients(
        cluster.bootstrap, f"127.0.0.1:{cluster.ports['YDB1']}", tmp_path, request.node.callspec.id.replace(" ", "-")
    )
    clients.begin()
    yield clients
    clients.finish.set()


FAULTS: dict[str, Callable[[Cluster], None]] = {
    "kill": lambda cluster: cluster.kill("node2"),
    "pause": lambda cluster: cluster.still("node2", 20),
    "cut off": lambda cluster: cluster.cut_off("node3", ("backend", "clients"), 20),
    "cut off from the others": lambda cluster: cluster.cut_off("node3", ("backend",), 20),
    "database restarts": lambda cluster: cluster.kill("database"),
    "database stands still": lambda cluster: cluster.still("database", 20),
    "store away": lambda cluster: cluster.still("store", 30),
    "store restarts": lambda cluster: cluster.kill("store"),
}


KNOWN = {"cut off": ["short tail"]}
"""A node that was cut off and is reached again tells ends of before until it has asked the database whether it is an
owner still (docs/operations.md, "What each outage does")."""


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_acknowledged_is_lost_or_doubled(cluster: Cluster, clients: Clients, fault: str) -> None:
    FAULTS[fault](cluster)
    print(f"{fault}: everybody had got on {clients.progress():.1f} s after its end")
    cluster.whole()
    clients.progress()
    assert clients.end(KNOWN.get(fault, ())) == []


@pytest.mark.parametrize("which", ["orderly"])
def test_nodes_restart_one_after_the_other_and_no_client_is_shown_an_error(
    cluster: Cluster, clients: Clients, which: str
) -> None:
    for node in NODES:
        cluster.compose("stop", node)
        assert cluster.exit_code(node) == 0
        cluster.compose("up", "--detach", "--no-deps", node)
        cluster.whole()
        clients.progress()
    assert clients.end() == []
    assert clients.unanswered() == []


def test_prometheus_sees_all_and_takes_every_query(cluster: Cluster) -> None:
    cluster.whole()
    targets = lambda: [one["health"] for one in cluster.prometheus("targets")["activeTargets"]]  # noqa: E731
    wait_until(lambda: targets() == ["up"] * 4, "nodes and the load generator are scraped")
    for query in [query for _, query in panels()] + alerts():
        cluster.prometheus("query", query=query)
    time.sleep(60)
    costs = {
        "requests to the store": "sum by (operation) (rate(anabranch_objects_requests_total[50s]))",
        "commits of the database": "sum(rate(anabranch_database_commits_total[50s]))",
        "bytes of a put": 'sum(rate(anabranch_objects_bytes_total{operation="put"}[50s])) '
        '/ sum(rate(anabranch_objects_requests_total{operation="put"}[50s]))',
    }
    for what, query in costs.items():
        found = cluster.prometheus("query", query=query)["result"]
        print(
            f"{what} a second, of three nodes:",
            {str(one["metric"].get("operation", "")): one["value"][1] for one in found},
        )
        assert found


def test_the_load_generator_has_seen_nothing_lost_or_doubled(cluster: Cluster) -> None:
    """Through all that the tests above have done."""
    container = cluster.container("load")
    container.stop(timeout=120)
    logs = container.logs().decode()
    print(logs.splitlines()[-1])
    assert cluster.exit_code("load") == 0, logs
