"""Checksums of the rows of a database, so that changes by a faulty disk are found before anybody reads them.

SQLite's own pages have none (its checksums are a plug-in of C, which Python's sqlite3 does not have): a flipped bit in
a number is another number. So each table has a sum over all of its rows, in the table ``row_sums``, that is written
with every transaction and compared when the database is opened. The sum of a row is a hash of its values, and the sum
of a table the sum of these modulo 2**64: it does not depend on the order, and a change of a row costs two hashes,
however large the table is.

Triggers report changes. They are temporary and belong to this connection, so the schema stays as its migrations make
it, and the tables of fronts are watched like the others. A change of the file by another program, or an earlier
release, goes unnoticed: it is then refused like damage.

Large tables that have checksums of their own are left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from hashlib import blake2b

import msgspec

from anabranch_kit.sql.connection import Connection

TABLE = "row_sums"
_SCHEMA = ""
"""Key of the definitions of all tables and indexes in the table of sums: no table has this name."""
_BITS = 64
_encode = msgspec.msgpack.Encoder().encode


class DamagedRows(Exception):
    """The rows on the disk are not those that were stored; the message names the table."""


class RowSums:
    """The sums of one connection's tables; belongs to the database's thread. ``unwatched`` tables have none.

    Call :meth:`check`, then migrations, then :meth:`watch`. From then on call :meth:`store` before each commit, which
    also notices tables that were made or changed.
    """

    __slots__ = ("_changes", "_connection", "_schema", "_unwatched", "noted")

    def __init__(self, connection: sqlite3.Connection, unwatched: Collection[str] = ()) -> None:
        self._connection = connection
        self._unwatched = frozenset(unwatched) | {TABLE}
        self._changes: dict[str, int] = {}
        self._schema = -1
        self.noted = 0
        """Number of changed rows noted; undone changes count, too."""
        # Otherwise triggers miss the rows that REPLACE removes.
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.create_function("row_added", -1, self._added)
        connection.create_function("row_removed", -1, self._removed)

    def check(self) -> None:
        """Compare the stored sums with the rows. Raises DamagedRows."""
        stored = dict(self._connection.execute(f"SELECT tbl, total FROM {TABLE}"))
        for name, total in self._totals().items():
            if stored.pop(name, None) != total:
                what = f"table {name}" if name else "the definitions of its tables"
                raise DamagedRows(f"{what} is not what was stored: its checksum is wrong")
        if stored:
            raise DamagedRows(f"table {min(stored)} is missing")

    def watch(self, *, changed: bool) -> None:
        """Take note of every change from now on. ``changed``: rows or tables may have been changed unnoticed, so all
        sums are computed anew.
        """
        unwatch(self._connection)
        for table in self._watched():
            columns = [name for _, name, *_ in self._connection.execute(f'PRAGMA table_info("{table}")')]
            old, new = (", ".join(f'{row}."{column}"' for column in columns) for row in ("OLD", "NEW"))
            added, removed = f"SELECT row_added('{table}', {new});", f"SELECT row_removed('{table}', {old});"
            for when, what in (("INSERT", added), ("DELETE", removed), ("UPDATE", removed + added)):
                self._connection.execute(
                    f'CREATE TEMP TRIGGER "{table}_{when.lower()}_sum" AFTER {when} ON main."{table}" BEGIN {what} END'
                )
        if changed:
            self._connection.execute(f"DELETE FROM {TABLE}")
            self._connection.executemany(f"INSERT INTO {TABLE} VALUES (?, ?)", self._totals().items())
        self._changes = {}
        self._schema = self._schema_version()

    @property
    def changes(self) -> dict[str, int]:
        """Return the changes noted since the last commit, for :meth:`undo`."""
        return self._changes.copy()

    def undo(self, changes: dict[str, int]) -> None:
        """Forget the changes noted since ``changes`` was read: they were rolled back."""
        self._changes = changes

    def store(self) -> None:
        """Write the changed sums, as a part of the transaction."""
        watched = self._connection.execute("SELECT 1 FROM sqlite_temp_schema LIMIT 1").fetchone() is not None
        if not watched or self.has_new_schema():
            self.watch(changed=True)
        for table, change in self._changes.items():
            (total,) = self._connection.execute(f"SELECT total FROM {TABLE} WHERE tbl = ?", (table,)).fetchone()
            self._connection.execute(f"UPDATE {TABLE} SET total = ? WHERE tbl = ?", (_signed(total + change), table))
        self._changes = {}

    def has_new_schema(self) -> bool:
        """Return whether tables were made or changed since the last commit."""
        return self._schema_version() != self._schema

    def _schema_version(self) -> int:
        (version,) = self._connection.execute("PRAGMA schema_version").fetchone()
        return int(version)

    def _added(self, table: str, *row: object) -> None:
        self.noted += 1
        self._changes[table] = self._changes.get(table, 0) + _sum(row)

    def _removed(self, table: str, *row: object) -> None:
        self.noted += 1
        self._changes[table] = self._changes.get(table, 0) - _sum(row)

    def _watched(self) -> list[str]:
        return [name for name in _tables(self._connection) if name not in self._unwatched]

    def _totals(self) -> dict[str, int]:
        schema = self._connection.execute(
            "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema "
            "UNION ALL SELECT 'version', user_version, '', '' FROM pragma_user_version"
        )
        totals = {_SCHEMA: _total(schema)}
        for table in self._watched():
            totals[table] = _total(self._connection.execute(f'SELECT * FROM "{table}"'))
        return totals


def unwatch(connection: Connection) -> None:
    """Note no changes until the end of the transaction, when all sums are computed anew: a watched table cannot lose a
    column.
    """
    for (name,) in connection.execute("SELECT name FROM sqlite_temp_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f'DROP TRIGGER temp."{name}"')


def make_table(connection: Connection) -> None:
    """Run the migration that begins with sums; they are filled in when all migrations are done."""
    connection.execute(f"CREATE TABLE {TABLE} (tbl TEXT PRIMARY KEY, total INTEGER NOT NULL) STRICT, WITHOUT ROWID")


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    return sorted(name for (name,) in rows)


def _total(rows: Iterable[tuple[object, ...]]) -> int:
    return _signed(sum(map(_sum, rows)))


def add_to_total(total: int, row: tuple[object, ...]) -> int:
    """Return the sum of a table with one row more; that of an empty table is 0."""
    return _signed(total + _sum(row))


def _sum(row: tuple[object, ...]) -> int:
    return int.from_bytes(blake2b(_encode(row), digest_size=_BITS // 8).digest())


def _signed(total: int) -> int:
    """Reduce modulo 2**64 to SQLite's signed integers."""
    return (total + (1 << (_BITS - 1))) % (1 << _BITS) - (1 << (_BITS - 1))
