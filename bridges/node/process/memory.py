"""The interpreter of a server that moves megabytes through short-lived buffers: the C allocator, Python's collector,
and the lock that threads share.

By default glibc maps every large buffer anew and returns it at once, so each frame and each read of the log pays for
zeroed pages again: measured, half of a node's time for reading. Memory kept instead is bounded: when the process has
grown much, it asks the allocator to return free memory (:class:`FreeMemory`). By itself the allocator returns only the
top of the heap, and only of the first of as many heaps as there are threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from time import monotonic

from anabranch_kit.memory import heap

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
"""Buffers below this size come from the heap; the largest value that every glibc accepts."""
TRIM_THRESHOLD_BYTES = 128 * 1024 * 1024
"""Free memory at the top of the heap beyond this is returned to the system."""

GARBAGE_THRESHOLDS = (3_000, 2, 6_700)
"""The collector's thresholds: new objects before it examines them; how often it does so before it examines the
survivors together; and how often that before it examines everything. The first two determine a pause. Objects that are
no longer in the processor's caches cost a microsecond each: 60,000 of them took 80 ms where 10,000 partitions were
opened, 9,000 take 12 ms. Smaller portions take no more time in total.
"""


_SWITCH_S = 0.0005
"""The longest time for which a thread keeps the interpreter's lock while another requests it.

The event loop releases the lock in each system call, about ten times per accepted connection. A thread that computes
meanwhile keeps it for this interval, by default 5 ms, each time. While requests were decoded or decompressed in
threads, accepting a few connections took up to 65 ms, of which the loop computed one. A tenth of the interval has no
measurable cost: only a waiting thread requests the lock.
"""


def switch_threads_often() -> None:
    """Shorten the interpreter's switch interval, for the whole process."""
    sys.setswitchinterval(_SWITCH_S)


def keep_buffers() -> bool:
    """Have the allocator keep and reuse large buffers; return False if that is impossible (not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))


def collect_seldom() -> None:
    """Exempt all present objects from collection, as they live as long as the process, and enable the collector.

    It runs seldom, and examines little at once, because everything waits meanwhile.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


class FreeMemory:
    """Returns free memory to the system while the process has grown by more than ``allowed`` bytes.

    If that frees little, because the memory is in use, the next attempt comes after twice the time.
    """

    LOOK_MS = 1_000
    FIRST_SECONDS = 2.0
    LAST_SECONDS = 20.0
    _LITTLE = 16
    """Little is less than this fraction (1/n) of ``allowed``."""

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

    async def return_unused(self, _: int = 0) -> None:
        """Return memory if necessary. To be called about every :attr:`LOOK_MS`; takes microseconds if there is nothing
        to do.

        Raises OSError without /proc.
        """
        before = self._resident()
        if before - self._first <= self._allowed or self._clock() < self._next:
            return
        await asyncio.to_thread(self._give_back)
        little = before - self._resident() < self._allowed // self._LITTLE
        self._pause = min(self.LAST_SECONDS, 2 * self._pause) if little else self.FIRST_SECONDS
        self._next = self._clock() + self._pause
