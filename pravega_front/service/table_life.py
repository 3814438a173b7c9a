"""How table segments come and go: under which name their entries lie, how many there are, and what is left of those
that were deleted.

A table's entries are found by its ``stored`` name, which no other table ever has. So a deletion is one row that moves,
however much the table holds: its name is free at once, and what it held is removed behind it, a slice at a time, by
:class:`DroppedTables`. What is left to remove is durable, and the next start goes on with it.
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
    from bridges.catalog.sql import Connection, Database

_SLICE_ROWS = 500
_SLICE_BYTES = 4 * 1024 * 1024
"""What one transaction removes of tables that were deleted: others wait for the database meanwhile."""
_AGAIN_S = 1.0


class TableMissing(LogError):
    """There is no such table."""


class TableExists(LogError):
    """There is a table of that name."""


class TooManyTables(LogError):
    """There are as many tables as there may be."""


def table_count(connection: Connection) -> int:
    """How many tables there are, without counting them."""
    return int(connection.execute("SELECT tables FROM front_pravega_table_count").fetchone()[0])


def insert_table(connection: Connection, name: str, key_length: int, most: int) -> None:
    """Make a table, inside a transaction; ``key_length``: bytes of all its keys, 0 any. There are ``most`` then at
    most. Raises TableExists, TooManyTables."""
    row = (name, key_length, uuid.uuid4().hex)
    query = "INSERT INTO front_pravega_tables VALUES (?, 0, ?, 0, ?, 0) ON CONFLICT (segment) DO NOTHING"
    if not connection.execute(query, row).rowcount:
        raise TableExists(f"there is a table {name!r}")
    count = table_count(connection)
    if count >= most:
        raise TooManyTables(f"there are {count} tables: no more can be made")
    connection.execute("UPDATE front_pravega_table_count SET tables = ?", (count + 1,))


def drop_table(connection: Connection, name: str) -> bool:
    """Delete a table, inside a transaction; whether there was one. :class:`DroppedTables` is to be woken then."""
    query = "DELETE FROM front_pravega_tables WHERE segment = ? RETURNING stored"
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return False
    connection.execute("INSERT INTO front_pravega_dropped VALUES (?)", row)
    connection.execute("UPDATE front_pravega_table_count SET tables = tables - 1")
    return True


def drop_tables(connection: Connection, names: Sequence[str]) -> None:
    """Delete those of some tables that there are."""
    for name in names:
        drop_table(connection, name)


def remove_slice(connection: Connection) -> bool:
    """Remove a bounded part of what tables held that were deleted; whether more is left."""
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
    """Removes what deleted tables held. Call :meth:`start`, which goes on where the last process stopped, and
    :meth:`close`."""

    def __init__(self, db: Database, barrier: Barrier) -> None:
        self._db = db
        self._barrier = barrier
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with what is left."""
        self._wake.set()
        self._task = asyncio.create_task(self._work(), name="removal of deleted tables")

    def wake(self) -> None:
        """A table was, or is being, deleted."""
        self._wake.set()

    async def close(self) -> None:
        """Leave the rest to the next start."""
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
