"""A clock for what is given one: time passes when the test says so."""

from __future__ import annotations


class Clock:
    """Seconds since whenever ``now`` counts from, as ``time.monotonic`` and ``time.time`` give them."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
