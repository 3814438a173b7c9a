"""The node's own small database, as its callers use it: closures that are awaited (anabranch_kit/sql/thread.py)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

from anabranch_kit.sql.connection import Connection, Cursor, Migration, upsert
from anabranch_kit.sql.engine import Engine, Job
from anabranch_kit.sql.thread import SqlThread
from bridges.catalog.database.following import Changes
from bridges.errors import LogError, StorageFull

__all__ = [
    "Connection",
    "Cursor",
    "Database",
    "DatabaseClosed",
    "DatabaseDamaged",
    "DatabaseError",
    "Migration",
    "upsert",
]

T = TypeVar("T")

_TRIES = 30
"""Attempts of :meth:`Database.surely`."""


class DatabaseError(LogError):
    """The database could not commit; nothing of the request took effect, and the caller may repeat it."""

    retriable = True


class DatabaseDamaged(DatabaseError):
    """The disk failed, or its contents are no database any more: nothing can be relied on, and the node must stop."""

    retriable = False


class DatabaseClosed(LogError):
    """The node is stopping: the request was not executed."""

    retriable = True


class Database(SqlThread):
    """The node's database: when ``run`` returns, its work is durable. ``on_failed`` is called on the loop when the
    engine's file or disk is damaged."""

    what = "the node's database"
    Failed = DatabaseError
    Full = StorageFull
    Damaged = DatabaseDamaged
    Closed = DatabaseClosed

    def __init__(self, engine: Engine, *, on_failed: Callable[[DatabaseDamaged], None] | None = None) -> None:
        super().__init__(engine)
        self.changes = Changes(self)
        """Keeps memory in step with changes by other nodes."""
        self._on_failed = on_failed

    async def open(self) -> None:
        """Open the database, or create it, bring its schema up to date and start the thread.

        Raises StoreVersionError (written by a newer version), StoreCorrupt (not a readable database of ours) or
        StoreError (cannot be opened at all).
        """
        if self._loop is not None:
            raise RuntimeError("the database is open already")
        await asyncio.to_thread(self.engine.open)
        self.start(asyncio.get_running_loop())

    def submit(
        self,
        fn: Callable[[Connection], T],
        *,
        flush: bool = False,
        frees: bool = False,
        then: Callable[[T], None] | None = None,
    ) -> asyncio.Future[T]:
        """Queue ``fn``; the future resolves to its result once it is durable (see :meth:`run`)."""
        job = _Awaited(fn, flush, frees)
        job.on_failed = self._on_failed
        job.then = then
        job.future = future = asyncio.get_running_loop().create_future()
        self.put(job)
        return cast("asyncio.Future[T]", future)

    async def run(
        self,
        fn: Callable[[Connection], T],
        *,
        flush: bool = False,
        frees: bool = False,
        then: Callable[[T], None] | None = None,
    ) -> T:
        """Execute ``fn(connection)`` in the database thread and return its result once it is durable.

        ``fn`` must not commit or roll back, and a cursor it returns is dropped (the result is None then). What it
        raises is raised here and undoes only its own statements. Cancelling the caller does not undo a queued closure:
        use ``then`` to update memory. It is called on the loop with the result, in the order of the database, whether
        or not the caller still waits. See :meth:`~anabranch_kit.sql.thread.SqlThread.put`.

        Raises StorageFull (no room on the disk), DatabaseError (the commit failed) or DatabaseClosed.
        """
        return await self.submit(fn, flush=flush, frees=frees, then=then)

    async def await_writes(self) -> None:
        """Wait until all work submitted before is durable. Raises the errors of :meth:`run`."""
        await self.run(lambda connection: None)

    async def surely(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn`` like :meth:`run`, and retry it for some seconds. For work at a start, because nodes that start
        together collide in the database. Raises the errors of :meth:`run`."""
        for _ in range(_TRIES):
            try:
                return await self.run(fn)
            except DatabaseError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(random.uniform(0.05, 0.3))
        return await self.run(fn)


class _Awaited(Job):
    __slots__ = ("future", "on_failed", "then")

    future: asyncio.Future[Any]
    on_failed: Callable[[DatabaseDamaged], None] | None
    then: Callable[[Any], None] | None

    def give(self) -> None:
        error = self.error
        if self.then is not None and error is None:
            try:
                self.then(self.result)
            except Exception as raised:  # noqa: BLE001 - the waiter gets it
                error = raised
        if not self.future.cancelled():
            if error is None:
                self.future.set_result(self.result)
            else:
                self.future.set_exception(error)
        if error is not None and isinstance(error, DatabaseDamaged) and self.on_failed is not None:
            self.on_failed(error)  # after the answer, because it may raise
