"""Snapshots of partition state, kept in the node's database.

They save time: a lost or unreadable snapshot costs a longer read of the log when the partition is opened. And they hold
the producers of trimmed data, which the log no longer has.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from functools import partial

from bridges.catalog.database.sql import Connection, Database
from bridges.errors import LogError
from bridges.log.state.stream_rows import StreamRows

_CRC_BYTES = 4
_IDS_PER_QUERY = 500
"""Streams in one statement."""

_Snapshot = tuple[int, bytes]


class Snapshots(StreamRows):
    """One snapshot per SBP stream, the latest."""

    __slots__ = ("_db", "_wanted")

    table = "partition_snapshots"
    columns = ("log_offset", "state")

    def __init__(self, db: Database) -> None:
        self._db = db
        # Waiters for snapshots that are requested in this turn of the event loop.
        self._wanted: list[tuple[int, asyncio.Future[_Snapshot | None]]] = []

    async def load(self, stream_id: int) -> _Snapshot | None:
        """Return (offset below which the state is described, state), or None, also when its checksum is wrong.

        One statement reads all snapshots that are requested in one turn of the event loop, because partitions are
        opened in large numbers. Raises an error of the database.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[_Snapshot | None] = loop.create_future()
        self._wanted.append((stream_id, found))
        if len(self._wanted) == 1:
            loop.call_soon(self._load_wanted)
        return await found

    def _load_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        stream_ids = [stream_id for stream_id, _ in wanted]

        def answer(reading: asyncio.Future[dict[int, _Snapshot]]) -> None:
            error = reading.exception()
            for stream_id, found in wanted:
                if found.done():
                    continue  # the waiter was cancelled
                if error is None:
                    found.set_result(reading.result().get(stream_id))
                else:
                    found.set_exception(error)

        try:
            self._db.submit(partial(_select, stream_ids)).add_done_callback(answer)
        except LogError as error:
            for _, found in wanted:
                if not found.done():
                    found.set_exception(error)

    async def save(self, stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Replace the snapshot of a partition's stream; does nothing for a deleted partition."""

        def replace(connection: Connection) -> None:
            state = b"".join(pieces)
            self.store_row(connection, stream_id, (offset, state + _crc(offset, state)))

        await self._db.run(replace)

    async def forget(self, stream_id: int) -> None:
        """Delete a stream's snapshot, for good even after a loss of power, whatever the node's durability."""
        await self._db.run(
            lambda connection: connection.execute("DELETE FROM partition_snapshots WHERE stream_id = ?", (stream_id,)),
            flush=True,
        )


def _select(stream_ids: Sequence[int], connection: Connection) -> dict[int, _Snapshot]:
    """Return the intact snapshots of these streams."""
    found: dict[int, _Snapshot] = {}
    for first in range(0, len(stream_ids), _IDS_PER_QUERY):
        part = stream_ids[first : first + _IDS_PER_QUERY]
        marks = ", ".join("?" * len(part))
        query = f"SELECT stream_id, log_offset, state FROM partition_snapshots WHERE stream_id IN ({marks})"
        for stream_id, offset, blob in connection.execute(query, part):
            state, crc = blob[:-_CRC_BYTES], blob[-_CRC_BYTES:]
            if crc == _crc(offset, state):
                found[stream_id] = (offset, state)
    return found


def _crc(offset: int, state: bytes) -> bytes:
    return zlib.crc32(state, offset & 0xFFFFFFFF).to_bytes(_CRC_BYTES, "big")
