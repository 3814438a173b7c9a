"""Every operation of the store on the file system, behind one class, so that tests can make each of them fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sbp_back.buffers import fresh
from sbp_back.wire.model import Buffer

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel answers when there is no room: unlike EIO, nothing that was durable is in doubt."""

_DSYNC = getattr(os, "RWF_DSYNC", 0)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


PIECE = 1 << 20
"""Bytes that the kernel is given at once.

From 2 MiB on ext4 takes huge pages for its cache: on virtual machines that give free ones back to their host, each has
to be got from there again, which makes the write up to ten times as expensive (docs/storage.md, "Groups of more than
1 MiB").
"""


def is_disk_full(error: OSError) -> bool:
    return error.errno in DISK_FULL_ERRNOS


class Files:
    """The real file system. Methods raise ``OSError`` and may be called from any thread."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        """Write ``parts`` at ``offset``; when ``durable``, return after they reached stable media. Bytes written."""
        if sum(map(len, parts)) > PIECE:
            return self._write_pieces(fd, parts, offset, durable)
        if not durable:
            return os.pwritev(fd, parts, offset)
        if _DSYNC:
            return os.pwritev(fd, parts, offset, _DSYNC)
        written = os.pwritev(fd, parts, offset)
        os.fsync(fd)
        return written

    def _write_pieces(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        written = 0
        for piece, size in pieces(parts):
            try:
                done = os.pwritev(fd, piece, offset + written)
            except OSError:
                if not written:
                    raise
                return written  # as of a write that the kernel ended early: the next one tells why
            written += done
            if done < size:
                return written
        if durable:
            os.fdatasync(fd)
        return written

    def read(self, fd: int, buffer: Buffer, offset: int) -> int:
        return os.preadv(fd, [buffer], offset)

    def read_cached(self, fd: int, buffer: Buffer, offset: int) -> int:
        """Bytes that could be read without waiting for the disk; raises ``BlockingIOError`` when there are none."""
        if not _NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "reads without waiting are not available here")
        return os.preadv(fd, [buffer], offset, _NOWAIT)

    def scatter(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill ``buffers`` one after the other, at most 1,024; bytes read."""
        return os.preadv(fd, buffers, offset)

    def scatter_cached(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """The same as far as that needs no disk; raises ``BlockingIOError`` when not even the first byte is there."""
        if not _NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "reads without waiting are not available here")
        return os.preadv(fd, buffers, offset, _NOWAIT)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Reserve disk blocks, so that a later write there cannot run out of space."""
        os.posix_fallocate(fd, offset, size)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def next_data(self, fd: int, offset: int) -> int | None:
        """Where the next bytes that are not a hole begin at or after ``offset``; None when only a hole is left."""
        return _sought(fd, offset, os.SEEK_DATA)

    def next_hole(self, fd: int, offset: int) -> int:
        """Up to where there are bytes from ``offset`` on: the next hole, or the end of the file."""
        found = _sought(fd, offset, os.SEEK_HOLE)
        return offset if found is None else found

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_directory(self, path: Path) -> None:
        """Raises ``FileExistsError`` when there is one."""
        os.mkdir(path)

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        """Bytes an unprivileged process can still allocate on the file system of ``path``."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def _sought(fd: int, offset: int, whence: int) -> int | None:
    """What the file system finds from ``offset`` on; None where the file has nothing more of it."""
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def pieces(parts: Sequence[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    """``parts`` in pieces of at most :data:`PIECE` bytes, with the bytes of each; nothing is copied."""
    piece: list[Buffer] = []
    size = 0
    for part in parts:
        rest = memoryview(part)
        while size + rest.nbytes > PIECE:
            room = PIECE - size
            if room:
                piece.append(rest[:room])
            yield piece, PIECE
            piece, size, rest = [], 0, rest[room:]
        piece.append(rest)
        size += rest.nbytes
    if size:
        yield piece, size


def write_all(files: Files, fd: int, data: Buffer, offset: int) -> None:
    """Write all of ``data``, not durably. Raises ``OSError``, also when the kernel takes nothing more."""
    view = memoryview(data)
    while view.nbytes:
        written = files.write(fd, [view], offset, False)
        if written <= 0:
            raise OSError(errno.EIO, "the kernel wrote nothing")
        view = view[written:]
        offset += written


def write_file_durably(files: Files, path: Path, parts: Sequence[Buffer]) -> None:
    """Replace ``path`` so that after a crash it holds either its old or its new content, whole."""
    temporary = path.with_name(path.name + ".tmp")
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        offset = 0
        for part in parts:
            write_all(files, fd, part, offset)
            offset += memoryview(part).nbytes
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def make_directories(files: Files, path: Path) -> None:
    """Make a directory, and those above it as far as they are missing, so that none of them vanishes in a crash."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with suppress(FileExistsError):
            files.make_directory(directory)
        with suppress(PermissionError):  # one may write into a directory without being allowed to open it
            files.sync_directory(directory.parent)


def ending(directory: Path, suffix: str) -> list[Path]:
    """What lies in a directory under names that end so."""
    return [directory / name for name in os.listdir(directory) if name.endswith(suffix)]


def read_range(files: Files, fd: int, offset: int, size: int) -> bytearray:
    """Up to ``size`` bytes from ``offset``: fewer only at the end of the file."""
    buffer = fresh(size)
    del buffer[read_into(files, fd, buffer, offset) :]
    return buffer


def read_into(files: Files, fd: int, buffer: bytearray, offset: int) -> int:
    """Fill ``buffer`` with the bytes from ``offset``; returns how many: fewer only at the end of the file."""
    done = 0
    with memoryview(buffer) as view:
        while done < len(view):
            got = files.read(fd, view[done:], offset + done)
            if got <= 0:
                break
            done += got
    return done
