"""A sparse index of one partition: where its bytes and its timestamps lie.

One row for every ``interval`` bytes of log. It answers lookups by time (reference/kafka.md, rule 48), retention by
size and by age, and the size of the partition, and it stays small: past ``max_rows`` every second row is dropped.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from sbp_back.errors import DecodeError

_HEAD = struct.Struct(">BIQQq")
_VERSION = 1


class OffsetIndex:
    """Rows of (offset, bytes before it, highest timestamp before it, highest timestamp in the row's interval)."""

    __slots__ = ("_before", "_bytes", "_interval_max", "_max", "_offsets", "_total", "interval", "max_rows")

    def __init__(self, interval: int = 64 * 1024, max_rows: int = 8192) -> None:
        self.interval = interval
        self.max_rows = max_rows
        self._offsets = array("q")
        self._bytes = array("Q")
        self._before = array("q")
        self._interval_max = array("q")
        self._total = 0
        self._max = -1

    def add(self, base_offset: int, size: int, max_timestamp: int) -> None:
        """Take in the next batch; ``max_timestamp`` -1 when it has none."""
        if not self._offsets or self._total - self._bytes[-1] >= self.interval:
            if len(self._offsets) >= self.max_rows:
                self._thin()
            self._offsets.append(base_offset)
            self._bytes.append(self._total)
            self._before.append(self._max)
            self._interval_max.append(-1)
        self._total += size
        if max_timestamp > self._max:
            self._max = max_timestamp
        if max_timestamp > self._interval_max[-1]:
            self._interval_max[-1] = max_timestamp

    def _thin(self) -> None:
        merged = array("q", map(max, self._interval_max[0::2], self._interval_max[1::2]))
        if len(self._interval_max) % 2:
            merged.append(self._interval_max[-1])
        self._interval_max = merged
        self._offsets = self._offsets[0::2]
        self._bytes = self._bytes[0::2]
        self._before = self._before[0::2]
        self.interval *= 2

    @property
    def size_bytes(self) -> int:
        """Bytes from the first row on: the size of what is kept, to within one interval."""
        return self._total - self._bytes[0] if self._bytes else 0

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp ever taken in, -1 if none."""
        return self._max

    def seek_timestamp(self, timestamp: int) -> int | None:
        """An offset from which a scan meets the first batch with ``max_timestamp >= timestamp``; None if none has."""
        if timestamp > self._max or not self._offsets:
            return None
        row = bisect_left(self._before, timestamp)
        return self._offsets[max(row - 1, 0)]

    def seek_max_timestamp(self) -> tuple[int, int] | None:
        """(offset to scan from, highest timestamp kept); None when no batch carries a timestamp."""
        if not self._interval_max:
            return None
        highest = max(self._interval_max)
        return None if highest < 0 else (self._offsets[self._interval_max.index(highest)], highest)

    def older_than(self, timestamp: int) -> int | None:
        """The highest indexed offset before which every batch is older than ``timestamp``; None if there is none."""
        row = bisect_left(self._before, timestamp) - 1
        return self._offsets[row] if row > 0 else None

    def beyond(self, keep_bytes: int) -> int | None:
        """The highest indexed offset from which on at least ``keep_bytes`` remain; None if nothing can go."""
        surplus = self._total - keep_bytes
        row = bisect_right(self._bytes, surplus) - 1 if surplus >= 0 else -1
        return self._offsets[row] if row > 0 else None

    def drop_before(self, offset: int) -> None:
        """Forget rows that describe only offsets below ``offset``."""
        row = bisect_right(self._offsets, offset) - 1
        if row > 0:
            del self._offsets[:row], self._bytes[:row], self._before[:row], self._interval_max[:row]

    def clear(self) -> None:
        """Forget every row: nothing is kept in the log."""
        del self._offsets[:], self._bytes[:], self._before[:], self._interval_max[:]

    def snapshot(self) -> bytes:
        """All rows as bytes, for :meth:`restore`."""
        head = _HEAD.pack(_VERSION, len(self._offsets), self.interval, self._total, self._max)
        return head + b"".join(
            column.tobytes() for column in (self._offsets, self._bytes, self._before, self._interval_max)
        )

    def restore(self, data: bytes) -> None:
        """Replace all rows by a snapshot's. Raises DecodeError."""
        if len(data) < _HEAD.size:
            raise DecodeError("offset index snapshot is cut short")
        version, rows, interval, total, highest = _HEAD.unpack_from(data)
        if version != _VERSION or len(data) != _HEAD.size + 32 * rows:
            raise DecodeError("offset index snapshot has another shape")
        columns = [data[_HEAD.size + 8 * rows * column :][: 8 * rows] for column in range(4)]
        self._offsets, self._before, self._interval_max = (array("q", columns[i]) for i in (0, 2, 3))
        self._bytes = array("Q", columns[1])
        self.interval, self._total, self._max = interval, total, highest
