"""The LOCK file: keeps a data directory to one process, and names the directory's cluster and server."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from anabranch_kit.disk.files import Files, ending, read_range, write_all
from anabranch_kit.disk.held import HeldFile
from anabranch_kit.errors import StoreLocked, StoreVersionError
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.layout.format import BLOCK, FORMAT_VERSION, decode_segment_header
from sbp_back.range_server.store.options import StoreOptions

_MAX_BYTES = 4096


class DirectoryLock:
    """A lock on a data directory, held from construction to :meth:`release`.

    The file has one JSON line: format version, cluster id, server id (-1 until one is known), and the identity of the
    placement driver that gave it (absent or empty until that is known). ``new_cluster`` returns the cluster id of a new
    directory, where ``options`` have none. Raises ``StoreLocked``, ``StoreVersionError`` and ``OSError``.
    """

    def __init__(
        self,
        directory: Path,
        wal: Path,
        options: StoreOptions,
        new_cluster: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._files = options.files
        self._directory = directory
        try:
            self._held = HeldFile(directory / "LOCK", self._files)
        except BlockingIOError as error:
            raise StoreLocked(f"{directory} is in use by another process") from error
        try:
            self._load(wal, options, new_cluster)
        except BaseException:
            self.release()
            raise

    def _load(self, wal: Path, options: StoreOptions, new_cluster: Callable[[], str]) -> None:
        stored = bytes(read_range(self._files, self._held.fd, 0, _MAX_BYTES)).rstrip(b"\0\n ")
        fresh = not stored
        self.placement_driver = ""
        if fresh:
            # A crash may have come between creating the file and writing it. A segment has the identity, too.
            self.cluster_id, self.server_id = _identity_of_segments(self._files, wal) or (
                options.cluster_id or new_cluster(),
                -1 if options.server_id is None else options.server_id,
            )
        else:
            try:
                fields = json.loads(stored)
                version = fields["format_version"]
                self.cluster_id = str(fields["cluster_id"])
                self.server_id = int(fields["server_id"])
                # Absent in files of earlier releases.
                self.placement_driver = str(fields.get("placement_driver", ""))
            except (ValueError, KeyError, TypeError) as error:
                raise StoreVersionError(f"{self._directory / 'LOCK'} is not a LOCK file of this program") from error
            if version != FORMAT_VERSION:
                raise StoreVersionError(
                    f"{self._directory} has format version {version}, this program reads {FORMAT_VERSION}"
                )
        if options.cluster_id is not None and options.cluster_id != self.cluster_id:
            raise StoreVersionError(
                f"{self._directory} belongs to cluster {self.cluster_id!r}, not to {options.cluster_id!r}"
            )
        if options.server_id is not None and options.server_id != self.server_id:
            if self.server_id >= 0:
                raise StoreVersionError(
                    f"{self._directory} belongs to range server {self.server_id}, not to {options.server_id}"
                )
            self.server_id = options.server_id
            fresh = True
        if fresh:
            self._write()

    def assign(self, server_id: int) -> None:
        """Record the id the placement driver gave; it never changes afterwards. Raises ``StoreVersionError``."""
        if self.server_id == server_id:
            return
        if self.server_id >= 0:
            raise StoreVersionError(f"{self._directory} already belongs to range server {self.server_id}")
        self.server_id = server_id
        self._write()

    def follow(self, server_id: int) -> None:
        """Take the server id from the log that the directory only caches; -1: none yet."""
        if self.server_id != server_id:
            self.server_id = server_id
            self._write()

    def belong(self, placement_driver: str) -> None:
        """Record the placement driver of the ranges; written together with the server id, which comes from it."""
        if self.placement_driver == placement_driver:
            return
        if self.placement_driver and self.server_id >= 0:
            raise StoreVersionError(f"{self._directory} belongs to placement driver {self.placement_driver}")
        self.placement_driver = placement_driver
        if self.server_id >= 0:
            self._write()

    def _write(self) -> None:
        fields = {
            "format_version": FORMAT_VERSION,
            "cluster_id": self.cluster_id,
            "server_id": self.server_id,
            "placement_driver": self.placement_driver,
        }
        # One padded block: a shorter line must overwrite all of a longer one.
        write_all(self._files, self._held.fd, json.dumps(fields).encode().ljust(512) + b"\n", 0)
        self._files.sync(self._held.fd)
        self._files.sync_directory(self._directory)

    def is_held(self) -> bool:
        """Return whether the directory is still the one that was locked: it may have been removed."""
        return self._held.is_there()

    def release(self) -> None:
        self._held.release()


def _identity_of_segments(files: Files, wal: Path) -> tuple[str, int] | None:
    for path in sorted(ending(wal, ".seg")):
        fd = files.open(path, os.O_RDONLY)
        try:
            header = decode_segment_header(read_range(files, fd, 0, BLOCK))
        except DecodeError:
            continue  # recovery reports its damage
        finally:
            files.close(fd)
        return header.cluster_id, header.server_id
    return None
