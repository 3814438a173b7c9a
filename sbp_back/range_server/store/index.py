"""The index in memory: where the entries of every range lie in the log.

The rows of a range that lie in one segment and follow one another without a gap form a :class:`Run`. Its columns are
arrays while the segment is being written and views of the mapped ``.idx`` file afterwards, so that the heap holds the
rows of the newest segment only (20 bytes each) and the page cache decides about the rest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct

from sbp_back.range_server.store.segment import Segment
from sbp_back.wire.entry import TELLING_PREFIX_BYTES

Column: TypeAlias = "array[int] | memoryview"
CopiedRow: TypeAlias = tuple[int, int, int, int, int]
"""Row of an entry that was written again: base, end, position in the segment, length, CRC-32."""

ROWS_AT_ONCE = 1024
UNKNOWN = -1
VARIOUS = -2

META = 3
"""Numbers per row in ``Run.meta``: position in the segment, length, CRC-32."""

_first = attrgetter("first")
_end = attrgetter("end")


class Run:
    """Consecutive entries of one range in one segment: row i has base ``bases[i]`` and ends where row i+1 begins."""

    __slots__ = ("bases", "end", "first", "live", "meta", "owner", "segment")

    def __init__(
        self, owner: StoredRange, segment: Segment, first: int, end: int, bases: Column, meta: Column, live: int
    ) -> None:
        self.owner = owner
        self.segment = segment
        self.first = first
        self.end = end
        self.bases = bases
        self.meta = meta
        self.live = live

    def row_of(self, offset: int) -> int:
        """Return the row of the entry that contains ``offset``, which must be in ``[first, end)``."""
        return bisect_right(self.bases, offset) - 1

    def row_end(self, row: int) -> int:
        """Return the offset after the last record of a row."""
        return int(self.bases[row + 1]) if row + 1 < len(self.bases) else self.end

    def bytes_of(self, begin: int, end: int) -> int:
        """Return the bytes of the rows ``[begin, end)``. Adds up at most half of all rows."""
        rows = len(self.bases)
        if 2 * (end - begin) > rows:
            return self.live - self._sum(0, begin) - self._sum(end, rows)
        return self._sum(begin, end)

    def _sum(self, begin: int, end: int) -> int:
        return sum(self.meta[begin * META + 1 : end * META : META])

    def slice(self, begin: int, end: int, live: int = -1) -> Run:
        """Return a run of the rows ``[begin, end)``, at least one; ``live``: their bytes, if known. Its columns are
        views: nothing is copied, and nothing can be added to them.
        """
        return Run(
            self.owner,
            self.segment,
            int(self.bases[begin]),
            self.row_end(end - 1),
            memoryview(self.bases)[begin:end],
            memoryview(self.meta)[begin * META : end * META],
            self.bytes_of(begin, end) if live < 0 else live,
        )

    def without(self, begin: int, end: int) -> list[Run]:
        """Return the runs that are left without the rows ``[begin, end)``. Adds up no more rows than it must."""
        rows = len(self.bases)
        rest = self.live - self.bytes_of(begin, end)
        head = self.bytes_of(0, begin) if begin <= rows - end else rest - self.bytes_of(end, rows)
        parts = ((0, begin, head), (end, rows, rest - head))
        return [self.slice(first, behind, live) for first, behind, live in parts if first < behind]


class StoredRange:
    """The durable part of one range. Changed by the store only, on the event loop.

    Entries with a base from ``min_offset`` (or the one that contains it) up to ``next_offset`` can be read; of a sealed
    range, those that begin before ``end``. ``end`` is -1 while the range is open.
    """

    __slots__ = (
        "created_lsn",
        "dropped",
        "end",
        "epoch",
        "index",
        "min_offset",
        "next_offset",
        "overhead",
        "runs",
        "start",
        "stream_id",
        "tail",
    )

    def __init__(self, stream_id: int, index: int, epoch: int, start: int, created_lsn: int) -> None:
        self.stream_id = stream_id
        self.index = index
        self.epoch = epoch
        self.start = start
        self.min_offset = start
        self.next_offset = start
        self.end = -1
        self.created_lsn = created_lsn
        """Log position of the record that created it: rows of an earlier range of the same name lie before it."""
        self.dropped = False
        self.overhead = UNKNOWN
        """Bytes before the payload in every entry seen so far; UNKNOWN, or VARIOUS."""
        self.runs: list[Run] = []
        self.tail: Run | None = None
        """The run new entries are added to, if the last one lies in the segment that is being written."""

    @property
    def key(self) -> tuple[int, int]:
        return self.stream_id, self.index

    @property
    def visible_end(self) -> int:
        """Return the offset from which on no entry begins that can be read."""
        return self.next_offset if self.end < 0 else min(self.end, self.next_offset)

    @property
    def live_bytes(self) -> int:
        return sum(run.live for run in self.runs)

    def __repr__(self) -> str:
        return (
            f"StoredRange(stream={self.stream_id}, index={self.index}, epoch={self.epoch}, start={self.start}, "
            f"min={self.min_offset}, next={self.next_offset}, end={self.end})"
        )

    # --- looking up

    def holds(self, base: int, end: int) -> bool:
        """Return whether any of the entries ``[base, end)`` can still be read. A batch that contains the end of a
        sealed range cannot, once the range is trimmed up to that end.
        """
        visible_end = self.visible_end
        return self.min_offset < visible_end and end > self.min_offset and base < visible_end

    def bytes_at(self, offset: int) -> int:
        """Return the length of the entry that contains ``offset``; 0 when there is none."""
        found = self.find(offset)
        if found is None:
            return 0
        number, row = found
        length: int = self.runs[number].meta[row * META + 1]
        return length

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return (number of the run, row in it) of the entry that contains ``offset``, or None."""
        runs = self.runs
        if not runs:
            return None
        last = runs[-1]
        number = len(runs) - 1 if offset >= last.first else bisect_right(runs, offset, key=_first) - 1
        if number < 0 or offset >= runs[number].end:
            return None
        return number, runs[number].row_of(offset)

    def saw(self, overhead: int) -> None:
        """Note that an entry has ``overhead`` bytes before its payload."""
        if self.overhead != overhead:
            self.overhead = overhead if self.overhead == UNKNOWN else VARIOUS

    def locate(self, offset: int, limit: int, max_bytes: int) -> tuple[int, int, int, int] | None:
        """Return (base, end, bytes of payload, rows) of the entries from the one that contains ``offset``, without a
        gap.

        At least one, then as many as fit in ``max_bytes``. None where there is none, and where the entries' overhead is
        not known; all entries are assumed to have the overhead of those that were seen.
        """
        overhead = self.overhead
        found = self.find(offset) if offset < limit and overhead >= 0 else None
        if found is None:
            return None
        number, row = found
        first = end = int(self.runs[number].bases[row])
        size = count = 0
        full = False
        while not full:
            run = self.runs[number]
            rows = bisect_left(run.bases, limit)
            at = row
            while at < rows and not full:
                to = min(at + ROWS_AT_ONCE, rows)
                lengths = run.meta[at * META + 1 : to * META : META]
                more = sum(lengths) - overhead * (to - at)
                if size + more <= max_bytes:
                    size += more
                    at = to
                    continue
                for length in lengths:
                    full = end != first or at > row
                    full = full and size + length - overhead > max_bytes
                    if full:
                        break
                    size += length - overhead
                    at += 1
            if at > row:
                end = run.row_end(at - 1)
                count += at - row
            number += 1
            row = 0
            if at < len(run.bases) or number == len(self.runs) or self.runs[number].first != end or end >= limit:
                break
        return first, end, size, count

    def gaps(self) -> list[tuple[int, int]]:
        """Return the offsets in ``[min_offset, next_offset)`` that no run covers: (first, end) of each stretch, in
        order.
        """
        found = []
        at = self.min_offset
        for run in self.runs:
            if run.first > at:
                found.append((at, run.first))
            at = max(at, run.end)
        limit = self.visible_end
        return [*found, (at, limit)] if at < limit else found

    # --- changing

    def append(self, segment: Segment, base: int, end: int, position: int, length: int, crc: int) -> None:
        """Add the row of a new entry at the tail; the caller updates the segment's totals."""
        run = self.tail
        if run is None or run.segment is not segment:
            run = self.tail = Run(self, segment, base, end, array("q"), array("I"), 0)
            self.runs.append(run)
            segment.runs[run] = None
        run.bases.append(base)  # type: ignore[union-attr]
        run.meta.extend((position, length, crc))  # type: ignore[union-attr]
        run.end = self.next_offset = end
        run.live += length

    def relocate(self, segment: Segment, copies: Sequence[CopiedRow]) -> None:
        """Replace the rows at these offsets by ``copies``, newer entries in ``segment``, which follow one another
        without a gap and replace whole entries. Copies that nobody can read any more are dropped.
        """
        copies = [copy for copy in copies if self.holds(copy[0], copy[1])]
        if not copies:
            return
        base, end = copies[0][0], copies[-1][1]
        self.cut(base, end)
        bases = array("q", [copy[0] for copy in copies])
        meta = array("I", [number for copy in copies for number in copy[2:]])
        live = sum([copy[3] for copy in copies])
        at = bisect_left(self.runs, base, key=_first)
        before = self.runs[at - 1] if at else None
        if before is not None and before.segment is segment and before.end == base and isinstance(before.bases, array):
            before.bases.extend(bases)
            before.meta.extend(meta)  # type: ignore[union-attr]
            before.end = end
            before.live += live
        else:
            run = Run(self, segment, base, end, bases, meta, live)
            self.runs.insert(at, run)
            segment.runs[run] = None
        segment.live += live

    def place(self, run: Run) -> None:
        """Add a run from an ``.idx`` file; it is newer than everything it overlaps with."""
        if self.runs and run.first < self.runs[-1].end:
            self.cut(run.first, run.end)
            self.runs.insert(bisect_left(self.runs, run.first, key=_first), run)
        else:
            self.runs.append(run)
        run.segment.runs[run] = None
        run.segment.live += run.live

    def cut(self, begin: int, end: int) -> None:
        """Forget the rows in ``[begin, end)``; rows that reach over a border stay."""
        number = bisect_right(self.runs, begin, key=_end)
        while number < len(self.runs) and self.runs[number].first < end:
            run = self.runs[number]
            low = bisect_left(run.bases, begin)
            high = bisect_left(run.bases, end)
            if high > low and run.row_end(high - 1) > end:
                high -= 1
            if low >= high:
                number += 1
                continue
            parts = run.without(low, high)
            run.segment.moved += 1
            self._replace(number, parts)
            number += len(parts)

    def raise_min(self, offset: int) -> bool:
        """Trim everything below ``offset``, but never beyond the durable end."""
        offset = min(offset, self.next_offset if self.end < 0 else max(self.end, self.start))
        if offset <= self.min_offset:
            return False
        self.min_offset = offset
        if offset >= self.visible_end:
            self._clear()
            return True
        count = bisect_right(self.runs, offset, key=_end)
        for run in self.runs[:count]:
            self._detach(run)
        del self.runs[:count]
        if self.runs and self.runs[0].first < offset:
            run = self.runs[0]
            row = run.row_of(offset)
            if row > 0:
                self._replace(0, [run.slice(row, len(run.bases))])
        return True

    def seal(self, end: int, epoch: int) -> None:
        """Close at ``end``; entries that begin at or after it are forgotten."""
        self.end = end
        self.epoch = epoch
        if end < self.next_offset:
            self.cut_back(end)
        if self.min_offset >= self.visible_end:
            self._clear()
        self.tail = None

    def cut_back(self, end: int) -> None:
        """Forget all entries that begin at or after ``end``."""
        while self.runs and self.runs[-1].end > end:
            run = self.runs[-1]
            rows = bisect_left(run.bases, end)
            if rows == len(run.bases):
                break
            self._replace(len(self.runs) - 1, [run.slice(0, rows)] if rows else [])
        self.next_offset = max(self.runs[-1].end, end) if self.runs else end

    def drop(self) -> None:
        """Delete the range."""
        self.dropped = True
        self._clear()

    def _clear(self) -> None:
        for run in self.runs:
            self._detach(run)
        self.runs.clear()
        self.tail = None

    def _replace(self, number: int, parts: list[Run]) -> None:
        run = self.runs[number]
        was_tail = self.tail is run
        self._detach(run)
        self.runs[number : number + 1] = parts
        for part in parts:
            part.segment.runs[part] = None
            part.segment.live += part.live
        if was_tail and parts and parts[-1].end == self.next_offset:
            tail = self.tail = parts[-1]
            tail.bases, tail.meta = array("q", tail.bases), array("I", tail.meta)

    def _detach(self, run: Run) -> None:
        run.segment.runs.pop(run, None)
        run.segment.live -= run.live
        if self.tail is run:
            self.tail = None


