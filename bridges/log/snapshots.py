"""Snapshots of partition state, kept in the node's database.

They save time: a lost or unreadable snapshot costs a longer read of the log when the partition is opened. And they know
the producers of what was trimmed, of which the log tells nothing any more.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence

from bridges.catalog.sql import Database

_CRC_BYTES = 4


class Snapshots:
    """One snapshot per SBP stream, the latest."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self, stream_id: int) -> tuple[int, bytes] | None:
        """(offset below which the state is described, state), or None, also when its checksum is wrong."""

        def select(connection: sqlite3.Connection) -> tuple[int, bytes] | None:
            row: tuple[int, bytes] | None = connection.execute(
                "SELECT log_offset, state FROM partition_snapshots WHERE stream_id = ?", (stream_id,)
            ).fetchone()
            if row is None:
                return None
            offset, blob = row
            state, crc = blob[:-_CRC_BYTES], blob[-_CRC_BYTES:]
            return (offset, state) if crc == _crc(offset, state) else None

        return await self._db.run(select)

    async def save(self, stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Replace the snapshot of a partition's stream; nothing happens for a partition that was deleted."""

        def replace(connection: sqlite3.Connection) -> None:
            state = b"".join(pieces)
            connection.execute(
                "INSERT OR REPLACE INTO partition_snapshots SELECT stream_id, ?, ? FROM partitions WHERE stream_id = ?",
                (offset, state + _crc(offset, state), stream_id),
            )

        await self._db.run(replace)

    async def forget(self, stream_id: int) -> None:
        """Drop a stream's snapshot; it does not come back when power is lost, whatever the node's durability."""
        await self._db.run(
            lambda connection: connection.execute("DELETE FROM partition_snapshots WHERE stream_id = ?", (stream_id,)),
            flush=True,
        )


def erase_snapshots(connection: sqlite3.Connection, topic: str) -> None:
    """Drop the snapshots of a topic's partitions, in the transaction that deletes the topic."""
    connection.execute(
        "DELETE FROM partition_snapshots WHERE stream_id IN (SELECT stream_id FROM partitions WHERE topic = ?)",
        (topic,),
    )


def _crc(offset: int, state: bytes) -> bytes:
    return zlib.crc32(state, offset & 0xFFFFFFFF).to_bytes(_CRC_BYTES, "big")
