"""Maintenance of segments after they were written: index file, checkpoint, evacuation, deletion.

All decisions are made on the event loop; the background thread writes and removes files, one job at a time. Every step
may be cut off by a crash: an index file is rebuilt from its segment, the checkpoint before serves as well, an entry
that was copied twice counts once, and a segment whose deletion was not finished is deleted again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sbp_back.range_server.store.layout import checkpoint as checkpoints
from sbp_back.range_server.store.layout.checkpoint import Checkpoint, Kept
from sbp_back.range_server.store.layout.format import BLOCK
from sbp_back.range_server.store.layout.idxfile import RunColumns, SegmentIndex
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.opening.recovery import columns_of, rebind, save_index
from sbp_back.range_server.store.segment import Segment, flush_segment
from sbp_back.range_server.store.upkeep.moving import Moving
from sbp_back.range_server.store.writing.wal_items import Item


class Maintenance(Moving):
    """Upkeep of segments on disk. ``on_space`` gets the free bytes of the disk when they are known; ``on_failing`` is
    called on another thread when the log could not be flushed.
    """

    def __init__(
        self,
        log: Log,
        background: Background,
        submit: Callable[[Item], None],
        on_space: Callable[[int], None],
        on_failing: Callable[[OSError], None],
    ) -> None:
        super().__init__(log, background, submit)
        self._on_space = on_space
        self._on_failing = on_failing
        self._saving = False
        self._deleting = False
        self._doomed: list[Segment] = []
        """Segments whose files are still to be removed."""

    def save_everything(self) -> None:
        """Save everything; see :func:`save_everything`."""
        save_everything(self._log)

    # --- index files and checkpoints

    def rolled(self) -> None:
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
            self.start_chores()

        self._saving = True
        self.background(save, saved)

    def _flush(self, loose: list[Segment]) -> None:
        """Flush segments, on another thread. A failed flush ends the store, as it does in the writer."""
        for segment in loose:
            try:
                flush_segment(self._log.files, segment)
            except OSError as error:
                self._on_failing(error)
                raise

    # --- deciding

    def tick(self) -> None:
        """Look at the disk, and retry what failed. Called periodically."""
        if self._closed:
            return
        log = self._log
        self.background(lambda: log.files.free_bytes(log.directory), self._space)
        # A sealed segment needs its index file, and a checkpoint that makes it superfluous to recovery.
        if any(not segment.indexed or segment.end > log.checkpoint_lsn for segment in log.segments[:-1]):
            self._save()
        self.start_chores()

    def _space(self, free: int | OSError) -> None:
        if isinstance(free, OSError):
            self._note(free)
        else:
            self._on_space(free)

    def start_chores(self) -> None:
        """Start what is needed to free space."""
        if self._closed:
            return
        self._delete_dead()
        self._evacuate()
        self._retain()

    def _list_settled(self) -> list[Segment]:
        """Return the segments whose control records are in a checkpoint and whose rows are in an index file."""
        lsn = self._log.checkpoint_lsn
        return [segment for segment in self._log.segments[:-1] if segment.end <= lsn and segment.indexed]

    # --- deletion

    def _delete_dead(self) -> None:
        if self._deleting:
            return
        log = self._log
        empty = [s for s in log.segments[:-1] if not s.live and not s.runs and s is not self.evacuating]
        # Keep what the checkpoint before needs: if the newest one is damaged, recovery reads from that one.
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
            self._flush(loose)  # make durable the trims and copies that made them superfluous
            for segment in doomed:
                for path in (segment.path, segment.index_path):
                    if path.exists():  # an earlier attempt may have got half way
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
            self.start_chores()

        self._deleting = True
        self.background(delete, deleted)


def take_checkpoint(log: Log) -> Checkpoint:
    return checkpoints.snapshot(log.state, log.lsn, log.next_seq, [segment.base for segment in log.segments])


def save_everything(log: Log) -> None:
    """Write the indexes of all segments and a checkpoint, so that the next start has nothing to scan. Raises
    ``OSError``.
    """
    for segment in loose_segments(log):
        flush_segment(log.files, segment)
    for segment in log.segments[:-1]:
        if not segment.indexed:
            _seal_file(log, segment, columns_of(segment))
    save_index(log.files, log.active, columns_of(log.active))
    if log.fallback is None or log.checkpoint_lsn != log.lsn:
        save_checkpoint(log)


def save_checkpoint(log: Log) -> None:
    """Write a checkpoint of the current state; all of the log must be on the disk. Raises ``OSError``."""
    log.newest, log.fallback = checkpoints.save(log.files, log.ckpt, take_checkpoint(log), log.newest), log.newest
    log.stats.checkpoints += 1


def loose_segments(log: Log) -> list[Segment]:
    """Return the segments that may hold bytes that are not on the disk: with flushes there are none."""
    return [] if log.options.durable else [s for s in log.segments if s is log.active or not s.indexed]


def _seal_file(log: Log, segment: Segment, columns: list[RunColumns]) -> SegmentIndex:
    """Write the index of a sealed segment and release the space behind its last group. Raises ``OSError``."""
    index = save_index(log.files, segment, columns)
    fd = log.files.open(segment.path, os.O_RDWR)
    try:
        log.files.truncate(fd, max(segment.used, BLOCK))
    finally:
        log.files.close(fd)
    return index
