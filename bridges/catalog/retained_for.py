"""The value of a topic's ``anabranch.retention.consumers``: the consumers that retention waits for, and for how long.

It is a JSON object of milliseconds by the consumer's name, which may have any characters: ``{"billing": 0}``. A record
that a consumer has not committed is kept for so many milliseconds after it was written; with 0, until it is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

NOBODY = "{}"


def text_of(consumers: Mapping[str, int]) -> str:
    """Return the configuration value for these consumers."""
    return json.dumps(consumers, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=64)
def parse(value: str) -> tuple[tuple[str, int], ...]:
    """Return names and milliseconds. Raises ValueError."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('must be a JSON object of milliseconds by name, for instance {"billing": 0}') from None
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object")
    for name, milliseconds in found.items():
        if not name:
            raise ValueError("a consumer has no name")
        if type(milliseconds) is not int or not 0 <= milliseconds < 2**63:
            raise ValueError(f"{milliseconds!r} is no number of milliseconds")
    return tuple(found.items())


def check(value: str) -> None:
    """Raise ValueError unless it can be parsed."""
    parse(value)
