"""A sparse index of one partition: the offsets of its bytes and its timestamps.

Each row covers ``interval`` bytes of log, or ``row_ms`` of appends if they are fewer: a row that stayed open would
retain old records for as long as clients write. The index serves lookups by time (docs/protocols/kafka.md, rule 48),
retention by size and by age, and the size of the partition. It stays small: past ``max_rows`` every second row is
dropped.

Timestamps of records are the claims of batch headers, and serve lookups by time. A batch's age decides about its
deletion, and is the time of its append by the node's clock. Only Kafka's batches are as old as they claim, because
Kafka itself deletes by the largest timestamp of a segment (a claim that is an age is called ``counted`` here). A search
that reads the records and finds a false claim corrects the row.

Once a client asks for positions in bytes, the index has a further column (bridges/log/byte_positions/column.py).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from bridges.log.byte_positions.column import ByteColumn
from sbp_back.errors import DecodeError

_HEAD = struct.Struct(">BIQQ")
_VERSION = 4
_VERSION_WITH_COLUMN = 5
"""The version whose rows are followed by a :meth:`ByteColumn.snapshot`."""
_DAY_MS = 86_400_000
_LEAST_ROW_MS = 1000
_ROWS_KEPT = 8
"""Least number of rows in a partition's retention time: retention by age is as exact as a row."""
_BEFORE_COUNTED = 2
"""In this version and the next, every claim was an age."""


class Row(NamedTuple):
    """The unit of search: batches from ``start`` on. ``highest`` is the highest timestamp that they claim; in a search
    by age, the highest claim that is an age."""

    start: int
    highest: int


