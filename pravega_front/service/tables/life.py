"""Creation and deletion of table segments: the stored names of their entries, their number, and removal of deleted
entries.

A table's entries are stored under its ``stored`` name, which no other table ever gets. So a deletion moves one row,
however much the table holds: the table's name is free at once, and :class:`DroppedTables` removes the entries later, a
slice at a time. The list of what is left to remove is durable, and the next start continues with it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.sql import Connection, Database

_SLICE_ROWS = 500
_SLICE_BYTES = 4 * 1024 * 1024
"""Most rows and bytes of deleted tables removed in one transaction, which blocks others."""
_AGAIN_S = 1.0


class TableMissing(LogError):
    """The table does not exist."""


class TableExists(LogError):
    """The table exists already."""


class TooManyTables(LogError):
    """The limit of tables is reached."""


def table_count(connection: Connection) -> int:
    """Return the stored number of tables, without counting rows."""
    return int(connection.execute("SELECT tables FROM front_pravega_table_count").fetchone()[0])


def insert_table(connection: Connection, name: str, key_length: int, most: int) -> None:
    """Create a table, within a transaction. ``key_length``: length of all its keys in bytes, 0 for any. ``most``: limit
    of tables. Raises TableExists, TooManyTables."""
    row = (name, key_length, uuid.uuid4().hex)
    query = "INSERT INTO front_pravega_tables VALUES (?, 0, ?, 0, ?, 0) ON CONFLICT (segment) DO NOTHING"
    if not connection.execute(query, row).rowcount:
        raise TableExists(f"there is a table {name!r}")
    count = table_count(connection)
    if count >= most:
        raise TooManyTables(f"there are {count} tables: no more can be made")
    connection.execute("UPDATE front_pravega_table_count SET tables = ?", (count + 1,))


def drop_table(connection: Connection, name: str) -> bool:
    """Delete a table, within a transaction; return whether it existed. If it did, the caller wakes
    :class:`DroppedTables` after the transaction."""
    query = "DELETE FROM front_pravega_tables WHERE segment = ? RETURNING stored"
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return False
    connection.execute("INSERT INTO front_pravega_dropped VALUES (?)", row)
    connection.execute("UPDATE front_pravega_table_count SET tables = tables - 1")
    return True


def drop_tables(connection: Connection, names: Sequence[str]) -> None:
    """Delete the tables among ``names`` that exist, within a transaction."""
    for name in names:
        drop_table(connection, name)


def remove_slice(connection: Connection) -> bool:
    """Remove a bounded part of the deleted tables' entries; return whether more is left."""
    rows, size = _SLICE_ROWS, _SLICE_BYTES
    while rows > 0 and size > 0:
        row = connection.execute("SELECT stored FROM front_pravega_dropped LIMIT 1").fetchone()
        if row is None:
            return False
        (stored,) = row
        last: bytes | None = None
        query = "SELECT key, length(key) + length(value) FROM front_pravega_entries WHERE segment = ? ORDER BY key"
        for key, held in connection.execute(f"{query} LIMIT ?", (stored, rows)):
            last, rows, size = key, rows - 1, size - held
            if size <= 0:
                break
        if last is not None:
            connection.execute("DELETE FROM front_pravega_entries WHERE segment = ? AND key <= ?", (stored, last))
            continue
        removed = "SELECT key FROM front_pravega_removed WHERE segment = ? LIMIT ?"
        query = f"DELETE FROM front_pravega_removed WHERE segment = ? AND key IN ({removed})"
        gone = connection.execute(query, (stored, stored, rows))
        rows -= gone.rowcount + 1
        if rows >= 0:
            connection.execute("DELETE FROM front_pravega_dropped WHERE stored = ?", (stored,))
    return True


class DroppedTables:
    """Task that removes the entries of deleted tables. Call :meth:`start`, which continues where the last process
    stopped, and :meth:`close`."""

    def __init__(self, db: Database, barrier: Barrier) -> None:
        self._db = db
        self._barrier = barrier
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._wake.set()
        self._task = asyncio.create_task(self._work(), name="removal of deleted tables")

    def wake(self) -> None:
        """Note that a table was, or is being, deleted."""
        self._wake.set()

    async def close(self) -> None:
        """Stop the task; the next start continues."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._db.run(remove_slice):
                    pass
            except Exception as error:  # noqa: BLE001 - logged, counted and tried again
                self._barrier.caught("removal of deleted tables", error)
                self._wake.set()
                await asyncio.sleep(_AGAIN_S)
