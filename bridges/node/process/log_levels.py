"""The lowest level at which each logger of the process writes; it may change while the process runs.

A logger without a level of its own has that of the nearest logger above it: ``anabranch.kafka`` of ``anabranch``, and
this of ``root``, which has the level of the settings.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

ROOT = "root"
_MOST = 200
"""Most loggers with a level of their own, and most characters of a name: names come from clients."""
_NUMBERS = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
_NUMBERS["exception"] = logging.ERROR


class UnknownLogger(ValueError):
    """A level cannot be set for a logger; the message is a sentence for the operator."""


class _NamedWriter(structlog.WriteLogger):
    """The output of the loggers with one name."""

    def __init__(self, out: TextIO, name: str) -> None:
        super().__init__(out)
        self.name = name


class LogLevels:
    """Levels by the names of loggers."""

    def __init__(self) -> None:
        self._usual = logging.INFO
        self._levels = {ROOT: self._usual}
        self._used = {ROOT, "anabranch"}

    def begin(self, level: int) -> None:
        """Give all loggers the level of the settings. Loggers of libraries do not write below warnings."""
        self._usual = level
        self._levels = {ROOT: level}
        logging.getLogger().setLevel(max(level, logging.WARNING))

    def writer(self, out: TextIO, name: str = ROOT) -> _NamedWriter:
        """Return the output of a logger."""
        self._used.add(name)
        return _NamedWriter(out, name)

    @property
    def names(self) -> list[str]:
        """Return the names of the loggers that have been used, or have a level of their own."""
        return sorted(self._used | self._levels.keys())

    def level_of(self, name: str) -> int:
        """Return a logger's level."""
        while name:
            if (level := self._levels.get(name)) is not None:
                return level
            name = name.rpartition(".")[0]
        return self._levels[ROOT]

    def check(self, name: str) -> None:
        """Raise UnknownLogger unless a level may be set for ``name``: for a logger, or another of the same package."""
        if len(name) > _MOST or name.partition(".")[0] not in {one.partition(".")[0] for one in self._used}:
            raise UnknownLogger(f"Logger {name[:_MOST]} does not exist!")
        if name not in self._levels and len(self._levels) >= _MOST:
            raise UnknownLogger(f"{_MOST} loggers have levels of their own; remove some")

    def set(self, name: str, level: int | None) -> None:
        """Set a logger's level until the process ends; None: it has none of its own any more."""
        if name == ROOT and level is None:
            level = self._usual
        if level is None:
            self._levels.pop(name, None)
        else:
            self._levels[name] = level

    def processor(self, logger: _NamedWriter, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Drop a line below its logger's level."""
        if _NUMBERS[method] < self.level_of(logger.name):
            raise structlog.DropEvent
        return event


LOG_LEVELS = LogLevels()
"""The levels of this process."""
