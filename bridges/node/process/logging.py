"""Structured logging of the node: one event per line, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from bridges.node.process.log_levels import LOG_LEVELS
from bridges.node.process.log_limit import LOG_LIMIT, LogLimit


class _Patient:
    """A stream that ignores errors of writing: a full disk must not break the code that logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


class _Told:
    """A processor that adds the same fields to every line."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = dict(fields)

    def __call__(self, logger: object, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in self._fields.items():
            event.setdefault(key, value)
        return event


def configure(
    level: str = "info",
    format: str = "auto",
    stream: TextIO | None = None,
    limit: LogLimit = LOG_LIMIT,
    told: Mapping[str, object] | None = None,
) -> None:
    """Set up structlog, and send the standard library's loggers through the same output.

    ``format``: ``json``, ``console``, or ``auto`` (console on a terminal, json elsewhere). All lines pass ``limit``,
    and have the fields ``told``. ``LOG_LEVELS`` may change levels later. To be called once, by the process's entry
    point.
    """
    out = cast(TextIO, _Patient(stream or sys.stderr))
    if format == "auto":
        format = "console" if out.isatty() else "json"
    # The handler's filter limits the lines of other libraries' loggers.
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if told:
        shared.append(_Told(told))
    renderer: Any
    if format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback, timestamp_key="time"
        )
    structlog.configure(
        processors=[LOG_LEVELS.processor, limit.processor, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=lambda *names: LOG_LEVELS.writer(out, *names),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.addFilter(limit.filter)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    LOG_LEVELS.begin(getattr(logging, level.upper()))
