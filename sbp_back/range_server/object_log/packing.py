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

import errno
import logging
import mmap
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from sbp_back.files import Files, read_range, write_all
from sbp_back.range_server.object_log.bucket import PATIENCE, Bucket
from sbp_back.range_server.object_log.cache import PART_BYTES, Cache, RangeSegment, range_object
from sbp_back.range_server.object_log.range_object import (
    SPARSE_BYTES,
    RangeObject,
    encode_end,
    new_key,
    sparse_index,
)
from sbp_back.range_server.store.index import META, Run, StoredRange
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.segment import Segment
from sbp_back.wire.frame import crc32
from sbp_back.wire.model import Buffer

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_READ_ROWS = 1000
_GAP_BYTES = 64 * 1024
_MOST_PIECES = 128
"""Segments that one object is made of."""
_LEAST_PART = 16

Key = tuple[int, int]
"""(stream, range)."""


class DamagedError(OSError):
    """An entry of ``segment`` is not what its row says."""

    def __init__(self, segment: Segment, what: str) -> None:
        super().__init__(errno.EIO, what)
        self.segment = segment


class _Piece(Struct, eq=False):
    """Rows of a run that go into an object; ``fd``: of its segment, which is pinned. ``new_bases`` and ``new_meta``:
    the rows there, ``live`` bytes."""

    run: Run
    fd: int
    bases: memoryview
    meta: memoryview
    end: int
    new_bases: array[int] = field(default_factory=lambda: array("q"))
    new_meta: array[int] = field(default_factory=lambda: array("I"))
    live: int = 0


