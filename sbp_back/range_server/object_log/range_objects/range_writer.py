"""Writer of a range's object from entries that lie among others', which then redirects readers to it.

It needs no record in the log. The object gets the rows that were in the index while it was written, if they are
unchanged; from then on readers find them there. The caller that chooses the entries also makes the object count at the
next start.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from array import array
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from anabranch_kit.disk.files import Files, read_range, write_all
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.object_log.objects.bucket import PATIENCE, Bucket
from sbp_back.range_server.object_log.objects.cache import PART_BYTES, Cache, RangeSegment
from sbp_back.range_server.object_log.range_objects.range_object import (
    FOOTER_BYTES,
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

_READ_BYTES = 1 << 20
_READ_ROWS = 1000
_GAP_BYTES = 64 * 1024
MOST_PIECES = 128
"""Most segments that one object is made of."""


class DamagedError(OSError):
    """An entry of ``segment`` is not what its row says."""

    def __init__(self, segment: Segment, what: str) -> None:
        super().__init__(errno.EIO, what)
        self.segment = segment


class _Piece(Struct, eq=False):
    """Rows of a run that go into an object; ``fd``: of its segment, which is pinned. ``new_bases`` and ``new_meta``:
    the rows in the object, ``live`` bytes.
    """

    run: Run
    fd: int
    bases: memoryview
    meta: memoryview
    end: int
    new_bases: array[int] = field(default_factory=lambda: array("q"))
    new_meta: array[int] = field(default_factory=lambda: array("I"))
    live: int = 0


class RangeWriter:
    """Base of the writers of range objects. ``note`` is called with failures, ``doom`` with superfluous objects. Owned
    by the event loop.
    """

    patience = PATIENCE
    """Seconds for which puts of one object are retried at a store that does not answer."""
    origin = ""
    """Part of the names of objects: identifies their writer."""

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
        self.background = background
        self._note = note
        self._doom = doom
        self._putting = ""
        """An object that may exist without being used."""
        self.busy = False
        self.made: list[Segment] = []
        """Objects that no index names yet."""
        self.rest_until = 0.0

    def _ended(self, stored: StoredRange, segment: Segment | None) -> None:
        """React to the end of a write of a range: written as ``segment``, or failed (None)."""
        raise NotImplementedError

    def _begin(self, stored: StoredRange, runs: Sequence[Run]) -> None:
        """Write the content of ``runs``, which follow one another, or as much as makes a whole object."""
        log = self._log
        target = log.options.object_range_bytes
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
            if isinstance(result, OSError):
                if isinstance(result, DamagedError):
                    result.segment.damaged = True
                self._failed(result)
                self._given_up()
                self._ended(stored, None)
            else:
                # Rest as long as the work took: it gets at most half of the time, the store and the disk.
                self.rest_until = 2 * time.monotonic() - began
                self._apply(stored, pieces, result)

        self.background(lambda: self._write(stored, pieces), ended)

    def _unpin(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            self._log.opened.unpin(piece.run.segment)

    def _failed(self, error: Exception) -> None:
        self.rest_until = time.monotonic() + 1.0
        self._note("writing an object of a range", error)

    def _given_up(self) -> None:
        if self._putting:
            self._doom(self._bucket, [self._putting])

    def _write(self, stored: StoredRange, pieces: list[_Piece]) -> Segment:
        """Write the object. Runs on another thread. Raises ``OSError``."""
        self._putting = ""
        files = self._log.files
        path = self._cache.directory / "range.tmp"
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            file = _File(files, fd)
            for piece in pieces:
                _copy(files, piece, file)
            first = int(pieces[0].bases[0])
            key = new_key(*stored.key, first, self.origin)
            what = RangeObject(key, *stored.key, first, pieces[-1].end, file.size, file.sparse(first))
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
        # The sender may keep a reference after it has answered, so nobody closes the mapping explicitly.
        content = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
        for number, crc in enumerate(crcs):
            at = number * PART_BYTES
            if crc32(content[at : min(at + PART_BYTES, what.size)]) != crc:
                raise OSError(errno.EIO, f"the cache of objects gives other bytes of {what.key} than were written")
        self._putting = what.key
        if not self._bucket.put_again(what.key, content, self.patience):
            end = len(content) - FOOTER_BYTES
            if bytes(self._bucket.get_range(what.key, end, len(content))) != bytes(content[end:]):
                raise OSError(errno.EIO, f"{what.key} in {self._bucket.url} is not what was put there")

    def _apply(self, stored: StoredRange, pieces: list[_Piece], segment: Segment) -> None:
        """Redirect readers to the object for all rows that are where they were when it was written."""
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
            self._ended(stored, None)
            return
        self.made.append(segment)
        log.stats.packed_bytes += segment.size
        self._ended(stored, segment)


def _is_there(piece: _Piece) -> bool:
    """Return whether readers still find its rows in the old place: trims, replacements and evacuation leave other runs
    behind.
    """
    return piece.run in piece.run.segment.runs


class _File:
    """A file into which entries are written one behind the other, with the facts that the object's end needs."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self.size = 0
        self.crcs = array("I")
        """Checksums of the parts."""
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
        """Note that an entry begins at ``position``."""
        if position >= self._next_point:
            self._points.append((base, position))
            self._next_point = position + SPARSE_BYTES

    def sparse(self, first: int) -> bytes:
        return sparse_index(first, self._points)


def _copy(files: Files, piece: _Piece, to: _File) -> None:
    """Copy a piece's entries, each of which must match its row. Raises ``OSError``."""
    bases, meta, segment = piece.bases, piece.meta, piece.run.segment
    row, rows = 0, len(bases)
    while row < rows:
        begin = end = meta[row * META]
        behind = row
        while behind < min(rows, row + _READ_ROWS):
            position, length = meta[behind * META], meta[behind * META + 1]
            # Read across a gap between rows rather than twice, unless the gap is long or the row lies before.
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
