"""Databases for tests, on the engine that the test is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bridges.catalog.sql import Database, DatabaseDamaged, Migration
from sbp_back.placement_driver.sql_state import SqlState, in_sqlite
from sbp_back.sql.sqlite import SqliteEngine


def database(
    path: Path,
    migrations: Sequence[Migration],
    *,
    on_failed: Callable[[DatabaseDamaged], None] | None = None,
    **options: Any,
) -> Database:
    """The node's database at ``path``, not open yet."""
    return Database(SqliteEngine(path, migrations, **options), on_failed=on_failed)


def pd_state(path: Path, loop: asyncio.AbstractEventLoop | None = None) -> SqlState:
    """A placement driver's state at ``path``; opens it."""
    return SqlState(in_sqlite(path), loop or asyncio.get_running_loop())
