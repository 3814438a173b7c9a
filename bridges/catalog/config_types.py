"""Typed configuration values in Kafka's textual form: the building blocks of topic and node configuration tables.

Numbers of types and sources are those of Kafka's DescribeConfigs (KIP-133, KIP-226, KIP-569). Values are kept as the
strings that a client sets and reads; :meth:`ConfigDef.parse` returns the Python value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from msgspec import Struct, field

from bridges.errors import LogError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class InvalidConfig(LogError):
    """A configuration key is unknown or may not be changed, or its value is not acceptable."""


class ConfigType(IntEnum):
    """Kafka's numbers of value types."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Kafka's numbers of the sources of a value, strongest first."""

    TOPIC = 1
    DYNAMIC_NODE = 2
    DYNAMIC_DEFAULT = 3
    STATIC_NODE = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(Struct, frozen=True):
    """A node-level key that sets the default of a topic key. The topic's number is the synonym's number times
    ``scale``."""

    name: str
    scale: int = 1


class ConfigDef(Struct, frozen=True):
    """One configuration key. ``default`` is None if there is no value; ``check`` raises ValueError with a reason.

    ``dynamic``: whether a running node accepts a change. ``honoured``: whether the value changes what Anabranch does.
    Other values are only stored and returned, so that tools written for Kafka read what they set.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Callable[[Any], object] | None = None
    synonyms: tuple[Synonym, ...] = ()
    dynamic: bool = True
    honoured: bool = True

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, value: str) -> Any:
        """Return the Python value of ``value``: bool, int, float, str or a list of str. Raises InvalidConfig."""
        try:
            parsed = _PARSERS[self.type](value.strip())
            if self.check is not None:
                self.check(parsed)
        except ValueError as error:
            raise InvalidConfig(f"{self.name} = {value!r}: {error}") from None
        return parsed

    def canonical(self, value: str) -> str:
        """Return ``value`` as it is stored and returned to clients. Raises InvalidConfig."""
        return to_text(self.parse(value))


class ConfigValue(Struct, frozen=True):
    """One effective value as DescribeConfigs reports it; ``synonyms`` are (name, value, source), strongest first."""

    definition: ConfigDef
    value: str | None
    source: ConfigSource
    synonyms: list[tuple[str, str | None, ConfigSource]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT

    @property
    def read_only(self) -> bool:
        return not self.definition.dynamic


def to_text(value: Any) -> str:
    """Return the stored text of a parsed value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def table(*definitions: ConfigDef) -> Mapping[str, ConfigDef]:
    """Return definitions by name, in alphabetical order."""
    return {definition.name: definition for definition in sorted(definitions, key=lambda one: one.name)}


# --- checks ---------------------------------------------------------------------------------------------------------


def between(low: float, high: float | None = None) -> Callable[[Any], None]:
    """Return a check for a number from ``low`` to ``high``, both included."""

    def check(value: float) -> None:
        if value < low or (high is not None and value > high):
            raise ValueError(f"must be at least {low}" if high is None else f"must be between {low} and {high}")

    return check


def between_or(low: int, high: int, extra: int) -> Callable[[Any], None]:
    """Return a check for a number from ``low`` to ``high``, or ``extra``."""

    def check(value: int) -> None:
        if value != extra and not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}, or {extra}")

    return check


def one_of(*choices: str) -> Callable[[Any], None]:

    def check(value: str) -> None:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")

    return check


def some_of(*choices: str) -> Callable[[Any], None]:
    """Return a check for a list of ``choices``, each at most once."""

    def check(values: list[str]) -> None:
        if unknown := [value for value in values if value not in choices]:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(choices)}")
        if len(set(values)) != len(values):
            raise ValueError("names a value twice")

    return check


def throttled_replicas(values: list[str]) -> None:
    """Check for ``*`` or ``partition:node`` pairs (KIP-73)."""
    if values == ["*"]:
        return
    for value in values:
        partition, _, node = value.partition(":")
        if not (partition.isdigit() and node.isdigit()):
            raise ValueError(f"{value!r} is not partition:node")


# --- parsers --------------------------------------------------------------------------------------------------------


def _boolean(value: str) -> bool:
    lowered = value.lower()
    if lowered not in ("true", "false"):
        raise ValueError("must be true or false")
    return lowered == "true"


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 32:
            raise ValueError("must be a whole number")
        number = int(value)
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return parse


def _double(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number")
    return number


def _list(value: str) -> list[str]:
    return [part.strip() for part in value.split(",")] if value else []


_PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer(-INT_MAX - 1, INT_MAX),
    ConfigType.SHORT: _integer(-(2**15), 2**15 - 1),
    ConfigType.LONG: _integer(-LONG_MAX - 1, LONG_MAX),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
}
