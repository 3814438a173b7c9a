"""Work that is carried to its end although whoever asked for it goes away: a client's disconnect cancels its call, and
what is durable by then must be known in memory, too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Finishing:
    """Runs work in tasks of its own; call :meth:`close` at the end, which waits for all of it."""

    __slots__ = ("_work",)

    def __init__(self) -> None:
        self._work: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises. A cancelled caller does not end it."""
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin ``work``, for several to wait for behind a shield of their own."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # raised where it is waited for, if anybody still does

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._work:
            await asyncio.wait(self._work)
