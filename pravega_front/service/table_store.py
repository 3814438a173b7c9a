"""Table segments: keys, values and versions, in the node's database (reference/pravega.md, section 3.6).

A version is the place of an entry in the log that the table would be: it only grows. Of that log only the latest entry
of each key is kept, so a table takes no more room than its entries do, however often they are rewritten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from bridges.catalog.sql import Database
from bridges.errors import LogError
from pravega_front.wire.fields import ANY_VERSION, NO_VERSION, TableEntry, TableKey

MAX_KEY = 8192
MAX_VALUE = 1024 * 1024 - 8192
_ENTRY_HEAD = 17
"""Bytes of the log that an entry takes besides key and value."""
_MOST_KEYS = 10_000
"""Keys of one command: the database has others to serve."""
_REMEMBERED = 1000
"""Removed keys of a table that are known to have been there."""
_FORGET = (
    "DELETE FROM front_pravega_removed WHERE segment = ? AND version <= (SELECT version FROM front_pravega_removed "
    "WHERE segment = ? ORDER BY version DESC LIMIT 1 OFFSET ?)"
)
_PAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of keys and values of one page, but for its first entry."""


class TableMissing(LogError):
    """There is no such table."""


class TableExists(LogError):
    """There is a table of that name."""


class TableNotEmpty(LogError):
    """The table has entries."""


class BadVersion(LogError):
    """A key has another version than was said, or exists though it must not."""


class NoSuchKey(LogError):
    """A key that must have a version does not exist."""


