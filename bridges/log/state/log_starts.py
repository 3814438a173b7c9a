"""Log starts that the backend does not know: of streams that it cannot trim, or whose data it has reclaimed.

A placement driver of elastic-stream does not trim, and range servers drop the oldest data by total size without asking.
So the node stores such a partition's log start in its database. Trimmed data then stays trimmed, and nobody searches
for what is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from bridges.log.state.stream_rows import RaisedRows
from sbp_back.errors import ErrorCode, Reclaimed, SbpError

if TYPE_CHECKING:
    from bridges.log.streams import Streams

_log = structlog.get_logger("anabranch.logs")


class LogStarts(RaisedRows[int]):
    """The lowest readable offset of each stream whose backend has a lower one."""

    __slots__ = ()

    table = "log_starts"
    columns = ("start",)
    frees = True

    def _row(self, value: int) -> tuple[int, ...]:
        return (value,)

    def _with_row(self, stream_id: int, row: Sequence[int]) -> int:
        return row[0]

    def start_of(self, stream_id: int) -> int:
        """Return the lowest readable offset of a stream; 0 if its backend decides."""
        return self._known.get(stream_id, 0)

    async def lost(self, stream_id: int, end: int) -> None:
        """Lower the start of a log that ends before it: the backend has lost the log's end, and appends from ``end`` on
        are new.

        Durable when it returns, whatever the node's durability. Raises an error of the database.
        """
        if self._db is not None:
            await self._db.run(
                lambda connection: connection.execute(
                    "UPDATE log_starts SET start = ? WHERE stream_id = ?", (end, stream_id)
                ),
                flush=True,
            )
        self._known[stream_id] = end


class Trims:
    """A trimmer of streams, which stores the start of those that the backend cannot trim."""

    def __init__(self, client: Streams, starts: LogStarts) -> None:
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
    """Return the lowest offset from ``low`` on, below ``high``, that is not reclaimed; ``high`` if all are.

    Assumes that the oldest data was reclaimed. Fetches one batch at a time. Raises ``SbpError``.
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
