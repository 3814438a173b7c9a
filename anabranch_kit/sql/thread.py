"""One thread for one database, and commits shared by all waiting closures.

Callers hand over closures; the thread executes all waiting closures inside one transaction and commits once. While that
commit becomes durable the next closures queue up, so the number of commits follows the database and not the number of
callers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from typing import ClassVar

from anabranch_kit.sql.engine import Engine, Job, SqlDamaged, SqlFailed, SqlFull

logger = logging.getLogger(__name__)

MAX_GROUP = 1024
"""Closures in one transaction: bounds how long the first of them waits for the last."""
GIVEN_AT_ONCE = 32
"""Results given in one turn of the event loop: each wakes a waiter that has work to do with it."""


class SqlThread:
    """A thread that runs closures on ``engine`` and gives their results on the loop that :meth:`start` is called in.

    A subclass decides what callers get, and how (:meth:`Job.give`): ``what`` names the database in messages, and its
    error classes are constructed with a message.
    """

    what: ClassVar[str]
    Failed: ClassVar[type[Exception]]
    """Error class: nothing took effect."""
    Full: ClassVar[type[Exception]]
    """Error class: nothing took effect, for lack of room on the disk."""
    Damaged: ClassVar[type[Exception]]
    """Error class: nothing can be relied on."""
    Closed: ClassVar[type[Exception]]
    """Error class: the closure came too late."""
    ends_when_lost: ClassVar[bool] = True
    """Execute nothing any more after a group with an unknown outcome."""

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine = engine
        self.closures = 0
        """Closures executed since opening."""
        self.refused = 0
        """Closures that the database itself could not commit: unreachable, full, or always in conflict."""
        self.seconds = 0.0
        """Time spent executing."""
        self._began = 0.0
        """When the current transaction began; 0 while there is none."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[Job] = deque()
        # The thread takes from the queue, the loop adds to it; the lock is only for waiting and waking.
        self._wake = threading.Condition()
        self._waits = False
        self._closing = False
        self._ended = asyncio.Event()
        # Jobs that are decided and not given yet; and whether a turn of the loop is scheduled that gives some of them.
        self._decided: deque[Job] = deque()
        self._giving = False

    @property
    def commits(self) -> int:
        return self.engine.commits

    @property
    def waiting(self) -> int:
        """Return the number of closures that wait for execution."""
        return len(self._queue)

    @property
    def busy_seconds(self) -> float:
        """Return the seconds that the current transaction has taken so far; 0 while there is none."""
        began = self._began
        return time.perf_counter() - began if began else 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to execute; the engine is open."""
        self._loop = loop
        threading.Thread(target=self._main, name=f"sql-{self.engine.name}", daemon=True).start()

    def put(self, job: Job) -> None:
        """Queue a closure; ``job`` is given on the loop when it is durable, or is known not to be.

        Closures take effect, and are answered, in the order in which they were put. They run in the database's thread
        and may run more than once (a transaction that conflicts with another, or in which a closure fails, is
        repeated), so they touch nothing but the connection and their own objects. A closure that raises undoes its own
        changes only. To be called on the loop. Raises :attr:`Closed`.
        """
        if self._loop is None or self._closing:
            raise self.Closed("the node is stopping")
        self._queue.append(job)
        # The thread sets _waits before it looks into the queue for the last time.
        if self._waits:
            with self._wake:
                self._waits = False
                self._wake.notify()

    async def close(self) -> None:
        """Execute what is queued, then close the database. Harmless when called again."""
        if self._loop is None:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self.engine.stop_waiting()
        await self._ended.wait()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        self.engine.idle()
        try:
            while group := self._take():
                lost = self._execute(group)
                self._settle(group)
                self._post(group)
                if lost is not None and self.ends_when_lost:
                    self._refuse_all(lost)
                    break
                self.engine.idle()
        finally:
            self.engine.close()
            # Behind the results of the last group.
            self._post([_Last(self._ended)])

    def _take(self) -> list[Job]:
        queue = self._queue
        if not queue:
            with self._wake:
                while not queue:
                    if self._closing:
                        return []
                    self._waits = True
                    if not queue:
                        self._wake.wait()
                self._waits = False
        return [queue.popleft() for _ in range(min(MAX_GROUP, len(queue)))]

    def _execute(self, group: list[Job]) -> SqlDamaged | None:
        began = self._began = time.perf_counter()
        try:
            self.engine.execute(group, self._refuse)
            return None
        except Exception as error:
            # Refuse all waiting jobs: the connection's state is unknown.
            logger.exception("%s: a transaction failed unexpectedly", self.what)
            lost = SqlDamaged(str(error))
            lost.__cause__ = error
            for job in group:
                job.error = lost
            return lost
        finally:
            self._began = 0.0
            self.seconds += time.perf_counter() - began

    def _settle(self, group: list[Job]) -> None:
        for job in group:
            if job.error is not None:
                _let_go(job.error)
                job.error = self._translate_error(job.error)
        self.closures += len(group)

    def _refuse_all(self, failure: SqlDamaged) -> None:
        """Refuse all jobs until the end: nothing is executed any more."""
        while group := self._take():
            self._fail(group, failure)

    def _refuse(self, failure: SqlFailed) -> None:
        """Refuse the waiting jobs: nothing is executed for a while."""
        self._fail([self._queue.popleft() for _ in range(len(self._queue))], failure)

    def _fail(self, group: list[Job], failure: SqlFailed) -> None:
        for job in group:
            job.error = self._translate_error(failure)
        self._post(group)

    def _translate_error(self, error: Exception) -> Exception:
        """Return the error for a caller: with our own message where the database failed and not the closure."""
        self.refused += isinstance(error, SqlFailed)
        if isinstance(error, SqlFull):
            told = self.Full(f"there is no disk space left for {self.what}: it is full")
        elif isinstance(error, SqlDamaged):
            told = self.Damaged(f"{self.what} cannot be used any more: {error}")
        elif isinstance(error, SqlFailed):
            told = self.Failed(f"{self.what} could not commit: {error}")
        else:
            return error
        told.__cause__ = error.__cause__ or error
        return told

    def _post(self, group: list[Job]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed without closing the database: no waiter is left
            self._loop.call_soon_threadsafe(self._deliver, group)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _deliver(self, group: list[Job]) -> None:
        """Give the outcomes of a group, behind those of earlier groups."""
        self._decided += group
        # Drop the results, which may be large: errors refer to frames of the thread, which would keep them alive.
        group.clear()
        if not self._giving:
            self._give()

    def _give(self) -> None:
        assert self._loop is not None
        decided = self._decided
        # Set before anything can fail: later jobs must not wait for ever.
        self._giving = len(decided) > GIVEN_AT_ONCE
        if self._giving:
            self._loop.call_soon(self._give)
        for _ in range(min(len(decided), GIVEN_AT_ONCE)):
            job = decided.popleft()
            try:
                job.give()
            except Exception as error:  # noqa: BLE001 - told as the loop tells it; the others have their answers
                told = {"message": f"an answer of {self.what} failed", "exception": error}
                self._loop.call_exception_handler(told)


def _let_go(error: BaseException | None) -> None:
    """Clear the frames of an error, so that they keep nothing alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


class _Last(Job):
    __slots__ = ("ended",)

    def __init__(self, ended: asyncio.Event) -> None:
        self.ended = ended

    def give(self) -> None:
        self.ended.set()
