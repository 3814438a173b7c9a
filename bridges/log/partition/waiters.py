"""The waiters of a partition: objects that are called when it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import step_through
from bridges.errors import LogDeleted
from bridges.log.interfaces import Phase

if TYPE_CHECKING:
    from bridges.log.interfaces import Waiter
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.remote.readable import ReadableLog


class Waiters:
    """The waiters of one log, called when its high watermark or start moves, or the log becomes unusable."""

    __slots__ = ("_logs", "_moved_again", "_notify_scheduled", "waiting")

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.waiting: dict[Waiter, None] = {}
        self._notify_scheduled = False
        self._moved_again = False

    def moved(self, log: PartitionLog) -> None:
        """Call all waiters of ``log`` soon."""
        # Once per loop tick: a group commit acknowledges many batches of a partition at once.
        if self._notify_scheduled:
            self._moved_again = True
        elif self.waiting:
            self._notify_scheduled = True
            self._logs.schedule_answer(partial(step_through, self._wake(log), self._logs.schedule))

    def _wake(self, log: PartitionLog) -> Iterator[None]:
        """Call the waiters, one in each step: clients choose how many there are."""
        self._moved_again = False
        for waiter in list(self.waiting):
            if waiter not in self.waiting:
                continue  # it was answered meanwhile
            try:
                waiter.log_moved(log)
            except Exception as error:  # noqa: BLE001 - logged and counted
                self._logs.barrier.caught("waiter", error, topic=log.topic, partition=log.partition)
            yield
        self._notify_scheduled = False
        if self._moved_again:
            self.moved(log)


class _Until:
    """A waiter with a future that is done once a condition holds."""

    __slots__ = ("_condition", "done")

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def log_moved(self, log: ReadableLog) -> None:
        if self.done.done():
            return
        try:
            if log.phase is Phase.DELETED:
                self.done.set_exception(LogDeleted(f"{log.topic}-{log.partition} was deleted"))
            elif self._condition():
                self.done.set_result(None)
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            # a traceback would refer to this object, which keeps the error
            self.done.set_exception(error.with_traceback(None))


class _Once:
    """A waiter that makes one call once a condition holds."""

    __slots__ = ("_condition", "_then")

    def __init__(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        self._condition = condition
        self._then = then

    def log_moved(self, log: PartitionLog) -> None:
        if self._condition():
            log.remove_waiter(self)
            self._then()


def once(log: PartitionLog, condition: Callable[[], bool], then: Callable[[], None]) -> None:
    """Call ``then`` when the log has moved and ``condition`` holds. Only the log refers to this waiter."""
    log.add_waiter(_Once(condition, then))


async def until(log: ReadableLog, condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds, which is checked now and whenever the log moves. Raises LogDeleted, and the
    errors of ``condition``."""
    waiter = _Until(condition)
    waiter.log_moved(log)
    log.add_waiter(waiter)
    try:
        await waiter.done
    finally:
        log.remove_waiter(waiter)
        del waiter  # it would keep the error alive
