"""Waiting for what is of no use once the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class UsefulWaits:
    """What commands of a connection wait for, until :meth:`end` ends them with a CancelledError. So what they wait for
    must change nothing and hold nothing, and whoever else waits for it goes on."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    async def on(self, work: Awaitable[T]) -> T:
        """Wait for ``work`` in the present task."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)
            # A cancelled task keeps its error, and that keeps this frame: with the task in it all that it knows would
            # stay until the collector comes, which a node has come seldom.
            del task

    def end(self) -> None:
        """Those that wait now are of no use any more."""
        for task in list(self._tasks):
            task.cancel()
