"""Reserve of disk space for transactions that free space. On a full disk SQLite cannot commit, not even the deletion of
a topic, or the opening of a partition, without which it cannot be read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic

from anabranch_kit.disk.files import Files, write_all

_AGAIN_S = 10.0
_TIMES = 4
"""The reserve is made, also again, where so many times its size is free."""
_PARTS = 4
"""Number of parts in which it is spent: a part leaves the rest for later, and gives nothing to other users of the
disk.
"""
_TO_OPEN = 256 * 1024
"""Bytes of disk that SQLite needs to open a database: its index of the log takes 32 KiB."""


class Reserve:
    """A file of ``size`` bytes that is cut down when its room is needed. Use in one thread."""

    __slots__ = ("_files", "_held", "_next", "_path", "_size")

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._files = Files()
        self._held = False
        self._next = 0.0

    def keep(self) -> None:
        """Make the file, unless it exists, or making it failed a moment ago. Raises nothing: everything works without
        it.
        """
        if self._held or not self._size or monotonic() < self._next:
            return
        self._next = monotonic() + _AGAIN_S
        try:
            if self._path.exists() and self._stored_bytes() >= self._size:
                self._held = True
            elif self._files.free_bytes(self._path.parent) >= _TIMES * self._size:
                self._make()
                self._held = True
        except OSError:
            self._path.unlink(missing_ok=True)

    def is_full(self) -> bool:
        """Return whether a database may fail to open because the disk has no room for it."""
        try:
            return self._files.free_bytes(self._path.parent) < _TO_OPEN
        except OSError:
            return False

    def spend(self) -> bool:
        """Give a part of its room to the next writer; return False if there is none."""
        self._held = False
        self._next = monotonic() + _AGAIN_S
        try:
            left = self._path.stat().st_size - -(-self._size // _PARTS)
        except FileNotFoundError:
            return False  # or another process that shares the database has spent the last part
        if left > 0:
            with suppress(FileNotFoundError):
                os.truncate(self._path, left)
        else:
            self._path.unlink(missing_ok=True)
        return True

    def _make(self) -> None:
        fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._files.allocate(fd, 0, self._size)
            if self._stored_bytes() < self._size:  # the file system cannot do that
                write_all(self._files, fd, bytes(self._size), 0)
        finally:
            self._files.close(fd)

    def _stored_bytes(self) -> int:
        return self._path.stat().st_blocks * 512
