"""Opening a log: checkpoint, index files, then the groups after the checkpoint (docs/storage.md, "Start").

The log ends where no whole group follows. Group n+1 is written only after group n is durable. So if an undamaged group
with a later number lies anywhere behind that place, an acknowledged group is damaged, and the store is not opened.
Otherwise the rest is the torn write of a crash, and is cut.

Groups that were never flushed (durability ``os``) survive a loss of power in any combination, so they are cut from the
first missing one on. Everything before any checkpoint was flushed, whatever its groups say, and a store writes a
checkpoint before it writes anything behind replayed groups: so all groups behind a checkpoint are of one kind.

The bytes that were read may be in the page cache only. Replayed groups that are not known to be on the disk are
therefore written once more. A flush alone is not enough: after a failed flush the kernel takes its pages for clean.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field

from anabranch_kit.disk.files import Files, ending, read_range, write_all
from anabranch_kit.errors import StoreCorrupt, StoreError, StoreVersionError
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.index import Run, StoredRange, StoreState
from sbp_back.range_server.store.layout import checkpoint as checkpoints
from sbp_back.range_server.store.layout.checkpoint import Checkpoint, Kept
from sbp_back.range_server.store.layout.format import BLOCK, align, decode_segment_header
from sbp_back.range_server.store.layout.idxfile import RunColumns, SegmentIndex, load_index, write_index
from sbp_back.range_server.store.layout.scan import Group, SegmentScanner
from sbp_back.range_server.store.opening.replay import apply_records, apply_rows
from sbp_back.range_server.store.options import StoreOptions
from sbp_back.range_server.store.segment import Segment

_COPY_BYTES = 1024 * 1024

ACCEPTED = "data loss accepted: "
"""Prefix of messages about data that was given up."""

LOSSES = "accepted-losses.json"
"""File in the store's directory: data that was given up and when, a line of JSON each time."""


class MovedRows(Struct):
    """Entries of a range that readers find in ``segment``, which is no part of the log, since log position ``lsn``.
    ``created``: position at which the range was created.
    """

    segment: Segment
    rows: SegmentIndex
    lsn: int
    created: int


class Recovered(Struct):
    """Result of a recovery. ``segments`` in order of their bases, the one to write to last; ``spare`` follows it and
    has no groups yet.
    """

    state: StoreState = field(default_factory=StoreState)
    segments: list[Segment] = field(default_factory=list)
    spare: Segment | None = None
    next_base: int = 0
    """Base of the next segment to create; used when ``segments`` is empty."""
    seq: int = 1
    newest: Kept | None = None
    """The checkpoint the state was taken from."""
    fallback: Kept | None = None
    """An older checkpoint that would have served as well."""
    scanned_bytes: int = 0
    replayed: bool = False
    """Whether there were groups behind the checkpoint, or something was cut off there."""
    cut_bytes: int = 0
    """Bytes behind the end of the log that were not a whole group."""
    messages: list[str] = field(default_factory=list)
    """Messages about this recovery for an operator."""