class OffsetIndex:
    """Rows of (offset, bytes before it, highest timestamp claimed in the row's interval, highest of these claims that
    is an age, latest append in the interval of a batch whose age is that)."""

    __slots__ = (
        "_aged_before",
        "_appended",
        "_began_ms",
        "_bytes",
        "_claimed",
        "_claimed_before",
        "_confirmed",
        "_counted",
        "_gone",
        "_total",
        "column",
        "interval",
        "max_rows",
        "offsets",
        "row_ms",
    )

    def __init__(self, interval: int = 64 * 1024, max_rows: int = 8192) -> None:
        self.interval = interval
        self.max_rows = max_rows
        self.row_ms = _DAY_MS
        # Append time of the last row's first batch; -1: unknown.
        self._began_ms = -1
        self.offsets = array("q")
        self._bytes = array("Q")
        self._claimed = array("q")
        self._counted = array("q")
        self._appended = array("q")
        # Derived: for each row, the highest of all rows before it. By claims, and by ages.
        self._claimed_before = array("q")
        self._aged_before = array("q")
        self._total = 0
        # Bytes that compaction has removed.
        self._gone = 0
        #: Positions in bytes, once a client has asked for them.
        self.column: ByteColumn | None = None
        # Claims that were confirmed by a record, by the row's offset.
        self._confirmed: dict[int, int] = {}

    def add(self, base_offset: int, size: int, max_timestamp: int, counted: int, append_ms: int) -> None:
        """Add the next batch. ``max_timestamp`` is -1 without one; ``append_ms``, the wall clock of its append, is its
        age if ``counted`` is -1."""
        if self._began_ms < 0:
            self._began_ms = append_ms
        old = append_ms - self._began_ms >= self.row_ms
        if not self.offsets or old or self._total - self._bytes[-1] >= self.interval:
            self._began_ms = append_ms
            if len(self.offsets) >= self.max_rows:
                self._thin()
            claimed = aged = -1
            if self.offsets:
                claimed = max(self._claimed_before[-1], self._claimed[-1])
                aged = max(self._aged_before[-1], self._counted[-1], self._appended[-1])
            self._claimed_before.append(claimed)
            self._aged_before.append(aged)
            self.offsets.append(base_offset)
            self._bytes.append(self._total)
            self._claimed.append(-1)
            self._counted.append(-1)
            self._appended.append(-1)
        self._total += size
        if max_timestamp > self._claimed[-1]:
            self._claimed[-1] = max_timestamp
        if counted < 0:
            if append_ms > self._appended[-1]:
                self._appended[-1] = append_ms
        elif counted > self._counted[-1]:
            self._counted[-1] = counted

    def keep_for(self, keep_ms: int) -> None:
        """Make rows fine enough for retention by this age, in ms."""
        self.row_ms = max(_LEAST_ROW_MS, keep_ms // _ROWS_KEPT)

    def _thin(self) -> None:
        for name in ("_claimed", "_counted", "_appended"):
            column = getattr(self, name)
            merged = array("q", map(max, column[0::2], column[1::2]))
            if len(column) % 2:
                merged.append(column[-1])
            setattr(self, name, merged)
        self.offsets = self.offsets[0::2]
        self._bytes = self._bytes[0::2]
        self.interval *= 2
        self._derive()

    def _derive(self) -> None:
        self._claimed_before = array("q", accumulate(self._claimed, max, initial=-1))
        self._aged_before = array("q", accumulate(map(max, self._counted, self._appended), max, initial=-1))
        del self._claimed_before[-1:], self._aged_before[-1:]
        if self._confirmed:
            kept = set(self.offsets)
            self._confirmed = {start: seen for start, seen in self._confirmed.items() if start in kept}

    @property
    def size_bytes(self) -> int:
        """Return the bytes from the first row on: the size of what is kept, to within one interval."""
        return self._total - self._bytes[0] if self._bytes else 0

    @property
    def taken_in(self) -> int:
        """Return the bytes of all batches ever added, deleted ones included: it only grows while a log is open."""
        return self._total + self._gone

    @property
    def rows(self) -> int:
        return len(self.offsets)

    @property
    def starts(self) -> list[int]:
        return list(self.offsets)

    def resize(self, sizes: Sequence[int]) -> None:
        """Set the bytes of the first rows, after compaction has removed some."""
        rows = len(sizes)
        if not rows:
            return
        starts = list(accumulate(sizes, initial=self._bytes[0]))
        gone = (self._bytes[rows] if rows < len(self._bytes) else self._total) - starts.pop()
        self._bytes = array("Q", [*starts, *(start - gone for start in self._bytes[rows:])])
        self._gone += gone
        self._total -= gone

    # --- by time ------------------------------------------------------------------------------------------------

    def seek(self, timestamp: int) -> Row | None:
        """Return the first row that claims a timestamp of at least ``timestamp``; None if none does."""
        return self._first(self._claimed_before, self._claimed, self._claimed, timestamp)

    def highest(self) -> Row | None:
        """Return the first row that claims the highest timestamp of all; None when no batch has one."""
        if not self._claimed:
            return None
        return self.seek(max(0, self._claimed_before[-1], self._claimed[-1]))

    def blocking(self, timestamp: int) -> Row | None:
        """Return the first row that is not older than ``timestamp``; None if all are."""
        own = list(map(max, self._counted[-1:], self._appended[-1:]))
        return self._first(self._aged_before, own, self._counted, timestamp)

    def _first(self, before: array[int], own: array[int] | list[int], claims: array[int], timestamp: int) -> Row | None:
        if not before or timestamp > max(before[-1], own[-1]):
            return None
        row = max(bisect_left(before, timestamp) - 1, 0)
        return Row(self.offsets[row], claims[row])

    def older_than(self, timestamp: int) -> int | None:
        """Return the highest indexed offset before which every batch is older than ``timestamp``; None if there is
        none."""
        row = self.blocking(timestamp)
        start = self.offsets[-1] if row is None and self.offsets else -1 if row is None else row.start
        return start if self.offsets and start > self.offsets[0] else None

    def end_of(self, start: int) -> int | None:
        """Return the end of the row that begins at ``start``; None for the last row, or if there is none."""
        row = bisect_right(self.offsets, start)
        return self.offsets[row] if row < len(self.offsets) else None

    def time_at(self, offset: int) -> int | None:
        """Return the latest age (ms since 1970) of the batches in the row that contains ``offset``; None if unknown."""
        row = bisect_right(self.offsets, offset) - 1
        known = max(self._appended[row], self._counted[row]) if row >= 0 else -1
        return known if known >= 0 else None

    def correct(self, start: int, highest: int, counted: int, unreadable_ms: int = -1) -> None:
        """Correct the row that begins at ``start``: its records have timestamps up to ``highest``, of which ages reach
        up to ``counted``.

        ``unreadable_ms``: the present time if some records could not be read.
        """
        row = bisect_left(self.offsets, start)
        if row == len(self.offsets) or self.offsets[row] != start:
            return
        self._claimed[row], self._counted[row] = highest, counted
        self._appended[row] = max(self._appended[row], unreadable_ms)
        self._derive()

    def not_after(self, now_ms: int) -> None:
        """Lower later append times to ``now_ms``: the clock may have been ahead, and batches written then must not stay
        until it catches up."""
        if max(self._appended, default=-1) > now_ms:
            self._appended = array("q", [min(one, now_ms) for one in self._appended])
            self._derive()

    def confirm(self, row: Row) -> None:
        """Note that a record with the highest timestamp that ``row`` claims exists."""
        self._confirmed[row.start] = row.highest

    def is_confirmed(self, row: Row) -> bool:
        """Return whether a record has confirmed the claim of ``row`` since the index was made."""
        return self._confirmed.get(row.start) == row.highest

    # --- by size ------------------------------------------------------------------------------------------------

    def beyond(self, keep_bytes: int) -> int | None:
        """Return the highest indexed offset from which on at least ``keep_bytes`` remain; None if nothing can go."""
        surplus = self._total - keep_bytes
        row = bisect_right(self._bytes, surplus) - 1 if surplus >= 0 else -1
        return self.offsets[row] if row > 0 else None

    def bytes_since(self, timestamp: int) -> int:
        """Return the bytes that are not older than ``timestamp`` (ms), to within one interval."""
        row = self.blocking(timestamp)
        return 0 if row is None else self._total - self._bytes[bisect_left(self.offsets, row.start)]

    # --- upkeep -------------------------------------------------------------------------------------------------

    def drop_before(self, offset: int) -> None:
        """Drop rows that describe only offsets below ``offset``, with their timestamps."""
        if self.column is not None:
            self.column.drop_before(offset)
        row = bisect_right(self.offsets, offset) - 1
        if row > 0:
            for column in self._columns:
                del column[:row]
            self._derive()

    def clear(self) -> None:
        """Drop every row, because the log is empty."""
        for column in self._columns:
            del column[:]
        self._derive()

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self.offsets, self._bytes, self._claimed, self._counted, self._appended

    def snapshot(self) -> bytes:
        """Return all rows as bytes, for :meth:`restore`."""
        version = _VERSION if self.column is None else _VERSION_WITH_COLUMN
        head = _HEAD.pack(version, len(self.offsets), self.interval, self._total)
        rows = b"".join(column.tobytes() for column in self._columns)
        return head + rows + (b"" if self.column is None else self.column.snapshot())

    def restore(self, data: bytes, former_ms: int = -1) -> None:
        """Replace all rows by a snapshot's. Raises DecodeError.

        In earlier versions every claim counted as an age. ``former_ms``: distrust the claims of such a snapshot, and
        take its batches to be as old as this, which must not be before any of their appends. -1: all batches have
        formats whose claims are ages, or that claim the node's own clock.
        """
        if len(data) < _HEAD.size:
            raise DecodeError("offset index snapshot is cut short")
        version, rows, interval, total = _HEAD.unpack_from(data)
        former = version < _VERSION
        columns = 4 if former else 5
        end = _HEAD.size + 8 * columns * rows
        if not _BEFORE_COUNTED <= version <= _VERSION_WITH_COLUMN or len(data) < end:
            raise DecodeError("offset index snapshot has another shape")
        with_column = version in (_VERSION_WITH_COLUMN, _BEFORE_COUNTED + 1)
        if not with_column and len(data) != end:
            raise DecodeError("offset index snapshot is too long")
        self.column = ByteColumn.restored(data[end:]) if with_column else None
        parts = [data[_HEAD.size + 8 * rows * column :][: 8 * rows] for column in range(columns)]
        self.offsets, self._bytes = array("q", parts[0]), array("Q", parts[1])
        self._claimed, self._appended = array("q", parts[2]), array("q", parts[-1])
        self._counted = array("q", parts[2] if former else parts[3])
        if former and former_ms >= 0 and rows:
            former_ms = max(former_ms, *self._appended)
            self._counted = array("q", [-1]) * rows
            self._appended = array("q", [former_ms]) * rows
        self.interval, self._total = interval, total
        self._began_ms = -1
        self._derive()
