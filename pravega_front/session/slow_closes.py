"""How long connections are kept open that are to be closed because a segment cannot be had: clients come back at once,
and for as long as it takes."""

from __future__ import annotations

from collections import OrderedDict

_FIRST_S = 0.05
_CALM_S = 5.0
"""After so long without one the next close is the first again."""
_MOST_SEGMENTS = 1000


class SlowCloses:
    """The delays of closes, by segment; those of segments that had none for longest are forgotten first."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # When a segment's last close was due (monotonic clock), and its delay.
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def delay(self, segment: str, most: float, now: float) -> float:
        """Return by how many seconds to delay a close: 0 for the first, then ever twice as many, up to ``most``."""
        due, last = self._known.pop(segment, (-_CALM_S, 0.0))
        delay = 0.0 if now - due >= _CALM_S else min(most, max(_FIRST_S, 2 * last))
        self._known[segment] = now + delay, delay
        if len(self._known) > _MOST_SEGMENTS:
            self._known.popitem(last=False)
        return delay
