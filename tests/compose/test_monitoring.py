"""What the alert rules and the dashboard ask for is what a node exports."""

from __future__ import annotations

from urllib.request import urlopen

import pytest

from tests.compose.queries import alerts, panels, unknown
from tests.conftest import NodeFactory
from tests.node_process import NodeProcess
from tests.postgres import Postgres


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> set[str]:
    """Of a node with a disk, and of one of a cluster."""
    directory = tmp_path_factory.mktemp("monitoring")
    factory = NodeFactory(directory)
    shared = {"cluster.database": postgres.made(), "node.id": "1", "sbp.durability": "object"}
    try:
        alone = exported(factory())
        return alone | exported(factory("one", settings={**shared, "sbp.objects": f"file://{directory}/bucket"}))
    finally:
        factory.dispose()


def exported(node: NodeProcess) -> set[str]:
    with urlopen(f"{node.console}/metrics", timeout=30) as answer:
        return {line.split()[2] for line in answer.read().decode().splitlines() if line.startswith("# TYPE ")}


def test_every_query_names_metrics_that_a_node_exports(families: set[str]) -> None:
    asked = [("alert", query) for query in alerts()] + list(panels())
    assert len(asked) > 40
    assert {title: missing for title, query in asked if (missing := unknown(query, families))} == {}


def test_a_query_for_what_nobody_exports_is_found(families: set[str]) -> None:
    assert unknown("rate(anabranch_loop_stall_seconds_bucket[5m]) > 1", families) == set()
    assert unknown("sum(anabranch_gone_total) > anabranch_topics", families) == {"anabranch_gone_total"}
    assert unknown("anabranch_topics_bucket", {"anabranch_other"}) == {"anabranch_topics_bucket"}
