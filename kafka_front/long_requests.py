"""Requests that name very many things have room for few at a time: what is made of one takes thirty times its bytes.

Each is worked on in turns with everybody else, so a dozen that begin together would all be there until the last ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LONG_BYTES = 64 * 1024
"""Shorter ones need not wait."""
AT_ONCE_BYTES = 4 * 1024 * 1024
"""Bytes of requests that are worked on together; a longer one is worked on alone."""


class LongRequests:
    """Who comes first is worked on first. Nobody holds the room while he waits for another request."""

    __slots__ = ("_most", "_under_way", "_waiting")

    def __init__(self, most: int = AT_ONCE_BYTES) -> None:
        self._most = most
        self._under_way = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Work on a request of so many bytes in here."""
        if size <= LONG_BYTES:
            yield
            return
        size = min(size, self._most)
        await self._take(size)
        try:
            yield
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and self._under_way + size <= self._most:
            self._under_way += size
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give(size)  # it was given the room at the same moment
            raise

    def _give(self, size: int) -> None:
        self._under_way -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.cancelled():
                if self._under_way + wanted > self._most:
                    return
                self._under_way += wanted
                turn.set_result(None)
            self._waiting.popleft()
