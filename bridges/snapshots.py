"""Snapshots of partition state, kept in the node's database.

They only save time: a lost or unreadable snapshot costs a longer read of the log when the partition is opened.
"""

from __future__ import annotations

import sqlite3

from bridges.sql import Database


class Snapshots:
    """One snapshot per SBP stream, the latest."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self, stream_id: int) -> tuple[int, bytes] | None:
        """(offset below which the state is described, state), or None."""

        def select(connection: sqlite3.Connection) -> tuple[int, bytes] | None:
            row: tuple[int, bytes] | None = connection.execute(
                "SELECT log_offset, state FROM partition_snapshots WHERE stream_id = ?", (stream_id,)
            ).fetchone()
            return row

        return await self._db.run(select)

    async def save(self, stream_id: int, offset: int, state: bytes) -> None:
        """Replace the stream's snapshot."""
        await self._db.run(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO partition_snapshots VALUES (?, ?, ?)", (stream_id, offset, state)
            )
        )

    async def forget(self, stream_id: int) -> None:
        """Drop the snapshot of a stream that was deleted."""
        await self._db.run(
            lambda connection: connection.execute("DELETE FROM partition_snapshots WHERE stream_id = ?", (stream_id,))
        )
