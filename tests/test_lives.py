"""A scenario that fails, in the child or here, ends its test with the error at once."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.lives import Lives, hear_life


def broken(path: str, address: str, kill_at: int | None, pipe: Connection) -> None:
    raise ValueError("no node can be made here")


def broken_at_its_end(path: str, address: str, kill_at: int | None, pipe: Connection) -> None:
    pipe.send(address)
    pipe.recv()
    raise ValueError("not all was carried out")


def endless(path: str, address: str, kill_at: int | None, pipe: Connection) -> None:
    pipe.send(address)
    time.sleep(3600)  # until it is killed


def test_the_error_of_a_life_is_that_of_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no node can be made here"), Lives(tmp_path, None, broken):
        raise RuntimeError("it does not serve")
    with pytest.raises(AssertionError, match="no node can be made here"):
        hear_life(broken, str(tmp_path), "", None)
    with (
        pytest.raises(AssertionError, match="not all was carried out"),
        Lives(tmp_path, None, broken_at_its_end) as one,
    ):
        one.end()


def test_a_test_that_fails_waits_for_no_life(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lives(tmp_path, None, endless) as one:
        raise ZeroDivisionError
    assert one.process is not None
    assert not one.process.is_alive()