class OtherLength(LogError):
    """The table's log has another ``length`` than was said."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the table's length is {length}")
        self.length = length


class TableRefused(LogError):
    """Keys or values are too long, or the table is full."""


class TableInfo(NamedTuple):
    """What is known of a table."""

    length: int
    entries: int
    key_length: int


class Page(NamedTuple):
    """Entries in the order asked for, and whether there were no more behind them."""

    entries: list[TableEntry]
    last: bool


class TableStore:
    """Reads and changes tables; each call is one transaction, durable when it returns. All raise TableMissing."""

    def __init__(self, db: Database, max_bytes: int, max_page: int) -> None:
        self._db = db
        self._max_bytes = max_bytes
        self._max_page = max_page

    async def create(self, name: str, key_length: int = 0) -> None:
        """Raises TableExists."""

        def change(connection: sqlite3.Connection) -> None:
            insert_table(connection, name, key_length)

        await self._db.run(change)

    async def delete(self, name: str, must_be_empty: bool) -> None:
        """Raises TableNotEmpty."""

        def change(connection: sqlite3.Connection) -> None:
            _table(connection, name)
            count = connection.execute(
                "SELECT count(*) FROM (SELECT 1 FROM front_pravega_entries WHERE segment = ? LIMIT 1)", (name,)
            )
            if must_be_empty and count.fetchone()[0]:
                raise TableNotEmpty(f"table {name!r} has entries")
            drop_table(connection, name)

        await self._db.run(change)

    async def info(self, name: str) -> TableInfo:
        """What is known of a table."""

        def read(connection: sqlite3.Connection) -> TableInfo:
            length, key_length, _ = _table(connection, name)
            (count,) = connection.execute(
                "SELECT count(*) FROM front_pravega_entries WHERE segment = ?", (name,)
            ).fetchone()
            return TableInfo(length, count, key_length)

        return await self._db.run(read)

    async def update(self, name: str, entries: Sequence[TableEntry], at_length: int) -> list[int]:
        """Set entries, all or none; gives their versions. ``at_length``: the table's length must be that, -1 any.

        Raises BadVersion, NoSuchKey, OtherLength, TableRefused.
        """
        _check_many(entries)
        for key, _, value in entries:
            if not 0 < len(key) <= MAX_KEY or len(value) > MAX_VALUE:
                raise TableRefused(f"a key of {len(key)} and a value of {len(value)} bytes")

        def change(connection: sqlite3.Connection) -> list[int]:
            length, key_length, held = _table(connection, name)
            if at_length not in (-1, length):
                raise OtherLength(length)
            if key_length and any(len(one.key) != key_length for one in entries):
                raise TableRefused(f"keys of this table have {key_length} bytes")
            for key, version, _ in entries:
                _check(connection, name, key, version)
            versions = []
            for key, _, value in entries:
                old = connection.execute(
                    "SELECT length(value) FROM front_pravega_entries WHERE segment = ? AND key = ?", (name, key)
                ).fetchone()
                held += len(value) + (len(key) if old is None else -old[0])
                connection.execute("REPLACE INTO front_pravega_entries VALUES (?, ?, ?, ?)", (name, key, length, value))
                if old is None:
                    connection.execute("DELETE FROM front_pravega_removed WHERE segment = ? AND key = ?", (name, key))
                versions.append(length)
                length += _ENTRY_HEAD + len(key) + len(value)
            if held > self._max_bytes:
                raise TableRefused(f"the table would hold {held} bytes, more than {self._max_bytes}")
            _set(connection, name, length, held)
            return versions

        return await self._db.run(change)

    async def remove(self, name: str, keys: Sequence[TableKey], at_length: int) -> None:
        """Remove keys, all or none. Raises BadVersion, NoSuchKey, OtherLength, TableRefused."""
        _check_many(keys)

        def change(connection: sqlite3.Connection) -> None:
            length, _, held = _table(connection, name)
            if at_length not in (-1, length):
                raise OtherLength(length)
            for key, version in keys:
                _check(connection, name, key, version)
            for key, _ in keys:
                old = connection.execute(
                    "SELECT length(value) FROM front_pravega_entries WHERE segment = ? AND key = ?", (name, key)
                ).fetchone()
                if old is None:
                    continue
                connection.execute("DELETE FROM front_pravega_entries WHERE segment = ? AND key = ?", (name, key))
                connection.execute("REPLACE INTO front_pravega_removed VALUES (?, ?, ?)", (name, key, length))
                held -= len(key) + old[0]
                length += _ENTRY_HEAD + len(key)
            _set(connection, name, length, held)
            connection.execute(_FORGET, (name, name, _REMEMBERED))

        await self._db.run(change)

    async def get(self, name: str, keys: Sequence[TableKey]) -> list[TableEntry]:
        """The entries of keys, in their order; one that does not exist has NO_VERSION and no value. Raises
        TableRefused."""
        _check_many(keys)

        def read(connection: sqlite3.Connection) -> list[TableEntry]:
            _table(connection, name)
            found: list[TableEntry] = []
            room = _PAGE_BYTES
            for key, _ in keys:
                row = connection.execute(
                    "SELECT version, value FROM front_pravega_entries WHERE segment = ? AND key = ?", (name, key)
                ).fetchone()
                entry = TableEntry(key, NO_VERSION, b"") if row is None else TableEntry(key, *row)
                room -= len(key) + len(entry.value)
                if found and room < -_PAGE_BYTES:
                    raise TableRefused("more was asked for than one answer holds")
                found.append(entry)
            return found

        return await self._db.run(read)

    async def changed(self, name: str, position: int, count: int) -> tuple[Page, int]:
        """Entries with versions from ``position`` on, in their order, and the position behind them."""
        rows = "SELECT key, version, value FROM front_pravega_entries WHERE segment = ? AND version >= ? "

        def read(connection: sqlite3.Connection) -> tuple[Page, int]:
            length, _, _ = _table(connection, name)
            page = self._page(connection, rows + "ORDER BY version LIMIT ?", (name, position), count)
            if page.last:
                return page, length
            return page, page.entries[-1].version + 1

        return await self._db.run(read)

    async def entries(self, name: str, after: bytes, first: bytes, last: bytes, count: int) -> Page:
        """Entries by their keys, behind ``after``, from ``first`` to ``last``; empty ones bound nothing."""
        query = "SELECT key, version, value FROM front_pravega_entries WHERE segment = ? AND key > ? AND key >= ? "

        def read(connection: sqlite3.Connection) -> Page:
            _table(connection, name)
            if last:
                bounded = query + "AND key <= ? ORDER BY key LIMIT ?"
                return self._page(connection, bounded, (name, after, first, last), count)
            return self._page(connection, query + "ORDER BY key LIMIT ?", (name, after, first), count)

        return await self._db.run(read)

    def _page(self, connection: sqlite3.Connection, query: str, values: tuple[object, ...], count: int) -> Page:
        count = max(1, min(count, self._max_page))
        found: list[TableEntry] = []
        room = _PAGE_BYTES
        for row in connection.execute(query, (*values, count + 1)):
            entry = TableEntry(*row)
            room -= len(entry.key) + len(entry.value)
            if len(found) == count or (found and room < 0):
                return Page(found, False)
            found.append(entry)
        return Page(found, True)


def insert_table(connection: sqlite3.Connection, name: str, key_length: int) -> None:
    """Make a table, inside a transaction; ``key_length``: bytes of all its keys, 0 any. Raises TableExists."""
    try:
        connection.execute("INSERT INTO front_pravega_tables VALUES (?, 0, ?, 0)", (name, key_length))
    except sqlite3.IntegrityError:
        raise TableExists(f"there is a table {name!r}") from None


def drop_table(connection: sqlite3.Connection, name: str) -> None:
    """Delete a table with its entries, inside a transaction."""
    for table in ("entries", "removed", "tables"):
        connection.execute(f"DELETE FROM front_pravega_{table} WHERE segment = ?", (name,))


def _check_many(keys: Sequence[object]) -> None:
    if len(keys) > _MOST_KEYS:
        raise TableRefused(f"{len(keys)} keys in one command, of {_MOST_KEYS}")


def _table(connection: sqlite3.Connection, name: str) -> tuple[int, int, int]:
    query = "SELECT length, key_length, bytes FROM front_pravega_tables WHERE segment = ?"
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        raise TableMissing(f"there is no table {name!r}")
    length, key_length, held = row
    return length, key_length, held


def _set(connection: sqlite3.Connection, name: str, length: int, held: int) -> None:
    query = "UPDATE front_pravega_tables SET length = ?, bytes = ? WHERE segment = ?"
    connection.execute(query, (length, held, name))


def _check(connection: sqlite3.Connection, name: str, key: bytes, version: int) -> None:
    if version == ANY_VERSION:
        return
    query = "SELECT version FROM front_pravega_entries WHERE segment = ? AND key = ?"
    row = connection.execute(query, (name, key)).fetchone()
    if row is None:
        if version == NO_VERSION:
            return
        query = "SELECT 1 FROM front_pravega_removed WHERE segment = ? AND key = ?"
        if connection.execute(query, (name, key)).fetchone() is not None:
            raise BadVersion("a key that must have a version was removed")
        raise NoSuchKey("a key that must have a version does not exist")
    if row[0] != version:
        raise BadVersion(f"a key has version {row[0]}, not {version}")
