"""The barrier around every call of what somebody else has left behind: a callback, a waiter, a queued piece of work.

Whoever tells several others of something must not be stopped half-way by one of them. What such a call raises is a
defect of ours: it is logged with its traceback and counted by kind, and the caller goes on with the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")

_LOG_LINES = 10
_LOG_SECONDS = 10.0
"""Of each kind so many defects are logged in so many seconds: one in a hot path would fill the disk with tracebacks."""

logger = logging.getLogger(__name__)


class Defects:
    """Exceptions that barriers have stopped, by kind. The counts only grow; they are what metrics show."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}  # when a kind's present window began, and its lines so far

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def caught(self, what: str) -> None:
        """To be called while an exception is handled: counts it as one of ``what`` and logs it."""
        count = self._counts[what] = self._counts.get(what, 0) + 1
        now = monotonic()
        since, lines = self._logged.get(what, (now, 0))
        if now - since >= _LOG_SECONDS:
            since, lines = now, 0
        self._logged[what] = since, lines + 1
        if lines < _LOG_LINES:
            logger.exception("%s failed unexpectedly (%d so far), everything else goes on", what, count)


DEFECTS = Defects()
"""Of this process, as its log is: a defect is one wherever it shows."""


def guarded(what: str, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """``callback(*args)``; whether it returned. What it raises (any ``Exception``) is logged and counted as ``what``, a
    short name for all calls of its kind, and goes no further."""
    try:
        callback(*args)
    except Exception:  # noqa: BLE001 - logged and counted there
        DEFECTS.caught(what)
        return False
    return True
