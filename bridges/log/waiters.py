"""Those who wait for a partition to move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridges.log.interfaces import Owner, Waiter
    from bridges.log.partition_log import PartitionLog

_WOKEN_AT_ONCE = 256
"""Waiters called in one turn of the event loop: how many wait is for clients to choose."""


class Waiters:
    """Who is called when a log's high watermark or start moves, or the log became unusable."""

    __slots__ = ("_log", "_moved_again", "_notify_scheduled", "_owner", "waiting")

    def __init__(self, log: PartitionLog, owner: Owner) -> None:
        self._log = log
        self._owner = owner
        self.waiting: dict[Waiter, None] = {}
        self._notify_scheduled = False
        self._moved_again = False

    def moved(self) -> None:
        """Have everybody called soon."""
        # Once per loop tick: a group commit acknowledges many batches of a partition at once.
        if self._notify_scheduled:
            self._moved_again = True
        elif self.waiting:
            self._notify_scheduled = True
            self._owner.schedule(self._notify)

    def _notify(self) -> None:
        self._moved_again = False
        self._wake(list(self.waiting))

    def _wake(self, waiters: list[Waiter]) -> None:
        for waiter in waiters[:_WOKEN_AT_ONCE]:
            if waiter not in self.waiting:
                continue  # it has its answer
            try:
                waiter.log_moved(self._log)
            except Exception as error:  # noqa: BLE001 - logged and counted
                log = self._log
                self._owner.barrier.caught("waiter", error, topic=log.topic, partition=log.partition)
        if len(waiters) > _WOKEN_AT_ONCE:
            self._owner.schedule(partial(self._wake, waiters[_WOKEN_AT_ONCE:]))
            return
        self._notify_scheduled = False
        if self._moved_again:
            self.moved()


class _Settling:
    """Waits until nothing is in flight."""

    __slots__ = ("_in_flight", "done")

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self._in_flight = in_flight
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def log_moved(self, log: PartitionLog) -> None:
        if not self._in_flight() and not self.done.done():
            self.done.set_result(None)


async def settled(log: PartitionLog, in_flight: Callable[[], int]) -> None:
    """Return once a log that takes no more appends has nothing in flight: ``in_flight`` tells how much there is."""
    if not in_flight():
        return
    waiter = _Settling(in_flight)
    log.add_waiter(waiter)
    try:
        await waiter.done
    finally:
        log.remove_waiter(waiter)
