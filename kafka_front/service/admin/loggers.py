"""Levels of the node's loggers as Kafka's admin tools see and change them (KIP-412), until the process ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bridges.catalog.config_types import ConfigDef, ConfigSource, ConfigType, ConfigValue, InvalidConfig
from bridges.node.process.log_levels import LOG_LEVELS, UnknownLogger

_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_NAMES = {number: name for name, number in reversed(_LEVELS.items())}


def describe() -> list[ConfigValue]:
    """Return the level in force of each logger."""
    return [
        ConfigValue(
            ConfigDef(name, ConfigType.STRING, None, "The lowest level that this logger writes."),
            _NAMES[LOG_LEVELS.level_of(name)],
            ConfigSource.LOGGER,
        )
        for name in LOG_LEVELS.names
    ]


def change(changes: Mapping[str, str | None], validate_only: bool) -> None:
    """Set levels by the names of loggers; None: a logger has the level of the one above it. Raises InvalidConfig."""
    for name, level in changes.items():
        try:
            LOG_LEVELS.check(name)
        except UnknownLogger as error:
            raise InvalidConfig(str(error)) from None
        if level is not None and level not in _LEVELS:
            raise InvalidConfig(f"level of logger {name}: {level[:100]!r} is none of {', '.join(_LEVELS)}")
    for name, level in () if validate_only else changes.items():
        LOG_LEVELS.set(name, None if level is None else _LEVELS[level])
