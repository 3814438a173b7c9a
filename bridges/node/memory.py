"""Memory of a server that moves megabytes through short-lived buffers: the C allocator, and Python's collector.

By default glibc maps every large buffer anew and gives it back at once, so that each frame and each read of the log
pays for zeroed pages again: measured, half of what a node spends on reading. What is kept is bounded: when the process
has much more than it began with, it asks for what is free to go back (:class:`FreeMemory`). Only the top of the heap,
and only of the first of as many heaps as there are threads, goes back by itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from time import monotonic

from anabranch_kit.memory import heap

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
"""Buffers below this come from the heap; the largest value that every glibc takes."""
TRIM_THRESHOLD_BYTES = 128 * 1024 * 1024
"""Free memory at the top of the heap beyond this goes back to the system."""

GARBAGE_THRESHOLDS = (3_000, 2, 6_700)
"""Objects that are new when the collector looks at them, how often it does so before it looks at the survivors of those
times together, and those times before it looks at everything. The first two make a pause. What was made long ago by the
processor's count costs a microsecond each, so sixty thousand took it eighty milliseconds where ten thousand partitions
were opened, and nine thousand take it twelve; looked at in smaller portions they take no more time together."""


def keep_buffers() -> bool:
    """Have the allocator keep and reuse large buffers; False where it cannot be told (not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))


def collect_seldom() -> None:
    """What exists now lives as long as the process: the collector need not look at it again, and seldom at the rest,
    of which it looks at little at once, since everybody waits meanwhile."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


class FreeMemory:
    """Gives free memory back while the process has more than ``allowed`` bytes beyond what it had at the beginning.

    Where that helped little, since the memory is in use, it is tried again after twice the time.
    """

    LOOK_MS = 1_000
    FIRST_SECONDS = 2.0
    LAST_SECONDS = 20.0
    _LITTLE = 16
    """One part in so many of what is allowed."""

    __slots__ = ("_allowed", "_clock", "_first", "_give_back", "_next", "_pause", "_resident")

    def __init__(
        self,
        allowed: int,
        *,
        resident: Callable[[], int] = heap.resident,
        give_back: Callable[[], object] = heap.give_back,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._allowed = allowed
        self._resident = resident
        self._give_back = give_back
        self._clock = clock
        self._first = resident()
        self._pause = self.FIRST_SECONDS
        self._next = 0.0

    async def look(self, _: int = 0) -> None:
        """To be called about every :attr:`LOOK_MS`; takes microseconds, unless there is something to do. Raises OSError
        where there is no /proc."""
        before = self._resident()
        if before - self._first <= self._allowed or self._clock() < self._next:
            return
        await asyncio.to_thread(self._give_back)
        little = before - self._resident() < self._allowed // self._LITTLE
        self._pause = min(self.LAST_SECONDS, 2 * self._pause) if little else self.FIRST_SECONDS
        self._next = self._clock() + self._pause