class StoredStream(Struct):
    """Facts about a stream that outlive its ranges: ranges below ``first_index`` were trimmed away entirely."""

    min_offset: int = 0
    first_index: int = 0


class StoreState:
    """Everything that is durable; changed by replaying records, the same way live and in recovery."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], StoredRange] = {}
        self.streams: dict[int, StoredStream] = {}
        self.by_stream: dict[int, list[int]] = {}
        """Indexes of the ranges a stream has, ascending."""

    def add(self, stored: StoredRange) -> None:
        self.ranges[stored.key] = stored
        indexes = self.by_stream.setdefault(stored.stream_id, [])
        at = bisect_left(indexes, stored.index)
        if at == len(indexes) or indexes[at] != stored.index:
            indexes.insert(at, stored.index)

    def ranges_of(self, stream_id: int) -> Iterator[StoredRange]:
        for index in self.by_stream.get(stream_id, ()):
            yield self.ranges[stream_id, index]

    def bytes_between(self, stream_id: int, offsets: Sequence[int]) -> list[int]:
        """Return the bytes of payload of a stream's entries that begin from each of ``offsets``, ascending, up to the
        next one.
        """
        found = [0] * max(0, len(offsets) - 1)
        for stored in self.ranges_of(stream_id):
            overhead = stored.overhead if stored.overhead >= 0 else TELLING_PREFIX_BYTES
            for run in stored.runs[bisect_right(stored.runs, offsets[0], key=_end) :] if found else ():
                if run.first >= offsets[-1]:
                    break
                number = max(0, bisect_right(offsets, run.first) - 1)
                row = bisect_left(run.bases, offsets[number])
                while number < len(found) and row < len(run.bases):
                    behind = bisect_left(run.bases, offsets[number + 1], row)
                    found[number] += run.bytes_of(row, behind) - overhead * (behind - row)
                    row = behind
                    number += 1
        return found

    def trim_stream(self, stream_id: int, min_offset: int) -> None:
        """Raise the smallest offset of a stream; remove ranges with nothing left, except the stream's last one."""
        stream = self.streams.setdefault(stream_id, StoredStream())
        stream.min_offset = max(stream.min_offset, min_offset)
        for stored in self.ranges_of(stream_id):
            if stored.start > min_offset:
                break
            stored.raise_min(min_offset)
        self._drop_empty(stream_id, stream)

    def _drop_empty(self, stream_id: int, stream: StoredStream) -> None:
        indexes = self.by_stream.get(stream_id, [])
        gone = 0
        for index in indexes[:-1]:
            stored = self.ranges[stream_id, index]
            if stored.end < 0 or stored.min_offset < stored.end or stored.end > stream.min_offset:
                break
            gone += 1
        for index in indexes[:gone]:
            self.ranges.pop((stream_id, index)).drop()
            stream.first_index = index + 1
        del indexes[:gone]

    def delete_stream(self, stream_id: int) -> None:
        for index in self.by_stream.pop(stream_id, []):
            self.ranges.pop((stream_id, index)).drop()
        self.streams.pop(stream_id, None)
