"""Clusters of real processes: a test's own, ended with it, and those that the tests of a module share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.external.cluster import Cluster


@pytest.fixture
def cluster_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[int], Cluster]]:
    """Makes clusters with a number of range servers; their logs are shown when the test fails."""
    clusters: list[Cluster] = []

    def make(servers: int) -> Cluster:
        cluster = Cluster(tmp_path, servers)
        clusters.append(cluster)
        return cluster.start()

    yield make
    for cluster in clusters:
        cluster.dispose()
        request.node.add_report_section("teardown", "logs", cluster.tail())


@pytest.fixture(scope="module")
def _shared_clusters() -> Iterator[dict[int, Cluster]]:
    clusters: dict[int, Cluster] = {}
    yield clusters
    for cluster in clusters.values():
        cluster.dispose()


@pytest.fixture
def shared_cluster(
    _shared_clusters: dict[int, Cluster], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[int], Cluster]]:
    """Gives the module's cluster with a number of range servers, all running; what a test ended is started again.

    For tests that leave settings as they were and use topics of their own names.
    """
    used: list[Cluster] = []

    def get(servers: int) -> Cluster:
        cluster = _shared_clusters.get(servers)
        if cluster is None:
            # Known before it runs, so that it is disposed of even if its start fails.
            cluster = Cluster(tmp_path_factory.mktemp(f"cluster-{servers}"), servers)
            _shared_clusters[servers] = cluster
            cluster.start()
        else:
            cluster.mend()
        used.append(cluster)
        return cluster

    yield get
    for cluster in used:
        request.node.add_report_section("teardown", "logs", cluster.tail())
