"""Sizes and durations as people write them: ``64MiB``, ``7d``, ``1.5h``."""

from __future__ import annotations

import re

_QUANTITY = r"([0-9]+)(?:\.([0-9]+))?\s*([A-Za-z]*)"  # compiled at its first use: most starts do not use it

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


def parse_size(text: object) -> int:
    """Return the bytes in ``text``: a number, or one with KiB/MiB/GiB/TiB (or K/M/G/T) or KB/MB/GB/TB. Raises
    ValueError.
    """
    return _parse(text, _SIZES, "a size such as 1048576, 64KiB or 1.5GiB")


def parse_duration(text: object) -> int:
    """Return the milliseconds in ``text``: a number of milliseconds, or one with ms, s, m, h, d or w. Raises
    ValueError.
    """
    return _parse(text, _DURATIONS, "a duration such as 500ms, 30s, 5m, 12h or 7d (a bare number is milliseconds)")


def _parse(text: object, units: dict[str, int], what: str) -> int:
    if isinstance(text, int) and not isinstance(text, bool) and text >= -1:
        return text
    if not isinstance(text, str):
        raise ValueError(f"must be {what}")
    stripped = text.strip()
    if stripped == "-1":
        return -1  # the usual way to say "no limit"; fields that have none refuse it
    match = re.fullmatch(_QUANTITY, stripped)
    unit = units.get(match[3].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"must be {what}")
    fraction = match[2] or ""
    amount: int
    amount, rest = divmod(int(match[1] + fraction) * unit, 10 ** len(fraction))
    if rest:
        raise ValueError(f"{text} is not a whole number")
    return amount


def format_size(size: int) -> str:
    """Return the shortest exact form: ``67108864`` is ``64MiB``."""
    return _format(size, (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)), "")


def format_duration(milliseconds: int) -> str:
    """Return the shortest exact form: ``604800000`` is ``7d``."""
    return _format(milliseconds, (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)), "ms")


def _format(amount: int, units: tuple[tuple[str, int], ...], base: str) -> str:
    if amount <= 0:
        return str(amount)
    for unit, size in units:
        if amount % size == 0:
            return f"{amount // size}{unit}"
    return f"{amount}{base}"
