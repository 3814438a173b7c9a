"""A segment of the log as the store knows it, and the files that are open for reading."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from anabranch_kit.disk.files import Files
from sbp_back.range_server.store.layout.format import BLOCK

if TYPE_CHECKING:
    from sbp_back.range_server.store.index import Run


class Source(Protocol):
    """Origin of the bytes of a segment whose file only caches them. Called by any thread."""

    base: int
    """Position at which the segment begins in its log."""

    def lacks(self, begin: int, end: int) -> bool:
        """Return whether the file misses any of ``[begin, end)``. Its segment is pinned."""

    def bring(self, begin: int, end: int) -> None:
        """Fetch ``[begin, end)`` into the file. Blocks. Its segment is pinned. Raises ``OSError``."""

    def place(self, position: int) -> str:
        """Name the object with the byte at ``position``, for people."""


class Segment:
    """Log bytes ``[base, base + size)`` in one file; owned by the event loop once the store runs.

    ``used`` is the end of its last group (a position in the file); ``live`` the bytes of entries that can still be
    read; ``runs`` the pieces of the index that point here; ``sealed`` once nothing more will be written; ``indexed``
    once its ``.idx`` file is durable.
    """

    __slots__ = (
        "base",
        "damaged",
        "deleted",
        "fd",
        "indexed",
        "live",
        "moved",
        "path",
        "pins",
        "runs",
        "salt",
        "sealed",
        "size",
        "source",
        "used",
    )

    def __init__(self, base: int, size: int, salt: int, path: Path) -> None:
        self.base = base
        self.size = size
        self.salt = salt
        self.path = path
        self.used = BLOCK
        self.live = 0
        self.runs: dict[Run, None] = {}
        self.sealed = False
        self.indexed = False
        self.damaged = False
        """Evacuation could not read or move a surviving entry: the segment stays as it is."""
        self.moved = 0
        """Number of times that entries of this segment were moved elsewhere."""
        self.deleted = False
        self.fd = -1
        self.pins = 0
        self.source: Source | None = None
        """None: the file has everything."""

    def lacks(self, begin: int, end: int) -> bool:
        return self.source is not None and self.source.lacks(begin, end)

    def bring(self, begin: int, end: int) -> None:
        if self.source is not None:
            self.source.bring(begin, end)

    def place(self, position: int) -> str:
        """Describe where the byte at ``position`` is, for people."""
        there = f"segment {self.path.name}, position {position}"
        return there if self.source is None else f"{self.source.place(position)}, {there}"

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def origin(self) -> int:
        """Return the position at which it begins in its log. It is the same in every process, while ``base`` also keeps
        several logs of one process apart.
        """
        return self.base if self.source is None else self.source.base

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    def __repr__(self) -> str:
        return f"Segment({self.path.name}, live={self.live})"


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.seg"


class OpenSegments:
    """File descriptors for reading: opened on demand, at most ``limit`` kept, never closed under a reader."""

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()

    def pin(self, segment: Segment) -> int:
        """Return a descriptor that stays valid until :meth:`unpin`. Raises ``OSError``."""
        if segment.fd < 0:
            segment.fd = self._files.open(segment.path, os.O_RDONLY)
            self._open[segment] = None
        else:
            self._open.move_to_end(segment)
        segment.pins += 1
        if len(self._open) > self._limit:
            self._shrink()
        return segment.fd

    def unpin(self, segment: Segment) -> None:
        segment.pins -= 1
        if segment.deleted and not segment.pins:
            self._close(segment)

    def forget(self, segment: Segment) -> None:
        """Close a segment that is being deleted, as soon as it has no reader."""
        segment.deleted = True
        if segment.fd >= 0 and not segment.pins:
            self._close(segment)

    def oldest_first(self, segments: Iterable[Segment]) -> list[Segment]:
        """Return the segments that are not open, then the others, the least recently read first."""
        order = {segment: number for number, segment in enumerate(self._open)}
        return sorted(segments, key=lambda segment: order.get(segment, -1))

    def close(self, segment: Segment) -> None:
        """Close a segment that has no reader."""
        if not segment.pins:
            self._close(segment)

    def close_all(self) -> None:
        for segment in list(self._open):
            self._close(segment)

    def _shrink(self) -> None:
        for segment in list(self._open):
            if len(self._open) <= self._limit:
                return
            if not segment.pins and segment.fd >= 0:
                self._close(segment)

    def _close(self, segment: Segment) -> None:
        if segment.fd >= 0:
            self._files.close(segment.fd)
            segment.fd = -1
            del self._open[segment]


def flush_segment(files: Files, segment: Segment) -> None:
    """Flush everything that was written to a segment; one that is gone needs no flush. Raises ``OSError``."""
    try:
        fd = files.open(segment.path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        files.sync(fd)
    finally:
        files.close(fd)
