"""``python standing_still.py -m bridges serve ...``: a node in which something stands still from SIGUSR1 to SIGUSR2."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from anabranch_kit.disk.files import Files
from anabranch_kit.sql.sqlite import SqliteEngine
from bridges.commands.cli import main

_goes_on = threading.Event()
_goes_on.set()


def stand_still() -> None:
    _goes_on.wait()


def _first_waits(of: type, method: str, thread: str) -> None:
    done: Callable[..., Any] = getattr(of, method)

    def waits(*args: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith(thread):
            stand_still()
        return done(*args, **options)

    setattr(of, method, waits)


def _begin(number: int, frame: object) -> None:
    _goes_on.clear()
    if os.environ["STANDS_STILL"] == "loop":
        stand_still()


signal.signal(signal.SIGUSR1, _begin)
signal.signal(signal.SIGUSR2, lambda number, frame: _goes_on.set())
if os.environ["STANDS_STILL"] == "log":
    _first_waits(Files, "write", "anabranch-wal")
elif os.environ["STANDS_STILL"] == "database":
    _first_waits(SqliteEngine, "execute", "sql-")
main(sys.argv[3:])
