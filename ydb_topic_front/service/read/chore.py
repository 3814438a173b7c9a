"""Task of a read session that is started when it first has work: most sessions never need it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Work = Callable[[], Coroutine[Any, Any, None]]


class Chore:
    """A task that loops over :meth:`await_work`. The first :meth:`want` passes ``work`` to ``begin``, which starts the
    task."""

    __slots__ = ("_begin", "_begun", "_wake", "_work")

    def __init__(self, begin: Callable[[Work], None], work: Work) -> None:
        self._begin = begin
        self._work = work
        self._begun = False
        self._wake = asyncio.Event()

    def want(self) -> None:
        """Wake the task: there is work."""
        self._wake.set()
        if not self._begun:
            self._begun = True
            self._begin(self._work)

    async def await_work(self) -> None:
        """Wait, in the task, until :meth:`want` was called since the last return."""
        await self._wake.wait()
        self._wake.clear()
