"""Offload: moves old data of a log on disk to objects of ranges when the disk has more of it than ``local_bytes``.
Design: docs/storage.md, "Old data in objects".

The data of a range in the oldest segments beyond that bound becomes an object when it makes at least a sixteenth of a
full one; when the disk has a quarter more than it should, a 256th is enough. Small objects and the data behind them are
later rewritten as large ones. Smaller amounts stay on the disk, where evacuation moves them on.

No caller waits for the object store: a thread of its own makes all requests, one at a time. After a failure the next
try is a second later, then two, and so on up to a minute.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from anabranch_kit.disk.files import write_file_durably
from sbp_back.range_server.object_log.objects.bucket import Bucket
from sbp_back.range_server.object_log.objects.cache import Cache, RangeSegment, range_object, shrink, source_of
from sbp_back.range_server.object_log.objects.doomed import Doomed, delete
from sbp_back.range_server.object_log.range_objects.moved import (
    NAMES,
    SEALED_NAMES,
    Moved,
    Names,
    NotOursError,
    check,
    claim,
    encode_rows,
    rows_path,
)
from sbp_back.range_server.object_log.range_objects.range_object import PREFIX
from sbp_back.range_server.object_log.range_objects.range_writer import MOST_PIECES, DamagedError, RangeWriter
from sbp_back.range_server.store.index import Run, StoredRange
from sbp_back.range_server.store.layout.idxfile import SegmentIndex, load_index
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.opening.recovery import columns_of, rebind
from sbp_back.range_server.store.segment import Segment

logger = logging.getLogger(__name__)

_LOOKED_AT = 64
"""Runs examined in one turn of the loop."""
_MOST_MADE = 16
"""Most objects that wait for an index to name them."""
_LEAST = 16
_LEAST_WHEN_FULL = 256
PAUSE = 1.0
MOST_PAUSE = 60.0


class Offload(RangeWriter):
    """Offload of one store. ``settled`` gives the segments that may be moved, the oldest first; ``later`` calls a
    function on the loop after some seconds; ``freed`` is called when segments may have become superfluous. Owned by the
    event loop.
    """

    patience = 0.0

    def __init__(
        self,
        log: Log,
        cache: Cache,
        bucket: Bucket,
        names: Names,
        facts: dict[Segment, Moved],
        claimed: bool,
        background: Background,
        note: Callable[[Exception], None],
        settled: Callable[[], list[Segment]],
        later: Callable[[float, Callable[[], None]], None],
        freed: Callable[[], None],
    ) -> None:
        super().__init__(log, cache, bucket, bucket.url, background, lambda _what, error: note(error), self._give_up)
        self.origin = f"{names.start:x}-"
        self.names = names
        self._facts = facts
        """Facts about each object for the index."""
        self._note_error = note
        self._settled = settled
        self._later = later
        self._freed = freed
        self._number = max((one.number for one in facts.values()), default=0)
        self._written = names.written
        """Number of the newest index."""
        self.former = ""
        """The index before it, if this start has seen it."""
        self._doomed = Doomed()
        self._runs: deque[Run] = deque()
        """Runs in the oldest segments."""
        self._old: set[Segment] = set()
        self._passed: set[Segment] = set()
        """Segments whose runs were all examined."""
        self._full = False
        self._claimed = claimed
        self.tidied = False
        self._naming = False
        self._next_at = time.monotonic() + log.options.object_index_seconds
        self._pause = 0.0
        """Back-off in seconds since the store's last failure; 0 after an answer."""
        self.lost = False
        """The name in the bucket belongs to another server."""
        self._closed = False

    def close(self) -> None:
        """Start nothing any more."""
        self._closed = True

    @property
    def named(self) -> bool:
        """Return whether an index on the disk names every object that readers are sent to."""
        return not self.made and not self._naming

    @property
    def moving(self) -> bool:
        """Return whether the data of the oldest segments is being moved to objects."""
        return bool(self._runs) and not self._pause and not self.lost

    def start_chores(self) -> None:
        """Start the next job, if it is time for one."""
        if self._closed:
            return  # the next store of this directory has files of the same names
        log = self._log
        full = log.stats.disk_full
        held = sum(source_of(segment).held for segment in log.elsewhere)
        shrink(log.opened, log.elsewhere, held, 0 if full else log.options.object_cache_bytes)
        if self.busy or self._naming or self.lost or time.monotonic() < self.rest_until:
            return
        if not self.tidied:
            self._tidy()
        elif self._must_name():
            self._write_names()
        elif not self._delete():
            self._choose()
            if not self.busy and self.made:
                self._write_names()

    def _look_soon(self) -> None:
        self._later(max(0.0, self.rest_until - time.monotonic()), self.start_chores)

    # --- what is to be moved

    def _too_old(self) -> list[Segment]:
        """Return the oldest segments, beyond those that the disk is to keep."""
        log = self._log
        limit = log.options.local_bytes
        if limit is None:
            return []
        held = log.active.used + sum(one.used for one in log.segments[:-1] if one.runs)
        full = held > limit + limit // 4
        if full != self._full:
            self._full = full
            self._passed.clear()
        old = []
        for segment in self._settled():
            if held <= limit:
                break
            if segment.runs and not segment.damaged:
                old.append(segment)
                held -= segment.used
        return old

    def _choose(self) -> None:
        old = self._too_old()
        self._old = set(old)
        self._passed &= self._old
        for _ in range(_LOOKED_AT):
            if not self._runs:
                segment = next((one for one in old if one not in self._passed), None)
                if segment is None:
                    return
                self._passed.add(segment)
                self._runs.extend(segment.runs)
            run = self._runs.popleft()
            if run.segment not in self._old or run not in run.segment.runs:
                continue
            chosen = self._chosen(run)
            if chosen:
                self._begin(run.owner, chosen)
                return
        self._look_soon()

    def _chosen(self, run: Run) -> list[Run]:
        """Return the runs that become an object together with ``run``: enough for a whole one including small objects,
        or the data on the disk if it reaches the minimum.
        """
        target = self._log.options.object_range_bytes
        least = target // (_LEAST_WHEN_FULL if self._full else _LEAST)
        for objects, enough in ((True, target), (False, least)):
            runs, size = self._stretch(run, objects)
            if size >= enough:
                return runs
        return []

    def _stretch(self, run: Run, objects: bool) -> tuple[list[Run], int]:
        """Return the runs around ``run`` that follow one another and may be moved, with their bytes."""
        target = self._log.options.object_range_bytes
        runs = run.owner.runs
        place = run.owner.find(run.first)
        assert place is not None, "a run is where its range finds it"
        first, size = place[0], run.live
        behind = first + 1
        while first and behind - first < MOST_PIECES and self._fits(runs[first - 1], runs[first], objects):
            first -= 1
            size += runs[first].live
        while behind < len(runs) and behind - first < MOST_PIECES and size < 2 * target:
            if not self._fits(runs[behind], runs[behind - 1], objects):
                break
            size += runs[behind].live
            behind += 1
        return runs[first:behind], size

    def _fits(self, run: Run, other: Run, objects: bool) -> bool:
        if run.end != other.first and other.end != run.first:
            return False
        what = range_object(run.segment)
        if what is None:
            return run.segment in self._old
        return objects and not run.segment.damaged and 2 * what.size < self._log.options.object_range_bytes

    def _ended(self, stored: StoredRange, segment: Segment | None) -> None:
        if segment is None:
            self._runs.clear()
            self._passed.clear()
        else:
            self._answered()
            what = range_object(segment)
            assert isinstance(segment.source, RangeSegment)
            assert what is not None
            self._number += 1
            rows = f"rows/{what.key.rpartition('-')[2]}"
            crcs = segment.source.crcs.tobytes()
            self._facts[segment] = Moved(what, crcs, rows, self._number, self._log.lsn, stored.created_lsn)
            self._log.elsewhere.append(segment)
            place = stored.find(what.end)
            if place is not None and stored.runs[place[0]].segment in self._old:
                self._runs.appendleft(stored.runs[place[0]])
        self._look_soon()

    # --- naming

    def _must_name(self) -> bool:
        if len(self.made) >= _MOST_MADE:
            return True
        due = self._doomed.wait(self._written) or any(not one.runs for one in self._log.elsewhere)
        return due and time.monotonic() >= self._next_at

    def _write_names(self) -> None:
        """Write an index to the bucket and the disk that names all objects with readable data."""
        log = self._log
        dead = [one for one in log.elsewhere if not one.runs and not one.pins]
        kept = [one for one in log.elsewhere if one.runs or one.pins]
        made, self.made = [one for one in self.made if one.runs or one.pins], []
        work = [(self._facts[segment], columns_of(segment)) for segment in made]
        self._written += 1
        number = self._written
        key = f"index/{self.names.start:016x}-{number:016x}"
        names = replace(self.names, written=number, key=key, objects=[self._facts[one] for one in kept])
        directory = self._directory
        files = log.files
        self._naming = True

        def write() -> list[SegmentIndex]:
            check(self._bucket, names, 0.0)
            rows = [(one, encode_rows(one, columns)) for one, columns in work]
            for one, data in rows:
                self._bucket.put_again(one.rows, data, 0.0)
            self._bucket.put_again(key, SEALED_NAMES.encode(names), 0.0)
            for one, data in rows:
                write_file_durably(files, rows_path(directory, one), [data])
            write_file_durably(files, directory / NAMES, [SEALED_NAMES.encode(names)])
            return [load_index(rows_path(directory, one)) for one, _ in rows]

        def written(result: list[SegmentIndex] | OSError) -> None:
            self._naming = False
            if isinstance(result, OSError):
                self.made = made + self.made
                self._give_up(self._bucket, [key])
                self._failed(result)
                return
            self._answered()
            former, self.names = self.names, names
            for segment, rows in zip(made, result, strict=True):
                rebind(segment, rows)
            self._next_at = time.monotonic() + log.options.object_index_seconds
            # Keep one former index, in case the newest is damaged; those before it need not wait for another index.
            self._doomed.add(self._bucket, [self.former] if self.former else [], number - 1)
            self.former = former.key
            for segment in dead:
                self._forget(segment)
            self._freed()
            self._look_soon()

        self.background(write, written)

    @property
    def _directory(self) -> Path:
        return self._log.moved

    def _forget(self, segment: Segment) -> None:
        """Drop an object of which nothing can be read from the next index."""
        log = self._log
        one = self._facts.pop(segment)
        log.elsewhere.remove(segment)
        log.opened.forget(segment)
        self._cache.forget(segment)
        path = rows_path(self._directory, one)
        if path.exists():
            log.files.unlink(path)
        self._give_up(self._bucket, [one.what.key, one.rows])

    # --- deleting

    def _give_up(self, bucket: Bucket, keys: list[str]) -> None:
        self._doomed.add(bucket, keys, self._written)

    def _delete(self) -> bool:
        """Delete superfluous objects, if there are any."""
        ripe = self._doomed.ripe(self._written, self._log.options.object_grace_seconds)
        if not ripe:
            return False
        names = self.names
        self.busy = True

        def work() -> int:
            check(self._bucket, names, 0.0)
            return delete(ripe)

        def deleted(result: int | OSError) -> None:
            self.busy = False
            self._doomed.forget()
            if isinstance(result, OSError):
                self._failed(result)
                return
            self._answered()
            logger.info("%d objects in %s are deleted, nothing of them can be read", result, self._bucket.url)
            self._look_soon()

        self.background(work, deleted)
        return True

    def _tidy(self) -> None:
        """Make this start the newest one, and find what earlier ones have left."""
        names = self.names
        claimed = self._claimed
        self.busy = True

        def find() -> list[str]:
            if not claimed:
                claim(self._bucket, names, 0.0)
            there = [key for prefix in ("index/", "rows/", PREFIX) for key in self._bucket.list(prefix)]
            known = names.keys
            return [key for key in there if key not in known]

        def take_found(result: list[str] | OSError) -> None:
            self.busy = False
            if isinstance(result, OSError):
                self._failed(result)
                return
            self._claimed = self.tidied = True
            self._answered()
            self._give_up(self._bucket, result)
            self._look_soon()

        self.background(find, take_found)

    # --- a store that fails

    def _failed(self, error: Exception) -> None:
        # Choose runs anew when the pause is over.
        self._runs.clear()
        self._passed.clear()
        self._note_error(error)
        if isinstance(error, DamagedError):
            logger.error("what is damaged stays on the disk: %s", error)
            return
        if isinstance(error, NotOursError):
            self.lost = True
            logger.error("no old data is moved to objects any more: %s", error)
        elif not self._pause:
            logger.warning("old data cannot be moved to objects, and stays on the disk until it can: %s", error)
        self._log.stats.moving_failures += 1
        self._pause = min(max(PAUSE, 2 * self._pause), MOST_PAUSE)
        self.rest_until = time.monotonic() + self._pause
        self._log.stats.moving_fails = True
        self._look_soon()

    def _answered(self) -> None:
        if self._pause:
            logger.info("old data can be moved to objects again")
        self._pause = 0.0
        self._log.stats.moving_fails = False
