"""How much of something may be done now, if there is a limit to it: a bucket that fills evenly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Speed(NamedTuple):
    """``per_second`` on the average, ``burst`` at once (bytes, or whatever is counted); 0 a second: as fast as it
    goes."""

    per_second: float
    burst: float


UNLIMITED = Speed(0, 0)


class Bucket:
    """What may be done now, as bytes written. Something may be when there is anything left, however large it is, and
    what it takes beyond that has to come in first; so requests that are larger than a burst pass, too.

    ``clock`` gives seconds.
    """

    __slots__ = ("_clock", "_left", "_seen", "_speed")

    def __init__(self, speed: Speed, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._clock = clock
        self._left = float(speed.burst)
        self._seen = clock()

    def change(self, speed: Speed) -> None:
        """From now on it fills at another speed. What was taken too much is not forgotten."""
        if speed != self._speed:
            self._fill()
            self._speed = speed
            self._left = min(self._left, float(speed.burst))

    def take(self, amount: float) -> None:
        """So much is done."""
        self._fill()
        self._left -= amount

    def wait(self) -> float:
        """Seconds until something may be done; 0 if it may be at once."""
        rate = self._speed.per_second
        if not rate:
            return 0.0
        self._fill()
        # As long as the first byte takes at least: a clock may not be finer than a wait that is shorter.
        return 0.0 if self._left > 0 else (1 - self._left) / rate

    @property
    def is_full(self) -> bool:
        """Whether it is as if nothing had ever been taken."""
        self._fill()
        return self._left >= self._speed.burst

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._speed.burst), self._left + (now - self._seen) * self._speed.per_second)
        self._seen = now
