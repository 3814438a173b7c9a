"""How fast a partition may be written to, if its topic says so: a bucket of bytes that fills evenly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Speed(NamedTuple):
    """``bytes_per_second`` on the average, ``burst`` bytes at once; 0 bytes a second: as fast as it goes."""

    bytes_per_second: int
    burst: int


UNLIMITED = Speed(0, 0)


class Bucket:
    """The bytes that may be written now. One may be written when there is anything left, however large it is, and what
    it takes beyond that has to come in first; so requests that are larger than a burst pass, too.

    ``clock`` gives seconds.
    """

    __slots__ = ("_clock", "_left", "_seen", "_speed")

    def __init__(self, speed: Speed, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._clock = clock
        self._left = float(speed.burst)
        self._seen = clock()

    def change(self, speed: Speed) -> None:
        """From now on it fills at another speed. What was written too much is not forgotten."""
        if speed != self._speed:
            self._fill()
            self._speed = speed
            self._left = min(self._left, float(speed.burst))

    def take(self, size: int) -> None:
        """So many bytes are written."""
        self._fill()
        self._left -= size

    def wait(self) -> float:
        """Seconds until something may be written; 0 if it may be at once."""
        rate = self._speed.bytes_per_second
        if not rate:
            return 0.0
        self._fill()
        # As long as the first byte takes at least: a clock may not be finer than a wait that is shorter.
        return 0.0 if self._left > 0 else (1 - self._left) / rate

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._speed.burst), self._left + (now - self._seen) * self._speed.bytes_per_second)
        self._seen = now
