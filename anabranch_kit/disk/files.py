"""All file system operations of the store, behind one class, so that tests can make each of them fail.

Abilities that some file systems lack (:class:`Files` lists them) are probed when a store is opened
(:meth:`Files.probe`), or else when they are first used, and done without from then on. The system calls and their flags
are part of what :class:`Files` promises: tests put a disk of their own below it (:class:`SystemCalls`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from anabranch_kit.memory.buffers import Buffer, fresh

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the kernel answers when there is no room: unlike EIO, nothing that was durable is in doubt."""

DSYNC = getattr(os, "RWF_DSYNC", 0)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

_LACKING = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""Errors with which a file system, or an old kernel, rejects an unknown operation."""

_HEEDS_DSYNC = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "tmpfs"})
"""File systems that honour ``RWF_DSYNC``. Some others (9p, FUSE of older kernels) accept the flag and do nothing,
without an error.
"""
_OCTAL = re.compile(r"\\([0-7]{3})")
_BLOCK = bytes(4096)

PIECE = 1 << 20
"""Bytes per call to the kernel. From 2 MiB on ext4 takes huge pages for its cache: virtual machines that return free
pages to their host have to fetch each again, which makes the write up to ten times as expensive (docs/storage.md,
"Groups of more than 1 MiB").
"""


def is_disk_full(error: OSError) -> bool:
    return error.errno in DISK_FULL_ERRNOS


class SystemCalls(Protocol):
    """System calls of :class:`Files`, with the signatures of the module :mod:`os`."""

    def open(self, path: Path, flags: int, mode: int = ...) -> int: ...
    def close(self, fd: int) -> None: ...
    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = ..., /) -> int: ...
    def preadv(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = ..., /) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def fdatasync(self, fd: int) -> None: ...
    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None: ...
    def ftruncate(self, fd: int, length: int) -> None: ...
    def fstat(self, fd: int) -> os.stat_result: ...
    def lseek(self, fd: int, position: int, whence: int, /) -> int: ...
    def rename(self, src: Path, dst: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def mkdir(self, path: Path) -> None: ...
    def statvfs(self, path: Path) -> os.statvfs_result: ...


class Files:
    """The file system. Methods raise ``OSError`` and may be called from any thread.

    Done without where the file system lacks it: reads that never wait (``RWF_NOWAIT``; the caller repeats the read on a
    thread), writes that flush only what they write (``RWF_DSYNC``; the file is flushed), reserving space (a full disk
    shows up while writing), looking for holes (the file counts as having none), flushing a directory.
    """

    def __init__(self, calls: SystemCalls = os) -> None:
        self._calls = calls
        self._dsync = DSYNC
        self._nowait = _NOWAIT
        self._reserves = True
        self._tells_holes = True
        self._flushes_directories = True

    def probe(self, directory: Path) -> list[str]:
        """Probe the file system of ``directory``; return the missing abilities that an operator should know of."""
        if file_system_of(directory) not in _HEEDS_DSYNC:
            self._dsync = 0
        path = directory / "probe.tmp"
        fd = Files.open(self, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            Files.allocate(self, fd, 0, len(_BLOCK))
            Files.write(self, fd, [_BLOCK], 0, True)
            with suppress(BlockingIOError):
                Files.scatter_cached(self, fd, [bytearray(len(_BLOCK))], 0)
            Files.next_data(self, fd, 0)
        except OSError as error:
            if not is_disk_full(error):
                raise
        finally:
            Files.close(self, fd)
            Files.unlink(self, path)
        Files.sync_directory(self, directory)
        return [
            f"the file system of {directory} {lacks}"
            for known, lacks in (
                (self._nowait, "cannot tell what is in memory: every read goes through a thread"),
                (self._reserves, "cannot reserve space: that the disk is full shows up while writing only"),
                (self._flushes_directories, "cannot flush directories: a loss of power may take new files away"),
            )
            if not known
        ]

    def open(self, path: Path, flags: int) -> int:
        return self._calls.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        self._calls.close(fd)

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        """Write ``parts`` at ``offset``; when ``durable``, return after they reached stable media. Return the bytes
        written.
        """
        if sum(map(len, parts)) > PIECE:
            return self._write_pieces(fd, parts, offset, durable)
        if not durable:
            return self._calls.pwritev(fd, parts, offset)
        if self._dsync:
            try:
                return self._calls.pwritev(fd, parts, offset, self._dsync)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                self._dsync = 0
        written = self._calls.pwritev(fd, parts, offset)
        self._calls.fdatasync(fd)
        return written

    def _write_pieces(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        written = 0
        for piece, size in pieces(parts):
            try:
                done = self._calls.pwritev(fd, piece, offset + written)
            except OSError:
                if not written:
                    raise
                return written  # like a write that the kernel ended early: the next write reports why
            written += done
            if done < size:
                return written
        if durable:
            self._calls.fdatasync(fd)
        return written

    def read(self, fd: int, buffer: Buffer, offset: int) -> int:
        return self._calls.preadv(fd, [buffer], offset)

    def scatter(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Fill ``buffers`` one after the other, at most 1,024; return the bytes read."""
        return self._calls.preadv(fd, buffers, offset)

    def scatter_cached(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Fill ``buffers`` as far as that needs no disk; raises ``BlockingIOError`` when nothing can be read so, or the
        system cannot tell.
        """
        if self._nowait:
            try:
                return self._calls.preadv(fd, buffers, offset, self._nowait)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                self._nowait = 0
        raise BlockingIOError(errno.EAGAIN, "reads without waiting are not available here")

    def sync(self, fd: int) -> None:
        self._calls.fsync(fd)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Reserve disk blocks, so that a later write there cannot run out of space, where the file system can."""
        if self._reserves:
            try:
                self._calls.posix_fallocate(fd, offset, size)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                self._reserves = False

    def truncate(self, fd: int, size: int) -> None:
        self._calls.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return self._calls.fstat(fd).st_size

    def next_data(self, fd: int, offset: int) -> int | None:
        """Return where the next bytes that are not a hole begin at or after ``offset``; None when only a hole is
        left.
        """
        found = self._sought(fd, offset, os.SEEK_DATA)
        if found is None and not self._tells_holes and offset < self.size(fd):
            return offset
        return found

    def next_hole(self, fd: int, offset: int) -> int:
        """Return the end of the data that begins at ``offset``: the next hole, or the end of the file; ``offset``
        itself where the system cannot tell.
        """
        found = self._sought(fd, offset, os.SEEK_HOLE)
        return offset if found is None else found

    def _sought(self, fd: int, offset: int, whence: int) -> int | None:
        """Return the result of ``lseek`` from ``offset``; None where the file has nothing more of the kind, or the file
        system cannot tell.
        """
        if self._tells_holes:
            try:
                return self._calls.lseek(fd, offset, whence)
            except OSError as error:
                if error.errno in _LACKING:
                    self._tells_holes = False
                elif error.errno != errno.ENXIO:
                    raise
        return None

    def rename(self, source: Path, target: Path) -> None:
        self._calls.rename(source, target)

    def unlink(self, path: Path) -> None:
        self._calls.unlink(path)

    def make_directory(self, path: Path) -> None:
        """Make a directory. Raises ``FileExistsError`` when it exists."""
        self._calls.mkdir(path)

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in a directory durable."""
        fd = self._calls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._calls.fsync(fd)
        except OSError as error:
            if error.errno not in _LACKING:
                raise
            self._flushes_directories = False
        finally:
            self._calls.close(fd)

    def free_bytes(self, path: Path) -> int:
        """Return the bytes an unprivileged process can still allocate on the file system of ``path``."""
        status = self._calls.statvfs(path)
        return status.f_bavail * status.f_frsize


def file_system_of(directory: Path) -> str:
    """Return the name of the file system that a directory is on; empty where the system does not say."""
    path = os.fspath(directory.resolve())
    found, kind = -1, ""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, behind = line.partition(" - ")
        # proc(5): the fifth field is where it is mounted, with blanks and the like as octal numbers.
        at = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4]).rstrip("/")
        if len(at) >= found and (path + "/").startswith(at + "/"):
            found, kind = len(at), behind.split(" ")[0]
    return kind


def pieces(parts: Sequence[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    """Yield ``parts`` in pieces of at most :data:`PIECE` bytes, with the bytes of each; nothing is copied."""
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
    """Make a directory, and missing ones above it, so that none of them vanishes in a crash."""
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
    """Return the paths in a directory whose names end with ``suffix``."""
    return [directory / name for name in os.listdir(directory) if name.endswith(suffix)]


def read_range(files: Files, fd: int, offset: int, size: int) -> bytearray:
    """Read up to ``size`` bytes from ``offset``: fewer only at the end of the file."""
    buffer = fresh(size)
    del buffer[read_into(files, fd, buffer, offset) :]
    return buffer


def read_into(files: Files, fd: int, buffer: bytearray, offset: int) -> int:
    """Fill ``buffer`` with the bytes from ``offset``; return how many: fewer only at the end of the file."""
    done = 0
    with memoryview(buffer) as view:
        while done < len(view):
            got = files.read(fd, view[done:], offset + done)
            if got <= 0:
                break
            done += got
    return done
