"""Databases for tests: in SQLite, or, of tests that are :data:`on_each_engine`, in PostgreSQL as well."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.sql.engine import Engine
from anabranch_kit.sql.postgres import PostgresEngine
from anabranch_kit.sql.sqlite import SqliteEngine
from bridges.catalog.database.sql import Database, DatabaseDamaged, Migration
from sbp_back.placement_driver.state import MIGRATIONS, PdState
from tests.postgres import Postgres

on_each_engine = pytest.mark.usefixtures("engine")
"""Marks what depends on the engine: commits, unknown outcomes, conflicts, take-over, survival; and one
test that executes it for each statement of SQL."""

_SERVER = "ANABRANCH_TEST_POSTGRES"
"""In the environment, for processes that tests start: the server that databases are to lie on."""


@contextmanager
def on_postgres(server: Postgres) -> Iterator[None]:
    """Databases lie there meanwhile, a path's in a schema of its own."""
    os.environ[_SERVER] = server.url()
    try:
        yield
    finally:
        del os.environ[_SERVER]


def database(
    path: Path,
    migrations: Sequence[Migration],
    *,
    on_failed: Callable[[DatabaseDamaged], None] | None = None,
    **options: Any,
) -> Database:
    """The node's database at ``path``, not open yet."""
    return Database(_engine(path, migrations, **options), on_failed=on_failed)


def pd_state(path: Path, loop: asyncio.AbstractEventLoop | None = None) -> PdState:
    """A placement driver's state at ``path``; opens it."""
    return PdState(_engine(path, MIGRATIONS, reserve_bytes=8 << 20), loop or asyncio.get_running_loop())


def _engine(path: Path, migrations: Sequence[Migration], **options: Any) -> Engine:
    url = os.environ.get(_SERVER)
    if url is None:
        return SqliteEngine(path, migrations, **options)
    for name in ("synchronous", "unwatched", "reserve_bytes"):
        options.pop(name, None)
    schema = f"t{blake2b(str(path).encode(), digest_size=16).hexdigest()}"
    return PostgresEngine(url, migrations, schema=schema, **options)
