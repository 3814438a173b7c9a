"""A bound on bytes a second, shared by all that copy in one process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from spark_pipeline.core.errors import OptionError

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|B|KB|KiB|MB|MiB|GB|GiB)(?:/s)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}
_AHEAD_S = 0.25
"""How much of a second's allowance may be taken at once after a pause."""

_PIECE_LEAST = 64 * 1024


def parse_rate(text: str) -> float:
    """Bytes a second of ``200MB/s``, ``50MiB`` or a plain number. Raises OptionError."""
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise OptionError(f"{text!r} is no rate: a number above 0 with B, KB, KiB, MB, MiB, GB or GiB, as in 200MB/s")
    return float(match[1]) * _UNITS[match[2].lower()]


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
