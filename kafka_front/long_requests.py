"""A limit on how many long requests are decoded at once: a decoded request takes about 30 times its size.

Long requests share the event loop in turns, so a dozen that begin together would all stay in memory until the last one
ends. The memory budget counts their decoded size meanwhile; if it has no room, they run one by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from kafka_front.wire.primitives import MAX_ELEMENTS

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account, MemoryBudget

LONG_BYTES = 64 * 1024
"""Shorter requests need not wait."""
AT_ONCE_BYTES = 4 * 1024 * 1024
"""Most bytes of long requests in work together; a longer request runs alone."""
_MADE = 30
"""Bytes of memory for each byte of a request, its answer included (measured with Fetch)."""
_MOST_MADE = MAX_ELEMENTS * 640
"""Most memory of any request: MAX_ELEMENTS bounds its elements."""


class _Request:
    """A long request that runs or waits: its bytes, its decoded size, and the account that counts it."""

    __slots__ = ("account", "made", "size", "turn")

    def __init__(self, size: int, made: int, account: Account) -> None:
        self.size = size
        self.made = made
        self.account = account
        self.turn: asyncio.Future[None] | None = None


class LongRequests:
    """A first-come, first-served queue of long requests. A request never holds room while it waits."""

    __slots__ = ("_budget", "_most", "_under_way", "_waiting")

    def __init__(self, budget: MemoryBudget, most: int = AT_ONCE_BYTES) -> None:
        self._budget = budget
        self._most = most
        self._under_way = 0
        self._waiting: deque[_Request] = deque()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Run the body once there is room for a request of ``size`` bytes."""
        if size <= LONG_BYTES:
            yield
            return
        one = _Request(min(size, self._most), min(_MADE * size, _MOST_MADE), self._budget.account(_nothing))
        try:
            await self._take(one)
            try:
                yield
            finally:
                self._give(one)
        finally:
            one.account.close()

    async def _take(self, one: _Request) -> None:
        if not self._waiting and self._begins(one):
            return
        turn = one.turn = asyncio.get_running_loop().create_future()
        self._waiting.append(one)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give(one)  # the room was granted in the same turn of the loop
            raise

    def _begins(self, one: _Request) -> bool:
        """Begin a request if there is room for it, and return whether it began. A request that would run alone always
        begins."""
        if not self._under_way:
            one.account.take(Kind.REQUESTS, one.made)
        elif self._under_way + one.size > self._most or not one.account.admit(Kind.REQUESTS, one.made):
            return False
        self._under_way += one.size
        return True

    def _give(self, one: _Request) -> None:
        self._under_way -= one.size
        one.account.give(Kind.REQUESTS, one.made)
        while self._waiting:
            turn = self._waiting[0].turn
            assert turn is not None, "it waits"
            if not turn.cancelled():
                if not self._begins(self._waiting[0]):
                    return
                turn.set_result(None)
            self._waiting.popleft()


def _nothing() -> None:
    """Ignore that an account has room again: the request in front of this one comes first."""
