"""SQLite executes a group in one go, and again with savepoints where one of it has to be undone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import Any

from anabranch_kit.sql.connection import Connection
from anabranch_kit.sql.engine import Job
from anabranch_kit.sql.row_sums import make_table
from anabranch_kit.sql.sqlite import SqliteEngine


def tables(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER)")
    connection.execute("CREATE TABLE unwatched (k INTEGER PRIMARY KEY)")


def opened(path: Path) -> SqliteEngine:
    engine = SqliteEngine(path, (tables, make_table), synchronous="NORMAL", unwatched=("unwatched",))
    engine.open()
    return engine


def executed(engine: SqliteEngine, closures: list[Callable[[sqlite3.Connection], Any]]) -> list[Job]:
    group = [Job(closure, False, False) for closure in closures]  # type: ignore[arg-type]
    engine.execute(group, lambda failure: None)
    return group


def insert(connection: sqlite3.Connection, key: int) -> int:
    connection.execute("INSERT INTO t VALUES (?, 0)", (key,))
    connection.execute("INSERT INTO unwatched VALUES (?)", (key,))
    return key


def looks_and_fails(connection: sqlite3.Connection, key: int) -> None:
    connection.execute("SELECT * FROM t").fetchone()
    raise LookupError


def inserts_and_fails(connection: sqlite3.Connection, key: int) -> None:
    insert(connection, key)
    raise LookupError


def changes_what_has_no_sums_and_fails(connection: sqlite3.Connection, key: int) -> None:
    cursor = connection.execute("INSERT INTO unwatched VALUES (?), (?) RETURNING k", (key, -key))
    raise LookupError(cursor.fetchone())


def makes_a_table_and_fails(connection: sqlite3.Connection, key: int) -> None:
    connection.execute(f"CREATE TABLE made_{key} (k)")
    raise LookupError


def fails_in_the_second_row(connection: sqlite3.Connection, key: int) -> None:
    # Which takes the first one back, of which was noted already.
    connection.execute("INSERT INTO t VALUES (?, 0), (0, 0)", (key,))


FAILING = (
    looks_and_fails,
    inserts_and_fails,
    changes_what_has_no_sums_and_fails,
    makes_a_table_and_fails,
    fails_in_the_second_row,
)


def content(connection: sqlite3.Connection) -> tuple[list[Any], ...]:
    return (
        connection.execute("SELECT k FROM t ORDER BY k").fetchall(),
        connection.execute("SELECT k FROM unwatched ORDER BY k").fetchall(),
        connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall(),
    )


def test_whatever_fails_in_a_group_undoes_itself_alone(tmp_path: Path) -> None:
    engine = opened(tmp_path / "a.db")
    executed(engine, [lambda connection: insert(connection, 0)])
    *_, schema = content(engine.connection)
    keys, kept = count(1), [(0,)]
    for kinds in product((insert, *FAILING), repeat=3):
        numbered = [(kind, next(keys)) for kind in kinds]
        group = executed(engine, [lambda c, kind=kind, key=key: kind(c, key) for kind, key in numbered])  # type: ignore[misc]
        for (kind, key), job in zip(numbered, group, strict=True):
            if kind is insert:
                assert (job.result, job.error) == (key, None)
                kept.append((key,))
            else:
                assert job.result is None
                assert isinstance(job.error, LookupError | sqlite3.IntegrityError)
    for _ in range(2):
        assert content(engine.connection) == (kept, kept, schema)
        engine.close()
        engine = opened(tmp_path / "a.db")  # compares the sums
    engine.close()


def test_nothing_stands_between_two_closures(tmp_path: Path) -> None:
    engine = opened(tmp_path / "a.db")
    said: list[str] = []
    engine.connection.set_trace_callback(said.append)
    group = executed(engine, [lambda connection: connection.execute("SELECT 1").fetchone()] * 3)
    assert [job.result for job in group] == [(1,)] * 3
    assert said[:4] == ["BEGIN IMMEDIATE", *["SELECT 1"] * 3]
    said.clear()
    (job,) = executed(engine, [lambda connection: inserts_and_fails(connection, 1)])
    assert isinstance(job.error, LookupError)
    assert (said.count("BEGIN IMMEDIATE"), said[-1]) == (1, "ROLLBACK")  # alone it needs no second time
    engine.close()


def test_a_closure_that_ends_the_transaction_fails_with_its_group(tmp_path: Path) -> None:
    engine = opened(tmp_path / "a.db")
    ends: Callable[[sqlite3.Connection], object] = lambda connection: connection.execute("ROLLBACK")  # noqa: E731
    group = executed(engine, [lambda c: insert(c, 1), ends, lambda c: insert(c, 2)])
    assert all("ended the transaction" in str(job.error) for job in group)
    assert content(engine.connection)[:2] == ([], [])
    engine.close()
