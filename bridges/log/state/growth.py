"""The recent growth of a log, whoever wrote to it."""

from __future__ import annotations

from array import array
from bisect import bisect_right

_PARTS = 12
"""Parts of a window: its growth is known to within one of them."""


class Growth:
    """The bytes that a log has grown by within a window that ends now; call :meth:`seen` from time to time.

    It takes some hundred bytes, however long the window.
    """

    __slots__ = ("_totals", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self._totals = array("q")

    def covers(self, now_ms: int, window_ms: int) -> bool:
        """Return whether the log was observed for a whole window."""
        return bool(self.times) and self.times[0] <= now_ms - window_ms

    def seen(self, now_ms: int, total: int, window_ms: int) -> int:
        """Note that the log has taken in ``total`` bytes by now; return how many of them within the window, as far as
        observed.

        After a pause longer than the window, its bytes count as if they had come in evenly.
        """
        times, totals = self.times, self._totals
        if times and (now_ms < times[-1] or total < totals[-1]):
            del times[:], totals[:]  # the clock was set, or the log was opened again
        # Of the samples before the window only the last is needed: it has the total at the window's beginning.
        first = max(0, bisect_right(times, now_ms - window_ms) - 1)
        del times[:first], totals[:first]
        if not times or now_ms - times[-1] >= window_ms // _PARTS:
            times.append(now_ms)
            totals.append(total)
        elapsed = now_ms - times[0]
        grown = total - totals[0]
        return grown * window_ms // elapsed if elapsed > window_ms else grown
