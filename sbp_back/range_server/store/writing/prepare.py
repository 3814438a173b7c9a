"""Preparation ahead of the writer: it creates segment files, and writes zeros where the writer will soon write.

A flushed write to blocks that were written before needs no journal commit of the file system, which makes small groups
about three times as fast as writing to freshly allocated blocks (docs/storage.md has numbers). Large groups gain little
and would pay for twice the bytes, so the zeroing pauses while groups are large. Writes that are not flushed gain
nothing, so without flushes nothing is zeroed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from anabranch_kit.disk.files import is_disk_full, write_all
from sbp_back.range_server.store.layout.format import BLOCK, SegmentHeader, encode_segment_header
from sbp_back.range_server.store.options import KIB, StoreOptions
from sbp_back.range_server.store.segment import Segment, segment_path

ZERO_STEP = 512 * KIB
"""Bytes of zeros in one write: bounds memory, and how long the writer may have to wait for such a write."""

SMALL_GROUP = 1024 * KIB
"""Zeroing pays while groups are smaller than this on average, in bytes."""
_LATELY = 1 / 8
"""Weight of the newest group in the average. Between large groups nothing is zeroed for small ones."""


class SegmentFactory(Struct, frozen=True):
    """Creates segment files that are complete from the moment they have their name."""

    directory: Path
    options: StoreOptions
    cluster_id: str
    server_id: int

    def create(self, base: int) -> tuple[Segment, int]:
        """Create a durable segment at log position ``base``; return it with a descriptor to write it. Raises
        ``OSError``.
        """
        files = self.options.files
        size = self.options.segment_bytes
        salt = int.from_bytes(os.urandom(8), "little")
        header = SegmentHeader(self.cluster_id, self.server_id, base, size, salt)
        path = segment_path(self.directory, base)
        temporary = path.with_suffix(".seg.tmp")
        fd = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            files.allocate(fd, 0, min(size, BLOCK + 2 * self.options.control_reserve))
            write_all(files, fd, encode_segment_header(header), 0)
            files.sync(fd)
            files.rename(temporary, path)
            files.sync_directory(self.directory)
        except BaseException:
            files.close(fd)
            with suppress(OSError):  # after the rename it has another name; a start removes half-made files
                files.unlink(temporary)
            raise
        return Segment(base, size, salt, path), fd


class Preparer:
    """A thread that stays ahead of the writer. ``on_error`` gets an ``OSError`` that means the disk is failing, or any
    other exception that ended the thread.
    """

    def __init__(self, factory: SegmentFactory, on_error: Callable[[BaseException], None]) -> None:
        self._factory = factory
        self._options = factory.options
        self._files = factory.options.files
        self._on_error = on_error
        self.changed = threading.Condition()
        self._stopping = False
        self._segment: Segment | None = None
        self._fd = -1
        self._written = 0
        self._zeroed = 0
        self._busy = (0, 0)
        self._small_groups = True
        self._lately = 0.0
        """Average bytes of a group."""
        self._idle_until = 0
        """The writer need not call while it writes small groups below this position."""
        self._blocked = False
        """The disk is full: no new try until the writer moves on."""
        self._next: tuple[Segment, int] | None = None
        self.creating = False
        self._zeros = bytes(min(ZERO_STEP, self._options.segment_bytes // 8))
        self._thread = threading.Thread(target=self._run, name="anabranch-prepare", daemon=True)
        self.zeroed_bytes = 0

    def start(self, spare: Segment | None) -> None:
        if spare is not None:
            self._next = (spare, self._files.open(spare.path, os.O_RDWR))
        self._thread.start()

    def stop(self) -> None:
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._next is not None:
            self._files.close(self._next[1])
            self._next = None

    # --- called by the writer

    def follow(self, segment: Segment, fd: int, position: int) -> None:
        """Prepare this segment from now on; return when the thread no longer touches the one before."""
        # Blocks that an earlier start has zeroed, behind the step that is left to the writer, need no zeros again:
        # one write of any content is enough.
        behind = position + len(self._zeros)
        hole = self._files.next_hole(fd, behind)
        with self.changed:
            while self._busy[1]:
                self.changed.wait()
            self._segment = segment
            self._fd = fd
            self._written = position
            self._zeroed = hole - hole % BLOCK if hole > behind else position
            self._idle_until = 0
            self._blocked = False
            self.changed.notify_all()

    def claim(self, begin: int, end: int) -> None:
        """Wait until no zeros will land in ``[begin, end)`` any more, which the writer is about to write."""
        if end < self._idle_until and end - begin < SMALL_GROUP:
            self._written = end
            return
        with self.changed:
            self._lately += _LATELY * (end - begin - self._lately)
            self._small_groups = self._lately < SMALL_GROUP
            self._written = end
            while self.is_busy(begin, end):
                self.changed.wait()
            self._blocked = False
            if self.has_work():
                self._idle_until = 0
                self.changed.notify_all()
            else:
                self._idle_until = self._no_work_below()

    def _no_work_below(self) -> int:
        """Return the position below which small groups leave the thread nothing to do, and no zeros land: it resumes
        only from ``_zeroed``, which is half the distance further, or as far as zeros go.
        """
        segment = self._segment
        if segment is None or not self._small_groups:
            return 0
        until = segment.size if self._next is not None else segment.size - self._last_part(segment)
        ahead = self._options.zero_ahead
        if ahead and self._zeroed < segment.size - len(self._zeros):
            until = min(until, self._zeroed - ahead // 2)
        return until

    def _last_part(self, segment: Segment) -> int:
        """Return the bytes before a segment's end from which on the next segment has to be ready."""
        return max(segment.size // 4, self._options.control_reserve)

    def is_busy(self, begin: int, end: int) -> bool:
        """Return whether :meth:`claim` would have to wait."""
        busy_begin, busy_end = self._busy
        return busy_begin < end and begin < busy_end

    def take_next(self, base: int) -> tuple[Segment, int] | None:
        """Return the segment at ``base`` if it is ready, or will be in a moment.

        Nothing is prepared, and no segment touched, until the next :meth:`follow`.
        """
        with self.changed:
            self._segment = None
            self._idle_until = 0
            while self.creating or self._busy[1]:
                self.changed.wait()
            prepared, self._next = self._next, None
        if prepared is not None and prepared[0].base != base:
            self._files.close(prepared[1])
            return None
        return prepared

    # --- the thread

    def has_work(self) -> bool:
        return self._wants_next() or self.wants_zeros()

    def _wants_next(self) -> bool:
        segment = self._segment
        return (
            segment is not None
            and self._next is None
            and not self._blocked
            and self._written > segment.size - self._last_part(segment)
        )

    def wants_zeros(self) -> bool:
        segment = self._segment
        if segment is None or not self._small_groups or self._blocked or not self._options.zero_ahead:
            return False
        # Resuming only at half the distance makes few wake-ups with much work each.
        ahead = self._options.zero_ahead
        return self._zeroed < min(self._written + ahead // 2, segment.size - len(self._zeros))

    def _run(self) -> None:
        try:
            while True:
                with self.changed:
                    while not self._stopping and not self.has_work():
                        self.changed.wait()
                    if self._stopping:
                        return
                self.prepare()
        except BaseException as error:  # noqa: BLE001 - logged, and the end of the store
            self._on_error(error)

    def prepare(self) -> None:
        """Do the next pending job, if any."""
        with self.changed:
            create = self._wants_next()
            if create:
                assert self._segment is not None
                base = self._segment.end
                self.creating = True
        if create:
            self._create(base)
        else:
            self._zero_ahead()

    def _create(self, base: int) -> None:
        prepared: tuple[Segment, int] | None = None
        try:
            prepared = self._factory.create(base)
        except OSError as error:
            self._failed(error)
        finally:
            # The writer may be waiting for this, even if it failed.
            with self.changed:
                self._next = prepared
                self.creating = False
                self.changed.notify_all()

    def _zero_ahead(self) -> None:
        """Zero up to the full distance, a step at a time; the writer only ever waits for one step."""
        step = len(self._zeros)
        while True:
            with self.changed:
                segment = self._segment
                if segment is None or self._stopping or not self._small_groups:
                    return
                begin = max(self._zeroed, self._written + step)
                limit = min(self._written + self._options.zero_ahead, segment.size)
                if begin + step > limit:
                    self._zeroed = max(self._zeroed, begin)
                    return
                self._busy = (begin, begin + step)
                fd = self._fd
            try:
                self._files.write(fd, [self._zeros], begin, False)
                if begin + 2 * step > limit:
                    # One flush for the whole stretch: each costs a journal commit the writer may have to wait for.
                    self._files.sync(fd)
            except OSError as error:
                self._failed(error)
                return
            finally:
                with self.changed:
                    self._busy = (0, 0)
                    self._zeroed = begin + step
                    self.changed.notify_all()
            self.zeroed_bytes += step

    def _failed(self, error: OSError) -> None:
        with self.changed:
            self._blocked = True
        if not is_disk_full(error):
            self._on_error(error)
