"""How much a log has grown lately, whoever wrote to it."""

from __future__ import annotations

from array import array
from bisect import bisect_right

_PARTS = 12
"""Into how many parts a window is divided: what it holds is known to within one of them."""


class Growth:
    """Bytes that a log has taken in within a window that ends now; :meth:`seen` is told from time to time.

    It takes some hundred bytes, however long the window.
    """

    __slots__ = ("_times", "_totals")

    def __init__(self) -> None:
        self._times = array("q")
        self._totals = array("q")

    def covers(self, now_ms: int, window_ms: int) -> bool:
        """Whether the log was looked at for a whole window."""
        return bool(self._times) and self._times[0] <= now_ms - window_ms

    def seen(self, now_ms: int, total: int, window_ms: int) -> int:
        """The log has taken in ``total`` bytes by now; gives how many of them within the window, as far as it was seen.

        What came in while nobody looked for longer than the window counts as far as it would have, spread evenly.
        """
        times, totals = self._times, self._totals
        if times and (now_ms < times[-1] or total < totals[-1]):
            del times[:], totals[:]  # the clock was set, or the log was opened anew
        # Only the last before the window's beginning is of use, which tells what there was then.
        first = max(0, bisect_right(times, now_ms - window_ms) - 1)
        del times[:first], totals[:first]
        if not times or now_ms - times[-1] >= window_ms // _PARTS:
            times.append(now_ms)
            totals.append(total)
        elapsed = now_ms - times[0]
        grown = total - totals[0]
        return grown * window_ms // elapsed if elapsed > window_ms else grown
