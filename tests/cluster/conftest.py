"""Nodes over one PostgreSQL and one store of objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NodeFactory
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.postgres import Postgres


@pytest.fixture
def nodes(tmp_path: Path, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    """Three that were started together."""
    factory = NodeFactory(tmp_path)
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    url = postgres.made()
    try:
        made = []
        for number in (1, 2, 3):
            own = {"cluster.database": url, "node.id": f"{number}", "sbp.object_log": f"{number}"}
            listen = dict.fromkeys((*FRONTS, "ydb"), ANY)
            made.append(factory(f"node{number}", settings=stored | own, listen=listen, start=False))
        for node in made:
            node.launch()
        for node in made:
            node.await_ready()
        yield made
    finally:
        factory.dispose()
