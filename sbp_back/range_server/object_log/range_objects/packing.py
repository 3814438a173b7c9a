"""Packing: rewrites entries of one range, which lie among others' in a log's objects, as one large object of the range,
a few at a time.

Candidates are counted as segments are sealed. A range is written when its small pieces make an object of
``object_range_bytes``. When there is more than ``object_mixed_bytes`` in mixed segments, the ranges of the oldest
segment are written if they have a sixteenth of that. Such small objects become larger ones in the same way. Smaller
amounts are left to evacuation.

Packing needs no record in the log. A range's object gets the rows that were in the index while it was written, if they
are unchanged; from then on readers find them there. The object counts once an index names it, and only the next index
leaves out the segments that have become empty. So a crash leaves either the old state or the new one, and no object of
a writer that has lost the log (:mod:`~sbp_back.range_server.object_log.ownership.chain`) can count. Objects that no
index names are found by listing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from sbp_back.range_server.object_log.objects.bucket import Bucket
from sbp_back.range_server.object_log.objects.cache import Cache, range_object
from sbp_back.range_server.object_log.range_objects.range_writer import MOST_PIECES, RangeWriter
from sbp_back.range_server.store.index import Run, StoredRange
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.segment import Segment

_LEAST_PART = 16

Key = tuple[int, int]
"""(stream, range)."""


class Packing(RangeWriter):
    """Chooses and writes the objects of ranges; see
    :class:`~sbp_back.range_server.object_log.range_objects.range_writer.RangeWriter`.
    """

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
        self._due: dict[Key, int] = {}
        """Ranges to write, with the least bytes of mixed segments that make an object."""
        self._cleared: set[Segment] = set()
        """Mixed segments whose ranges were scheduled for writing."""

    @property
    def idle(self) -> bool:
        """Return whether nothing is known to need writing."""
        return not self.busy and not self._due and self._counted.issuperset(self._mixed())

    def start_chores(self) -> None:
        """Write the next object, if it is time to."""
        if self.busy or time.monotonic() < self.rest_until:
            return
        self._count()
        if not self._due:
            self._clear()
        while self._due and not self.busy:
            key, least = next(iter(self._due.items()))
            del self._due[key]
            stored = self._log.state.ranges.get(key)
            if stored is None:
                self._small.pop(key, None)
            else:
                self._count_again(stored)
                runs = self._chosen(stored, least)
                if runs:
                    self._begin(stored, runs)

    # --- what is to be written

    def _mixed(self) -> list[Segment]:
        return [one for one in self._log.segments[:-1] if one.sealed and range_object(one) is None]

    def _is_small(self, segment: Segment) -> bool:
        """Return whether a segment's entries are to be written into something larger."""
        what = range_object(segment)
        if segment.damaged or segment is self._log.active:
            return False
        return segment.sealed if what is None else what.size < self._log.options.object_range_bytes // 2

    def _count(self) -> None:
        """Count the candidates of one new segment: only one, since each may have parts of very many ranges."""
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
                self._due.setdefault(key, target)

    def _clear(self) -> None:
        """Empty the oldest mixed segment when all that were counted hold too much together. The others may have what
        makes a whole object."""
        options = self._log.options
        mixed = [one for one in self._mixed() if one in self._counted]
        self._cleared.intersection_update(mixed)
        oldest = next((one for one in mixed if one.runs and one not in self._cleared), None)
        if oldest is None or sum(one.live for one in mixed) <= options.object_mixed_bytes:
            return
        self._cleared.add(oldest)
        least = options.object_range_bytes // _LEAST_PART
        for run in oldest.runs:
            if self._small.get(run.owner.key, 0) >= least:
                self._due[run.owner.key] = least

    def _stretches(self, stored: StoredRange, mixed: bool) -> Iterator[tuple[list[Run], int]]:
        """Yield runs that follow one another in small segments (``mixed``: only in segments of the log), with their
        bytes, the oldest first.
        """
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

    def _chosen(self, stored: StoredRange, least: int) -> list[Run]:
        """Return the runs that become the next object of a range: enough for a whole one, else those in mixed segments
        if they have ``least`` bytes.
        """
        for enough, mixed in ((self._log.options.object_range_bytes, False), (least, True)):
            for runs, size in self._stretches(stored, mixed):
                if size >= enough:
                    return runs
        return []

    def _count_again(self, stored: StoredRange) -> int:
        size = self._small[stored.key] = sum(size for _, size in self._stretches(stored, False))
        return size

    def _ended(self, stored: StoredRange, segment: Segment | None) -> None:
        if segment is None:
            self._due.setdefault(stored.key, self._log.options.object_range_bytes // _LEAST_PART)
            return
        segments = self._log.segments
        segments.insert(sum(range_object(one) is not None for one in segments), segment)
        self._counted.add(segment)
        target = self._log.options.object_range_bytes
        if self._count_again(stored) >= target:
            self._due.setdefault(stored.key, target)
