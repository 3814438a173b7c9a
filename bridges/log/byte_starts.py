"""Where partitions begin in bytes, as Pravega counts them, of those that were truncated at such a position.

The byte a log begins with may lie inside a record, and that inside a batch, where the log itself is trimmed at offsets
only. So the start is kept in the node's database, with the record it lies in: this one's position is then known
whatever becomes of the snapshots that positions are counted from.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridges.log.byte_column import BytePlace

if TYPE_CHECKING:
    from bridges.catalog.sql import Database


class ByteStart(NamedTuple):
    """The first byte that readers get lies at ``position``, in the record at ``record``."""

    position: int
    record: BytePlace


class ByteStartStore(Protocol):
    """Where they are kept."""

    def of(self, stream_id: int) -> ByteStart | None: ...
    async def save(self, stream_id: int, start: ByteStart) -> None: ...
    def deleted(self, stream_id: int) -> None: ...


class ByteStarts:
    """By stream; in memory and, with a database, for good."""

    __slots__ = ("_db", "_starts")

    def __init__(self, db: Database | None = None) -> None:
        self._db = db
        self._starts: dict[int, ByteStart] = {}

    async def load(self) -> None:
        """Read all of them into memory."""
        if self._db is None:
            return

        def select(connection: sqlite3.Connection) -> list[tuple[int, int, int, int]]:
            return connection.execute("SELECT stream_id, start, record, position FROM byte_starts").fetchall()

        for stream_id, start, record, position in await self._db.run(select):
            self._starts[stream_id] = ByteStart(start, BytePlace(record, position))

    def of(self, stream_id: int) -> ByteStart | None:
        """Where a stream begins; None if it was never truncated at a position."""
        return self._starts.get(stream_id)

    async def save(self, stream_id: int, start: ByteStart) -> None:
        """Raise a stream's start; never lowers it. Nothing happens for a partition that was deleted. Durable when it
        returns. Raises an error of the database."""

        def write(connection: sqlite3.Connection) -> bool:
            connection.execute(
                "INSERT INTO byte_starts SELECT stream_id, ?, ?, ? FROM partitions WHERE stream_id = ? "
                "ON CONFLICT (stream_id) DO UPDATE SET start = excluded.start, record = excluded.record, "
                "position = excluded.position WHERE excluded.start > start",
                (start.position, *start.record, stream_id),
            )
            query = "SELECT 1 FROM byte_starts WHERE stream_id = ?"
            return connection.execute(query, (stream_id,)).fetchone() is not None

        kept = self._db is None or await self._db.run(write)
        known = self._starts.get(stream_id)
        if kept and (known is None or known.position < start.position):
            self._starts[stream_id] = start

    def deleted(self, stream_id: int) -> None:
        """Forget a stream whose row went with its topic."""
        self._starts.pop(stream_id, None)


def erase_byte_starts(connection: sqlite3.Connection, topic: str) -> None:
    """Part of the transaction that deletes a topic (see :class:`bridges.catalog.topics.Catalog`)."""
    connection.execute(
        "DELETE FROM byte_starts WHERE stream_id IN (SELECT stream_id FROM partitions WHERE topic = ?)", (topic,)
    )
