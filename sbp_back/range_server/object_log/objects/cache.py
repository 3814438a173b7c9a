"""Cache of a log's objects in files on the local disk, one object behind the other: what was lately written or read.

Nothing depends on the files: missing bytes are fetched again, and all files are removed when a server starts.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from msgspec import Struct

from anabranch_kit.disk.files import Files, ending, write_all
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.bucket import Bucket, pauses
from sbp_back.range_server.object_log.objects.content import decode, key_of
from sbp_back.range_server.object_log.range_objects.range_object import RangeObject
from sbp_back.range_server.store.layout.idxfile import SegmentIndex, load_index
from sbp_back.range_server.store.segment import OpenSegments, Segment, segment_path
from sbp_back.wire.frame import crc32

logger = logging.getLogger(__name__)

PART_BYTES = 4 << 20
"""Part of a range's object, which has a checksum of its own and is fetched at once."""
_AHEAD_BYTES = 4 << 20
"""Bytes behind the wanted ones that are fetched with them."""
_FETCHED_BYTES = 32 << 20
"""Memory for fetched objects, until they are in their files."""
_FETCHES = 8
"""Objects fetched at once."""
_SPACE_BITS = 48
"""Positions of a log are below this power of two."""
_PATIENCE = 10.0


class _Place(Struct):
    """An object in a segment."""

    position: int
    incarnation: int
    number: int
    size: int
    there: bool


