"""The data directory: one process at a time, and what lies where in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from anabranch_kit.disk.files import Files, make_directories
from anabranch_kit.disk.held import HeldFile
from anabranch_kit.errors import StoreError, StoreLocked

DATABASE = "node.db"
"""The file of a data directory that has the metadata."""


class DataDirectory:
    """A directory held by this process until :meth:`release` (or the end of the process, however that comes)."""

    def __init__(self, path: Path) -> None:
        """Create the directory if need be and lock it. Raises StoreLocked (held by another process) or StoreError."""
        self.path = path
        self.database = path / DATABASE
        self.backend = path / "sbp"
        self.cluster = path / "cluster"
        """Names the cluster that the node is one of, if it is."""
        self.mark = path / "mark"
        """How far the cluster's database was when the node last wrote that down (bridges/cluster/marks.py)."""
        try:
            make_directories(Files(), path)
            self._lock = HeldFile(path / "lock")
        except BlockingIOError as error:
            holder = (path / "lock").read_bytes()[:20].decode("ascii", "replace").strip()
            who = f"process {holder}" if holder else "another process"
            raise StoreLocked(f"data directory {path} is in use by {who}; a directory serves one node") from error
        except OSError as error:
            raise StoreError(f"cannot use data directory {path}: {error.strerror}") from error
        # Not before the lock is held: the file tells who holds it.
        os.ftruncate(self._lock.fd, 0)
        os.pwrite(self._lock.fd, f"{os.getpid()}\n".encode(), 0)

    def is_held(self) -> bool:
        """Whether the directory is still the one that was locked: somebody may have removed it."""
        return self._lock.is_there()

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write ``content`` as JSON such that a reader sees either no file or all of it."""
    write_file(path, json.dumps(content) + "\n")


def write_file(path: Path, text: str) -> None:
    """Write ``text`` such that a reader sees what was there before or all of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
