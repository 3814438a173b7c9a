"""Snapshots of partition state, kept in the node's database.

They save time: a lost or unreadable snapshot costs a longer read of the log when the partition is opened. And they hold
the producers of trimmed data, which the log no longer has.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from anabranch_kit.sql.connection import among
from bridges.catalog.database.sql import Connection, Database
from bridges.log.state.stream_rows import Gathered, StreamRows

_CRC_BYTES = 4

_Snapshot = tuple[int, bytes]


class Snapshots(StreamRows):
    """One snapshot per SBP stream, the latest."""

    __slots__ = ("_db", "_reads")

    table = "partition_snapshots"
    columns = ("log_offset", "state")

    def __init__(self, db: Database) -> None:
        self._db = db
        self._reads = Gathered(self._select)

    async def load(self, stream_id: int) -> _Snapshot | None:
        """Return (offset below which the state is described, state), or None, also when its checksum is wrong. Raises
        an error of the database."""
        return await self._reads.read(stream_id)

    async def _select(self, streams: Collection[int]) -> dict[int, _Snapshot]:
        """Return the intact snapshots of these streams."""
        condition, values = among("stream_id", streams)
        query = f"SELECT stream_id, log_offset, state FROM partition_snapshots WHERE {condition}"

        def select(connection: Connection) -> dict[int, _Snapshot]:
            found: dict[int, _Snapshot] = {}
            for stream_id, offset, blob in connection.execute(query, values):
                state, crc = blob[:-_CRC_BYTES], blob[-_CRC_BYTES:]
                if crc == _crc(offset, state):
                    found[stream_id] = (offset, state)
            return found

        return await self._db.run(select)

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


def _crc(offset: int, state: bytes) -> bytes:
    return zlib.crc32(state, offset & 0xFFFFFFFF).to_bytes(_CRC_BYTES, "big")
