"""Positions in bytes, as Pravega counts them: where the events of a partition would lie if they lay one behind another.

An event is a header of eight bytes and its value; what is no event (markers, gaps, batches that nobody can read) takes
none. Positions cannot be told from offsets, so rows at intervals say which offset has which. They are counted as far as
somebody has asked, or data is trimmed; what goes without having been counted has taken no bytes.

A position that was told stays: everything counted is told from the row before it on, or from the one behind it
backwards where the rows before were trimmed. Rows are part of the snapshots of a partition's state, and one that knows
the positions of what is trimmed is saved before.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from sbp_back.errors import DecodeError

EVENT_HEADER = 8
"""Bytes of an event's header: its type and its length, four each (reference/pravega.md)."""

_HEAD = struct.Struct(">IQqQQ")


class BytePlace(NamedTuple):
    """What begins at ``offset`` begins at ``position``."""

    offset: int
    position: int


class ByteColumn:
    """Rows of (offset, position), ascending in both, and ``end``: as far as is counted."""

    __slots__ = ("_offsets", "_positions", "_since", "end", "interval", "max_rows", "saved_offset")

    def __init__(self, start: int, interval: int = 64 * 1024, max_rows: int = 8192) -> None:
        """Counting begins with position 0 at the offset ``start``. A row is made for every ``interval`` bytes of log;
        past ``max_rows`` every second one is dropped."""
        self.interval = interval
        self.max_rows = max_rows
        self.end = BytePlace(start, 0)
        self.saved_offset = -1
        """Offset up to which a stored snapshot knows what was counted; -1: there is none."""
        self._offsets = array("q", [start])
        self._positions = array("Q", [0])
        self._since = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, end_offset: int, events: int, size: int) -> None:
        """What lies from the end on up to ``end_offset`` takes ``events`` bytes here and ``size`` in the log."""
        if not self._offsets or self._since >= self.interval:
            if len(self._offsets) >= self.max_rows:
                self._offsets, self._positions = self._offsets[0::2], self._positions[0::2]
                self.interval *= 2
            self._offsets.append(self.end.offset)
            self._positions.append(self.end.position)
            self._since = 0
        self._since += size
        self.end = BytePlace(end_offset, self.end.position + events)

    def before(self, offset: int) -> BytePlace | None:
        """The last row at ``offset`` or below; None if there is none any more."""
        return self._row(bisect_right(self._offsets, offset) - 1)

    def after(self, offset: int) -> BytePlace:
        """The first row at ``offset`` or above, or the end."""
        row = bisect_left(self._offsets, offset)
        return self.end if row == len(self._offsets) else BytePlace(self._offsets[row], self._positions[row])

    def before_position(self, position: int) -> BytePlace | None:
        """The last row at ``position`` or below; None if there is none any more."""
        return self._row(bisect_right(self._positions, position) - 1)

    def _row(self, row: int) -> BytePlace | None:
        return BytePlace(self._offsets[row], self._positions[row]) if row >= 0 else None

    def begin(self, place: BytePlace) -> None:
        """The log begins at ``place``: have a row there, unless one is at it or before."""
        if place.offset < self.end.offset and (not self._offsets or place.offset < self._offsets[0]):
            self._offsets.insert(0, place.offset)
            self._positions.insert(0, place.position)

    def drop_before(self, offset: int) -> None:
        """What lies below ``offset`` is trimmed."""
        gone = bisect_left(self._offsets, offset)
        del self._offsets[:gone], self._positions[:gone]
        if self.end.offset < offset:
            self.end = BytePlace(offset, self.end.position)

    def unsaved_below(self, offset: int) -> bool:
        """Whether positions below ``offset`` were counted that no stored snapshot tells of."""
        return self.saved_offset < min(offset, self.end.offset)

    def snapshot(self) -> bytes:
        """All of it as bytes, for :meth:`restored`."""
        head = _HEAD.pack(len(self._offsets), self.interval, self.end.offset, self.end.position, self._since)
        return head + self._offsets.tobytes() + self._positions.tobytes()

    @classmethod
    def restored(cls, data: bytes) -> ByteColumn:
        """What a snapshot tells. Raises DecodeError."""
        if len(data) < _HEAD.size:
            raise DecodeError("snapshot of positions in bytes is cut short")
        rows, interval, end_offset, end_position, since = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + 16 * rows:
            raise DecodeError("snapshot of positions in bytes has another shape")
        column = cls(0, interval)
        column.end, column._since = BytePlace(end_offset, end_position), since
        column.saved_offset = end_offset
        column._offsets = array("q", data[_HEAD.size :][: 8 * rows])
        column._positions = array("Q", data[_HEAD.size + 8 * rows :])
        return column
