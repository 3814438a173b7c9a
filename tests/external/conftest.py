"""Clusters of real processes, ended with the test that made them."""

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
