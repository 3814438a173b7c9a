"""Rate limit: a bucket that fills evenly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Speed(NamedTuple):
    """A rate: ``per_second`` on the average, ``burst`` at once (bytes, or another unit); 0 a second: no limit."""

    per_second: float
    burst: float


UNLIMITED = Speed(0, 0)


class Bucket:
    """A bucket of what may be done now, such as bytes written. Work may begin when anything is left, however large it
    is, and the excess has to flow in before the next; so requests larger than a burst pass, too.

    ``clock`` gives seconds.
    """

    __slots__ = ("_clock", "_left", "_seen", "_speed")

    def __init__(self, speed: Speed, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._clock = clock
        self._left = float(speed.burst)
        self._seen = clock()

    def change(self, speed: Speed) -> None:
        """Fill at another speed from now on. Excess that was taken still has to flow in."""
        if speed != self._speed:
            self._fill()
            self._speed = speed
            self._left = min(self._left, float(speed.burst))

    def take(self, amount: float) -> None:
        """Take ``amount`` for work that is done."""
        self._fill()
        self._left -= amount

    def wait(self) -> float:
        """Return the seconds until something may be done; 0 if it may be at once."""
        rate = self._speed.per_second
        if not rate:
            return 0.0
        self._fill()
        # At least as long as the first byte takes: a shorter wait may be below the clock's resolution.
        return 0.0 if self._left > 0 else (1 - self._left) / rate

    @property
    def is_full(self) -> bool:
        """Return whether the bucket is as if nothing had ever been taken."""
        self._fill()
        return self._left >= self._speed.burst

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._speed.burst), self._left + (now - self._seen) * self._speed.per_second)
        self._seen = now
