"""The data directory: its lock, which one process holds at a time, and the places of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from anabranch_kit.disk.files import Files, make_directories
from anabranch_kit.disk.held import HeldFile
from anabranch_kit.errors import StoreError, StoreLocked

DATABASE = "node.db"
"""Name of the file with the metadata."""
BACKUP = "backup.json"
"""Name of the file that makes a directory a backup, or a half restored one (bridges/node/storage/backup.py)."""
RESTORED = "restored.json"
"""Name of the file in a directory that was restored from a backup."""


class Restored(Struct):
    """Times of a restored directory, in UTC: when its backup was taken, and when it was restored."""

    backup_taken: str
    restored: str


class DataDirectory:
    """A directory held by this process until :meth:`release`, or the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Create the directory if necessary, and lock it. Raises StoreLocked (another process holds it) or
        StoreError.
        """
        self.path = path
        self.database = path / DATABASE
        self.backend = path / "sbp"
        self.cluster = path / "cluster"
        """Contains the id of the cluster to which the node belongs, if any."""
        self.mark = path / "mark"
        """The last mark of the cluster's database (bridges/cluster/marks.py)."""
        try:
            make_directories(Files(), path)
            self._lock = HeldFile(path / "lock")
        except BlockingIOError as error:
            holder = (path / "lock").read_bytes()[:20].decode("ascii", "replace").strip()
            who = f"process {holder}" if holder else "another process"
            raise StoreLocked(f"data directory {path} is in use by {who}; a directory serves one node") from error
        except OSError as error:
            raise StoreError(f"cannot use data directory {path}: {error.strerror}") from error
        # Only with the lock held: the file names its holder.
        os.ftruncate(self._lock.fd, 0)
        os.pwrite(self._lock.fd, f"{os.getpid()}\n".encode(), 0)

    def is_held(self) -> bool:
        """Return whether the directory is still the one that was locked: an operator may have removed it."""
        return self._lock.is_there()

    def read_restored(self) -> Restored | None:
        """Return when the directory was restored from a backup, None if it never was. Raises StoreError, OSError."""
        try:
            return msgspec.json.decode((self.path / RESTORED).read_bytes(), type=Restored)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.path / RESTORED} is damaged: {error}; remove it") from error

    def release(self) -> None:
        self._lock.release()


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write ``content`` as JSON, so that a reader sees either no file or the whole content."""
    write_file(path, json.dumps(content) + "\n")


def write_file(path: Path, text: str) -> None:
    """Write ``text``, so that a reader sees either the old content or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
