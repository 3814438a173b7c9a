"""Shared work: one task per key, with any number of waiters, each of which may be cancelled by itself.

asyncio.shield per waiter is O(n) to cancel and wakes all waiters in one turn of the loop. With 7,000 waiters that
stalled the loop for a second.
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
"""Waiters woken in one turn of the loop."""


class _Crowd(Generic[T]):
    """A task and its waiters."""

    __slots__ = ("_waiting", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self._waiting: dict[asyncio.Future[None], None] = {}
        task.add_done_callback(self._go_on)

    async def wait(self) -> T:
        """Suspend until the task, which is not done yet, ends; return or raise its result.

        A cancelled caller does not end the task.
        """
        waiter = self.task.get_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
        return self.task.result()

    @property
    def is_there(self) -> bool:
        return bool(self._waiting)

    def _go_on(self, _: object = None) -> None:
        for waiter in list(islice(self._waiting, _AT_ONCE)):
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
        if self._waiting:
            self.task.get_loop().call_soon(self._go_on)


class SharedWorks(Generic[K, T]):
    """Tasks by key, one running per key. ``ended`` is called with each task that has ended, and handles its error; it
    is needed unless the tasks never fail.
    """

    __slots__ = ("_crowds", "_ended")

    def __init__(self, ended: Callable[[K, asyncio.Task[T]], None] = lambda key, task: None) -> None:
        self._crowds: dict[K, _Crowd[T]] = {}
        self._ended = ended

    def start(self, key: K, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Start the task of ``key`` unless one is running.

        A task is done one turn of the loop before its callbacks run. In that turn a new task replaces it: to return
        the old result without suspending would spin a caller that asks again.
        """
        crowd = self._crowds.get(key)
        if crowd is None or crowd.task.done():
            task = asyncio.create_task(begin())
            task.add_done_callback(partial(self._has_ended, key))
            self._crowds[key] = _Crowd(task)

    async def wait(self, key: K, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Suspend until the running task of ``key`` ends, starting it if there is none; return or raise its result.

        A cancelled caller does not end the task.
        """
        self.start(key, begin)
        return await self._crowds[key].wait()

    async def await_end(self, key: K) -> None:
        """Suspend until the running task of ``key`` has ended, if there is one."""
        crowd = self._crowds.get(key)
        if crowd is not None:
            await asyncio.wait({crowd.task})

    async def drain(self) -> None:
        """Suspend until no task is running."""
        while tasks := self.tasks:
            await asyncio.wait(tasks)

    def is_wanted(self, key: K) -> bool:
        """Return whether the task of ``key`` has waiters. A task that keeps its progress may end when it has none."""
        crowd = self._crowds.get(key)
        return crowd is not None and crowd.is_there

    @property
    def tasks(self) -> list[asyncio.Task[T]]:
        return [crowd.task for crowd in self._crowds.values()]

    def _has_ended(self, key: K, task: asyncio.Task[T]) -> None:
        if self._crowds[key].task is task:
            del self._crowds[key]
        self._ended(key, task)
