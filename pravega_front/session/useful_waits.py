"""Waits that are cancelled when the client has gone, because their results are of no use then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from anabranch_kit.net.turn import FRAME_WORK, Turn

T = TypeVar("T")

_ENDING_WORK = 16 * FRAME_WORK
"""Share of the event loop's turn for the end of a command: its task, its wait, and its slot."""


class UsefulWaits:
    """Waits of a connection's commands, which :meth:`end` cancels with a CancelledError. So the awaited work must
    change nothing and hold nothing, and the cancellation must not end it for other waiters. A few are cancelled in each
    ``turn``: hundreds of connections that end together may have thousands."""

    __slots__ = ("_tasks", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._tasks: set[asyncio.Task[object]] = set()

    async def on(self, work: Awaitable[T]) -> T:
        """Wait for ``work`` in the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)
            # A cancelled task keeps its error, whose traceback keeps this frame. With the task in the frame that would
            # be a reference cycle, which stays until the garbage collector runs, and that is rare in a node.
            del task

    def end(self) -> None:
        """Cancel all waits, a few per turn."""
        if self._tasks:
            self._turn.wait(self, self._end_some)

    def _end_some(self) -> None:
        while self._tasks and not self._turn.is_over:
            self._tasks.pop().cancel()
            self._turn.spend(_ENDING_WORK)
        self.end()
