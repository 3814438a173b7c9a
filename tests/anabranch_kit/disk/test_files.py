"""What the kernel is given in pieces arrives as one, or is told as one that was cut short."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.disk import files as module
from anabranch_kit.disk.files import PIECE, Files, pieces
from anabranch_kit.memory.buffers import Buffer


@given(st.lists(st.integers(0, 3 * PIECE), max_size=6))
def test_pieces_are_all_there_is_in_order_and_none_is_larger_than_allowed(sizes: list[int]) -> None:
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    told = [(b"".join(piece), size) for piece, size in pieces(parts)]
    assert all(len(piece) == size for piece, size in told)
    assert all(size == PIECE for _, size in told[:-1])
    assert all(0 < size <= PIECE for _, size in told)
    assert b"".join(piece for piece, _ in told) == b"".join(parts)


@pytest.mark.parametrize("durable", [False, True])
def test_a_large_write_arrives_and_is_flushed_once(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[int] = []
    written: list[int] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def write(fd: int, parts: list[memoryview], *rest: int) -> int:
        written.append(pwritev(fd, parts, *rest))
        return written[-1]

    def flush(fd: int) -> None:
        flushes.append(len(written))
        fdatasync(fd)

    monkeypatch.setattr(module.os, "pwritev", write)
    monkeypatch.setattr(module.os, "fdatasync", flush)
    data = os.urandom(2 * PIECE + 77)
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    parts = [data[:5], memoryview(data)[5 : PIECE + 9], bytearray(data[PIECE + 9 :])]
    assert Files().write(fd, parts, 4096, durable) == len(data)
    assert written == [PIECE, PIECE, 77]
    assert flushes == ([3] if durable else [])
    assert os.pread(fd, 3 * PIECE, 4096) == data
    os.close(fd)


def test_a_large_write_that_the_kernel_cuts_short_tells_how_much_it_took_and_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    calls = 0
    pwritev = os.pwritev

    def second_is_short(fd: int, parts: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        return pwritev(fd, [parts[0][:10]] if calls == 2 else parts, offset)

    def second_fails(fd: int, parts: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "full")
        return pwritev(fd, parts, offset)

    monkeypatch.setattr(module.os, "fdatasync", lambda fd: pytest.fail("flushed"))
    monkeypatch.setattr(module.os, "pwritev", second_is_short)
    assert Files().write(fd, [bytes(3 * PIECE)], 0, True) == PIECE + 10
    calls = 0
    monkeypatch.setattr(module.os, "pwritev", second_fails)
    assert Files().write(fd, [bytes(3 * PIECE)], 0, True) == PIECE
    calls = 1
    with pytest.raises(OSError, match="full"):
        Files().write(fd, [bytes(3 * PIECE)], 0, True)
    os.close(fd)


class OtherFileSystem:
    """The system calls as on file systems that lack some things, each told by ``lacking``; notes what was asked."""

    def __init__(self, *lacking: str, told: int = errno.EOPNOTSUPP) -> None:
        self.lacking = lacking
        self.told = told
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _refuse(self, what: str) -> None:
        self.asked.append(what)
        if what in self.lacking:
            raise OSError(self.told, os.strerror(self.told))

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = 0, /) -> int:
        self._refuse("dsync" if flags else "write")
        return os.pwritev(fd, buffers, offset, flags)

    def preadv(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = 0, /) -> int:
        self._refuse("nowait" if flags else "read")
        return os.preadv(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._refuse("fdatasync")

    def fsync(self, fd: int) -> None:
        self._refuse("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "fsync")

    def posix_fallocate(self, fd: int, offset: int, length: int, /) -> None:
        self._refuse("allocate")
        os.posix_fallocate(fd, offset, length)

    def lseek(self, fd: int, position: int, whence: int, /) -> int:
        self._refuse("holes")
        return os.lseek(fd, position, whence)


def test_a_write_is_flushed_where_the_flag_for_it_is_not_known(tmp_path: Path) -> None:
    calls = OtherFileSystem("dsync")
    files = Files(calls)
    fd = files.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    assert files.write(fd, [b"one"], 0, True) == 3
    assert files.write(fd, [b"two"], 3, True) == 3
    assert calls.asked == ["dsync", "write", "fdatasync", "write", "fdatasync"]
    assert os.pread(fd, 10, 0) == b"onetwo"
    files.close(fd)


def test_a_write_is_flushed_where_the_flag_for_it_may_be_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9p takes the flag and does nothing: only its name tells."""
    monkeypatch.setattr(module, "file_system_of", lambda _directory: "9p")
    calls = OtherFileSystem()
    files = Files(calls)
    files.probe(tmp_path)
    calls.asked.clear()
    fd = files.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    files.write(fd, [b"one"], 0, True)
    assert calls.asked == ["write", "fdatasync"]
    files.close(fd)


@pytest.mark.parametrize("told", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_what_a_file_system_lacks_is_done_without_and_told_once(told: int, tmp_path: Path) -> None:
    calls = OtherFileSystem("nowait", "allocate", "holes", "directory", told=told)
    files = Files(calls)
    assert [message.split(" cannot ")[1].split(":")[0] for message in files.probe(tmp_path)] == [
        "tell what is in memory",
        "reserve space",
        "flush directories",
    ]
    assert os.listdir(tmp_path) == []
    calls.asked.clear()
    fd = files.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    files.allocate(fd, 0, 4096)
    files.write(fd, [b"x" * 100], 0, True)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            files.scatter_cached(fd, [bytearray(10)], 0)
    assert files.next_data(fd, 50) == 50
    assert files.next_data(fd, 100) is None
    assert files.next_hole(fd, 50) == 50
    assert calls.asked == ["dsync"]
    files.close(fd)


def test_another_error_is_not_taken_for_something_that_is_lacking(tmp_path: Path) -> None:
    calls = OtherFileSystem("dsync", "nowait", "allocate", "holes", told=errno.EIO)
    files = Files(calls)
    fd = files.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            files.write(fd, [b"x"], 0, True)
        with pytest.raises(OSError, match="Input/output"):
            files.scatter_cached(fd, [bytearray(10)], 0)
        with pytest.raises(OSError, match="Input/output"):
            files.allocate(fd, 0, 4096)
        with pytest.raises(OSError, match="Input/output"):
            files.next_hole(fd, 0)
    files.close(fd)


def test_a_full_disk_does_not_keep_a_store_from_being_opened(tmp_path: Path) -> None:
    assert Files(OtherFileSystem("allocate", told=errno.ENOSPC)).probe(tmp_path) == []


def test_the_file_system_of_a_directory_is_told(tmp_path: Path) -> None:
    kinds = dict(line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    assert module.file_system_of(Path("/proc/self")) == "proc"
    if "/dev/shm" in kinds:
        assert module.file_system_of(Path("/dev/shm")) == kinds["/dev/shm"]
    assert module.file_system_of(tmp_path) in kinds.values()
