"""Work of a reading session that begins when there is something to do: most sessions of a crowd never have anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Work = Callable[[], Coroutine[Any, Any, None]]


class Chore:
    """``work`` waits for :meth:`wanted` again and again; ``begin`` is given it when it is wanted for the first time."""

    __slots__ = ("_begin", "_begun", "_wake", "_work")

    def __init__(self, begin: Callable[[Work], None], work: Work) -> None:
        self._begin = begin
        self._work = work
        self._begun = False
        self._wake = asyncio.Event()

    def want(self) -> None:
        """There is something to do."""
        self._wake.set()
        if not self._begun:
            self._begun = True
            self._begin(self._work)

    async def wanted(self) -> None:
        """For the work: return when there has been something to do since it was here before."""
        await self._wake.wait()
        self._wake.clear()
