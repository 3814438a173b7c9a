"""Store of table segments: keys, values and versions, in the node's database (docs/protocols/pravega.md, "Tables").

A version is the entry's position in the log that the table would be, so it only grows. Only the latest entry of each
key is stored, so a table takes no more space than its entries, however often they are rewritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bridges.catalog.database.sql import upsert
from bridges.errors import LogError
from pravega_front.names import LONGEST_NAME
from pravega_front.service.tables.life import DroppedTables, TableMissing, drop_table, insert_table
from pravega_front.wire.fields import ANY_VERSION, NO_VERSION, TableEntry, TableKey

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection, Database

T = TypeVar("T")

MAX_KEY = 8192
MAX_VALUE = 1024 * 1024 - 8192
MOST_READ = 8 * 1024 * 1024
"""Most bytes of keys and values in one answer of :meth:`TableStore.get`."""
_ENTRY_HEAD = 17
"""Bytes of an entry in the table's log besides key and value."""
_FOUND_BYTES = 200
"""Memory of a read entry besides its key and value, until the answer is written."""
_MOST_KEYS = 10_000
"""Most keys in one command, since the database serves others, too."""
_FEW_KEYS = 100
"""Most keys of a command that runs at once. Larger commands take turns at the database, one at a time."""
_REMEMBERED = 1000
"""Most removed keys per table that are remembered."""
_FORGET = (
    "DELETE FROM front_pravega_removed WHERE segment = ? AND version <= (SELECT version FROM front_pravega_removed "
    "WHERE segment = ? ORDER BY version DESC LIMIT 1 OFFSET ?)"
)


class MoreRoom(LogError):
    """The answer has ``size`` bytes, more than the granted memory."""

    retriable = True

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes are asked for")
        self.size = size


class NotWanted(LogError):
    """The client no longer waits for the answer."""


class TableNotEmpty(LogError):
    """The table has entries."""


class BadVersion(LogError):
    """A key has another version than required, or exists although it must not."""


class NoSuchKey(LogError):
    """A key that must have a version does not exist."""


_PUT = upsert("front_pravega_entries", "segment key", "version value")
_PUT_REMOVED = upsert("front_pravega_removed", "segment key", "version")


class OtherLength(LogError):
    """The table's log has another ``length`` than required."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the table's length is {length}")
        self.length = length


class TableRefused(LogError):
    """Keys or values are too long, or the table is full."""


class TableInfo(NamedTuple):
    """Length of a table's log in bytes, its number of entries, and the length of its keys (0: any)."""

    length: int
    entries: int
    key_length: int


class Page(NamedTuple):
    """Entries in the requested order; ``last`` if there are no more after them."""

    entries: list[TableEntry]
    last: bool