class Recovery:
    """A recovery over the files of ``wal`` and ``ckpt``; ``moved``: entries that were moved elsewhere, in that order.
    Raises ``StoreCorrupt``, ``StoreVersionError``, ``OSError``.
    """

    def __init__(
        self, wal: Path, ckpt: Path, options: StoreOptions, cluster_id: str, moved: Iterable[MovedRows] = ()
    ) -> None:
        self._wal = wal
        self._ckpt = ckpt
        self._options = options
        self._files: Files = options.files
        self._cluster_id = cluster_id
        self._moved = deque(moved)
        self._result = Recovered()
        self._floor = 0
        """Everything before this log position was flushed."""
        self._unsure: dict[int, tuple[Segment, int, int]] = {}
        """Parts of segments with groups that may not have been flushed: base -> (segment, begin, end)."""

    def run(self) -> Recovered:
        result = self._result
        self._remove_leftovers()
        segments = self._load_segments()
        checkpoint = self._choose_checkpoint(segments)
        start = BLOCK
        if checkpoint is not None:
            result.state = checkpoints.restore(checkpoint)
            result.seq = checkpoint.seq
            start = checkpoint.lsn
        for segment in segments:
            if checkpoint is not None and segment.base < checkpoint.lsn:
                # No entry in a segment from before that position was moved since.
                self._place_moved(min(segment.end, checkpoint.lsn))
                self._load_rows(segment, checkpoint.lsn)
        self._place_moved(start)
        number = next((number for number, s in enumerate(segments) if s.end >= start), len(segments))
        self._replay(segments, number, start)
        self._place_moved(sys.maxsize)
        self._write_again()
        self._finish(segments, checkpoint)
        return result

    # --- files

    def _remove_leftovers(self) -> None:
        """Remove files that a crash left half made, and indexes of segments that are gone."""
        for directory in (self._wal, self._ckpt):
            for path in ending(directory, ".tmp"):
                self._files.unlink(path)
        for path in ending(self._wal, ".idx"):
            if not path.with_suffix(".seg").exists():
                self._files.unlink(path)

    def _load_segments(self) -> list[Segment]:
        segments: list[Segment] = []
        for path in sorted(ending(self._wal, ".seg")):
            with self._opened(path) as fd:
                block = read_range(self._files, fd, 0, BLOCK)
                size = self._files.size(fd)
            try:
                header = decode_segment_header(block)
            except DecodeError as error:
                self._damage(f"segment {path.name}, position 0: {error}")
                self._files.rename(path, path.with_suffix(".damaged"))
                continue
            if header.cluster_id != self._cluster_id:
                raise StoreVersionError(f"segment {path.name} belongs to cluster {header.cluster_id!r}")
            if path.stem != f"{header.base:020d}":
                self._damage(f"segment {path.name} says that it begins at {header.base}")
                self._files.rename(path, path.with_suffix(".damaged"))
                continue
            segment = Segment(header.base, header.size, header.salt, path)
            segment.used = min(size, header.size)
            segments.append(segment)
        return segments

    def _choose_checkpoint(self, segments: list[Segment]) -> Checkpoint | None:
        result = self._result
        files = checkpoints.checkpoint_files(self._ckpt)
        self._floor = max(map(checkpoints.position_of, files), default=0)
        rejected: list[str] = []
        chosen: Checkpoint | None = None
        for path in files:
            try:
                checkpoint = checkpoints.decode(path.read_bytes())
            except (DecodeError, OSError) as error:
                rejected.append(f"checkpoint {path.name}: {error}")
                continue
            if chosen is not None:
                if _unbroken(segments, checkpoint.lsn, chosen.lsn):
                    result.fallback = Kept(checkpoint.lsn, path)
                break
            chosen = checkpoint
            result.newest = Kept(checkpoint.lsn, path)
            if not any(s.base < checkpoint.lsn <= s.end for s in segments):
                # An older checkpoint could be read, but recovery would not notice that the end of the log is missing.
                there = {segment.base for segment in segments}
                missing = [f"{base:020d}.seg" for base in checkpoint.segments if base not in there]
                self._damage(
                    f"the segment with log position {checkpoint.lsn}, where checkpoint {path.name} was made, is "
                    f"missing (missing since then: {', '.join(missing)})"
                )
        if chosen is None and ((segments and segments[0].base != 0) or (not segments and files)):
            rejected.append("the beginning of the log is not there either")
            self._damage("; ".join(rejected))
        result.messages += rejected
        return chosen

    @contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        fd = self._files.open(path, os.O_RDONLY)
        try:
            yield fd
        finally:
            self._files.close(fd)

    def _damage(self, what: str) -> None:
        """Refuse to go on, unless the operator accepts the loss."""
        if not self._options.accept_data_loss:
            raise StoreCorrupt(f"acknowledged data is damaged: {what}")
        self._result.messages.append(f"{ACCEPTED}{what}")

    # --- rows before the checkpoint

    def _load_rows(self, segment: Segment, lsn: int) -> None:
        inside = lsn <= segment.end
        covers = lsn - segment.base
        try:
            index = load_index(segment.index_path)
        except FileNotFoundError:
            index = None
        except DecodeError as error:
            self._result.messages.append(f"index {segment.index_path.name} is rebuilt: {error}")
            index = None
        usable = index is not None and (index.base, index.salt) == (segment.base, segment.salt)
        if index is not None and usable and (not inside or index.covers == covers):
            self._place_runs(segment, index, writable=inside)
            segment.indexed = not inside
            segment.used = index.covers
            return
        if inside and covers == BLOCK:
            return
        end = BLOCK
        with self._opened(segment.path) as fd:
            scanner = SegmentScanner(self._files, fd, segment.base, segment.salt)
            seq = 0
            for group in scanner.groups(BLOCK, covers if inside else None):
                apply_rows(self._result.state, segment, group)
                end = group.end
                seq = group.header.seq
                self._result.scanned_bytes += group.header.size
            # Everything before the checkpoint was durable: a group behind the last whole one means damage between.
            later = scanner.find_group(end + BLOCK, seq) if not inside else None
        if later is not None or (inside and end < covers):
            self._damage(f"segment {segment.path.name}, position {end}: a group is damaged")
        segment.used = end

    def _place_runs(self, segment: Segment, index: SegmentIndex, writable: bool) -> None:
        state = self._result.state
        for entry in index.runs:
            stored = state.ranges.get((entry.stream_id, entry.range_index))
            if stored is None or segment.end <= stored.created_lsn:
                continue
            if not stored.holds(entry.first, entry.end):
                continue
            bases, meta = index.columns(entry)
            run = Run(stored, segment, entry.first, entry.end, bases, meta, entry.live)
            run = _clip(run, stored)
            if writable:
                run.bases = array("q", run.bases)
                run.meta = array("I", run.meta)
            stored.place(run)
            if writable and run.end == stored.next_offset and stored.end < 0:
                stored.tail = run

    def _place_moved(self, upto: int) -> None:
        """Redirect readers to the entries that were moved before log position ``upto``, in place of those written
        before the move.
        """
        while self._moved and self._moved[0].lsn <= upto:
            one = self._moved.popleft()
            entry = next(iter(one.rows.runs), None)
            stored = None if entry is None else self._result.state.ranges.get((entry.stream_id, entry.range_index))
            if stored is not None and stored.created_lsn == one.created:
                self._place_runs(one.segment, one.rows, writable=False)

    # --- groups after the checkpoint

    def _replay(self, segments: list[Segment], number: int, start: int) -> None:
        """Replay from log position ``start`` in ``segments[number]``; cut everything behind the end of the log."""
        result = self._result
        while number < len(segments):
            segment = segments[number]
            position, file_size, found = self._replay_segment(segment, max(start - segment.base, BLOCK))
            if found is None:
                later = self._first_later_group(segments[number + 1 :])
                if later is not None and later[0] is segments[number + 1] and later[1:] == (BLOCK, result.seq):
                    number += 1
                    continue
                if later is not None:
                    found = f"segment {later[0].path.name}, position {later[1]}"
            lost = found is not None and self._never_flushed(segments[number:], position)
            if lost:
                found = None
                result.messages.append(
                    f"the log is cut in segment {segment.path.name} at {position}: what was written behind that place "
                    "with durability os was not flushed, and a part of it is lost"
                )
            if found is not None:
                self._damage(
                    f"segment {segment.path.name}, position {position}: group {result.seq} is missing or damaged, "
                    f"but there is a later one in {found}"
                )
            result.replayed = lost or found is not None or start < segment.base + position
            if file_size > position and result.replayed:
                self._cut(segment, position)
            unused = segments[number + 1 :]
            del segments[number + 1 :]
            if unused and found is None and not lost and unused[0].base == segment.end:
                result.spare = unused.pop(0)
                result.spare.used = BLOCK  # it has room but no groups: a checkpoint must not point behind it
            for other in unused:
                if found is None:
                    self._files.unlink(other.path)
                else:
                    self._files.rename(other.path, other.path.with_suffix(".damaged"))
            if unused:
                self._files.sync_directory(self._wal)  # their groups must not turn up behind new ones
            return

    def _replay_segment(self, segment: Segment, position: int) -> tuple[int, int, str | None]:
        """Return (end of the log in this segment, size of the file, where a later group is if there is one)."""
        result = self._result
        found: str | None = None
        with self._opened(segment.path) as fd:
            scanner = SegmentScanner(self._files, fd, segment.base, segment.salt)
            for group in scanner.groups(position):
                if group.header.seq != result.seq:
                    if group.header.seq > result.seq:
                        found = f"segment {segment.path.name}, position {position}"
                    break
                if not self._apply(segment, group):
                    break
                result.seq += 1
                self._note_unsure(segment, group)
                position = group.end
                result.scanned_bytes += group.header.size
            segment.used = position
            later = scanner.find_group(position + BLOCK, result.seq)
            if found is None and later is not None:
                found = f"segment {segment.path.name}, position {later[0]}"
            return position, scanner.file_size, found

    def _note_unsure(self, segment: Segment, group: Group) -> None:
        if group.header.flushed:
            # The writer wrote this group only after everything before it was on the disk.
            self._unsure = {segment.base: (segment, group.position, group.end)}
        else:
            begin = self._unsure[segment.base][1] if segment.base in self._unsure else group.position
            self._unsure[segment.base] = (segment, begin, group.end)

    def _write_again(self) -> None:
        """Write the replayed groups again and flush, so that they are on the disk; cut groups are not."""
        for segment, begin, end in self._unsure.values():
            fd = self._files.open(segment.path, os.O_RDWR)
            try:
                for at in range(begin, end, _COPY_BYTES):
                    data = read_range(self._files, fd, at, min(_COPY_BYTES, end - at))
                    write_all(self._files, fd, data, at)
                self._files.sync(fd)
            finally:
                self._files.close(fd)

    def _never_flushed(self, segments: list[Segment], position: int) -> bool:
        """Return whether nothing from ``position`` of the first segment on has ever been flushed."""
        if segments[0].base + position < self._floor:
            return False
        for number, segment in enumerate(segments):
            with self._opened(segment.path) as fd:
                scanner = SegmentScanner(self._files, fd, segment.base, segment.salt)
                at = BLOCK if number else position
                if scanner.find_group(at, self._result.seq, flushed=True) is not None:
                    return False
        return True

    def _apply(self, segment: Segment, group: Group) -> bool:
        if self._moved:
            self._place_moved(segment.base + group.position)
        try:
            apply_records(self._result.state, segment, group)
        except StoreError as error:
            self._damage(f"segment {segment.path.name}, position {group.position}: {error}")
            return False
        return True

    def _first_later_group(self, segments: list[Segment]) -> tuple[Segment, int, int] | None:
        """Return (segment, position, seq) of the first undamaged group in ``segments``."""
        for segment in segments:
            with self._opened(segment.path) as fd:
                scanner = SegmentScanner(self._files, fd, segment.base, segment.salt)
                found = scanner.find_group(BLOCK, self._result.seq)
            if found is not None:
                return segment, *found
        return None

    def _cut(self, segment: Segment, position: int) -> None:
        """Remove a torn group, so that none of its bytes can be taken for a later group."""
        fd = self._files.open(segment.path, os.O_RDWR)
        try:
            torn = self._files.next_data(fd, position) is not None and any(read_range(self._files, fd, position, BLOCK))
            if torn:
                self._result.cut_bytes = self._files.size(fd) - position
                self._result.messages.append(
                    f"segment {segment.path.name} is cut at {position}: the last write was torn"
                )
            self._files.truncate(fd, position)
            with suppress(OSError):
                # Reserve the room again: on a full disk only records that free space or open partitions get it.
                self._files.allocate(fd, position, min(self._options.control_reserve, segment.size - position))
        finally:
            self._files.close(fd)
        self._unsure.setdefault(segment.base, (segment, position, position))

    # --- afterwards

    def _finish(self, segments: list[Segment], checkpoint: Checkpoint | None) -> None:
        result = self._result
        result.segments = segments
        if segments:
            result.next_base = segments[-1].end
        if checkpoint is not None and checkpoint.lsn > result.next_base:
            result.next_base = align(checkpoint.lsn)  # the newest segments are lost, and the operator accepted that
            for segment in segments:
                segment.sealed = True
        for segment in segments[:-1]:
            segment.sealed = True
        for segment in segments:
            if segment.sealed and not segment.indexed:
                rebind(segment, save_index(self._files, segment, columns_of(segment)))
        self._look_for_gaps(segments, checkpoint)

    def _look_for_gaps(self, segments: list[Segment], checkpoint: Checkpoint | None) -> None:
        accepted: set[tuple[int, int, int, int]] | None = None
        for stored in self._result.state.ranges.values():
            for first, end in stored.gaps():
                if accepted is None:
                    accepted = accepted_gaps(self._wal.parent)
                known = (gap for gap in accepted if gap[:2] == (stored.stream_id, stored.index))
                if any(gap[2] <= first and end <= gap[3] for gap in known):
                    continue
                there = {segment.base for segment in segments}
                missing = [base for base in (checkpoint.segments if checkpoint else []) if base not in there]
                names = ", ".join(f"{base:020d}.seg" for base in missing) or "none known"
                self._damage(
                    f"offsets {first} to {end - 1} of range {stored.index} of stream {stored.stream_id} are gone; "
                    f"segments that were there at the last checkpoint and are missing now: {names}"
                )


