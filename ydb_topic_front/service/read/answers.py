"""What one reader is to be told besides data, in its order, until it can be sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch_kit.memory.budget import Kind

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account

MOST_UNSENT = 1000
"""Answers that wait to be sent: with more, nothing is done that would make others."""


class ReadAnswers:
    """Messages that wait. Their bytes count in ``account``; ``wake`` is called when there is one more."""

    __slots__ = ("_account", "_closed", "_taken", "_waiting", "_wake")

    def __init__(self, account: Account, wake: Callable[[], None]) -> None:
        self._account = account
        self._wake = wake
        self._waiting: deque[bytes] = deque()
        self._taken = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(map(len, self._waiting))

    def put(self, message: Any) -> None:
        """Have a ``FromServer`` sent behind those before it."""
        raw = message.SerializeToString()
        self._account.take(Kind.RESPONSES, len(raw))
        self._waiting.append(raw)
        self._wake()

    def take(self) -> bytes:
        """The next one, which is sent now."""
        raw = self._waiting.popleft()
        self._account.give(Kind.RESPONSES, len(raw))
        self._taken.set()
        return raw

    async def few(self) -> None:
        """Return when the client has taken so many that there may be more, or when nothing is sent any more."""
        while len(self._waiting) > MOST_UNSENT and not self._closed:
            self._taken.clear()
            await self._taken.wait()

    def close(self) -> None:
        """Whoever waits for the client goes on: it will take nothing."""
        self._closed = True
        self._taken.set()

    def drop(self) -> None:
        """Forget what was not sent."""
        self._account.give(Kind.RESPONSES, self.size)
        self._waiting.clear()
