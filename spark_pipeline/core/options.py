"""Options from Spark and URLs: strings by case-insensitive names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from spark_pipeline.core.errors import OptionError

SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
TIMES_MS = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def refuse_unknown(options: Collection[str], known: Collection[str], what: str) -> None:
    """Raise OptionError for an option that ``what`` does not have; names are compared without case."""
    names = {name.lower(): name for name in known}
    for option in options:
        if option.lower() in names:
            continue
        if option.lower().startswith("kafka."):
            raise OptionError(
                f"option {option} is for protocol = kafka, or an endpoint kafka://HOST:PORT: {what} has none"
            )
        close = get_close_matches(option.lower(), names, 1)
        there = f"did you mean {names[close[0]]}?" if close else f"there are {', '.join(sorted(known))}"
        raise OptionError(f"{what} has no option {option}: {there}")


class Options:
    """Options by case-insensitive names. Every getter raises OptionError for an invalid value."""

    def __init__(self, options: Mapping[str, str] | None) -> None:
        self._options = dict(options or {})
        self._values = {name.lower(): value for name, value in self._options.items()}
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str) -> str | None:
        """Return an option's text; None if it is not given."""
        self._asked.add(name.lower())
        return self._values.get(name.lower())

    @property
    def names_read(self) -> set[str]:
        """Return the lower-case names that were looked up so far."""
        return self._asked

    def rest(self) -> dict[str, str]:
        """Return the options that were never looked up, under their original names."""
        return {name: value for name, value in self._options.items() if name.lower() not in self._asked}

    def any(self, prefix: str) -> bool:
        """Return whether an option is given whose name begins with ``prefix``."""
        return any(name.startswith(prefix.lower()) for name in self._values)

    def number(self, name: str, least: int = 1) -> int | None:
        """Return a whole number of at least ``least``; None if the option is not given."""
        value = self.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < least:
            raise OptionError(f"{name} = {value!r} is not a number of at least {least}")
        return int(value)

    def sized(self, name: str, units: Mapping[str, int]) -> int | None:
        """Return a whole number with one of ``units``, in the smallest unit; None if the option is not given."""
        value = self.get(name)
        if value is None:
            return None
        match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in units or not int(match[1]):
            raise OptionError(f"{name} = {value!r} is not a number, of at least 1, with one of the units {list(units)}")
        return int(match[1]) * units[match[2]]

    def truth(self, name: str, default: bool) -> bool:
        """Return the boolean of ``true`` or ``false``; ``default`` if the option is not given."""
        value = self.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name} = {value!r} is neither true nor false")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of ``choices``; the first if the option is not given."""
        value = (self.get(name) or choices[0]).lower()
        if value not in choices:
            raise OptionError(f"{name} = {value!r} is none of {', '.join(choices)}")
        return value
