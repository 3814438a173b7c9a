"""Whole processes on a disk that may lose its power: SQLite's system calls are recorded beside the store's, in one
order.

``power_trace.c`` stands before libc in the process (LD_PRELOAD) and writes down what the kernel is asked to do with
files below a directory. :func:`steps` tells that to the disk of ``sbp_back/range_server/store/power_loss.py``, which
knows the states that may be found after the power went.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import pytest

from tests.sbp_back.range_server.store.power_loss import Step

_HEAD = struct.Struct("=IIQqQ")
_SOURCE = Path(__file__).with_name("power_trace.c")


class What(IntEnum):
    CREATE = 1
    WRITE = 2
    WRITE_FLUSHED = 3
    SYNC = 4
    ALLOCATE = 5
    TRUNCATE = 6
    RENAME = 7
    UNLINK = 8
    MKDIR = 9
    RMDIR = 10
    SYNC_DIRECTORY = 11
    MAPPED = 12


def built(directory: Path) -> Path:
    """The library for LD_PRELOAD; skips where there is no compiler, or no Linux."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or os.uname().sysname != "Linux":
        message = "system calls are recorded with a C compiler, on Linux"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    library = directory / "power_trace.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True, timeout=60)
    return library


def steps(trace: bytes, start: int = 0) -> Iterator[tuple[int, Step]]:
    """What was done, and where in the trace each step ends. A last one that is not whole was not recorded yet.

    A flush's site is its kind and file, whose numbers do not matter."""
    numbers: dict[int, int] = {}
    known: dict[str, int] = {}
    created, at = 0, start
    while at + _HEAD.size <= len(trace):
        kind, length, inode, offset, size = _HEAD.unpack_from(trace, at)
        end = at + _HEAD.size + length + size
        if end > len(trace):
            return
        path = trace[at + _HEAD.size : at + _HEAD.size + length].decode() or "."
        data = trace[at + _HEAD.size + length : end]
        at = end
        place, name = os.path.split(path)
        place = place or "."
        site = f"of {re.sub('[0-9]+', 'N', path)}"
        what = What(kind)
        if what is What.CREATE:
            created += 1
            numbers[inode] = known[path] = created
            yield at, ("create", place, name, created)
        elif what in (What.WRITE, What.WRITE_FLUSHED):
            flushed = what is What.WRITE_FLUSHED
            # The power may go between a write and its flush: a place of its own, before the call is over.
            yield at - flushed, ("write", numbers[inode], offset, data)
            if flushed:
                yield at, ("flush", numbers[inode], offset, size, f"flushed write {site}")
        elif what is What.SYNC:
            yield at, ("sync", numbers[inode], f"flush {site}")
        elif what is What.ALLOCATE:
            yield at, ("allocate", numbers[inode], offset)
        elif what is What.TRUNCATE:
            yield at, ("truncate", numbers[inode], offset)
        elif what is What.RENAME:
            place_then, then = os.path.split(data.decode())
            assert (place_then or ".") == place, (path, data)
            yield at, ("rename", place, name, then)
        elif what is What.UNLINK:
            yield at, ("unlink", place, name)
        elif what is What.MKDIR:
            yield at, ("mkdir", place, name)
        elif what is What.SYNC_DIRECTORY:
            yield at, ("sync_directory", path, f"flush {site}")
        else:
            # What is written into a mapping nobody sees: SQLite's index of its log, which it makes anew.
            assert what is What.MAPPED, (what, path)
            assert path.endswith("-shm"), path
