"""Waiting for what is of no use once the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from anabranch_kit.net.turn import FRAME_WORK, Turn

T = TypeVar("T")

_ENDING_WORK = 16 * FRAME_WORK
"""What the end of a command counts: its task, what it waited for, and its connection's place for it."""


class UsefulWaits:
    """What commands of a connection wait for, until :meth:`end` ends them with a CancelledError. So what they wait for
    must change nothing and hold nothing, and whoever else waits for it goes on. They end a few in each ``turn``:
    hundreds of connections that end together may have thousands."""

    __slots__ = ("_tasks", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
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
        """Those that wait are of no use any more."""
        if self._tasks:
            self._turn.wait(self, self._end_some)

    def _end_some(self) -> None:
        while self._tasks and not self._turn.is_over:
            self._tasks.pop().cancel()
            self._turn.spend(_ENDING_WORK)
        self.end()