class TableStore:
    """Reads and changes tables. Each method is one transaction, durable when it returns, and raises TableMissing."""

    def __init__(
        self, db: Database, dropped: DroppedTables, room: Callable[[], int], max_bytes: int, max_page: int
    ) -> None:
        self._db = db
        self._dropped = dropped
        # Returns how many tables there may be now.
        self._room = room
        self._max_bytes = max_bytes
        self._max_page = max_page
        self._many = asyncio.Lock()

    async def _run_many(
        self, count: int, work: Callable[[Connection], T], wanted: Callable[[], bool] = lambda: True
    ) -> T:
        """Run ``work`` on about ``count`` keys in the database. Raises NotWanted if the answer is no longer ``wanted``
        when its turn comes."""
        if count <= _FEW_KEYS:
            return await self._db.run(work)
        async with self._many:
            if not wanted():
                raise NotWanted
            return await self._db.run(work)

    async def create(self, name: str, key_length: int = 0) -> None:
        """Create a table. Raises TableExists, TooManyTables, TableRefused (the name is too long)."""
        if len(name) > LONGEST_NAME:
            raise TableRefused(f"a name of {len(name)} characters, of {LONGEST_NAME} at most")
        most = self._room()
        await self._db.run(lambda connection: insert_table(connection, name, key_length, most))

    async def delete(self, name: str, must_be_empty: bool) -> None:
        """Delete a table. Raises TableNotEmpty."""

        def change(connection: Connection) -> None:
            if _table(connection, name).entries and must_be_empty:
                raise TableNotEmpty(f"table {name!r} has entries")
            drop_table(connection, name)

        try:
            await self._db.run(change)
        finally:
            self._dropped.wake()

    async def info(self, name: str) -> TableInfo:
        """Return a table's length, number of entries and key length."""

        def read(connection: Connection) -> TableInfo:
            table = _table(connection, name)
            return TableInfo(table.length, table.entries, table.key_length)

        return await self._db.run(read)

    async def update(self, name: str, entries: Sequence[TableEntry], at_length: int) -> list[int]:
        """Set entries, all or none; return their versions. ``at_length``: required length of the table's log, -1 for
        any.

        Raises BadVersion, NoSuchKey, OtherLength, TableRefused.
        """
        _check_many(entries)

        def change(connection: Connection) -> list[int]:
            rows = list(entries)  # unpacked in the transaction: the list may be much larger than the frame
            for key, _, value in rows:
                if not 0 < len(key) <= MAX_KEY or len(value) > MAX_VALUE:
                    raise TableRefused(f"a key of {len(key)} and a value of {len(value)} bytes")
            stored, length, key_length, held, count = _table(connection, name)
            if at_length not in (-1, length):
                raise OtherLength(length)
            if key_length and any(len(one.key) != key_length for one in rows):
                raise TableRefused(f"keys of this table have {key_length} bytes")
            for key, version, _ in rows:
                _check(connection, stored, key, version, key_length)
            versions = []
            for key, _, value in rows:
                old = _value_length(connection, stored, key)
                held += len(value) + (len(key) if old is None else -old)
                row = (stored, key, length, value)
                connection.execute(_PUT, row)
                if old is None:
                    count += 1
                    connection.execute("DELETE FROM front_pravega_removed WHERE segment = ? AND key = ?", (stored, key))
                versions.append(length)
                length += _ENTRY_HEAD + len(key) + len(value)
            if held > self._max_bytes:
                raise TableRefused(f"the table would hold {held} bytes, more than {self._max_bytes}")
            _set(connection, name, length, held, count)
            return versions

        return await self._run_many(len(entries), change)

    async def remove(self, name: str, keys: Sequence[TableKey], at_length: int) -> None:
        """Remove keys, all or none. Raises BadVersion, NoSuchKey, OtherLength, TableRefused."""
        _check_many(keys)

        def change(connection: Connection) -> None:
            stored, length, key_length, held, count = _table(connection, name)
            if at_length not in (-1, length):
                raise OtherLength(length)
            rows = list(keys)
            for key, version in rows:
                _check(connection, stored, key, version, key_length)
            for key, _ in rows:
                old = _value_length(connection, stored, key)
                if old is None:
                    continue
                connection.execute("DELETE FROM front_pravega_entries WHERE segment = ? AND key = ?", (stored, key))
                connection.execute(_PUT_REMOVED, (stored, key, length))
                held -= len(key) + old
                count -= 1
                length += _ENTRY_HEAD + len(key)
            _set(connection, name, length, held, count)
            connection.execute(_FORGET, (stored, stored, _REMEMBERED))

        await self._run_many(len(keys), change)

    async def get(
        self, name: str, keys: Sequence[TableKey], room: int, wanted: Callable[[], bool] = lambda: True
    ) -> list[TableEntry]:
        """Return the entries of keys, in their order; a missing key gets NO_VERSION and no value. They take at most
        ``room`` bytes of memory. Raises TableRefused, MoreRoom; NotWanted if the answer is no longer ``wanted`` when
        its turn comes."""
        _check_many(keys)

        def read(connection: Connection) -> list[TableEntry]:
            stored = _table(connection, name).stored
            rows = list(keys)
            size = sum(len(key) + (_value_length(connection, stored, key) or 0) for key, _ in rows)
            if size > MOST_READ:
                raise TableRefused(f"{size} bytes were asked for, more than one answer holds")
            size += _FOUND_BYTES * len(rows)
            if size > room:
                raise MoreRoom(size)
            found: list[TableEntry] = []
            for key, _ in rows:
                row = connection.execute(
                    "SELECT version, value FROM front_pravega_entries WHERE segment = ? AND key = ?", (stored, key)
                ).fetchone()
                found.append(TableEntry(key, NO_VERSION, b"") if row is None else TableEntry(key, *row))
            return found

        return await self._run_many(len(keys), read, wanted)

    async def changed(self, name: str, position: int, count: int, room: int) -> tuple[Page, int]:
        """Return entries with versions from ``position`` on, in their order, and the position after them. Raises
        MoreRoom if not even one fits into ``room`` bytes, as :meth:`entries` does."""
        rows = "SELECT key, version, value FROM front_pravega_entries WHERE segment = ? AND version >= ? "

        def read(connection: Connection) -> tuple[Page, int]:
            table = _table(connection, name)
            page = self._page(connection, rows + "ORDER BY version LIMIT ?", (table.stored, position), count, room)
            if page.last:
                return page, table.length
            return page, page.entries[-1].version + 1

        return await self._db.run(read)

    async def entries(self, name: str, after: bytes, first: bytes, last: bytes, count: int, room: int) -> Page:
        """Return entries in the order of their keys, after ``after``, from ``first`` to ``last``; an empty key is no
        bound."""
        query = "SELECT key, version, value FROM front_pravega_entries WHERE segment = ? AND key > ? AND key >= ? "

        def read(connection: Connection) -> Page:
            stored = _table(connection, name).stored
            if last:
                bounded = query + "AND key <= ? ORDER BY key LIMIT ?"
                return self._page(connection, bounded, (stored, after, first, last), count, room)
            return self._page(connection, query + "ORDER BY key LIMIT ?", (stored, after, first), count, room)

        return await self._db.run(read)

    def _page(self, connection: Connection, query: str, values: tuple[object, ...], count: int, room: int) -> Page:
        """Return at most ``count`` entries, which take at most ``room`` bytes of memory together."""
        count = max(1, min(count, self._max_page))
        found: list[TableEntry] = []
        left = room
        for row in connection.execute(query, (*values, count + 1)):
            entry = TableEntry(*row)
            size = len(entry.key) + len(entry.value) + _FOUND_BYTES
            if size > left and not found:
                raise MoreRoom(size)
            left -= size
            if left < 0 or len(found) == count:
                return Page(found, False)
            found.append(entry)
        return Page(found, True)


