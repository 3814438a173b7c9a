"""The data directory: one process at a time, and what lies where in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

from sbp_back.errors import StoreError, StoreLocked
from sbp_back.files import Files, make_directories


class DataDirectory:
    """A directory held by this process until :meth:`release` (or the end of the process, however that comes)."""

    def __init__(self, path: Path) -> None:
        """Create the directory if need be and lock it. Raises StoreLocked (held by another process) or StoreError."""
        self.path = path
        self.database = path / "node.db"
        self.backend = path / "sbp"
        try:
            make_directories(Files(), path)
            # Never truncated before the lock is held: the file tells who holds it.
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot use data directory {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            who = f"process {holder}" if holder else "another process"
            raise StoreLocked(f"data directory {path} is in use by {who}; a directory serves one node") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write ``content`` as JSON such that a reader sees either no file or all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n", "utf-8")
    temporary.replace(path)
