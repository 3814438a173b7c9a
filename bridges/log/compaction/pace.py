"""How fast a chore may go: so many bytes a second, and a share of the time for work that holds up others."""

from __future__ import annotations

import asyncio
import time

_LONGEST = 1.0
"""Seconds slept at once; what is left to wait for is waited for later."""
_CREDIT = 0.1
"""Seconds without anything read or written that count for what is read and written next: whoever computed meanwhile
need not wait for them again."""


class Pace:
    """``bytes_per_second``: read and written together; 0: no bound. ``share``: of the time, that work may take."""

    __slots__ = ("_owed", "_rate", "_rest", "_since", "share")

    def __init__(self, bytes_per_second: int, share: float = 0.25) -> None:
        self._rate = bytes_per_second
        self.share = share
        self._owed = 0.0
        self._rest = 0.0
        self._since = time.monotonic()

    async def spent(self, size: int) -> None:
        """So many bytes were read or written."""
        if self._rate <= 0:
            return
        now = time.monotonic()
        self._owed = max(-_CREDIT, self._owed - (now - self._since)) + size / self._rate
        self._since = now
        if self._owed > 0.005:
            await asyncio.sleep(min(self._owed, _LONGEST))

    async def worked(self, seconds: float) -> None:
        """Work was done for so long: others have their turns now."""
        self._rest += seconds * (1 / self.share - 1)
        if self._rest > 0.002:
            rest, self._rest = min(self._rest, _LONGEST), 0.0
            await asyncio.sleep(rest)
