"""Sizes and durations as people write them: ``64MiB``, ``7d``, ``1.5h``."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kib": 1024,
    "kb": 1000,
    "m": 1024**2,
    "mib": 1024**2,
    "mb": 1000**2,
    "g": 1024**3,
    "gib": 1024**3,
    "gb": 1000**3,
    "t": 1024**4,
    "tib": 1024**4,
    "tb": 1000**4,
}
_DURATIONS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_size(text: str | int) -> int:
    """Bytes in ``text``: a number, or one with KiB/MiB/GiB/TiB (or K/M/G/T) or KB/MB/GB/TB. Raises ValueError."""
    return _parse(text, _SIZES, "a size such as 1048576, 64KiB or 1.5GiB")


def parse_duration(text: str | int) -> int:
    """Milliseconds in ``text``: a number of milliseconds, or one with ms, s, m, h, d or w. Raises ValueError."""
    return _parse(text, _DURATIONS, "a duration such as 500ms, 30s, 5m, 12h or 7d (a bare number is milliseconds)")


def _parse(text: str | int, units: dict[str, int], what: str) -> int:
    if isinstance(text, bool):
        raise ValueError(f"must be {what}")
    if isinstance(text, int):
        if text < -1:
            raise ValueError(f"must be {what}")
        return text
    stripped = text.strip()
    if stripped == "-1":
        return -1  # the usual way to say "no limit"; fields that have none refuse it
    match = _QUANTITY.fullmatch(stripped)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"must be {what}")
    amount = Decimal(match[1]) * unit
    if amount != int(amount):
        raise ValueError(f"{text} is not a whole number")
    return int(amount)


def format_size(size: int) -> str:
    """The shortest exact form: ``67108864`` is ``64MiB``."""
    return _format(size, (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)), "")


def format_duration(milliseconds: int) -> str:
    """The shortest exact form: ``604800000`` is ``7d``."""
    return _format(milliseconds, (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)), "ms")


def _format(amount: int, units: tuple[tuple[str, int], ...], base: str) -> str:
    if amount <= 0:
        return str(amount)
    for unit, size in units:
        if amount % size == 0:
            return f"{amount // size}{unit}"
    return f"{amount}{base}"
