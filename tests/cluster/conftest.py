"""Nodes over one PostgreSQL and one store of objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster.together import together
from tests.node_process import FRONTS, NodeProcess
from tests.postgres import Postgres


def three(
    directory: Path, postgres: Postgres, listeners: Iterable[str] = (*FRONTS, "ydb"), **settings: str
) -> AbstractContextManager[list[NodeProcess]]:
    """Three that are started together, with further ``settings`` (``__`` for a dot)."""
    bucket = directory / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    stored |= {name.replace("__", "."): value for name, value in settings.items()}
    return together(directory, 3, postgres.made(), listeners, lambda n: stored | {"sbp.object_log": f"{n}"})


@pytest.fixture
def nodes(tmp_path: Path, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    """Three that were started together."""
    with three(tmp_path, postgres) as made:
        yield made
