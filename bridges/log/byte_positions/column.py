"""Positions in bytes, as Pravega counts them: where the events of a partition would lie in one file.

An event is a header of eight bytes and its value; everything else (markers, gaps, unreadable batches) takes no bytes.
Positions cannot be computed from offsets, so rows at intervals map offsets to positions. Positions are counted as far
as a client has asked, or data is trimmed. Data that was deleted without having been counted has taken no bytes.

A position that a client has learned stays, except before records that compaction removes: positions are counted from
the row before, or backwards from the row behind if the rows before were trimmed. A span that was counted and is
declared lost later keeps its bytes: rows at both its ends are pinned. Rows are part of the snapshots of a partition's
state. Before data is trimmed, declared lost, or compacted, a snapshot with its positions is saved.

Where compaction removes records, the records before them move up. Positions from the offset ``firm`` on stay, and a
record below it only ever gets a higher one. So a reader that continues from a position gets everything that is left
behind what it has read. Snapshots contain nothing below ``firm``, because it may have moved after them.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from time import monotonic
from typing import NamedTuple

from sbp_back.errors import DecodeError

_RECENT = 256
"""Batches counted last whose positions are all known, for readers at the tail."""

_HEAD = struct.Struct(">IQqQQ")


class BytePlace(NamedTuple):
    """A position in bytes: that of the record or batch at ``offset``."""

    offset: int
    position: int


class LowestRead:
    """The lowest offset read lately. It is forgotten after one to two periods."""

    __slots__ = ("_began", "_former", "_latest")

    def __init__(self, offset: int | None = None) -> None:
        self._began = monotonic()
        self._former: int | None = None
        self._latest = offset

    def note(self, offset: int, seconds: float) -> None:
        self.lowest(seconds)
        self._latest = offset if self._latest is None else min(self._latest, offset)

    def lowest(self, seconds: float) -> int | None:
        """Return the lowest offset read in the last ``seconds``; None without reads."""
        passed = monotonic() - self._began
        if passed >= seconds:
            self._former = self._latest if passed < 2 * seconds else None
            self._latest, self._began = None, monotonic()
        known = [one for one in (self._former, self._latest) if one is not None]
        return min(known, default=None)


class ByteColumn:
    """Rows of (offset, position), ascending in both, and ``end``, up to which everything is counted."""

    __slots__ = (
        "_offsets",
        "_pinned",
        "_positions",
        "_recent_offsets",
        "_recent_positions",
        "_since",
        "end",
        "firm",
        "interval",
        "lowest_read",
        "max_rows",
        "saved_offset",
    )

    def __init__(self, start: int, interval: int = 64 * 1024, max_rows: int = 8192, position: int = 0) -> None:
        """Begin to count at ``position`` and the offset ``start``. Every ``interval`` bytes of log get a row; past
        ``max_rows`` every second row is dropped."""
        self.interval = interval
        self.max_rows = max_rows
        self.end = BytePlace(start, position)
        self.saved_offset = -1
        """Offset up to which a stored snapshot has the counted positions; -1 without one."""
        self.firm = -1
        """Positions of offsets below it may grow; -1: all stay."""
        self.lowest_read = LowestRead()
        self._offsets = array("q", [start])
        self._positions = array("q", [position])
        self._since = 0
        # Offsets whose rows are never dropped.
        self._pinned: set[int] = set()
        # Beginnings of the batches that were counted last, without gaps.
        self._recent_offsets = array("q")
        self._recent_positions = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, end_offset: int, events: int, size: int) -> None:
        """Count the batch from the end up to ``end_offset``: it takes ``events`` bytes here and ``size`` in the log."""
        if self._offsets and self._offsets[-1] == self.end.offset:
            self._since = 0
        elif not self._offsets or self._since >= self.interval:
            if len(self._offsets) - len(self._pinned) >= self.max_rows:
                self._thin()
            self._offsets.append(self.end.offset)
            self._positions.append(self.end.position)
            self._since = 0
        if len(self._recent_offsets) >= 2 * _RECENT:
            del self._recent_offsets[:_RECENT], self._recent_positions[:_RECENT]
        self._recent_offsets.append(self.end.offset)
        self._recent_positions.append(self.end.position)
        self._since += size
        self.end = BytePlace(end_offset, self.end.position + events)

    def _thin(self) -> None:
        kept = [n for n, offset in enumerate(self._offsets) if not n % 2 or offset in self._pinned]
        self._offsets = array("q", [self._offsets[n] for n in kept])
        self._positions = array("q", [self._positions[n] for n in kept])
        self.interval *= 2

    def before(self, offset: int) -> BytePlace | None:
        """Return the last known place at ``offset`` or below; None if it was dropped."""
        if self._recent_offsets and offset >= self._recent_offsets[0]:
            recent = bisect_right(self._recent_offsets, offset) - 1
            return self._later(bisect_right(self._offsets, offset) - 1, recent)
        return self._row(bisect_right(self._offsets, offset) - 1)

    def after(self, offset: int) -> BytePlace:
        """Return the first row at ``offset`` or above, or the end."""
        row = bisect_left(self._offsets, offset)
        return self.end if row == len(self._offsets) else BytePlace(self._offsets[row], self._positions[row])

    def before_position(self, position: int) -> BytePlace | None:
        """Return the last known place at ``position`` or below; None if it was dropped."""
        if self._recent_positions and position >= self._recent_positions[0]:
            recent = bisect_right(self._recent_positions, position) - 1
            return self._later(bisect_right(self._positions, position) - 1, recent)
        return self._row(bisect_right(self._positions, position) - 1)

    def at(self, offset: int) -> int | None:
        """Return the position of ``offset``, if it is known without reading."""
        if offset == self.end.offset:
            return self.end.position
        place = self.before(offset)
        return place.position if place is not None and place.offset == offset else None

    def _row(self, row: int) -> BytePlace | None:
        return BytePlace(self._offsets[row], self._positions[row]) if row >= 0 else None

    def _later(self, row: int, recent: int) -> BytePlace:
        place = BytePlace(self._recent_offsets[recent], self._recent_positions[recent])
        found = self._row(row)
        return place if found is None else max(found, place)

    def pin(self, place: BytePlace) -> None:
        """Keep a row at ``place`` for good: positions before and after it cannot be counted from one another."""
        row = bisect_left(self._offsets, place.offset)
        if row == len(self._offsets) or self._offsets[row] != place.offset:
            self._offsets.insert(row, place.offset)
            self._positions.insert(row, place.position)
        self._pinned.add(place.offset)

    def loosen(self, place: BytePlace) -> None:
        """Allow compaction to remove records below ``place``."""
        if place.offset > self.firm:
            self.firm = place.offset
            self.pin(place)

    def moved(self, start: int, end: int, taken: int | None) -> None:
        """Adjust to a replacement by compaction from ``start`` to ``end``, below ``firm``, that takes ``taken`` bytes
        less; None: unknown."""
        if taken is None:
            self._drop_rows(self.firm)
            return
        self._offsets, self._positions = _moved(self._offsets, self._positions, start, end, taken)
        recent = _moved(self._recent_offsets, self._recent_positions, start, end, taken)
        self._recent_offsets, self._recent_positions = recent
        self._pinned.intersection_update(self._offsets)

    def begin(self, place: BytePlace) -> None:
        """Insert a row at ``place``, the log's start, unless there is one at or before it."""
        if place.offset < self.end.offset and (not self._offsets or place.offset < self._offsets[0]):
            self._offsets.insert(0, place.offset)
            self._positions.insert(0, place.position)

    def drop_before(self, offset: int) -> None:
        """Drop what lies below ``offset``, which is trimmed."""
        self._drop_rows(offset)
        if self.end.offset < offset:
            self.end = BytePlace(offset, self.end.position)

    def _drop_rows(self, offset: int) -> None:
        gone = bisect_left(self._offsets, offset)
        self._pinned.difference_update(self._offsets[:gone])
        del self._offsets[:gone], self._positions[:gone]
        gone = bisect_left(self._recent_offsets, offset)
        del self._recent_offsets[:gone], self._recent_positions[:gone]

    def unsaved_below(self, offset: int) -> bool:
        """Return whether counted positions below ``offset`` are missing in the stored snapshot."""
        return self.saved_offset < min(offset, self.end.offset)

    def snapshot(self) -> bytes:
        """Return everything as bytes, for :meth:`restored`. ``firm`` is among the pinned offsets, as a negative
        number."""
        loose = bisect_left(self._offsets, self.firm)
        offsets, positions = self._offsets[loose:], self._positions[loose:]
        head = _HEAD.pack(len(offsets), self.interval, self.end.offset, self.end.position, self._since)
        pinned = array("q", sorted(one for one in self._pinned if one >= self.firm))
        if self.firm >= 0:
            pinned.append(-1 - self.firm)
        return head + offsets.tobytes() + positions.tobytes() + pinned.tobytes()

    @classmethod
    def restored(cls, data: bytes) -> ByteColumn:
        """Return the column of a snapshot. Raises DecodeError."""
        if len(data) < _HEAD.size:
            raise DecodeError("snapshot of positions in bytes is cut short")
        rows, interval, end_offset, end_position, since = _HEAD.unpack_from(data)
        pinned_at = _HEAD.size + 16 * rows
        if len(data) < pinned_at or (len(data) - pinned_at) % 8:
            raise DecodeError("snapshot of positions in bytes has another shape")
        column = cls(0, interval)
        column.end, column._since = BytePlace(end_offset, end_position), since
        column.saved_offset = end_offset
        column._offsets = array("q", data[_HEAD.size :][: 8 * rows])
        column._positions = array("q", data[_HEAD.size + 8 * rows : pinned_at])
        column._pinned = {one for one in array("q", data[pinned_at:]) if one >= 0}
        column.firm = max((-1 - one for one in array("q", data[pinned_at:]) if one < 0), default=-1)
        column.lowest_read = LowestRead(0)  # readers are not known yet
        return column


def _moved(
    offsets: array[int], positions: array[int], start: int, end: int, taken: int
) -> tuple[array[int], array[int]]:
    """Return the rows without those between ``start`` and ``end``; those before them move up by ``taken``."""
    first, behind = bisect_right(offsets, start), bisect_left(offsets, end)
    moved = array("q", [position + taken for position in positions[:first]])
    return offsets[:first] + offsets[behind:], moved + positions[behind:]
