"""What the kernel is given in pieces arrives as one, or is told as one that was cut short."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_back import files as module
from sbp_back.files import PIECE, Files, pieces


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
