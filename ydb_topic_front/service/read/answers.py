"""Queue of one read session's outgoing messages, data excepted, in the order in which they are sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch_kit.memory.budget import Kind

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account

MOST_UNSENT = 1000
"""Unsent answers above which the session takes no request that would produce more."""


class ReadAnswers:
    """Encoded messages that wait to be sent. Their bytes count in ``account``; ``wake`` is called for each new one."""

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
        """Return the bytes of the waiting messages."""
        return sum(map(len, self._waiting))

    def put(self, message: Any) -> None:
        """Queue a ``FromServer``."""
        raw = message.SerializeToString()
        self._account.take(Kind.RESPONSES, len(raw))
        self._waiting.append(raw)
        self._wake()

    def take(self) -> bytes:
        """Remove and return the next message, which the caller sends now."""
        raw = self._waiting.popleft()
        self._account.give(Kind.RESPONSES, len(raw))
        self._taken.set()
        return raw

    async def few(self) -> None:
        """Wait until at most :data:`MOST_UNSENT` messages wait, or the queue is closed."""
        while len(self._waiting) > MOST_UNSENT and not self._closed:
            self._taken.clear()
            await self._taken.wait()

    def close(self) -> None:
        """Release the callers of :meth:`few`: the client will take nothing more."""
        self._closed = True
        self._taken.set()

    def drop(self) -> None:
        """Drop the unsent messages."""
        self._account.give(Kind.RESPONSES, self.size)
        self._waiting.clear()
