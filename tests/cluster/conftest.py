"""Nodes over one PostgreSQL and one store of objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.together import together
from tests.node_process import FRONTS, NodeProcess
from tests.postgres import Postgres


@pytest.fixture
def nodes(tmp_path: Path, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    """Three that were started together."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    with together(
        tmp_path, 3, postgres.made(), (*FRONTS, "ydb"), lambda n: stored | {"sbp.object_log": f"{n}"}
    ) as made:
        yield made
