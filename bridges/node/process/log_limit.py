"""A limit on repeated log lines: clients repeat their mistakes, and the log must not fill the disk.

Every line of the process passes through it. A kind of lines is their text without the fields. The first lines of a kind
in a period are written, and the others are counted. The count appears in the next line of the kind or, without one,
when the period is over (:meth:`LogLimit.overdue`), and in a metric.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from threading import Lock
from time import monotonic
from typing import Any

import structlog
from msgspec import Struct

PERIOD_SECONDS = 10.0
_MAX_KINDS = 500
_OTHER = "other lines"
"""Stands for all kinds beyond the bound: some libraries put their arguments into the text."""
_MAX_KIND_CHARACTERS = 200
_MAX_VALUE_CHARACTERS = 1000
"""Longest text in a field: client ids and names may be as long as a frame."""


class _Kind(Struct):
    since: float
    lines: int = 0
    left_out: int = 0
    total: int = 0


class LogLimit:
    """Counts lines by kind; thread-safe. ``lines``: lines of a kind that may be written in a period."""

    def __init__(self, lines: int = 20, period: float = PERIOD_SECONDS) -> None:
        self.lines = lines
        self._period = period
        self._kinds: dict[str, _Kind] = {}
        self._lock = Lock()

    def admit(self, kind: str) -> int | None:
        """Return None if a line must be dropped, otherwise the number of similar lines dropped before it."""
        now = monotonic()
        kind = kind.partition("\n")[0][:_MAX_KIND_CHARACTERS]
        with self._lock:
            state = self._kinds.get(kind)
            if state is None:
                if len(self._kinds) >= _MAX_KINDS:
                    kind = _OTHER
                state = self._kinds.setdefault(kind, _Kind(now))
            if now - state.since >= self._period:
                state.since, state.lines = now, 0
            if state.lines >= self.lines:
                state.left_out += 1
                state.total += 1
                return None
            state.lines += 1
            left_out, state.left_out = state.left_out, 0
            return left_out

    def overdue(self, *, all_of_them: bool = False) -> Iterator[tuple[str, int]]:
        """Yield the kinds with dropped lines in a period that is over, with their number; each is reported once."""
        now = monotonic()
        with self._lock:
            kinds = list(self._kinds.items())
        for name, state in kinds:
            with self._lock:
                if not state.left_out or not (all_of_them or now - state.since >= self._period):
                    continue
                left_out, state.left_out = state.left_out, 0
            yield name, left_out

    @property
    def left_out(self) -> Mapping[str, int]:
        """The number of lines dropped so far, by kind."""
        with self._lock:
            return {name: state.total for name, state in self._kinds.items() if state.total}

    # --- where lines come by ----------------------------------------------------------------------------------------

    def processor(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Drop a line of structlog, or add the number of dropped ones; runs before the costly processors."""
        if method not in _UNLIMITED:
            left_out = self.admit(str(event.get("event", "")))
            if left_out is None:
                raise structlog.DropEvent
            if left_out:
                event["left_out"] = left_out
        for key, value in event.items():
            if isinstance(value, str) and len(value) > _MAX_VALUE_CHARACTERS and key != "event":
                event[key] = f"{value[:_MAX_VALUE_CHARACTERS]}… ({len(value)} characters)"
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Filter the records of the standard library's logging in the same way."""
        if record.levelno >= logging.CRITICAL or record.levelno < logging.INFO:
            return True
        left_out = self.admit(str(record.msg))
        if left_out is None:
            return False
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} like this left out before)"
            record.args = None
        return True


# Debug lines were asked for, and after a critical one nothing follows.
_UNLIMITED = frozenset({"debug", "critical", "fatal"})

LOG_LIMIT = LogLimit()
"""The limit of this process's log."""


def tell_left_out(limit: LogLimit = LOG_LIMIT, *, all_of_them: bool = False) -> None:
    """Log how many lines were dropped lately; call it now and then, and at the end."""
    log = structlog.get_logger("anabranch.log")
    for kind, lines in limit.overdue(all_of_them=all_of_them):
        log.warning("log lines were left out", like=kind, lines=lines)
