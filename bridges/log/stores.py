"""The rows about partitions' streams that one node keeps in its database, beside the streams."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bridges.log.byte_positions.starts import ByteStarts
from bridges.log.compaction.cleaned_logs import CleanedLogs
from bridges.log.damage.skips import Skips
from bridges.log.state.log_starts import LogStarts
from bridges.log.state.snapshots import Snapshots
from bridges.log.state.stream_rows import KnownRows
from bridges.log.transactions.aborted_blocks import AbortedBlocks

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.sql import Database

ERASERS = tuple(store.erase for store in (Snapshots, LogStarts, ByteStarts, Skips, CleanedLogs, AbortedBlocks))
"""Delete a topic's rows, inside the transaction that deletes the topic."""


class Stores(Struct, frozen=True):
    """One object for each table."""

    snapshots: Snapshots
    starts: LogStarts
    byte_starts: ByteStarts
    skips: Skips
    cleaned: CleanedLogs
    aborted: AbortedBlocks

    @property
    def _in_memory(self) -> tuple[KnownRows[Any], ...]:
        return self.starts, self.byte_starts, self.skips, self.cleaned

    @property
    def shared(self) -> bool:
        """Return whether other nodes may have changed rows: opening a log then reads its rows again."""
        return any(rows.shared for rows in self._in_memory)

    async def reload(self, streams: Collection[int]) -> dict[int, None]:
        """Read the rows of ``streams`` again. Raises an error of the database."""
        await asyncio.gather(*(rows.reload(streams) for rows in self._in_memory))
        return {}

    def drop(self, stream_id: int) -> None:
        """Forget a stream whose rows were deleted with its topic."""
        for rows in self._in_memory:
            rows.drop(stream_id)
        self.aborted.drop(stream_id)


async def load_stores(db: Database, barrier: Barrier) -> Stores:
    """Read the small tables. Raises an error of the database."""
    stores = Stores(
        Snapshots(db), LogStarts(db), ByteStarts(db), Skips(db), CleanedLogs(db), AbortedBlocks(db, barrier)
    )
    for rows in stores._in_memory:
        await rows.load()
    return stores
