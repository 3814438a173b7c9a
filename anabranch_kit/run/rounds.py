"""Rounds of a chore over many items: a few at a time, each within a barrier and a time limit of its own.

A chore that awaits one item after the other stops for all of them where one waits for long, and drops the rest where
one raises. Here the items do not affect each other: one that takes long goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from anabranch_kit.run.barrier import Barrier

K = TypeVar("K", bound=Hashable)

_MOST_S = 1.0
_AT_ONCE = 4
_LEFT = 1000


class Rounds(Generic[K]):
    """Repeated rounds over many items: :meth:`each` is one round, :meth:`close` ends what still goes on.

    ``at_once`` items are worked on at the same time. An item that has taken ``patience`` seconds goes on beside them,
    and later rounds leave it out until it has ended; while ``left`` items go on so, no others are begun. Exceptions are
    logged and counted as ``what``.
    """

    __slots__ = ("_at_once", "_barrier", "_left", "_patience", "_running", "_what")

    def __init__(
        self, barrier: Barrier, what: str, *, at_once: int = _AT_ONCE, patience: float = _MOST_S, left: int = _LEFT
    ) -> None:
        self._barrier = barrier
        self._what = what
        self._at_once = at_once
        self._patience = patience
        self._left = left
        self._running: dict[K, asyncio.Task[None]] = {}

    async def each(self, items: Iterable[K], work: Callable[[K], Awaitable[object]]) -> None:
        """Do ``work`` with each of ``items``, which may be produced while others are worked on. Cancelling the caller
        cancels the work that goes on.
        """
        waiting = iter(items)
        workers = [asyncio.ensure_future(self._through(waiting, work)) for _ in range(self._at_once)]
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await self.close()
            raise

    async def _through(self, waiting: Iterator[K], work: Callable[[K], Awaitable[object]]) -> None:
        for item in waiting:
            if item in self._running:
                continue
            if len(self._running) >= self._left:
                return
            task = self._running[item] = asyncio.create_task(self._run_one(item, work), name=self._what)
            await asyncio.wait((task,), timeout=self._patience)

    async def _run_one(self, item: K, work: Callable[[K], Awaitable[object]]) -> None:
        try:
            await work(item)
        except Exception as error:  # noqa: BLE001 - logged and counted: it costs this one only
            self._barrier.caught(self._what, error, of=str(item)[:200])
        finally:
            del self._running[item]

    async def close(self) -> None:
        """Cancel what still goes on."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()  # a task that had not begun has not removed itself
