"""The progress of compaction in each partition's log, in the node's database. Losing a row costs one longer pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import Turns
from bridges.log.state.stream_rows import KnownRows

if TYPE_CHECKING:
    from bridges.log.state.partition_state import PartitionState
    from bridges.log.streams import Streams

_ASKED_ROWS = 64
"""Rows of the index in one question to the backend."""


class Cleaned(Struct, frozen=True):
    """The outcome of a pass. Below ``offset`` each key is there once. ``due_ms``: the time from which a pass finds
    something to remove without new records, -1: never. ``passed_ms``: when the last pass ended. ``settled``:
    transactions that memory has forgotten are also missing in the partition's snapshot."""

    offset: int = 0
    due_ms: int = -1
    passed_ms: int = 0
    settled: bool = True


class CleanedLogs(KnownRows[Cleaned]):
    """The outcomes of all streams that were compacted."""

    __slots__ = ()

    table = "compacted_logs"
    columns = ("clean_offset", "due_ms", "passed_ms", "settled")

    def _with_row(self, stream_id: int, row: Sequence[int]) -> Cleaned:
        return Cleaned(row[0], row[1], row[2], bool(row[3]))

    async def save(self, stream_id: int, cleaned: Cleaned) -> None:
        """Save durably, with everything saved before, whatever the node's durability. Raises an error of the
        database."""
        row = (cleaned.offset, cleaned.due_ms, cleaned.passed_ms, int(cleaned.settled))

        def hold(exists: bool) -> None:
            if exists:
                self._known[stream_id] = cleaned

        if self._db is None:
            hold(True)
        else:
            await self._db.run(
                lambda connection: self.store_existing(connection, stream_id, row), flush=True, then=hold
            )


async def correct_index(client: Streams, stream_id: int, state: PartitionState, end: Callable[[], int]) -> None:
    """Correct the index of a compacted log to the bytes that are left: it counts those that were appended."""
    starts = state.index.starts
    sizes: list[int] = []
    turns = Turns()
    for first in range(0, len(starts) - 1, _ASKED_ROWS):
        sizes += client.bytes_between(stream_id, starts[first : first + _ASKED_ROWS + 1]) or ()
        await turns.rest()
    if not starts or len(sizes) < len(starts) - 1 or state.index.starts[: len(starts)] != starts:
        return
    if state.index.rows == len(starts):
        sizes += client.bytes_between(stream_id, (starts[-1], end())) or ()
    state.index.resize(sizes)
