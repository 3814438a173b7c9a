"""Copy of a SQLite file's tables into a schema of PostgreSQL with the same tables, and a comparison of the two.

The copied rows are read back and compared by their number and the sum of their hashes (anabranch_kit/sql/row_sums.py).
Both ends are engines that are open and belong to this thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar, cast

from msgspec import Struct

from anabranch_kit.sql import tables
from anabranch_kit.sql.connection import Connection
from anabranch_kit.sql.engine import Engine, Job, SqlFailed
from anabranch_kit.sql.row_sums import TABLE, add_to_total

T = TypeVar("T")
Row = tuple[Any, ...]

_NOT_COPIED = frozenset({TABLE, "sql_schema", "sql_commits", "sqlite_sequence"})
"""Tables of the engines themselves."""
_ROWS = 1000
_BYTES = 4 << 20
_IDENTITIES = """
    SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = current_schema() AND is_identity = 'YES'
"""


class TablesDiffer(Exception):
    """The two sides are not the same, or cannot be; the message says where."""


class Digest(Struct, frozen=True):
    """Number and sum of all rows of a table, independent of their order."""

    rows: int
    total: int


def run(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run ``work`` in a transaction of its own and return its result. Raises SqlFailed, and what ``work`` raises."""
    job = Job(work, True, False)
    engine.execute([job], _no_patience)
    if job.error is not None:
        raise job.error
    return cast("T", job.result)


def copy(source: Engine, target: Engine, told: Callable[[str], object]) -> dict[str, Digest]:
    """Copy all rows, in transactions of a bounded size, replacing those of the target; compare, and return the digest
    of each table. Raises TablesDiffer, SqlFailed.
    """
    there = set(run(target, tables.names)) - _NOT_COPIED
    order = [table for table in _in_order(_lite(source)) if table not in _NOT_COPIED]
    if strange := sorted(set(order) ^ there):
        raise TablesDiffer(f"table {strange[0]} is on one side only")
    for table in reversed(order):
        run(target, lambda connection, table=table: connection.execute(f'DELETE FROM "{table}"').rowcount)  # type: ignore[misc]
    for table in order:
        told(table)
        _copy_table(_lite(source), target, table)
    restart_counters(_lite(source), target)
    found = {}
    for table in order:
        columns, keys = _columns(_lite(source), table)
        here, copied = _digest(_read(source, table, columns, keys)), _digest(_read(target, table, columns, keys))
        if here != copied:
            raise TablesDiffer(
                f"table {table} has {copied.rows} rows with the checksum {copied.total} after it was copied, and "
                f"{here.rows} with {here.total} before"
            )
        found[table] = here
    return found


def _lite(engine: Engine) -> sqlite3.Connection:
    assert isinstance(engine.connection, sqlite3.Connection)
    return engine.connection


def _no_patience(failure: SqlFailed) -> None:
    """Do nothing: no other closure waits behind this one."""


def _in_order(connection: sqlite3.Connection) -> list[str]:
    """Return all tables, those first that others refer to."""
    refers = {
        name: {row[2] for row in connection.execute(f'PRAGMA foreign_key_list("{name}")')}
        for name in tables.names(connection)
    }
    order: list[str] = []
    while len(order) < len(refers):
        ready = [name for name in sorted(refers) if name not in order and refers[name] <= {*order, name}]
        assert ready, "tables refer to one another in a circle"
        order += ready
    return order


def _columns(connection: sqlite3.Connection, table: str) -> tuple[list[str], list[str]]:
    """Return the names of all columns, and of the key's columns, if there is a key."""
    rows = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    keys = sorted((key, name) for _, name, _, _, _, key in rows if key)
    return [name for _, name, *_ in rows], [name for _, name in keys]


def _copy_table(source: sqlite3.Connection, target: Engine, table: str) -> None:
    columns, _ = _columns(source, table)
    names = ", ".join(f'"{name}"' for name in columns)
    insert = f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(columns))})'
    for rows in _parts(source.execute(f'SELECT {names} FROM "{table}"')):

        def put(connection: Connection, rows: list[Row] = rows) -> None:
            connection.executemany(insert, rows)

        run(target, put)


def _parts(rows: Iterator[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += _size(row)
        if len(part) >= _ROWS or size >= _BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, bytes | str) else 8 for value in row)


def _read(engine: Engine, table: str, columns: Collection[str], keys: Collection[str]) -> Iterator[Row]:
    """Yield all rows, by their key, in batches of bounded size; a table without a key has few rows."""
    columns = [*columns]
    keys = keys or columns
    places = [columns.index(key) for key in keys]
    names = ", ".join(f'"{name}"' for name in columns)
    key = ", ".join(f'"{name}"' for name in keys)
    behind = f"WHERE ({key}) > ({', '.join('?' * len(places))})"
    last: Row = ()
    most = 100
    while True:
        query = f'SELECT {names} FROM "{table}" {behind if last else ""} ORDER BY {key} LIMIT {most}'

        def page(connection: Connection, query: str = query, last: Row = last) -> list[Row]:
            return connection.execute(query, last).fetchall()

        rows = run(engine, page)
        yield from rows
        if len(rows) < most:
            return
        last = tuple(rows[-1][place] for place in places)
        most = max(1, most // 2) if sum(map(_size, rows)) > _BYTES else min(_ROWS, 2 * most)


def _digest(rows: Iterator[Row]) -> Digest:
    count = total = 0
    for row in rows:
        count += 1
        total = add_to_total(total, tuple(row))
    return Digest(count, total)


def restart_counters(source: sqlite3.Connection, target: Engine) -> None:
    """Have the database's counters go on above every number that was ever assigned, also to rows that are gone."""
    given: Mapping[str, int] = {}
    if "sqlite_sequence" in tables.names(source):
        given = dict(source.execute("SELECT name, seq FROM sqlite_sequence"))
    for table, column in run(target, lambda connection: connection.execute(_IDENTITIES).fetchall()):
        if table in _NOT_COPIED:
            continue
        (highest,) = source.execute(f'SELECT max("{column}") FROM "{table}"').fetchone()
        last = max(given.get(table, 0), highest or 0)
        if last > 0:
            values = f'"{table}"', column, last

            def go_on(connection: Connection, values: Row = values) -> None:
                connection.execute("SELECT setval(pg_get_serial_sequence(?, ?), ?)", values).fetchone()

            run(target, go_on)
