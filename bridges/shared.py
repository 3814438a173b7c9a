"""Work for which very many may wait: each may go away, and none is in the way of the others.

A shield for each of them would do for a few. To take one of them back is looked for among all, and when the work is
done all of them go on in one turn of the event loop: seven thousand held up everybody for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_AT_ONCE = 32
"""Those that go on in one turn of the loop."""


class Crowd(Generic[T]):
    """Those that wait for one task."""

    __slots__ = ("_waiting", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self._waiting: dict[asyncio.Future[None], None] = {}
        task.add_done_callback(self._go_on)

    async def wait(self) -> T:
        """What the task returns or raises. A cancelled caller does not end it."""
        if not self.task.done():
            waiter = self.task.get_loop().create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)
        return self.task.result()

    @property
    def is_there(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def _go_on(self, _: object = None) -> None:
        for waiter in list(islice(self._waiting, _AT_ONCE)):
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
        if self._waiting:
            self.task.get_loop().call_soon(self._go_on)


class SharedWorks(Generic[K, T]):
    """Works by key, one of a key at a time. ``ended`` is called with each that has ended, and takes its error."""

    __slots__ = ("_crowds", "_ended")

    def __init__(self, ended: Callable[[K, asyncio.Task[T]], None]) -> None:
        self._crowds: dict[K, Crowd[T]] = {}
        self._ended = ended

    async def wait(self, key: K, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work of ``key`` gives, which is begun if there is none. A cancelled caller does not end it."""
        crowd = self._crowds.get(key)
        if crowd is None:
            task = asyncio.create_task(begin())
            task.add_done_callback(partial(self._has_ended, key))
            crowd = self._crowds[key] = Crowd(task)
        return await crowd.wait()

    def is_wanted(self, key: K) -> bool:
        """Whether anybody waits for the work of ``key``: one that keeps what it has done may end when nobody does."""
        crowd = self._crowds.get(key)
        return crowd is not None and crowd.is_there

    @property
    def tasks(self) -> list[asyncio.Task[T]]:
        """Those under way."""
        return [crowd.task for crowd in self._crowds.values()]

    def _has_ended(self, key: K, task: asyncio.Task[T]) -> None:
        del self._crowds[key]
        self._ended(key, task)