def accepted_gaps(directory: Path) -> set[tuple[int, int, int, int]]:
    """Return the offsets that an operator has given up in the middle of ranges (:mod:`sbp_back.range_server.loss`):
    (stream, range, first, end). Incomplete lines are skipped.
    """
    found: set[tuple[int, int, int, int]] = set()
    try:
        lines = (directory / LOSSES).read_bytes().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            found.update((int(a), int(b), int(c), int(d)) for a, b, c, d in json.loads(line)["gaps"])
    return found


def _unbroken(segments: list[Segment], begin: int, end: int) -> bool:
    """Return whether segments cover the log between two positions."""
    at = begin
    for segment in segments:
        if segment.base < at <= segment.end:
            if end <= segment.end:
                return True
            at = segment.end + 1
    return False


def columns_of(segment: Segment) -> list[RunColumns]:
    """Return the columns for the segment's ``.idx`` file as of now; safe to use in another thread once it is sealed."""
    return [
        (run.owner.stream_id, run.owner.index, run.first, run.end, run.live, run.bases, run.meta)
        for run in segment.runs
    ]


def save_index(files: Files, segment: Segment, columns: list[RunColumns]) -> SegmentIndex:
    """Make the index of a segment durable, and map it. Raises ``OSError``, also when it cannot be read back."""
    path = segment.index_path
    write_index(files, path, segment.base, segment.salt, segment.used, columns)
    try:
        return load_index(path)
    except DecodeError as error:
        raise OSError(errno.EIO, f"{path.name} is not what was written: {error}") from error


def rebind(segment: Segment, index: SegmentIndex) -> None:
    """Have the runs of a sealed segment use the columns in its index file."""
    for run in segment.runs:
        columns = index.rows(run.owner.stream_id, run.owner.index, run.first, len(run.bases))
        if columns is not None:
            run.bases, run.meta = columns
    segment.indexed = True


def _clip(run: Run, stored: StoredRange) -> Run:
    """Return the rows of a run that can still be read: at least one, if the range holds any offset of the run."""
    first = run.row_of(stored.min_offset) if run.first < stored.min_offset else 0
    limit = stored.visible_end
    last = len(run.bases) if run.end <= limit else bisect_left(run.bases, limit)
    return run if (first, last) == (0, len(run.bases)) else run.slice(first, last)
