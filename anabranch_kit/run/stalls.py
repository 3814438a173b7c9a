"""Stalls of the event loop: a beat that comes late shows how late everything else was."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds in seconds."""
BEAT_SECONDS = 0.1


class LoopStalls:
    """A beat ten times a second from :meth:`start` to :meth:`stop`: a stall longer than a beat is never missed."""

    __slots__ = ("_due", "_loop", "_timer", "beats", "buckets", "longest", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.beats = 0
        self.seconds = 0.0
        """Total delay of all beats."""
        self.longest = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat on ``loop``."""
        self._loop = loop
        self._next(loop.time())

    def stop(self) -> None:
        """Stop beating; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, now: float) -> None:
        assert self._loop is not None
        self._due = now + BEAT_SECONDS
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        late = max(0.0, now - self._due)
        self.buckets[bisect_left(BUCKETS, late)] += 1
        self.beats += 1
        self.seconds += late
        self.longest = max(self.longest, late)
        self._next(now)
