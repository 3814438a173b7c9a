"""A set of named deadlines of which only the nearest matters to the caller.

A group coordinator moves a session deadline at every heartbeat and almost never reaches one, so moving a deadline
later must cost a dictionary store and nothing else: the heap keeps the old entry, and the key is queued again at its
real time when that entry surfaces.

Deadlines come from what clients ask for, so none is trusted: one is always set some time after *now*, at least a
millisecond, and *now* is never before a moment that was already worked off. Whoever works off what is due at one moment
can therefore add nothing to his own work, and is done after at most as many steps as there were deadlines.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Deadlines in milliseconds of the caller's own clock, at most one per key."""

    __slots__ = ("_at", "_heap", "_now_ms", "_queued", "_serial")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._queued: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._serial = 0
        self._now_ms: int | None = None  # the latest moment that was worked off

    def __len__(self) -> int:
        return len(self._at)

    def get(self, key: K) -> int | None:
        """When ``key`` is due, or None if it is not set."""
        return self._at.get(key)

    def arm(self, key: K, now_ms: int, after_ms: int) -> None:
        """Set or move the deadline of ``key`` to ``after_ms`` from now; less than a millisecond counts as one."""
        if self._now_ms is not None and now_ms < self._now_ms:
            now_ms = self._now_ms
        at_ms = now_ms + (after_ms if after_ms > 0 else 1)
        assert at_ms > now_ms
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: K) -> None:
        """Forget ``key``; nothing happens if it is not set."""
        self._at.pop(key, None)

    @property
    def next_ms(self) -> int | None:
        """The nearest deadline, or None without any."""
        heap = self._heap
        while heap:
            queued_at, _, key = heap[0]
            if self._queued.get(key) != queued_at:
                heapq.heappop(heap)  # overtaken by an entry with an earlier time
                continue
            at_ms = self._at.get(key)
            if at_ms == queued_at:
                return queued_at
            heapq.heappop(heap)
            del self._queued[key]
            if at_ms is not None:
                self._push(key, at_ms)
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return the key with the nearest deadline if that is ``now_ms`` or earlier, else None."""
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms
        at_ms = self.next_ms
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._at[key]
        return key

    def _push(self, key: K, at_ms: int) -> None:
        # The serial keeps keys themselves out of the comparison and equal deadlines in the order they were set.
        self._serial += 1
        self._queued[key] = at_ms
        heapq.heappush(self._heap, (at_ms, self._serial, key))
