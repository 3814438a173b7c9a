"""Tasks that belong to an object rather than to a block of code.

asyncio.TaskGroup ends with its block and cancels all tasks when one fails; a coordinator's or a listener's tasks begin
at any time and fail alone. The event loop itself holds a task by a weak reference only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskSet:
    """Holds each task until it ends. The owner calls :meth:`drain` or :meth:`close` at its own end."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return how many tasks have not ended."""
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start ``work``. Its exception reaches the code that awaits the task, else asyncio logs it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Return or raise the result of ``work``. A cancelled caller does not end it: a client's disconnect cancels
        its call, and memory must learn what is durable by then."""
        return await asyncio.shield(self.spawn(work))

    async def drain(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel all tasks and wait for their ends.

        One of them may be the caller: asyncio.gather would then await itself, and to cancel it would recurse for ever.
        """
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
