"""Barrier around calls of callbacks, waiters and queued work of other components: an exception is logged and counted,
and the caller goes on.

A component that answers many (a log its producers, a connection its requests, a change its listeners) must not stop
half-way because one of them is broken. Only the request whose callback raised is affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

import structlog

Ts = TypeVarTuple("Ts")

_log = structlog.get_logger("anabranch.barrier")

_QUIET_S = 1.0
"""Seconds between two log lines of one kind; skipped ones are counted, in the next line and in the metric."""


class Barrier:
    """Counter of the exceptions of callbacks, by kind. Kinds are words of the code, not of clients, so they are few.

    A node, or a process of the backend, has one, which all its parts are given. Where a call is hot, write ``try`` and
    ``except Exception as error: barrier.caught(kind, error)`` in place: that costs nothing until something is raised.
    """

    __slots__ = ("_clock", "_told", "failures")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures: dict[str, int] = {}
        """Exceptions caught so far, by kind."""
        self._clock = clock
        # By kind: time of its last log line, and the count in it.
        self._told: dict[str, tuple[float, int]] = {}

    def call(self, kind: str, callback: Callable[[*Ts], object], *args: *Ts, **about: object) -> bool:
        """Call ``callback(*args)``; return whether it returned. ``about`` goes into the log with its exception (any
        ``Exception``; exceptions that end the process go through).
        """
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - logged and counted
            self.caught(kind, error, callback=_name(callback), **about)
            return False
        return True

    def caught(self, kind: str, error: BaseException, **about: object) -> None:
        """Log and count what a callback of ``kind`` raised."""
        count = self.failures[kind] = self.failures.get(kind, 0) + 1
        now = self._clock()
        last, known = self._told.get(kind, (-_QUIET_S, 0))
        if now - last < _QUIET_S and known:
            return
        self._told[kind] = (now, count)
        _log.error(
            "a callback failed", kind=kind, failures=count, since_last_line=count - known, exc_info=error, **about
        )


def _name(callback: Callable[..., object]) -> str:
    callback = callback.func if isinstance(callback, partial) else callback
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__