class CachedSegment:
    """A segment's objects: their places in the segment, and which of them are in its file. Called by any thread; see
    :class:`~sbp_back.range_server.store.segment.Source`.
    """

    def __init__(self, cache: Cache, segment: Segment, bucket: Bucket, log: str, space: int) -> None:
        self._cache = cache
        self.bucket = bucket
        self.log = log
        """Name of the segment's log."""
        self.base = segment.base - space
        """Position in that log at which the segment begins."""
        self.rows = ""
        """Name of the object that has the segment's rows, once there is one."""
        self.rows_at = 0
        """:attr:`Segment.moved` at the time the rows were written; once it has changed, the rows are stale."""
        self._segment = segment
        self.places: list[_Place] = []
        self._positions: list[int] = []
        self._lock = threading.Lock()
        self.held = 0
        """Bytes in the file."""

    def add(self, position: int, incarnation: int, number: int, size: int) -> None:
        """Add an object behind all others; it is not in the file yet. Called by one thread."""
        self.places.append(_Place(position, incarnation, number, size, False))
        self._positions.append(position)

    def place(self, position: int) -> str:
        place = self.places[max(0, bisect_right(self._positions, position) - 1)]
        return f"object {place.number} of incarnation {place.incarnation}"

    @property
    def keys(self) -> list[str]:
        return [key_of("", place.incarnation, place.number) for place in self.places]

    def _get(self, place: _Place) -> Buffer:
        return self.bucket.get(key_of("", place.incarnation, place.number))

    def _check(self, place: _Place, data: Buffer) -> None:
        """Check an object's bytes. Raises DecodeError."""
        decode(data, place.incarnation, place.number)

    def store(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write the bytes of the object at ``position`` to the file. If the disk fails, a fetch has to bring them
        later.
        """
        place = self.places[bisect_right(self._positions, position) - 1]
        try:
            self._write(place, parts)
        except OSError as error:
            logger.warning("the cache of objects does not take what was written: %s", error)

    def _write(self, place: _Place, parts: Sequence[Buffer]) -> None:
        files = self._cache.files
        fd = files.open(self._segment.path, os.O_RDWR | os.O_CREAT)
        try:
            at = place.position
            for part in parts:
                write_all(files, fd, part, at)
                at += len(part)
        finally:
            files.close(fd)
        with self._lock:
            if not place.there:
                place.there = True
                self.held += place.size

    def _find_places(self, begin: int, end: int) -> list[_Place]:
        first = max(0, bisect_right(self._positions, begin) - 1)
        last = bisect_right(self._positions, end - 1)
        return self.places[first:last]

    def lacks(self, begin: int, end: int) -> bool:
        return any(not place.there for place in self._find_places(begin, end))

    def bring(self, begin: int, end: int) -> None:
        missing = [place for place in self._find_places(begin, end) if not place.there]
        if not missing:
            return
        ahead = [
            place for place in self._find_places(end, end + _AHEAD_BYTES) if not place.there and place not in missing
        ]
        self._cache.fetch(self, missing, ahead)

    def bring_place(self, place: _Place) -> None:
        """Fetch one object. Raises ``OSError``."""
        if place.there:
            return
        with self._cache.memory(place.size):
            self._write(place, [self._fetched(place)])

    def _fetched(self, place: _Place) -> Buffer:
        until = time.monotonic() + self._cache.patience
        waits = pauses()
        damaged = False
        while True:
            try:
                data = self._get(place)
                if len(data) != place.size:
                    what = f"{self.place(place.position)} in {self.bucket.url}"
                    raise OSError(errno.EIO, f"{what} gives {len(data)} bytes, not {place.size}")
                self._check(place, data)
                return data
            except DecodeError as error:
                if damaged:
                    # Keep the object: its entries have checksums of their own, so only the damaged ones are lost.
                    logger.error("%s: %s", self.bucket.url, error)
                    return data
                damaged = True  # perhaps damaged on the way
            except FileNotFoundError as error:
                raise OSError(errno.EIO, f"{self.place(place.position)} is gone: {error}") from error
            except OSError:
                pause = next(waits)
                if time.monotonic() + pause > until or self._cache.closed:
                    raise
                time.sleep(pause)

    def drop(self) -> None:
        """Let go of everything in the file, which has no reader or writer. Called on the loop."""
        with self._lock:
            for place in self.places:
                place.there = False
            self.held = 0
        self._cache.remove(self._segment.path)


class RangeSegment(CachedSegment):
    """The entries of one object of a range, in parts that are fetched one by one. ``crcs``: checksums of the parts."""

    def __init__(
        self, cache: Cache, segment: Segment, bucket: Bucket, log: str, what: RangeObject, crcs: Sequence[int]
    ) -> None:
        super().__init__(cache, segment, bucket, log, segment.base)
        self.what = what
        self.crcs = array("I", crcs)
        for number in range(len(self.crcs)):
            at = number * PART_BYTES
            self.add(at, 0, number, min(PART_BYTES, what.size - at))

    def place(self, position: int) -> str:
        return f"object {self.what.key}"

    @property
    def keys(self) -> list[str]:
        return [self.what.key]

    def _get(self, place: _Place) -> Buffer:
        return self.bucket.get_range(self.what.key, place.position, place.position + place.size)

    def _check(self, place: _Place, data: Buffer) -> None:
        if crc32(data) != self.crcs[place.number]:
            raise DecodeError(f"{self.what.key} is damaged between {place.position} and {place.position + place.size}")

    def filled(self) -> None:
        """Note that the file is complete: its writer has written all of it."""
        with self._lock:
            for place in self.places:
                place.there = True
            self.held = self.what.size


class Cache:
    """The files of all segments in ``directory``; files of an earlier process are removed."""

    def __init__(self, directory: Path, files: Files, first: int = 0, patience: float = _PATIENCE) -> None:
        """Begin the positions of ranges' objects behind those of ``first`` logs on this disk. ``patience``: seconds for
        which a store that does not answer is asked again for one object.
        """
        self.directory = directory
        self.files = files
        self.patience = patience
        self.closed = False
        self._spaces = count(first)
        self._range_at = self.space()
        self._making = threading.Lock()
        self.counted: Callable[[int], None] = lambda _change: None
        """Called with the change in held bytes of memory; by any thread."""
        self._held = 0
        self._room = threading.Condition()
        self._pool = ThreadPoolExecutor(_FETCHES, "anabranch-fetch")
        for path in (*ending(directory, ".seg"), *ending(directory, ".idx")):
            files.unlink(path)

    def space(self) -> int:
        """Return where the positions of one more log begin, so that the positions of several logs stay apart."""
        return next(self._spaces) << _SPACE_BITS

    def segment(self, base: int, size: int, bucket: Bucket, log: str, space: int) -> Segment:
        """Return an empty segment of ``log``, which is in ``bucket`` and whose positions begin at ``space``, with an
        empty file. Raises ``OSError``.
        """
        segment = Segment(base, size, 0, segment_path(self.directory, base))
        segment.used = 0
        segment.source = CachedSegment(self, segment, bucket, log, space)
        self.files.close(self.files.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        return segment

    def range_segment(self, what: RangeObject, bucket: Bucket, log: str, crcs: Sequence[int]) -> Segment:
        """Return a segment that is the object of a range of ``log``, which is in ``bucket``, with an empty file. Raises
        ``OSError``, and DecodeError when the number of checksums does not match the parts.
        """
        if len(crcs) != -(-what.size // PART_BYTES):
            raise DecodeError(f"{what.key} has not {len(crcs)} parts")
        with self._making:
            base = self._range_at
            self._range_at += what.size
        segment = Segment(base, what.size, 0, segment_path(self.directory, base))
        segment.used = what.size
        segment.sealed = True
        segment.source = RangeSegment(self, segment, bucket, log, what, crcs)
        self.files.close(self.files.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        return segment

    @contextmanager
    def memory(self, size: int) -> Iterator[None]:
        """Wait for memory for ``size`` fetched bytes, held while entered: a bounded amount at once, or one larger
        object.
        """
        with self._room:
            self._room.wait_for(lambda: not self._held or self._held + size <= _FETCHED_BYTES)
            self._held += size
        self.counted(size)
        try:
            yield
        finally:
            self.counted(-size)
            with self._room:
                self._held -= size
                self._room.notify_all()

    def fetch(self, of: CachedSegment, wanted: Sequence[_Place], ahead: Sequence[_Place]) -> None:
        """Fetch the ``wanted`` objects, and those ``ahead`` if possible. Raises ``OSError`` when a wanted one cannot be
        had. When this returns nothing is being written.
        """
        if len(wanted) == 1 and not ahead:
            of.bring_place(wanted[0])
            return
        fetches = [self._pool.submit(of.bring_place, place) for place in (*wanted, *ahead)]
        wait(fetches)
        for fetch in fetches[: len(wanted)]:
            fetch.result()

    def rows(self, segment: Segment, data: Buffer) -> SegmentIndex:
        """Return a segment's rows, from the file that holds them from now on. Raises ``OSError`` and DecodeError."""
        if segment.index_path.exists():
            self.files.unlink(segment.index_path)  # it may be mapped
        fd = self.files.open(segment.index_path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            write_all(self.files, fd, data, 0)
        finally:
            self.files.close(fd)
        return load_index(segment.index_path)

    def forget(self, segment: Segment) -> None:
        """Forget a segment that is no part of a log any more. The next start removes what its files still hold."""
        for path in (segment.path, segment.index_path):
            if path.exists():
                self.files.unlink(path)

    def remove(self, path: Path) -> None:
        fd = self.files.open(path, os.O_RDWR)
        try:
            self.files.truncate(fd, 0)
        finally:
            self.files.close(fd)

    def close(self) -> None:
        """Fetch nothing any more."""
        self.closed = True
        self._pool.shutdown(cancel_futures=True)


def shrink(opened: OpenSegments, segments: Sequence[Segment], held: int, most: int) -> None:
    """Drop the cached bytes of ``segments``, least recently read first, until ``held`` (bytes in all files) is at most
    ``most``.
    """
    if held <= most:
        return
    for segment in opened.oldest_first([one for one in segments if not one.pins]):
        if held <= most:
            break
        held -= source_of(segment).held
        opened.close(segment)
        source_of(segment).drop()


def range_object(segment: Segment) -> RangeObject | None:
    """Return the object of a range that a segment is; None for a segment that is part of a log."""
    return segment.source.what if isinstance(segment.source, RangeSegment) else None


def source_of(segment: Segment) -> CachedSegment:
    """Return the objects of a segment that :class:`Cache` made."""
    assert isinstance(segment.source, CachedSegment)
    return segment.source
