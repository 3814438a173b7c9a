"""Delays before connections are closed because of a failed segment: clients reconnect at once, and for as long as it
takes."""

from __future__ import annotations

from collections import OrderedDict

_FIRST_S = 0.05
_CALM_S = 5.0
"""Time without a close after which the delays begin at zero again."""
_MOST_SEGMENTS = 1000


class SlowCloses:
    """Delays of closes, by segment. The segments without a close for longest are evicted first."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # Due time of a segment's last close (monotonic clock), and its delay.
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def delay(self, segment: str, most: float, now: float) -> float:
        """Return the delay of a close in seconds: 0 for the first, then doubling up to ``most``."""
        due, last = self._known.pop(segment, (-_CALM_S, 0.0))
        delay = 0.0 if now - due >= _CALM_S else min(most, max(_FIRST_S, 2 * last))
        self._known[segment] = now + delay, delay
        if len(self._known) > _MOST_SEGMENTS:
            self._known.popitem(last=False)
        return delay
