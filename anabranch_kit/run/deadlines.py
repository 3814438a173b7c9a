"""Deadlines of many keys, on one timer.

Nearly every deadline is removed or moved on before it comes, so setting, moving and removing one must be cheap, and a
removed one must keep nothing of its owner alive. Deadlines of one moment share a slot; a heap orders the slots, of
which there are never many more than deadlines.

Clients choose deadlines, so none is trusted: each comes after the moment that is being worked off, and a timer goes off
after now. So the owner cannot add to the round that it is working off, and the event loop turns between two rounds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from anabranch_kit.run.barrier import Barrier

K = TypeVar("K", bound=Hashable)

STEP_SECONDS = 0.01
"""Deadlines on an event loop are met up to this much late, never early."""

_LEAST_SECONDS = 0.001
"""Least seconds from now until an alarm goes off."""

_LEFT_OVER = 64
"""Stale moments in the heap, beyond twice the number of slots, after which it is rebuilt."""


class DeadlineQueue(Generic[K]):
    """At most one deadline per key, in whole steps of the caller's clock. No timer: see :class:`Deadlines`."""

    __slots__ = ("_at", "_heap", "_past", "_slots")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        # Dicts for their order: keys due at one moment come in the order they were set.
        self._slots: dict[int, dict[K, None]] = {}
        self._heap: list[int] = []  # every moment in ``_slots``, and some stale ones
        self._past: int | None = None  # the latest moment that was worked off

    def __len__(self) -> int:
        return len(self._at)

    def get(self, key: K) -> int | None:
        """Return when ``key`` is due, or None if it is not set."""
        return self._at.get(key)

    def set(self, key: K, now: int, after: int) -> None:
        """Set or move the deadline of ``key`` to ``after`` from now; less than one step counts as one."""
        if self._past is not None and now < self._past:
            now = self._past
        at = now + (after if after > 0 else 1)
        self.remove(key)
        self._at[key] = at
        slot = self._slots.get(at)
        if slot is None:
            slot = self._slots[at] = {}
            heapq.heappush(self._heap, at)
        slot[key] = None

    def remove(self, key: K) -> None:
        """Forget ``key``; nothing happens if it is not set."""
        at = self._at.pop(key, None)
        if at is None:
            return
        slot = self._slots[at]
        del slot[key]
        if not slot:
            del self._slots[at]
            if len(self._heap) > 2 * len(self._slots) + _LEFT_OVER:
                self._heap = list(self._slots)
                heapq.heapify(self._heap)

    @property
    def next(self) -> int | None:
        """Return the nearest deadline, or None without any."""
        heap = self._heap
        while heap and heap[0] not in self._slots:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def pop_due(self, now: int) -> K | None:
        """Remove and return the key with the nearest deadline if that is ``now`` or earlier, else None."""
        if self._past is None or now > self._past:
            self._past = now
        at = self.next
        if at is None or at > now:
            return None
        key = next(iter(self._slots[at]))
        self.remove(key)
        return key

    def clear(self) -> list[K]:
        """Forget all keys and return them."""
        keys = list(self._at)
        self._at.clear()
        self._slots.clear()
        self._heap.clear()
        return keys


class Alarm:
    """One timer for many deadlines: set to the earliest, it calls ``ring`` with the time when it goes off. Seconds of
    the loop's clock.

    It may go off too early, when the deadline was removed: where deadlines are rarely reached, that is cheaper than
    moving the timer each time.
    """

    __slots__ = ("_handle", "_loop", "_ring", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[float], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float) -> None:
        """Go off at ``when`` at the latest."""
        if self._handle is not None:
            if self._when <= when:
                return
            self._handle.cancel()
        self._when = when
        # Always after now: the owner may set it again and again for due deadlines, and the loop must turn.
        self._handle = self._loop.call_at(max(when, self._loop.time() + _LEAST_SECONDS), self._fire)

    def cancel(self) -> None:
        """Stop until it is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        # A loop may run a timer early, up to its clock's resolution. The deadline it was set for counts as due.
        self._ring(max(self._loop.time(), self._when))


class Deadlines(Generic[K]):
    """Calls ``expired`` on the loop, once for each key whose time has come and that was not removed before.

    ``barrier`` counts its exceptions; they do not delay other keys.
    """

    __slots__ = ("_alarm", "_barrier", "_expired", "_loop", "_queue")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[K], None], barrier: Barrier) -> None:
        self._loop = loop
        self._expired = expired
        self._barrier = barrier
        self._queue: DeadlineQueue[K] = DeadlineQueue()
        self._alarm = Alarm(loop, self._ring)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, key: K, when: float) -> None:
        """Set or move a deadline; ``when`` is a time of the loop's clock, in seconds."""
        now = _step(self._loop.time())
        self._queue.set(key, now, _step(when) + 1 - now)
        self._set_alarm()

    def remove(self, key: K) -> None:
        """Forget a deadline; one that is not (or no longer) there is no error."""
        self._queue.remove(key)

    def clear(self) -> list[K]:
        """Forget all deadlines and return their keys."""
        self._alarm.cancel()
        return self._queue.clear()

    def _set_alarm(self) -> None:
        at = self._queue.next
        if at is not None:
            self._alarm.set(at * STEP_SECONDS)

    def _ring(self, time: float) -> None:
        now = _step(time)
        nearest = self._queue.next
        if nearest is not None and nearest * STEP_SECONDS <= time:
            now = max(now, nearest)  # lost by the division's rounding
        while (key := self._queue.pop_due(now)) is not None:
            self._barrier.call("deadline", self._expired, key)
        self._set_alarm()


def _step(time: float) -> int:
    return int(time / STEP_SECONDS)
