"""The pace of a chore: bytes a second, and the share of the time for work that holds up others."""

from __future__ import annotations

import asyncio
import time

_LONGEST = 1.0
"""Longest sleep in seconds; the rest follows later."""
_CREDIT = 0.1
"""Idle seconds credited to the next read or write: a caller that was computing meanwhile need not wait for them
again."""


class Pace:
    """A limit on a chore. ``bytes_per_second``: read and written together; 0: no limit. ``share``: of the time, for
    work."""

    __slots__ = ("_owed", "_rate", "_rest", "_since", "share")

    def __init__(self, bytes_per_second: int, share: float = 0.25) -> None:
        self._rate = bytes_per_second
        self.share = share
        self._owed = 0.0
        self._rest = 0.0
        self._since = time.monotonic()

    async def spent(self, size: int) -> None:
        """Wait as ``size`` bytes, read or written, demand."""
        if self._rate <= 0:
            return
        now = time.monotonic()
        self._owed = max(-_CREDIT, self._owed - (now - self._since)) + size / self._rate
        self._since = now
        if self._owed > 0.005:
            await asyncio.sleep(min(self._owed, _LONGEST))

    async def worked(self, seconds: float) -> None:
        """Rest after ``seconds`` of work, so that others have their turns."""
        self._rest += seconds * (1 / self.share - 1)
        if self._rest > 0.002:
            rest, self._rest = min(self._rest, _LONGEST), 0.0
            await asyncio.sleep(rest)
