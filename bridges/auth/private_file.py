"""Files with secrets: readable by their owner only, replaced as a whole, changed by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch_kit.disk.files import Files, make_directories, write_file_durably

_MODE = 0o600


class _PrivateFiles(Files):
    """Files that only ``owner`` can read, from the moment they are created."""

    def __init__(self, owner: tuple[int, int] | None) -> None:
        super().__init__()
        self._owner = owner

    def open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            os.fchmod(fd, _MODE)  # a file left behind by a crash keeps its mode
            if self._owner is not None:
                os.fchown(fd, *self._owner)
        except BaseException:
            os.close(fd)
            raise
        return fd


def write_private(path: Path, content: bytes) -> None:
    """Replace ``path``: after a crash it holds its old or its new content, whole. Raises OSError.

    When root writes, the file goes to the owner of the old file, or of its directory: a node that runs as another user
    must be able to read it.
    """
    owner = None
    if os.geteuid() == 0:
        status = (path if path.exists() else path.parent).stat()
        owner = (status.st_uid, status.st_gid)
    write_file_durably(_PrivateFiles(owner), path, [content])


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Keep other processes from changing ``path`` meanwhile; creates its directory. Raises OSError."""
    make_directories(Files(), path.parent)
    lock = _PrivateFiles(None).open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when the file is replaced, None if there is no file. Raises OSError."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
