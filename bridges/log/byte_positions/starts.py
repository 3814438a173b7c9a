"""Where partitions begin in bytes, as Pravega counts them, of those that were truncated at such a position.

The byte a log begins with may lie inside a record, and that inside a batch, where the log itself is trimmed at offsets
only. So the start is kept in the node's database, with the record it lies in: this one's position is then known
whatever becomes of the snapshots that positions are counted from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bridges.log.byte_positions.column import BytePlace
from bridges.log.state.stream_rows import RaisedRows


class ByteStart(NamedTuple):
    """The first byte that readers get lies at ``position``, in the record at ``record``."""

    position: int
    record: BytePlace


class ByteStarts(RaisedRows[ByteStart]):
    """Where streams begin that were truncated at a position."""

    __slots__ = ()

    table = "byte_starts"
    columns = ("start", "record", "position")

    def _row(self, value: ByteStart) -> tuple[int, ...]:
        return (value.position, *value.record)

    def _with_row(self, stream_id: int, row: Sequence[int]) -> ByteStart:
        return ByteStart(row[0], BytePlace(row[1], row[2]))

    def of(self, stream_id: int) -> ByteStart | None:
        """Where a stream begins; None if it was never truncated at a position."""
        return self._known.get(stream_id)
