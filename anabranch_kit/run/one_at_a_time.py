"""Locks by name, which are there only while somebody has or wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class OneAtATime(Generic[K]):
    """Belongs to the event loop."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[K, tuple[asyncio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Nobody else is in here with the same key."""
        lock, users = self._held.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._held[key]
