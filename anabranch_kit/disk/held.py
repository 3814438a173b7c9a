"""A directory that one process holds at a time, by a lock on a file in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from anabranch_kit.disk.files import Files


class HeldFile:
    """A lock on the file ``path``, which is made when absent and kept as it is, until :meth:`release` or the end of the
    process, even by a crash. Raises BlockingIOError (another process holds it) and OSError.
    """

    __slots__ = ("_files", "fd", "path")

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self.fd = self._files.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def is_there(self) -> bool:
        """Return whether the file is still the one that was locked: the directory may have been removed."""
        try:
            found, held = self.path.stat(), os.fstat(self.fd)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # an unknown state does not mean that it is gone
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self.fd >= 0:
            self._files.close(self.fd)
            self.fd = -1
