"""Objects of ranges: entries of one range that lie among others' in a log's objects are written again as one large
object, a few at a time.

What is there to be written is counted as segments are sealed. A range is written when so much of it lies in small
pieces that they make an object of ``object_range_bytes``; and when there is more than ``object_mixed_bytes`` in mixed
segments, what the oldest of them has is written if it makes a sixteenth of that. Such small objects become larger ones
in the same way. What is less still goes with evacuation.

Nothing of it needs a record in the log. A range's object has the rows that were in the index while it was written, if
they are as they were then; from there on readers find them in it. It counts once an index names it, and only the next
index leaves out the segments that nothing is found in any more. So a crash leaves one or the other, and who has lost
the log (:mod:`.chain`) can have no object of his count. Objects that no index names are found by listing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from sbp_back.range_server.object_log.bucket import Bucket
from sbp_back.range_server.object_log.cache import Cache, range_object
from sbp_back.range_server.object_log.range_writer import MOST_PIECES, RangeWriter
from sbp_back.range_server.store.index import Run, StoredRange
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.segment import Segment

_LEAST_PART = 16

Key = tuple[int, int]
"""(stream, range)."""


class Packing(RangeWriter):
    """See :class:`~sbp_back.range_server.object_log.range_writer.RangeWriter`."""

    def __init__(
        self,
        log: Log,
        cache: Cache,
        bucket: Bucket,
        name: str,
        background: Background,
        note: Callable[[str, Exception], None],
        doom: Callable[[Bucket, list[str]], None],
    ) -> None:
        super().__init__(log, cache, bucket, name, background, note, doom)
        self._counted: set[Segment] = set()
        self._small: dict[Key, int] = {}
        """Bytes of each range in segments that were counted."""
        self._due: dict[Key, None] = {}
        self._cleared: set[Segment] = set()
        """Those that had what they have made due."""

    @property
    def idle(self) -> bool:
        """There is nothing to be written, as far as is known."""
        return not self.busy and not self._due and self._counted.issuperset(self._mixed())

    def look(self) -> None:
        """Write the next object, if it is time to."""
        if self.busy or time.monotonic() < self._rest_until:
            return
        self._count()
        if not self._due:
            self._clear()
        while self._due and not self.busy:
            key = next(iter(self._due))
            del self._due[key]
            stored = self._log.state.ranges.get(key)
            if stored is None:
                self._small.pop(key, None)
            else:
                self._count_again(stored)
                runs = self._chosen(stored)
                if runs:
                    self._begin(stored, runs)

    # --- what is to be written

    def _mixed(self) -> list[Segment]:
        return [one for one in self._log.segments[:-1] if one.sealed and range_object(one) is None]

    def _is_small(self, segment: Segment) -> bool:
        """What lies there is to be written into something larger."""
        what = range_object(segment)
        if segment.damaged or segment is self._log.active:
            return False
        return segment.sealed if what is None else what.size < self._log.options.object_range_bytes // 2

    def _count(self) -> None:
        """One segment that is new, since each may have parts of very many ranges."""
        log = self._log
        target = log.options.object_range_bytes
        self._counted.intersection_update(log.segments)
        if len(self._small) > 1000 + 2 * len(log.state.ranges):
            self._small = {key: size for key, size in self._small.items() if key in log.state.ranges}
        new = next((one for one in log.segments[:-1] if one not in self._counted and self._is_small(one)), None)
        if new is None:
            return
        self._counted.add(new)
        for run in new.runs:
            key = run.owner.key
            size = self._small[key] = self._small.get(key, 0) + run.live
            if size >= target:
                self._due[key] = None

    def _clear(self) -> None:
        """Have the oldest mixed segment emptied when there is too much in all of them."""
        options = self._log.options
        mixed = self._mixed()
        self._cleared.intersection_update(mixed)
        oldest = next((one for one in mixed if one.runs and one not in self._cleared), None)
        if oldest is None or sum(one.live for one in mixed) <= options.object_mixed_bytes:
            return
        self._cleared.add(oldest)
        for run in oldest.runs:
            if self._small.get(run.owner.key, 0) >= options.object_range_bytes // _LEAST_PART:
                self._due[run.owner.key] = None

    def _stretches(self, stored: StoredRange, mixed: bool) -> Iterator[tuple[list[Run], int]]:
        """Runs in small segments (``mixed``: in those only that are parts of the log) that follow one another, with
        their bytes, beginning with the oldest."""
        runs: list[Run] = []
        size = 0
        for run in stored.runs:
            wanted = self._is_small(run.segment) and not (mixed and range_object(run.segment) is not None)
            if runs and (not wanted or run.first != runs[-1].end or len(runs) == MOST_PIECES):
                yield runs, size
                runs, size = [], 0
            if wanted:
                runs.append(run)
                size += run.live
        if runs:
            yield runs, size

    def _chosen(self, stored: StoredRange) -> list[Run]:
        """What becomes the next object of a range: enough for a whole one, or what there is among others'."""
        target = self._log.options.object_range_bytes
        for least, mixed in ((target, False), (target // _LEAST_PART, True)):
            for runs, size in self._stretches(stored, mixed):
                if size >= least:
                    return runs
        return []

    def _count_again(self, stored: StoredRange) -> int:
        size = self._small[stored.key] = sum(size for _, size in self._stretches(stored, False))
        return size

    def _ended(self, stored: StoredRange, segment: Segment | None) -> None:
        if segment is None:
            self._due.setdefault(stored.key)
            return
        segments = self._log.segments
        segments.insert(sum(range_object(one) is not None for one in segments), segment)
        self._counted.add(segment)
        if self._count_again(stored) >= self._log.options.object_range_bytes:
            self._due[stored.key] = None
