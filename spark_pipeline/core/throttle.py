"""A bound on bytes a second, shared by all that copy in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_AHEAD_S = 0.25
"""How much of a second's allowance may be taken at once after a pause."""

_PIECE_LEAST = 64 * 1024


class Throttle:
    """Lets ``rate`` bytes a second pass; None: as many as come. For any number of threads."""

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
        self._free_at = 0.0  # when everything that was let pass has been paid for

    def piece(self, most: int) -> int:
        """How many bytes to ask for at once, at most ``most``: few enough for an even flow."""
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
