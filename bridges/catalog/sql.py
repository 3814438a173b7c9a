"""The node's own small database: one SQLite file, one thread, commits shared by everything that waits.

Callers hand closures to :meth:`Database.run`; the thread executes all closures that are waiting inside one
transaction, each in a savepoint of its own, and commits once. While that commit flushes to disk the next closures
queue up, so the number of flushes follows the disk and not the number of callers.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from bridges.errors import LogError, StorageFull
from sbp_back.errors import StoreCorrupt, StoreError, StoreVersionError
from sbp_back.reserve import Reserve
from sbp_back.row_sums import DamagedRows, RowSums, make_table

T = TypeVar("T")

Closure = Callable[[sqlite3.Connection], Any]
Migration = Callable[[sqlite3.Connection], None]

_MAX_GROUP = 1024
"""Closures in one transaction: bounds how long the first of them waits for the last."""
_GIVEN_AT_ONCE = 32
"""Results that are given in one turn of the event loop: each wakes somebody who has something to do with it."""


class DatabaseError(LogError):
    """The database could not commit; nothing of the request took effect and it may be repeated."""

    retriable = True


class DatabaseDamaged(DatabaseError):
    """The disk failed, or what is on it is no database any more: nothing can be relied on, the node must stop."""

    retriable = False


class DatabaseClosed(LogError):
    """The node is stopping: the request was not executed."""

    retriable = True


class _FlushFailed(Exception):
    """The disk did not take what was committed."""


class _Job:
    __slots__ = ("error", "flush", "fn", "frees", "future", "result")

    def __init__(self, fn: Closure, future: asyncio.Future[Any], flush: bool, frees: bool = False) -> None:
        self.fn = fn
        self.flush = flush
        self.frees = frees
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


class Database:
    """One SQLite file in WAL mode with ``synchronous = FULL``: what ``run`` returned from is on disk.

    ``application_id`` is written into the file's header and checked on opening, so that a foreign SQLite file is
    refused. ``migrations[i]`` brings schema version ``i`` to ``i + 1``; ``PRAGMA user_version`` holds the version.
    Where ``migrations`` have :func:`sbp_back.row_sums.make_table` all rows have checksums, but those of
    ``unwatched`` tables, which have their own. ``reserve_bytes`` of disk are kept for what makes room there.
    ``synchronous`` may be lowered to ``"NORMAL"`` where the node promises to survive process death only. ``on_failed``
    is called on the loop when the file or its disk is damaged.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        application_id: int,
        synchronous: str = "FULL",
        unwatched: Collection[str] = (),
        reserve_bytes: int = 0,
        on_failed: Callable[[DatabaseDamaged], None] | None = None,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self.path = path
        self.commits = 0
        """Transactions committed since opening."""
        self.closures = 0
        """Closures executed since opening."""
        self._migrations = tuple(migrations)
        self._application_id = application_id
        self._synchronous = synchronous
        self._on_failed = on_failed
        self._unwatched = unwatched
        self._reserve = Reserve(path.with_name(f"{path.name}-reserve"), reserve_bytes)
        self._sums: RowSums | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        # What was decided and not given yet; and whether a turn of the loop is on its way in which some of it is.
        self._decided: deque[_Job] = deque()
        self._giving = False

    async def open(self) -> None:
        """Open (or create) the file, bring its schema up to date and start the thread.

        Raises StoreVersionError (written by a newer version), StoreCorrupt (not a readable database of ours) or
        StoreError (cannot be opened at all).
        """
        if self._thread is not None:
            raise RuntimeError("the database is open already")
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(opened,), name=f"sql-{self.path.name}", daemon=True)
        self._thread.start()
        try:
            await opened
        except StoreError:
            self._thread.join()
            self._thread = None
            raise

    def submit(
        self, fn: Callable[[sqlite3.Connection], T], *, flush: bool = False, frees: bool = False
    ) -> asyncio.Future[T]:
        """Queue ``fn``; the future resolves to its result once it is durable (see :meth:`run`)."""
        if self._loop is None or self._closing:
            raise DatabaseClosed("the node is stopping")
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._wake:
            self._queue.append(_Job(fn, future, flush, frees))
            if len(self._queue) == 1:
                self._wake.notify()
        return cast("asyncio.Future[T]", future)

    async def run(self, fn: Callable[[sqlite3.Connection], T], *, flush: bool = False, frees: bool = False) -> T:
        """Execute ``fn(connection)`` in the database thread and return its result once it is durable.

        Closures take effect in the order they were submitted, and their results are delivered in that order. ``fn``
        must not commit or roll back, and a cursor it returns is dropped (the result is None then). What it raises is
        raised here and undoes only its own statements. A cancelled caller does not undo a closure queued already.
        With ``flush`` it survives loss of power even where ``synchronous`` promises less. What ``frees`` room on the
        disk may take that of the reserve, where there is no other.

        Raises StorageFull (no room on the disk), DatabaseError (the commit failed) or DatabaseClosed.
        """
        return await self.submit(fn, flush=flush, frees=frees)

    async def close(self) -> None:
        """Execute what is queued, then close the file. Harmless when called again."""
        thread = self._thread
        if thread is None:
            return
        self._closing = True
        with self._wake:
            self._wake.notify()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, thread.join)
        self._thread = None
        # Results of the last group were posted to the loop before the thread ended: this one is given behind them.
        last: asyncio.Future[None] = loop.create_future()
        self._deliver([_Job(lambda connection: None, last, False)])
        await last

    # --- the thread -------------------------------------------------------------------------------------------------

    def _main(self, opened: asyncio.Future[None]) -> None:
        assert self._loop is not None
        try:
            connection = self._connect_on_any_disk()
        except Exception as error:  # noqa: BLE001 - told to whoever opens, who would wait for ever
            problem = error if isinstance(error, StoreError) else StoreError(f"cannot open {self.path}: {error}")
            self._loop.call_soon_threadsafe(_resolve, opened, None, problem)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, None, None)
        self._reserve.keep()
        try:
            while group := self._take():
                try:
                    self._execute(connection, group)
                except Exception as error:  # noqa: BLE001 - told to everybody who waits, and to the node
                    failure = DatabaseDamaged(f"the node's database cannot be used any more: {error}")
                    failure.__cause__ = error
                    self._post(group, failure)
                    self._refuse_all(failure)
                del group  # what it gave is its callers', and may be large
        finally:
            connection.close()

    def _connect_on_any_disk(self) -> sqlite3.Connection:
        """As :meth:`_connect`. On a full disk SQLite cannot even open a file, and says that it is broken."""
        try:
            return self._connect()
        except StoreError as error:
            if not self._reserve.is_full():
                raise
            if self._reserve.spend():
                return self._connect()
            raise StoreError(f"cannot open {self.path}: its disk is full") from error

    def _refuse_all(self, failure: DatabaseDamaged) -> None:
        """Nothing is known of the connection's state any more: nothing is executed until the end."""
        while group := self._take():
            self._post(group, failure)

    def _take(self) -> list[_Job]:
        with self._wake:
            while not self._queue:
                if self._closing:
                    return []
                self._wake.wait()
            group: list[_Job] = []
            while self._queue and len(group) < _MAX_GROUP:
                group.append(self._queue.popleft())
            return group

    def _execute(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        assert self._loop is not None
        failure: Exception | None = None
        sums = self._sums
        job: _Job | None = None
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in group:
                connection.execute("SAVEPOINT job")
                before = {} if sums is None else sums.changes
                try:
                    result = job.fn(connection)
                    # A cursor must not leave this thread: dropping it resets a statement that is used here again.
                    job.result = None if isinstance(result, sqlite3.Cursor) else result
                    del result
                except Exception as error:  # handed to the caller of run(), who awaits it
                    traceback.clear_frames(error.__traceback__)  # for the same reason
                    job.error = _told(error)
                    if not connection.in_transaction:
                        raise  # SQLite gave up the whole transaction (disk full, I/O error): nothing of it remains
                    connection.execute("ROLLBACK TO job")
                    if sums is not None:
                        sums.undo(before)
                connection.execute("RELEASE job")
            if sums is not None:
                sums.store()
            connection.execute("COMMIT")
            self.commits += 1
            if self._synchronous != "FULL" and any(job.flush for job in group):
                try:
                    self._flush()
                except OSError as error:
                    raise _FlushFailed(str(error)) from error
        except Exception as error:  # noqa: BLE001 - handed to every caller of the group
            failure = _failure(error)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if sums is not None:
                sums.undo({})
        freeing = [one for one in group if one.frees and isinstance(failure or one.error, StorageFull)]
        if freeing and self._reserve.spend():
            self._post([one for one in group if one not in freeing], failure)
            for one in freeing:
                one.error = None
            self._execute(connection, freeing)
            return
        self.closures += len(group)
        self._post(group, failure)
        self._reserve.keep()
        del group, job  # the traceback of what one of them raised keeps this frame, which would keep all they gave

    def _post(self, group: list[_Job], failure: Exception | None) -> None:
        assert self._loop is not None
        if failure is not None:
            for job in group:
                job.error = failure
        with suppress(RuntimeError):  # the loop was closed without closing the database: nobody waits any more
            self._loop.call_soon_threadsafe(self._deliver, group)

    def _flush(self) -> None:
        """Have the disk take what was committed: in WAL mode that is the log's file, and the directory that has it."""
        for path in (self.path.with_name(f"{self.path.name}-wal"), self.path.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _deliver(self, group: list[_Job]) -> None:
        """Give what was decided of a group, behind what is still to be given of earlier ones."""
        self._decided += group
        if not self._giving:
            self._give()

    def _give(self) -> None:
        assert self._loop is not None
        decided = self._decided
        # Before anything can go wrong: whoever comes next must not wait for ever.
        self._giving = len(decided) > _GIVEN_AT_ONCE
        if self._giving:
            self._loop.call_soon(self._give)
        damaged: DatabaseDamaged | None = None
        for _ in range(min(len(decided), _GIVEN_AT_ONCE)):
            job = decided.popleft()
            _resolve(job.future, job.result, job.error)
            if isinstance(job.error, DatabaseDamaged):
                damaged = job.error
        if damaged is not None and self._on_failed is not None:
            self._on_failed(damaged)  # when they are answered: it may raise

    def _connect(self) -> sqlite3.Connection:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            if not fresh:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    raise StoreCorrupt(f"{self.path} is damaged: {found}")
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA foreign_keys = ON")
            self._migrate(connection, fresh)
        except DamagedRows as error:
            connection.close()
            raise StoreCorrupt(f"{self.path} is damaged: {error}") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # of text that is none any more
            connection.close()
            raise StoreCorrupt(f"{self.path} is not a readable database: {error}") from error
        except StoreError:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection, fresh: bool) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        # A crash between creating the file and its first commit leaves an empty database with neither number set.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != self._application_id and not (fresh or (application == version == tables == 0)):
            raise StoreCorrupt(f"{self.path} is a database of another application")
        if version > len(self._migrations):
            raise StoreVersionError(
                f"{self.path} has schema version {version}, and this program knows versions up to "
                f"{len(self._migrations)}: it was written by a newer release; start that one, or restore a backup"
            )
        if make_table in self._migrations[:version]:
            self._sums = RowSums(connection, self._unwatched)
            self._sums.check()
        if version == len(self._migrations):
            if self._sums is not None:
                self._sums.watch(changed=False)
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {self._application_id}")
        for migration in self._migrations[version:]:
            migration(connection)
        connection.execute(f"PRAGMA user_version = {len(self._migrations)}")
        if make_table in self._migrations:
            self._sums = self._sums or RowSums(connection, self._unwatched)
            self._sums.watch(changed=True)
        connection.execute("COMMIT")


_DAMAGE = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN})


def _told(error: Exception) -> Exception:
    """What a caller is told: our own words where the trouble is the disk's and not the closure's."""
    # Extended codes carry the primary one in their low byte.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF if isinstance(error, sqlite3.Error) else 0
    told: Exception
    if code == sqlite3.SQLITE_FULL:
        told = StorageFull("there is no disk space left for the node's database")
    elif code in _DAMAGE or isinstance(error, _FlushFailed):
        told = DatabaseDamaged(f"the node's database cannot be used any more: {error}")
    else:
        return error
    told.__cause__ = error
    return told


def _failure(error: Exception) -> Exception:
    told = _told(error)
    if told is error:
        told = DatabaseError(f"the node's database could not commit: {error}")
        told.__cause__ = error
    return told


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