class Packing:
    """``note`` is told what failed, ``doom`` which object nobody needs. Owned by the event loop."""

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
        self._log = log
        self._cache = cache
        self._bucket = bucket
        self._name = name
        self._background = background
        self._note = note
        self._doom = doom
        self._counted: set[Segment] = set()
        self._small: dict[Key, int] = {}
        """Bytes of each range in segments that were counted."""
        self._due: dict[Key, None] = {}
        self._cleared: set[Segment] = set()
        """Those that had what they have made due."""
        self._putting = ""
        """The object that may be there without being of use."""
        self.busy = False
        self.made: list[Segment] = []
        """Objects that no index names yet."""
        self._rest_until = 0.0

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
                self._begin(stored)

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
            if runs and (not wanted or run.first != runs[-1].end or len(runs) == _MOST_PIECES):
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

    # --- writing

    def _begin(self, stored: StoredRange) -> None:
        log = self._log
        target = log.options.object_range_bytes
        self._count_again(stored)
        runs = self._chosen(stored)
        if not runs:
            return
        pieces: list[_Piece] = []
        size = 0
        try:
            for run in runs:
                rows = len(run.bases)
                if size + run.live >= 2 * target:
                    rows = max(1, min(rows, (target - size) * rows // run.live))
                fd = log.opened.pin(run.segment)
                columns = memoryview(run.bases)[:rows], memoryview(run.meta)[: rows * META]
                pieces.append(_Piece(run, fd, *columns, run.row_end(rows - 1)))
                size += run.live * rows // len(run.bases)
                if size >= target or rows < len(run.bases):
                    break
        except OSError as error:
            self._unpin(pieces)
            self._failed(error)
            return
        self.busy = True
        began = time.monotonic()

        def ended(result: Segment | OSError) -> None:
            self.busy = False
            self._unpin(pieces)
            # So it takes half of the time at most, and of what the store and the disk give.
            self._rest_until = 2 * time.monotonic() - began
            if isinstance(result, OSError):
                if isinstance(result, DamagedError):
                    result.segment.damaged = True
                self._due.setdefault(stored.key)
                self._failed(result)
                self._given_up()
            else:
                self._apply(stored, pieces, result)

        self._background(lambda: self._write(stored, pieces), ended)

    def _unpin(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            self._log.opened.unpin(piece.run.segment)

    def _failed(self, error: Exception) -> None:
        self._rest_until = time.monotonic() + 1.0
        self._note("writing an object of a range", error)

    def _given_up(self) -> None:
        if self._putting:
            self._doom(self._bucket, [self._putting])

    def _write(self, stored: StoredRange, pieces: list[_Piece]) -> Segment:
        """On another thread. Raises ``OSError``."""
        self._putting = ""
        files = self._log.files
        path = self._cache.directory / "range.tmp"
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            file = _File(files, fd)
            for piece in pieces:
                _copy(files, piece, file)
            first = int(pieces[0].bases[0])
            what = RangeObject(
                new_key(*stored.key, first), *stored.key, first, pieces[-1].end, file.size, file.sparse(first)
            )
            write_all(files, fd, encode_end(what), file.size)
            self._put(what, fd, file.crcs)
        finally:
            files.close(fd)
        segment = self._cache.range_segment(what, self._bucket, self._name, file.crcs)
        files.rename(path, segment.path)
        source = segment.source
        assert isinstance(source, RangeSegment)
        source.filled()
        return segment

    def _put(self, what: RangeObject, fd: int, crcs: Sequence[int]) -> None:
        # Whoever sends it may let go of it later than it says so: nobody else closes the mapping.
        content = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        for number, crc in enumerate(crcs):
            at = number * PART_BYTES
            if crc32(content[at : min(at + PART_BYTES, what.size)]) != crc:
                raise OSError(errno.EIO, f"the cache of objects gives other bytes of {what.key} than were written")
        self._putting = what.key
        self._bucket.put_again(what.key, content, PATIENCE)

    def _apply(self, stored: StoredRange, pieces: list[_Piece], segment: Segment) -> None:
        """Have readers find in the object what lies as it did when it was written."""
        log = self._log
        found = False
        for piece in pieces:
            if _is_there(piece):
                first = int(piece.bases[0])
                stored.place(Run(stored, segment, first, piece.end, piece.new_bases, piece.new_meta, piece.live))
                found = True
        if not found:
            self._cache.forget(segment)
            self._given_up()
            return
        self.made.append(segment)
        log.segments.insert(sum(range_object(one) is not None for one in log.segments), segment)
        self._counted.add(segment)
        log.stats.packed_bytes += segment.size
        if self._count_again(stored) >= log.options.object_range_bytes:
            self._due[stored.key] = None


def _is_there(piece: _Piece) -> bool:
    """Whether readers find its rows where they were: trims, replacements and evacuation leave other runs behind."""
    return piece.run in piece.run.segment.runs


class _File:
    """Entries that are written into a file, one behind the other, and what is to be known of them."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self.size = 0
        self.crcs = array("I")
        """Of its parts."""
        self._points: list[tuple[int, int]] = []
        self._next_point = SPARSE_BYTES

    def write(self, data: Buffer) -> None:
        write_all(self._files, self._fd, data, self.size)
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                inside = self.size % PART_BYTES
                some = view[at : at + PART_BYTES - inside]
                if inside:
                    self.crcs[-1] = crc32(some, self.crcs[-1])
                else:
                    self.crcs.append(crc32(some))
                at += len(some)
                self.size += len(some)

    def begins(self, base: int, position: int) -> None:
        """An entry is at ``position``."""
        if position >= self._next_point:
            self._points.append((base, position))
            self._next_point = position + SPARSE_BYTES

    def sparse(self, first: int) -> bytes:
        return sparse_index(first, self._points)


def _copy(files: Files, piece: _Piece, to: _File) -> None:
    """Its entries, each of which is what its row says. Raises ``OSError``."""
    bases, meta, segment = piece.bases, piece.meta, piece.run.segment
    row, rows = 0, len(bases)
    while row < rows:
        begin = end = meta[row * META]
        behind = row
        while behind < min(rows, row + _READ_ROWS):
            position, length = meta[behind * META], meta[behind * META + 1]
            # What lies between is not worth a second read, unless it is much, or in front.
            if behind > row and (not end <= position <= end + _GAP_BYTES or end - begin + length > _READ_BYTES):
                break
            end = position + length
            behind += 1
        segment.bring(begin, end)
        data = memoryview(read_range(files, piece.fd, begin, end - begin))
        bodies = []
        at = to.size
        for one in range(row, behind):
            position, length, crc = meta[one * META], meta[one * META + 1], meta[one * META + 2]
            body = data[position - begin : position - begin + length]
            if crc32(body) != crc:
                owner = piece.run.owner
                where = f"offset {bases[one]} of range {owner.index} of stream {owner.stream_id}"
                raise DamagedError(segment, f"the entry at {where} ({segment.place(position)}) is damaged")
            to.begins(bases[one], at)
            piece.new_meta.extend((at, length, crc))
            bodies.append(body)
            at += length
        to.write(b"".join(bodies))
        piece.new_bases.extend(bases[row:behind])
        row = behind
    piece.live = to.size - (piece.new_meta[0] if rows else 0)
