"""Deadlines of many waiting requests on one timer.

Requests wait for data far more often than for their deadline, so adding and removing must be cheap and a removed
deadline must leave nothing behind. Deadlines are rounded up to slots; slots are sets, and a heap orders the slots.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sbp_back.barrier import guarded


class Waiter(Protocol):
    """Something with a deadline; ``slot`` belongs to the :class:`Deadlines` it is in and is -1 outside."""

    slot: int


W = TypeVar("W", bound=Waiter)

SLOT_SECONDS = 0.01
"""Deadlines are met up to this much late, never early."""


class Deadlines(Generic[W]):
    """Calls ``expired`` on the loop, once for each waiter whose time has come and that was not removed before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[W], None]) -> None:
        self._loop = loop
        self._expired = expired
        # Dicts for their order: waiters of one slot expire in the order they came.
        self._slots: dict[int, dict[int, W]] = {}
        self._heap: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = -1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: W, when: float) -> None:
        """``when`` is a time of the loop's clock, in seconds; one that has passed is taken for now."""
        # Never the slot that is being worked off: one that is added again from there would keep the loop to itself.
        slot = int(max(when, self._loop.time()) / SLOT_SECONDS) + 1
        waiter.slot = slot
        waiters = self._slots.get(slot)
        if waiters is None:
            waiters = self._slots[slot] = {}
            heapq.heappush(self._heap, slot)
        waiters[id(waiter)] = waiter
        self._count += 1
        if self._timer is None or slot < self._timer_slot:
            self._arm(slot)

    def remove(self, waiter: W) -> None:
        """Forget a waiter; one that is not (or no longer) waiting is no error."""
        if waiter.slot < 0:
            return
        waiters = self._slots.get(waiter.slot)
        waiter.slot = -1
        # No such slot: it is just being worked off, and the waiter was counted out with it.
        if waiters is not None and waiters.pop(id(waiter), None) is not None:
            self._count -= 1

    def clear(self) -> list[W]:
        """Forget all waiters and return them."""
        waiters = [waiter for slot in self._slots.values() for waiter in slot.values()]
        for waiter in waiters:
            waiter.slot = -1
        self._slots.clear()
        self._heap.clear()
        self._count = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiters

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * SLOT_SECONDS, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # A loop runs timers up to its clock's resolution early; the slot that was armed is due by definition.
        now = max(int(self._loop.time() / SLOT_SECONDS), self._timer_slot)
        due: list[W] = []
        while self._heap and self._heap[0] <= now:
            due += self._slots.pop(heapq.heappop(self._heap)).values()
        # Empty slots ahead are dropped here, so that they cost no wake-up of their own.
        while self._heap and not self._slots[self._heap[0]]:
            del self._slots[heapq.heappop(self._heap)]
        self._count -= len(due)
        if self._heap:
            self._arm(self._heap[0])
        for waiter in due:
            if waiter.slot >= 0:  # else it was removed by what an earlier one of this round did
                waiter.slot = -1
                guarded("a deadline", self._expired, waiter)
