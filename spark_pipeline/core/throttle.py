"""A bound on bytes per second, shared by all copying threads of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_AHEAD_S = 0.25
"""Part of a second's allowance that may be taken at once after a pause."""

_PIECE_LEAST = 64 * 1024


class Throttle:
    """A limit of ``rate`` bytes per second; None: no limit. Thread-safe."""

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0  # time at which all admitted bytes are paid for

    def piece(self, most: int) -> int:
        """Return how many bytes to request at once, at most ``most``, for an even flow."""
        return most if self.rate is None else max(_PIECE_LEAST, min(most, int(self.rate * _AHEAD_S)))

    def take(self, size: int) -> None:
        """Return when ``size`` more bytes may be sent."""
        if self.rate is None:
            return
        with self._lock:
            start = max(self._free_at, self._clock() - _AHEAD_S)
            self._free_at = start + size / self.rate
            wait = start - self._clock()
        if wait > 0:
            self._sleep(wait)
