"""Checks of the contents of a node's database, made by the fronts (:attr:`Front.checks`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from bridges.catalog.database.sql import Connection
from bridges.node.finding import Finding, note
from bridges.node.front import NodeFacts
from bridges.node.listening import Listening
from bridges.node.settings.config import Settings
from bridges.node.settings.sections import SettingsError
from bridges.node.storage.data_dir import DATABASE

_ABOUT = "contents"
_PATIENCE_S = 5


def check(settings: Settings) -> Iterator[Finding]:
    """Run the fronts' checks on the database of ``settings``, read-only. Other checks report whether it can be used."""
    if settings.cluster.database:
        yield from _in_postgres(settings)
        return
    path = settings.data_dir / DATABASE
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True, timeout=_PATIENCE_S)) as db:
            yield from _ask(settings, db)
    except sqlite3.Error as error:
        yield note(_ABOUT, f"{path} cannot be read: {error}", "start the node, which brings its tables up to date")


def _read_only(path: Path) -> str:
    # A file without a WAL is open nowhere. Without ``immutable``, reading it would create a WAL.
    lies_still = not path.with_name(f"{path.name}-wal").exists()
    return f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if lies_still else ''}"


def _in_postgres(settings: Settings) -> Iterator[Finding]:
    try:
        import psycopg
    except ImportError:
        return
    from bridges.node.storage.databases import SCHEMA

    options = f"-c search_path={SCHEMA} -c default_transaction_read_only=on"
    try:
        with (
            psycopg.connect(settings.cluster.database, connect_timeout=_PATIENCE_S, options=options) as db,
            db.cursor() as rows,
        ):
            yield from _ask(settings, rows)  # type: ignore[arg-type]  # lacks executemany, which no check calls
    except psycopg.OperationalError:
        return
    except psycopg.Error as error:
        told = str(error).strip().splitlines()[0]
        yield note(_ABOUT, f"the database cannot be read: {told}", "start a node, which brings its tables up to date")


def _ask(settings: Settings, rows: Connection) -> Iterator[Finding]:
    try:
        listening = Listening(settings, settings.fronts).addresses()
    except SettingsError:
        return  # reported by the check of listeners
    for front in settings.fronts:
        facts = NodeFacts(settings.find_section(front), settings.node, settings.log, settings.data_dir, listening, {})
        for look in front.checks:
            yield from look(rows, facts)
