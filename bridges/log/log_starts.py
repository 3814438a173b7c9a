"""Where partitions begin, as far as their backend does not know it: what it cannot trim, and what it has reclaimed.

A placement driver of elastic-stream does not trim, and range servers drop the oldest data by total size without asking
anybody. The node remembers where such a partition's log starts, in its database, so that what was given up stays given
up and nobody looks for what is gone.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Protocol

import structlog

from bridges.catalog.sql import Database
from sbp_back.errors import ErrorCode, Reclaimed, SbpError

if TYPE_CHECKING:
    from bridges.log.streams import Streams

_log = structlog.get_logger("anabranch.logs")


class StartStore(Protocol):
    def of(self, stream_id: int) -> int: ...
    async def save(self, stream_id: int, offset: int) -> None: ...
    async def lost(self, stream_id: int, end: int) -> None: ...


class LogStarts:
    """Kept in the node's database, and in memory. Only streams whose backend knows less are in it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._starts: dict[int, int] = {}

    async def load(self) -> None:
        """Read all of them into memory."""

        def read(connection: sqlite3.Connection) -> dict[int, int]:
            return dict(connection.execute("SELECT stream_id, start FROM log_starts"))

        self._starts = await self._db.run(read)

    def of(self, stream_id: int) -> int:
        """The lowest offset of a stream that may be read; 0 if its backend decides."""
        return self._starts.get(stream_id, 0)

    async def save(self, stream_id: int, offset: int) -> None:
        """Raise a stream's start to ``offset``; never lowers it. Nothing happens for a partition that was deleted.
        Durable when it returns. Raises an error of the database."""

        def write(connection: sqlite3.Connection) -> int | None:
            connection.execute(
                "INSERT INTO log_starts SELECT stream_id, ? FROM partitions WHERE stream_id = ? "
                "ON CONFLICT (stream_id) DO UPDATE SET start = max(start, excluded.start)",
                (offset, stream_id),
            )
            row = connection.execute("SELECT start FROM log_starts WHERE stream_id = ?", (stream_id,)).fetchone()
            return None if row is None else int(row[0])

        start = await self._db.run(write)
        if start is not None:
            self._starts[stream_id] = start

    async def lost(self, stream_id: int, end: int) -> None:
        """The log ends before its start: the backend has lost its end, and what is appended from ``end`` on is new.

        Durable when it returns, whatever the node's durability. Raises an error of the database."""
        await self._db.run(
            lambda connection: connection.execute(
                "UPDATE log_starts SET start = ? WHERE stream_id = ?", (end, stream_id)
            ),
            flush=True,
        )
        self._starts[stream_id] = end


class StartsInMemory:
    """For logs without a database."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}

    def of(self, stream_id: int) -> int:
        return self._starts.get(stream_id, 0)

    async def save(self, stream_id: int, offset: int) -> None:
        self._starts[stream_id] = max(offset, self.of(stream_id))

    async def lost(self, stream_id: int, end: int) -> None:
        self._starts[stream_id] = end


def erase_starts(connection: sqlite3.Connection, topic: str) -> None:
    """Part of the transaction that deletes a topic (see :class:`bridges.catalog.topics.Catalog`)."""
    connection.execute(
        "DELETE FROM log_starts WHERE stream_id IN (SELECT stream_id FROM partitions WHERE topic = ?)", (topic,)
    )


class Trims:
    """Trims streams where that can be done, and remembers the start of those where it cannot."""

    def __init__(self, client: Streams, starts: StartStore) -> None:
        self._client = client
        self._starts = starts
        self._told = False

    async def trim(self, stream_id: int, offset: int) -> None:
        """Make everything below ``offset`` unreadable for good. Raises ``SbpError``, or an error of the database."""
        try:
            await self._client.trim(stream_id, offset)
        except SbpError as error:
            if error.code != ErrorCode.UNSUPPORTED_OPERATION:
                raise
            if not self._told:
                self._told = True
                _log.warning(
                    "this backend does not trim: where partitions begin is kept in this node's database, and the space "
                    "of what is below is not given back",
                    error=str(error),
                )
            await self._starts.save(stream_id, offset)


async def first_readable(client: Streams, stream_id: int, low: int, high: int) -> int:
    """The lowest offset from ``low`` on, below ``high``, that is not reclaimed; ``high`` if all is.

    What is reclaimed is taken to be the oldest. Asks for one batch at a time. Raises ``SbpError``.
    """
    while low < high:
        middle = (low + high) // 2
        try:
            entries = await client.fetch_entries(stream_id, middle, 1, limit=high)
        except Reclaimed:
            low = middle + 1
            continue
        except SbpError as error:
            if error.code != ErrorCode.RS_DATA_CORRUPTED:
                raise
            high = middle  # damaged, but there
            continue
        if entries:
            high = max(low, min(middle, entries[0].base_offset))
        else:
            low = middle + 1
    return low
