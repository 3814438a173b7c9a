"""Opening a store whose acknowledged data is damaged: a preview of what would be lost, and the opening itself.

The preview recovers the store's files under other names: links in a directory of its own, behind which nothing is
written. So it reports exactly what the real recovery would do.

Data that was moved to objects does not matter here: lists on the disk say what ranges have there, and the objects are
not read. Data moved from behind the place where the log is cut counts as moved at the log's new end: what is written
from there on is newer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.disk.files import Files, ending, write_all
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.object_log.range_objects.moved import moved_before, moved_rows
from sbp_back.range_server.store.layout.format import BLOCK
from sbp_back.range_server.store.layout.lock import DirectoryLock
from sbp_back.range_server.store.opening.recovery import ACCEPTED, LOSSES, Recovered, Recovery
from sbp_back.range_server.store.options import MOVED, StoreOptions
from sbp_back.range_server.store.store import Store


class Loss(Struct):
    """Data that opening the store would give up. ``damage``: sentences of recovery. ``set_aside``: bytes in segments
    that are not read again, which stay on the disk as ``*.damaged``; ``cut``: bytes behind the place where the log ends
    then, ``end``. ``gaps``: offsets that are missing inside of ranges: (stream, range, first, end).
    """

    damage: list[str] = field(default_factory=list)
    set_aside: dict[str, int] = field(default_factory=dict)
    cut: int = 0
    end: int = 0
    gaps: list[tuple[int, int, int, int]] = field(default_factory=list)

    def sentences(self) -> list[str]:
        found = list(self.damage)
        found += [f"segment {name} is set aside with {size} bytes" for name, size in sorted(self.set_aside.items())]
        if self.cut:
            found.append(f"{self.cut} bytes behind the end of the log are cut off")
        for stream_id, index, first, end in self.gaps:
            found.append(f"offsets {first} to {end - 1} of range {index} of stream {stream_id} cannot be read")
        return found


class _Looking(Files):
    """Files that are read behind links, and never changed there."""

    def __init__(self) -> None:
        super().__init__()
        self._linked: set[int] = set()
        self.cut = 0

    def open(self, path: Path, flags: int) -> int:
        if not path.is_symlink():
            return super().open(path, flags)
        fd = super().open(path, os.O_RDONLY)
        self._linked.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._linked.discard(fd)
        super().close(fd)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        if fd in self._linked:
            return sum(memoryview(part).nbytes for part in parts)
        return super().write(fd, parts, offset, False)

    def truncate(self, fd: int, size: int) -> None:
        if fd in self._linked:
            self.cut += max(0, self.size(fd) - size)
        else:
            super().truncate(fd, size)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if fd not in self._linked:
            super().allocate(fd, offset, size)

    def sync(self, fd: int) -> None:
        """Do nothing: the files are temporary."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing: the directory is temporary."""


def find_loss(directory: Path, options: StoreOptions) -> Loss:
    """Return what opening the store with ``accept_data_loss`` would give up: no ``damage`` for a store that is not
    damaged.

    Changes nothing. Raises ``StoreLocked`` while it is in use, ``StoreVersionError``, ``OSError``, and ``StoreCorrupt``
    where the lists of moved data are damaged.
    """
    files = _Looking()
    lock = DirectoryLock(directory, directory / "wal", options)
    try:
        with TemporaryDirectory(prefix="anabranch-look-") as name:
            for part in ("wal", "ckpt"):
                (Path(name) / part).mkdir()
                for path in ending(directory / part, ""):
                    (Path(name) / part / path.name).symlink_to(path.resolve())
            if (directory / LOSSES).exists():
                (Path(name) / LOSSES).symlink_to((directory / LOSSES).resolve())
            wal = Path(name) / "wal"
            accepting = replace(options, files=files, accept_data_loss=True)
            moved = moved_rows(directory / MOVED)
            recovered = Recovery(wal, Path(name) / "ckpt", accepting, lock.cluster_id, moved).run()
            damage = [text.removeprefix(ACCEPTED) for text in recovered.messages if text.startswith(ACCEPTED)]
            if not damage:
                return Loss()
            aside = {path.stem: path.stat().st_size for path in ending(wal, ".damaged")}
            before = {path.stem for path in ending(directory / "wal", ".damaged")}
            gaps = [
                (stored.stream_id, stored.index, *gap)
                for stored in recovered.state.ranges.values()
                for gap in stored.gaps()
            ]
            aside = {name: size for name, size in aside.items() if name not in before}
            return Loss(damage, aside, files.cut, _end(recovered), gaps)
    finally:
        lock.release()


def _end(recovered: Recovered) -> int:
    """Return the position at which the log goes on."""
    last = recovered.segments[-1] if recovered.segments else None
    return recovered.next_base + BLOCK if last is None or last.sealed else last.base + last.used


class _Accepting(Store):
    """A store that is opened only to be closed again."""

    @classmethod
    def _recover(cls, path: Path, options: StoreOptions, lock: DirectoryLock) -> Recovered:
        return Recovery(path / "wal", path / "ckpt", options, lock.cluster_id, moved_rows(path / MOVED)).run()


def accept(directory: Path, options: StoreOptions, loss: Loss) -> list[str]:
    """Open the store with what is left of it and close it again, so that it can be opened from now on; return what was
    done. The file :data:`~sbp_back.range_server.store.opening.recovery.LOSSES` lists what was given up. Raises
    ``StoreError`` and ``OSError``.
    """
    files = Files()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = json.dumps({"time": now, "lost": loss.sentences(), "gaps": loss.gaps}).encode()
    fd = files.open(directory / LOSSES, os.O_RDWR | os.O_CREAT)
    try:
        write_all(files, fd, b"\n" + line + b"\n", files.size(fd))  # behind a segment that a crash left without an end
        files.sync(fd)
    finally:
        files.close(fd)
    files.sync_directory(directory)
    moved_before(directory / MOVED, files, loss.end)
    store = _Accepting.open(directory, replace(options, accept_data_loss=True))
    messages = list(store.messages)
    store.close()
    return messages
