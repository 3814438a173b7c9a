"""A copy of a log's files, made while a store may be writing them (``anabranch backup``).

The groups of a segment never change, and a group is written only after the one before it. So what was copied stays
right, and a copy that ends behind a whole group is what a crash at that moment would have left. A segment that is
deleted meanwhile was emptied by records in the tail, which is copied later. Index files are left out: the first start
rebuilds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from anabranch_kit.disk.files import Files, ending, make_directories, read_range, write_all
from anabranch_kit.errors import StoreCorrupt
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.layout.checkpoint import checkpoint_files
from sbp_back.range_server.store.layout.format import BLOCK, decode_segment_header
from sbp_back.range_server.store.layout.scan import SegmentScanner
from sbp_back.wire.frame import crc32

_PIECE = 4 * 1024 * 1024
_FILES = Files()


class FileSum(Struct):
    """The size of a file, and the CRC-32 of its bytes."""

    size: int = 0
    crc: int = 0


def copy_file(
    source: Path, target: Path, have: FileSum, end: int | None = None, check: Callable[[], None] = lambda: None
) -> None:
    """Copy ``source`` from ``have.size`` on, to ``end`` or to its end, and count that in ``have``.

    ``check`` is called between pieces; what it raises ends the copy, which may go on later. Raises OSError.
    """
    fd = _FILES.open(source, os.O_RDONLY)
    try:
        to = _FILES.open(target, os.O_WRONLY | os.O_CREAT)
        try:
            while end is None or have.size < end:
                check()
                piece = read_range(_FILES, fd, have.size, _PIECE if end is None else min(_PIECE, end - have.size))
                if not piece:
                    break
                write_all(_FILES, to, piece, have.size)
                have.crc = crc32(piece, have.crc)
                have.size += len(piece)
        finally:
            _FILES.close(to)
    finally:
        _FILES.close(fd)


class LogBackup:
    """A copy of the log in the store's directory ``store``, in ``target``."""

    def __init__(self, store: Path, target: Path) -> None:
        self._store = store
        self._target = target
        self._complete: set[str] = set()
        self.copied: dict[str, FileSum] = {}
        """By path below ``store``."""
        for name in ("wal", "ckpt"):
            make_directories(_FILES, target / name)

    def catch_up(self, check: Callable[[], None] = lambda: None) -> int:
        """Copy what the copy lacks; return how many bytes of segments that was. ``check``: as in :func:`copy_file`.

        Raises OSError, and StoreCorrupt if a group that was acknowledged is damaged.
        """
        while True:
            done = self._copy_checkpoints(check)
            count = self._copy_segments(check)
            # A segment goes once two checkpoints are behind it: the copied ones need none that went since.
            if done == self._list_checkpoints():
                return count

    def _list_checkpoints(self) -> list[str]:
        return [f"ckpt/{path.name}" for path in checkpoint_files(self._store / "ckpt")]

    def _copy_checkpoints(self, check: Callable[[], None]) -> list[str]:
        names = self._list_checkpoints()
        for name in [name for name in self.copied if name.startswith("ckpt/")]:
            self._drop(name)
        for name in names:
            with suppress(FileNotFoundError):  # a newer one has taken its place
                self._copy(name, None, check)
        return names

    def _copy_segments(self, check: Callable[[], None]) -> int:
        names = sorted(f"wal/{path.name}" for path in ending(self._store / "wal", ".seg"))
        for name in [name for name in self.copied if name.startswith("wal/") and name not in names]:
            self._drop(name)
        count = 0
        for name, following in zip(names, [*names[1:], None], strict=True):
            if name in self._complete:
                continue
            try:
                if following is not None and self._has_groups(following):
                    count += self._copy(name, None, check)
                    self._complete.add(name)
                else:
                    return count + self._copy(name, self._find_end(name), check)
            except FileNotFoundError:
                self._drop(name)
        return count

    def _copy(self, name: str, end: int | None, check: Callable[[], None]) -> int:
        have = self.copied.setdefault(name, FileSum())
        before = have.size
        copy_file(self._store / name, self._target / name, have, end, check)
        return have.size - before

    def _drop(self, name: str) -> None:
        """Remove a file from the copy that the log no longer has."""
        self.copied.pop(name, None)
        (self._target / name).unlink(missing_ok=True)

    def _find_end(self, name: str) -> int:
        """Return the end of the last group of a segment, BLOCK without any. Raises FileNotFoundError."""
        end = max(self.copied[name].size if name in self.copied else 0, BLOCK)
        stuck = 0
        while stuck < 2:  # a group that was being written when it was read is whole the next time
            before = end
            with self._scanned(name) as scanner:
                for group in scanner.groups(end):
                    end = group.end
                if scanner.find_group(end + BLOCK, 0) is None:
                    return end
            stuck = stuck + 1 if end == before else 0
        raise StoreCorrupt(
            f"acknowledged data is damaged: {self._store / name}, position {end}: a group is missing before a later one"
        )

    def _has_groups(self, name: str) -> bool:
        try:
            with self._scanned(name) as scanner:
                return scanner.group_at(BLOCK) is not None
        except FileNotFoundError:
            return True  # only segments that were written to the end are deleted

    @contextmanager
    def _scanned(self, name: str) -> Iterator[SegmentScanner]:
        fd = _FILES.open(self._store / name, os.O_RDONLY)
        try:
            header = decode_segment_header(read_range(_FILES, fd, 0, BLOCK))
            yield SegmentScanner(_FILES, fd, header.base, header.salt)
        except DecodeError as error:
            raise StoreCorrupt(f"acknowledged data is damaged: {self._store / name}, position 0: {error}") from None
        finally:
            _FILES.close(fd)
