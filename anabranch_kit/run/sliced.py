"""Work whose size a client chooses, done in slices: a short one at once, the rest off the event loop.

Sliced work is a generator: each step is short (some hundred records, some ten kilobytes), and its return value is the
result. The steps run in one thread, and the event loop asks for each after the one before. So between two turns of the
loop there is at most one step, works in progress take turns, and a batch of a million records delays others only by
that. A few works are in progress at a time, since each may hold what it has decompressed. Waiting works are taken
shortest first, where waiting makes up for length. Of those that have turned out to be long only one goes on at a time,
so that together they hold little more than one may.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
Sliced = Generator[object, None, T]

SLICE_RECORDS = 500
"""Records of one step."""
_AT_ONCE = 4
_LONG_STEPS = 128
"""Steps after which a work counts as long: where steps are measured in bytes, it may hold some mebibytes by then."""
_SECONDS_PER_RECORD = 0.0001
"""Seconds per record for which a waiting work lets later ones pass."""


class SlicedWorks:
    """Executor of the sliced works of one node. Use on the event loop; call :meth:`close` when it is no longer used."""

    __slots__ = ("_clock", "_executor", "_free", "_long", "_order", "_waiting", "steps")

    def __init__(self, at_once: int = _AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._free = at_once
        self._clock = clock
        self._long = asyncio.Lock()
        self._order = count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self.steps = 0
        """Steps done off the loop so far."""

    async def finish(self, work: Sliced[T], records: int = 0, stepped: Callable[[], object] | None = None) -> T:
        """Run ``work`` to its end off the loop; return its result or raise its exception.

        ``records`` is its approximate length: shorter works may pass it while it waits for its turn. ``stepped`` is
        called after each step, to count what the work may hold by then.
        """
        async with self.turn(records):
            ended, value = await self._steps(work, _LONG_STEPS, stepped)
            if not ended:
                async with self._long:
                    ended, value = await self._steps(work, sys.maxsize, stepped)
        result: T = value
        return result

    async def _steps(self, work: Sliced[Any], most: int, stepped: Callable[[], object] | None) -> tuple[bool, Any]:
        for _ in range(most):
            ended, value = await self.step(work)
            if stepped is not None:
                stepped()
            if ended:
                return True, value
        return False, None

    async def run(self, begin: Callable[[], Sliced[T]], records: int = 0) -> T:
        """Run a work as :meth:`finish` does, with the first step at once. A work that has to wait for its turn after
        that begins anew, since the data it has decompressed may be much larger than its source.
        """
        work = begin()
        ended, value = advance(work)
        if ended:
            result: T = value
            return result
        if not self._free:
            work.close()
            work = begin()
        return await self.finish(work, records)

    async def step(self, work: Sliced[Any]) -> tuple[bool, Any]:
        """Run one step of a ``work`` that has its turn; return (True, its result) or (False, what it yielded)."""
        executor = self._executor
        if executor is None:
            executor = self._executor = ThreadPoolExecutor(1, thread_name_prefix="sliced")
        self.steps += 1
        return await asyncio.get_running_loop().run_in_executor(executor, advance, work)

    @asynccontextmanager
    async def turn(self, records: int = 0) -> AsyncIterator[None]:
        """Wait for a turn: only a few works are in progress at a time."""
        if self._free:
            self._free -= 1
        else:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            key = self._clock() + records * _SECONDS_PER_RECORD
            heapq.heappush(self._waiting, (key, next(self._order), granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Wait for the current step and start no other."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


def at_once(work: Sliced[T]) -> T:
    """Run all of ``work`` at once, where its duration does not matter."""
    while True:
        ended, value = advance(work)
        if ended:
            result: T = value
            return result


def advance(work: Sliced[Any]) -> tuple[bool, Any]:
    """Run one step of ``work``; return (True, its result) or (False, what it yielded)."""
    try:
        return False, next(work)
    except StopIteration as end:
        return True, end.value
