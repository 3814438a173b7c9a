"""Starts in bytes, as Pravega counts them, of partitions that were truncated at a position.

The first byte of a log may lie inside a record, and the record inside a batch, but the log itself is trimmed only at
offsets. So the node's database keeps the start, with the record that contains it. That record's position is then known
even if the snapshots, from which positions are counted, are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bridges.log.byte_positions.column import BytePlace
from bridges.log.state.stream_rows import RaisedRows


class ByteStart(NamedTuple):
    """The first byte that readers get: it lies at ``position``, in the record at ``record``."""

    position: int
    record: BytePlace


class ByteStarts(RaisedRows[ByteStart]):
    """The starts of the streams that were truncated at a position."""

    __slots__ = ()

    table = "byte_starts"
    columns = ("start", "record", "position")

    def _row(self, value: ByteStart) -> tuple[int, ...]:
        return (value.position, *value.record)

    def _with_row(self, stream_id: int, row: Sequence[int]) -> ByteStart:
        return ByteStart(row[0], BytePlace(row[1], row[2]))
