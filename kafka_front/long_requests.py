"""Requests that name very many things have room for few at a time: what is made of one takes thirty times its bytes.

Each is worked on in turns with everybody else, so a dozen that begin together would all be there until the last ends.
What is made of them is counted in the budget meanwhile; where that has no room, they are worked on one by one.
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
"""Shorter ones need not wait."""
AT_ONCE_BYTES = 4 * 1024 * 1024
"""Bytes of requests that are worked on together; a longer one is worked on alone."""
_MADE = 30
"""Memory of what is made of a request for each of its bytes, the answer included (measured, of Fetch)."""
_MOST_MADE = MAX_ELEMENTS * 640
"""The same of any request: it cannot have more elements."""


class _Request:
    """One that is worked on, or waits for that: its bytes, what they become, and the account that counts it."""

    __slots__ = ("account", "made", "size", "turn")

    def __init__(self, size: int, made: int, account: Account) -> None:
        self.size = size
        self.made = made
        self.account = account
        self.turn: asyncio.Future[None] | None = None


class LongRequests:
    """Who comes first is worked on first. Nobody holds the room while he waits for another request."""

    __slots__ = ("_budget", "_most", "_under_way", "_waiting")

    def __init__(self, budget: MemoryBudget, most: int = AT_ONCE_BYTES) -> None:
        self._budget = budget
        self._most = most
        self._under_way = 0
        self._waiting: deque[_Request] = deque()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Work on a request of so many bytes in here."""
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
                self._give(one)  # it was given the room at the same moment
            raise

    def _begins(self, one: _Request) -> bool:
        """Begin with a request for which there is room; one alone is never too much, so that there is always one."""
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
    """Nobody waits for room in the accounts: that of the one before comes first."""