def _check_many(keys: Sequence[object]) -> None:
    if len(keys) > _MOST_KEYS:
        raise TableRefused(f"{len(keys)} keys in one command, of {_MOST_KEYS}")


class _Row(NamedTuple):
    """A table's row: the stored name of its entries, and lengths in bytes."""

    stored: str
    length: int
    key_length: int
    held: int
    entries: int


def _table(connection: Connection, name: str) -> _Row:
    query = "SELECT stored, length, key_length, bytes, entries FROM front_pravega_tables WHERE segment = ?"
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        raise TableMissing(f"there is no table {name!r}")
    return _Row(*row)


def _set(connection: Connection, name: str, length: int, held: int, entries: int) -> None:
    query = "UPDATE front_pravega_tables SET length = ?, bytes = ?, entries = ? WHERE segment = ?"
    connection.execute(query, (length, held, entries, name))


def _value_length(connection: Connection, stored: str, key: bytes) -> int | None:
    query = "SELECT length(value) FROM front_pravega_entries WHERE segment = ? AND key = ?"
    row = connection.execute(query, (stored, key)).fetchone()
    return None if row is None else int(row[0])


def _check(connection: Connection, stored: str, key: bytes, version: int, key_length: int) -> None:
    """Check a key's version. ``key_length``: length of all keys of the table, 0 for any. For tables with a key length
    Pravega never answers that a key is missing."""
    if version == ANY_VERSION:
        return
    query = "SELECT version FROM front_pravega_entries WHERE segment = ? AND key = ?"
    row = connection.execute(query, (stored, key)).fetchone()
    if row is None:
        if version == NO_VERSION:
            return
        if key_length:
            raise BadVersion("a key that must have a version does not exist")
        query = "SELECT 1 FROM front_pravega_removed WHERE segment = ? AND key = ?"
        if connection.execute(query, (stored, key)).fetchone() is not None:
            raise BadVersion("a key that must have a version was removed")
        raise NoSuchKey("a key that must have a version does not exist")
    if row[0] != version:
        raise BadVersion(f"a key has version {row[0]}, not {version}")
