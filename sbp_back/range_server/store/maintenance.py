"""What happens to segments after they were written: index file, checkpoint, evacuation, deletion.

All decisions are made on the event loop; files are written and removed by the background thread, one job at a time.
Every step may be cut off by a crash: an index file is rebuilt from its segment, the checkpoint before serves as well,
an entry that was copied twice counts once, and a segment whose deletion was not finished is deleted again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from sbp_back.errors import StoreError
from sbp_back.range_server.store import checkpoint as checkpoints
from sbp_back.range_server.store.checkpoint import Checkpoint, Kept
from sbp_back.range_server.store.format import BLOCK, RecordType
from sbp_back.range_server.store.gather import Gather, Step
from sbp_back.range_server.store.idxfile import RunColumns, SegmentIndex
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.recovery import columns_of, rebind, save_index
from sbp_back.range_server.store.replacing import Replacement
from sbp_back.range_server.store.segment import Segment, flush_segment
from sbp_back.range_server.store.wal_items import Control, Copies, Item
from sbp_back.wire.model import Entry


class Upkeep(Protocol):
    """What a store has done for its segments, wherever they are, besides writing and reading."""

    def close(self) -> None:
        """Start nothing any more."""

    def rolled(self) -> None:
        """A segment was sealed and nothing of the next one is applied yet."""

    def tick(self) -> None:
        """Called every now and then."""

    def look(self) -> None:
        """Start whatever there is to be done about space."""

    def replace(self, change: Replacement) -> None:
        """Carry out ``change``, and answer it."""

    def save_everything(self) -> None:
        """The store ends: let the next start have nothing to do. Raises ``OSError``."""


class Maintenance:
    """``submit`` hands an item to the writer; ``on_space`` is told the free bytes of the disk when they are known, and
    ``on_failing``, on another thread, that the log could not be flushed."""

    def __init__(
        self,
        log: Log,
        background: Background,
        submit: Callable[[Item], None],
        on_space: Callable[[int], None],
        on_failing: Callable[[OSError], None],
    ) -> None:
        self._log = log
        self._background = background
        self._submit = submit
        self._on_space = on_space
        self._on_failing = on_failing
        self._saving = False
        self._deleting = False
        self._doomed: list[Segment] = []
        """Segments whose files are still to be removed."""
        self._evacuating: Segment | None = None
        self._replacements: deque[Replacement] = deque()
        self._moving = False
        """Something is being written again. One thing at a time: a copy that was read before a replacement and written
        behind it would bring back what was replaced."""
        self._trimming = False
        self._closed = False

    def close(self) -> None:
        """Start nothing any more."""
        self._closed = True
        while self._replacements:
            self._replacements.popleft().done(StoreError("the store is closed"))

    def save_everything(self) -> None:
        """See :func:`save_everything`."""
        save_everything(self._log)

    # --- index files and checkpoints

    def rolled(self) -> None:
        """A segment was sealed and nothing of the next one is applied yet."""
        self._save()

    def _save(self) -> None:
        if self._saving or self._closed:
            return
        log = self._log
        sealed = [segment for segment in log.segments[:-1] if not segment.indexed]
        work = [(segment, columns_of(segment)) for segment in sealed]
        checkpoint = take_checkpoint(log)
        previous = log.newest
        loose = loose_segments(log)

        def save() -> tuple[list[tuple[Segment, SegmentIndex]], Kept]:
            indexes: list[tuple[Segment, SegmentIndex]] = []
            self._flush(loose)
            for segment, columns in work:
                indexes.append((segment, _seal_file(log, segment, columns)))
            return indexes, checkpoints.save(log.files, log.ckpt, checkpoint, previous)

        def saved(result: tuple[list[tuple[Segment, SegmentIndex]], Kept] | OSError) -> None:
            self._saving = False
            if isinstance(result, OSError):
                self._note(result)
                return
            indexes, log.newest = result
            log.fallback = previous
            for segment, index in indexes:
                rebind(segment, index)
            log.stats.checkpoints += 1
            if any(not segment.indexed for segment in log.segments[:-1]):
                self._save()
            self.look()

        self._saving = True
        self._background(save, saved)

    def _flush(self, loose: list[Segment]) -> None:
        """On another thread. A flush that failed is the end, as it is for the writer."""
        for segment in loose:
            try:
                flush_segment(self._log.files, segment)
            except OSError as error:
                self._on_failing(error)
                raise

    # --- deciding

    def tick(self) -> None:
        """Called every now and then: look at the disk, and try again what failed."""
        if self._closed:
            return
        log = self._log
        self._background(lambda: log.files.free_bytes(log.directory), self._space)
        if any(not segment.indexed for segment in log.segments[:-1]) or self._has_uncovered():
            self._save()
        self.look()

    def _has_uncovered(self) -> bool:
        """A sealed segment waits for a checkpoint that does not need it any more."""
        return any(segment.end > self._log.checkpoint_lsn for segment in self._log.segments[:-1])

    def _space(self, free: int | OSError) -> None:
        if isinstance(free, OSError):
            self._note(free)
        else:
            self._on_space(free)

    def look(self) -> None:
        """Start whatever there is to be done about space."""
        if self._closed:
            return
        self._delete_dead()
        self._evacuate()
        self._retain()

    def _covered(self) -> list[Segment]:
        """Sealed segments whose control records are in a checkpoint and whose rows are in an index file."""
        lsn = self._log.checkpoint_lsn
        return [segment for segment in self._log.segments[:-1] if segment.end <= lsn and segment.indexed]

    # --- deletion

    def _delete_dead(self) -> None:
        if self._deleting:
            return
        log = self._log
        empty = [s for s in log.segments[:-1] if not s.live and not s.runs and s is not self._evacuating]
        # If the newest checkpoint were damaged, the log would be read from the one before.
        dead = [s for s in empty if s.end <= log.fallback_lsn and s.indexed]
        if len(dead) < len(empty):
            self._save()
        for segment in dead:
            log.segments.remove(segment)
            log.opened.forget(segment)
        self._doomed += dead
        if not self._doomed:
            return
        doomed = list(self._doomed)
        loose = loose_segments(log)

        def delete() -> int:
            self._flush(loose)  # the trims and copies that made them superfluous
            for segment in doomed:
                for path in (segment.path, segment.index_path):
                    if path.exists():  # an attempt before may have got half way
                        log.files.unlink(path)
            return log.files.free_bytes(log.directory)

        def deleted(result: int | OSError) -> None:
            self._deleting = False
            if isinstance(result, OSError):
                self._note(result)
                return
            del self._doomed[: len(doomed)]
            log.stats.segments_deleted += len(doomed)
            self._on_space(result)
            self.look()

        self._deleting = True
        self._background(delete, deleted)

    # --- replacement

    def replace(self, change: Replacement) -> None:
        """See :meth:`sbp_back.range_server.store.store.Store.replace`."""
        if self._closed:
            change.done(StoreError("the store is closed"))
            return
        self._replacements.append(change)
        self._move()

    def _move(self) -> None:
        """Write something again, unless something is: what was asked for first, then what is to be evacuated."""
        while not self._moving and self._replacements:
            change = self._replacements.popleft()
            try:
                stored = change.range_of(self._log.state)
            except StoreError as error:
                change.done(error)
                continue
            self._moving = True
            entries = list(change.new)
            copies = Copies([stored] * len(entries), entries, partial(self._replaced, change), replaces=True)
            copies.bytes = sum(entry.size for entry in entries)
            self._submit(copies)
        if not self._moving and self._evacuating is not None:
            self._copy_some()

    def _replaced(self, change: Replacement, error: StoreError | None) -> None:
        self._moving = False
        try:
            change.done(error)
        finally:
            self._move()

    # --- evacuation

    def _evacuate(self) -> None:
        if self._evacuating is not None:
            return
        options = self._log.options
        keep = max(options.evacuate_keep, 1)
        newest = set(self._log.segments[-keep:])
        candidates = [
            segment
            for segment in self._covered()
            if segment not in newest
            and segment.runs
            and not segment.damaged
            and segment.live < options.evacuate_below * segment.size
        ]
        if candidates:
            self._evacuating = min(candidates, key=lambda segment: segment.live)
            self._move()

    def _copy_some(self) -> None:
        """Read the next survivors and write them to the tail; when they are durable there, go on."""
        log = self._log
        segment = self._evacuating
        assert segment is not None
        if self._closed or not segment.runs:
            self._evacuating = None
            if not self._closed:
                self.look()
            return
        before = segment.live, len(segment.runs)
        self._moving = True
        options = log.options
        room = min(options.evacuate_batch_bytes, options.segment_bytes // 8)
        plan = Gather(log.files, log.state.ranges, options.coalesce_gap_bytes)
        plan.whole = True
        for run in segment.runs:
            place = run.owner.find(run.first)
            assert place is not None, "a run is where its range finds it"
            if plan.size >= room or not plan.add_from(run.owner, place, run.end, room - plan.size, -1):
                break
        plan.divide()
        try:
            log.opened.pin(segment)
        except OSError as error:
            self._evacuation_failed(segment, error)
            return

        def got(result: Step | OSError) -> None:
            log.opened.unpin(segment)
            if isinstance(result, OSError):
                self._evacuation_failed(segment, result)
                return
            damage = next((part.error for part in plan.parts if part.error is not None), None)
            if damage is not None:
                log.stats.damaged_entries += plan.damaged
                segment.damaged = True
                self._evacuation_failed(segment, damage)
                return
            owners: list[StoredRange] = []
            entries: list[Entry] = []
            for part in plan.parts:
                entries += filter(None, part.entries)
                owners += [part.stored] * len(part.entries)
            copies = Copies(owners, entries, copied)
            copies.bytes = sum(entry.size for entry in entries)
            self._submit(copies)

        def copied(error: StoreError | None) -> None:
            self._moving = False
            if error is not None:
                self._evacuation_failed(segment, error)
            elif (segment.live, len(segment.runs)) == before:
                segment.damaged = True  # again would be for ever
                self._evacuation_failed(segment, StoreError(f"segment {segment.path.name} cannot be evacuated"))
            else:
                self._move()

        self._background(lambda: plan.step(cached=False), got)

    def _evacuation_failed(self, segment: Segment, error: Exception) -> None:
        self._evacuating = None
        self._moving = False
        self._note(error)
        self._move()

    # --- retention by size

    def _retain(self) -> None:
        """Trim the oldest data, whoever's it is, while the log is larger than allowed."""
        limit = self._log.options.retention_bytes
        if limit is None or self._trimming:
            return
        # Dead segments are on their way out; counting them would trim more than is needed.
        total = self._log.active.used + sum(s.used for s in self._log.segments[:-1] if s.runs)
        oldest = next((segment for segment in self._log.segments[:-1] if segment.runs), None)
        if total <= limit or oldest is None:
            return
        ends: dict[int, int] = {}
        for run in oldest.runs:
            ends[run.owner.stream_id] = max(ends.get(run.owner.stream_id, 0), run.end)
        left = len(ends)

        def trimmed(error: StoreError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                self._note(error)
            if not left:
                self._trimming = False

        self._trimming = True
        for stream_id, end in ends.items():
            self._submit(Control(RecordType.TRIM_STREAM, stream_id, 0, 0, end, trimmed))

    def _note(self, error: Exception) -> None:
        self._log.stats.maintenance_errors += 1
        self._log.stats.last_maintenance_error = str(error)


def take_checkpoint(log: Log) -> Checkpoint:
    return checkpoints.snapshot(log.state, log.lsn, log.next_seq, [segment.base for segment in log.segments])


def save_everything(log: Log) -> None:
    """Indexes of all segments and a checkpoint, so that the next start has nothing to scan. Raises ``OSError``."""
    for segment in loose_segments(log):
        flush_segment(log.files, segment)
    for segment in log.segments[:-1]:
        if not segment.indexed:
            _seal_file(log, segment, columns_of(segment))
    save_index(log.files, log.active, columns_of(log.active))
    if log.fallback is None or log.checkpoint_lsn != log.lsn:
        save_checkpoint(log)


def save_checkpoint(log: Log) -> None:
    """A checkpoint of the state as it is; all of the log must be on the disk. Raises ``OSError``."""
    log.newest, log.fallback = checkpoints.save(log.files, log.ckpt, take_checkpoint(log), log.newest), log.newest
    log.stats.checkpoints += 1


def loose_segments(log: Log) -> list[Segment]:
    """Segments that may hold what is not on the disk: with flushes there are none."""
    return [] if log.options.durable else [s for s in log.segments if s is log.active or not s.indexed]


def _seal_file(log: Log, segment: Segment, columns: list[RunColumns]) -> SegmentIndex:
    """Write the index of a sealed segment and give the space behind its last group back. Raises ``OSError``."""
    index = save_index(log.files, segment, columns)
    fd = log.files.open(segment.path, os.O_RDWR)
    try:
        log.files.truncate(fd, max(segment.used, BLOCK))
    finally:
        log.files.close(fd)
    return index
