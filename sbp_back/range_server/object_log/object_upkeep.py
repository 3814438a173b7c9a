"""Chores of a store of objects: it keeps the cache within its bound, writes indexes and objects of ranges
(:mod:`.range_objects.packing`), and deletes what nobody can read any more.

A segment of which nothing can be read is left out of the next index. Its objects are deleted when one more index is
there, which does not name it either, and after ``object_grace_seconds``. Objects that a process had not deleted when it
died, or had put without an index naming them, are found by listing when the store is opened.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from anabranch_kit.errors import StoreError, StoreFailed
from sbp_back.range_server.object_log.object_recovery import ReadLog
from sbp_back.range_server.object_log.objects.bucket import PATIENCE, Bucket
from sbp_back.range_server.object_log.objects.cache import Cache, range_object, shrink, source_of
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES, UNIQUE_BYTES, key_of
from sbp_back.range_server.object_log.objects.doomed import Doomed, delete
from sbp_back.range_server.object_log.objects.index_object import (
    Index,
    SegmentFacts,
    copied,
    encode_index_object,
    pack_places,
)
from sbp_back.range_server.object_log.ownership.chain import Chain, Entry
from sbp_back.range_server.object_log.ownership.logs import Logs
from sbp_back.range_server.object_log.range_objects.packing import Packing
from sbp_back.range_server.object_log.range_objects.range_object import PREFIX
from sbp_back.range_server.store.layout import checkpoint as checkpoints
from sbp_back.range_server.store.layout.idxfile import SegmentIndex, encode_index
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.opening.recovery import columns_of, rebind
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.upkeep.moving import Moving
from sbp_back.range_server.store.writing.wal_items import Item

logger = logging.getLogger(__name__)

_FENCED = "somebody else has taken over this range server's log: its indexes count no more, and it ends"


class ObjectUpkeep(Moving):
    """All methods belong to the event loop but :meth:`save_everything`."""

    def __init__(
        self,
        log: Log,
        logs: Logs,
        cache: Cache,
        own: ReadLog,
        incarnation: int,
        background: Background,
        submit: Callable[[Item], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(log, background, submit)
        self._logs = logs
        self._cache = cache
        self._own = own
        self._incarnation = incarnation
        self._failed = failed
        self._chain: Chain = own.chain
        self._bucket = logs.log(own.name)
        self.indexed = 1 - own.objects
        """``next_seq`` of the newest index, less the objects read behind it at the start."""
        self._indexes = 0
        """Number of indexes written; it numbers them in the queue of deletions."""
        self._keys: list[str] = []
        """The objects of the newest indexes."""
        self.doomed = Doomed()
        self._old_rows: list[str] = []
        """Objects with rows that newer ones have replaced since the newest index."""
        self.packing = Packing(log, cache, self._bucket, own.name, background, self._failing, self._doom)
        self.untold = deque(segment for segment in log.segments if range_object(segment) is not None)
        """Objects of ranges that count, and that the placement driver may not know yet."""
        self.busy = False
        self._again_at = 0.0
        self.tidied = False
        self.next_at = time.monotonic() + log.options.object_index_seconds

    def rolled(self) -> None:
        self.start_chores()

    def tick(self) -> None:
        self.start_chores()

    def start_chores(self) -> None:
        """Start all chores that are due."""
        if self._closed:
            return  # the next store of this directory has files of the same names
        self._shrink()
        self._retain()
        if self.packing.idle:
            self._evacuate()
        if self.busy or time.monotonic() < self._again_at:
            return
        if not self.tidied:
            self._tidy()
            return
        self.packing.start_chores()
        if self._is_due():
            self._write_index()
        else:
            self._delete()

    def _list_settled(self) -> list[Segment]:
        return [segment for segment in self._log.segments[:-1] if segment.sealed]

    def _shrink(self) -> None:
        """Shrink the cache to its bound; the least recently read segments leave first."""
        log = self._log
        # Groups of the segment behind the active one may be written already.
        held = sum(source_of(segment).held for segment in log.segments)
        shrink(log.opened, log.segments[:-1], held, log.options.object_cache_bytes)

    @staticmethod
    def _weight(segment: Segment) -> int:
        return segment.live  # the rest lies in objects of ranges by now, or is about to be deleted

    # --- indexes

    def _is_due(self) -> bool:
        new = self._log.next_seq - self.indexed
        if not new and not self._dead() and not self.packing.made:
            # Nothing new to index, but objects that are to be deleted wait for one more index.
            return self.doomed.wait(self._indexes) and time.monotonic() >= self.next_at
        return new >= self._log.options.object_index_every or time.monotonic() >= self.next_at

    def _dead(self) -> list[Segment]:
        return [s for s in self._log.segments[:-1] if s.sealed and not s.runs and not s.pins]

    def _write_index(self) -> None:
        log = self._log
        dead = self._dead()
        for segment in dead:
            log.segments.remove(segment)
            log.opened.forget(segment)
        work = self._snapshot()
        next_seq = log.next_seq
        made, self.packing.made = self.packing.made, []
        self.busy = True

        def written(result: tuple[str, list[tuple[Segment, SegmentIndex]]] | OSError) -> None:
            self.busy = False
            if isinstance(result, OSError):
                log.segments[:0] = dead
                for segment in dead:
                    segment.deleted = False
                self.packing.made += made
                self._failing("writing an index", result)
                return
            key, indexes = result
            for segment, rows in indexes:
                rebind(segment, rows)
            self.untold += made
            self.indexed = next_seq
            self._indexes += 1
            self.next_at = time.monotonic() + log.options.object_index_seconds
            log.stats.checkpoints += 1
            log.stats.segments_deleted += len(dead)
            self._keys.append(key)
            if len(self._keys) > 2:
                # The chain names two indexes, so this one is superfluous now. Waiting for one more index would write
                # indexes for ever.
                self.doomed.add(self._bucket, [self._keys.pop(0)], self._indexes - 1)
            self._doom(self._bucket, self._old_rows)
            self._old_rows = []
            for segment in dead:
                source = source_of(segment)
                rows_key = [source.rows] if source.rows else []
                self._doom(source.bucket, source.keys)
                self._doom(self._bucket, rows_key)
                self._cache.forget(segment)

        self.background(work, written)

    def _doom(self, bucket: Bucket, keys: list[str]) -> None:
        self.doomed.add(bucket, keys, self._indexes)

    def _snapshot(self) -> Callable[[], tuple[str, list[tuple[Segment, SegmentIndex]]]]:
        """Return a function that puts an index of everything that is applied now; it returns the index's key, and the
        rows of segments as files.
        """
        log = self._log
        state = checkpoints.snapshot(log.state, 0, 0, [])
        number = log.next_seq - 1
        adopted = dict(self._own.adopted)
        parts = []
        for segment in log.segments:
            columns = None
            if not _rows_hold(segment):
                columns = columns_of(segment)
                if not segment.sealed or segment is log.active:
                    columns = [(*run[:5], copied(run[5]), copied(run[6])) for run in columns]
            parts.append((segment, segment.used, segment.sealed and segment is not log.active, segment.moved, columns))

        def put() -> tuple[str, list[tuple[Segment, SegmentIndex]]]:
            indexes: list[tuple[Segment, SegmentIndex]] = []
            facts = []
            for segment, used, sealed, moved, columns in parts:
                source = source_of(segment)
                inline = b""
                if columns is not None:
                    (rows,) = encode_index(source.base, 0, used, columns)
                    if sealed:
                        key = f"rows/{os.urandom(UNIQUE_BYTES).hex()}"
                        self._bucket.put_again(key, rows, PATIENCE)
                        indexes.append((segment, self._cache.rows(segment, rows)))
                        if source.rows:
                            self._old_rows.append(source.rows)
                        source.rows, source.rows_at = key, moved
                    else:
                        inline = bytes(rows)
                places = pack_places(source, used)
                what = range_object(segment)
                facts.append(
                    SegmentFacts(source.log, source.base, segment.size, used, places, source.rows, inline, what)
                )
            key = f"index/{os.urandom(UNIQUE_BYTES).hex()}"
            content = encode_index_object(Index(checkpoints.encode(state), adopted, facts))
            self._bucket.put_again(key, content, PATIENCE)
            self._tell(key, number)
            return key, indexes

        return put

    def _tell(self, key: str, number: int) -> None:
        """Put the index's entry into the chain, so that it counts. Raises ``OSError``; ``StoreFailed`` when another
        process writes this log.
        """
        chain = self._chain
        while True:
            entry = Entry(chain.writer, self._incarnation, number, key, os.urandom(UNIQUE_BYTES))
            counts = self._logs.put(self._own.name, chain, entry)
            if chain.fenced:
                raise StoreFailed(_FENCED)
            if counts:
                return

    # --- deleting

    def _delete(self) -> None:
        ripe = self.doomed.ripe(self._indexes, self._log.options.object_grace_seconds)
        if not ripe:
            return
        self.busy = True

        def deleted(result: int | OSError) -> None:
            self.busy = False
            self.doomed.forget()
            if isinstance(result, OSError):
                self._failing("deleting objects", result)
            else:
                logger.info("%d objects of log %s are deleted, nothing of them can be read", result, self._own.name)

        self.background(partial(delete, ripe), deleted)

    def _tidy(self) -> None:
        """Find what earlier incarnations have left: by listing, once."""
        known: dict[tuple[str, int], set[int]] = {}
        names: set[str] = set()
        for segment in self._log.segments:
            source = source_of(segment)
            names |= _named(segment)
            for place in () if range_object(segment) is not None else source.places:
                known.setdefault((source.log, place.incarnation), set()).add(place.number)
        adopted = list(self._own.adopted.values())
        self.busy = True

        def find() -> list[tuple[Bucket, list[str]]]:
            found = []
            for name in (self._own.name, *adopted):
                bucket = self._logs.log(name)
                listed = [key for prefix in ("index/", "rows/", PREFIX) for key in bucket.list(prefix)]
                keys = [key for key in listed if key not in names]
                for incarnation in (int(one, 16) for one in bucket.directories("log/")):
                    if (name, incarnation) == (self._own.name, self._incarnation):
                        continue
                    there = known.get((name, incarnation), set())
                    # A fence marks the end of a log, and stays.
                    keys += [
                        key_of("", incarnation, number)
                        for number, size in bucket.numbers(incarnation).items()
                        if size > HEAD_BYTES and number not in there
                    ]
                found.append((bucket, keys))
            return found

        def tidied(result: list[tuple[Bucket, list[str]]] | OSError) -> None:
            self.busy = False
            if isinstance(result, OSError):
                self._failing("looking for objects that nobody needs", result)
                return
            self.tidied = True
            for bucket, keys in result:
                # The newest index is needed itself, and an adoption behind it may need the adopted log's indexes. The
                # next index is the first that needs none of these objects.
                self.doomed.add(bucket, keys, self._indexes + 1)

        self.background(find, tidied)

    def _failing(self, what: str, error: Exception) -> None:
        self._note(StoreError(f"{what}: {error}"))
        logger.warning("%s: %s", what, error)
        self._again_at = time.monotonic() + 1.0

    def save_everything(self) -> None:
        """Write an index for an orderly end, so that the next start reads nothing else. Blocks."""
        if self._log.next_seq != self.indexed:
            try:
                self._snapshot()()
            except StoreError as error:
                logger.warning("no index at the end: %s", error)


def _rows_hold(segment: Segment) -> bool:
    """Return whether the object with a segment's rows still says where its entries are found."""
    source = source_of(segment)
    return bool(source.rows) and source.rows_at == segment.moved


def _named(segment: Segment) -> set[str]:
    """Return the objects of a segment that are known by their names."""
    what = range_object(segment)
    return {source_of(segment).rows} | (set() if what is None else {what.key})
