"""SQLite as an engine: one file in WAL mode.

Closures get SQLite's own connection, and no savepoint separates them: it would cost more than most closures do. Where a
closure fails that has changed something, the transaction is undone, and the group executed again with savepoints.

Processes of one machine may share the file. Then each transaction waits for its turn, for a bounded time; a process
that opens the file compares tables with their checksums and brings them up to date as if it were alone; and listeners
in all processes hear of commits (anabranch_kit/sql/notices.py).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import traceback
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from anabranch_kit.errors import StoreCorrupt, StoreError, StoreVersionError
from anabranch_kit.sql.connection import Migration
from anabranch_kit.sql.engine import Job, Refuse, SqlDamaged, SqlFailed, SqlFull
from anabranch_kit.sql.notices import Notices
from anabranch_kit.sql.reserve import Reserve
from anabranch_kit.sql.row_sums import DamagedRows, RowSums, make_table

_TURN_S = 0.0005
"""Seconds between two attempts to get the turn among processes that share the file."""
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGE = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN})


class SqliteEngine:
    """The file at ``path``, created when absent. With ``synchronous = FULL`` commits survive loss of power, with
    ``"NORMAL"`` process death only.

    ``application_id`` is written into the file's header and checked on opening, so that a foreign SQLite file is
    refused. ``migrations[i]`` brings schema version ``i`` to ``i + 1``; ``PRAGMA user_version`` holds the version.
    Where ``migrations`` have :func:`anabranch_kit.sql.row_sums.make_table` all rows have checksums, but those of
    ``unwatched`` tables, which have their own. ``reserve_bytes`` of disk are kept for transactions that free space
    there. ``shared``: other processes of this machine have the file, too; one that has its turn for ``patience_s``
    makes transactions of others fail. With ``notices`` they hear of commits. ``checked``: another connection of this
    process has compared the rows with their checksums already.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        application_id: int = 0,
        synchronous: str = "FULL",
        unwatched: Collection[str] = (),
        reserve_bytes: int = 0,
        shared: bool = False,
        notices: Notices | None = None,
        patience_s: float = 5.0,
        checked: bool = False,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self.path = path
        self.name = path.name
        self.commits = self.begun = 0
        self.connection: sqlite3.Connection
        self._migrations = tuple(migrations)
        self._application_id = application_id
        self._synchronous = synchronous
        self._unwatched = unwatched
        self._reserve = Reserve(path.with_name(f"{path.name}-reserve"), reserve_bytes)
        self._sums: RowSums | None = None
        self.shared = shared
        self.notice = "" if notices is None else "SELECT tell_others(?)"
        self._notices = notices
        self._told = False
        self._patience_s = patience_s
        self._checked = checked

    def open(self) -> None:
        try:
            self._connect()
        except StoreError as error:
            # On a full disk SQLite cannot even open a file, and reports it as broken.
            if not self._reserve.is_full():
                raise
            if not self._reserve.spend():
                raise StoreError(f"cannot open {self.path}: its disk is full") from error
            self._connect()

    def _connect(self) -> None:
        try:
            fresh = not self.path.exists() or self.path.stat().st_size == 0
            self.connection = sqlite3.connect(
                self.path, timeout=self._patience_s, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot open {self.path}: {error}") from error
        try:
            self._prepare(fresh)
        except BaseException as error:
            self.connection.close()
            if isinstance(error, DamagedRows):
                raise StoreCorrupt(f"{self.path} is damaged: {error}") from None
            if isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError):  # the latter of text that is none
                raise StoreCorrupt(f"{self.path} is not a readable database: {error}") from error
            raise

    def _prepare(self, fresh: bool) -> None:
        connection = self.connection
        if not (fresh or self._checked):
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreCorrupt(f"{self.path} is damaged: {found}")
        with self._alone():
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
        if self._notices is not None:
            connection.create_function("tell_others", 1, self._note)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        with self._alone() if version < len(self._migrations) else nullcontext():
            # Version numbers, tables and sums must be of one moment, whatever others commit meanwhile.
            connection.execute("BEGIN")
            self._bring_up(fresh)
            if connection.in_transaction:
                connection.execute("COMMIT")
        if self.shared:
            connection.execute("PRAGMA busy_timeout = 0")  # this module waits for its turn itself

    def _bring_up(self, fresh: bool) -> None:
        connection = self.connection
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        # A crash between creating the file and its first commit leaves an empty database with neither number set.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != self._application_id and not (fresh or (application == version == tables == 0)):
            raise StoreCorrupt(f"{self.path} is a database of another application")
        check_version(str(self.path), version, len(self._migrations))
        if make_table in self._migrations[:version]:
            self._sums = RowSums(connection, self._unwatched)
            if not self._checked:
                self._sums.check()
        if version == len(self._migrations):
            if self._sums is not None:
                self._sums.watch(changed=False)
            return
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {self._application_id}")
        for migration in self._migrations[version:]:
            migration(connection)
        connection.execute(f"PRAGMA user_version = {len(self._migrations)}")
        if make_table in self._migrations:
            self._sums = self._sums or RowSums(connection, self._unwatched)
            self._sums.watch(changed=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes that share the file from changing its structure while entered. They wait, however
        long.
        """
        if not self.shared:
            yield
            return
        descriptor = os.open(self.path.with_name(f"{self.path.name}-opening"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _note(self, _: str) -> None:
        self._told = True

    def idle(self) -> None:
        self._reserve.keep()

    def close(self) -> None:
        self.connection.close()

    def listen(self, channel: str) -> AsyncIterator[None]:
        if self._notices is None:
            raise NotImplementedError("nobody is told of what this engine has committed")
        return self._notices.listen()

    def stop_waiting(self) -> None:
        """Do nothing: this engine never waits for an outcome."""

    def execute(self, group: list[Job], refuse: Refuse) -> None:
        failure = self._execute(group)
        if failure is not None:
            for job in group:
                job.error = failure
        freeing = [job for job in group if job.frees and isinstance(job.error, SqlFull)]
        if freeing and self._reserve.spend():
            for job in freeing:
                job.error = None
            self.execute(freeing, refuse)
            freeing.clear()  # its errors refer to this frame

    def _execute(self, group: list[Job]) -> Exception | None:
        """Execute and commit ``group``; return why nothing of it was committed, or None."""
        try:
            self._begin()
            if not self._together(group):
                self._undo()
                if len(group) == 1:
                    return None
                self._begin()
                self._apart(group)
            if self._sums is not None:
                self._sums.store()
            self.connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - handed to everybody of the group
            self._undo()
            failure = _of_disk(error) or SqlFailed(str(error))
            failure.__cause__ = error
            return failure
        self.commits += 1
        if self._told and self._notices is not None:
            self._told = False
            self._notices.tell()
        try:
            if self._synchronous != "FULL" and any(job.flush for job in group):
                self._flush()
        except OSError as error:
            return SqlDamaged(str(error))
        return None

    def _begin(self) -> None:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                self.begun += 1
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() >= until:
                    raise
            # Not SQLite's own back-off, which after a while retries only ten times a second and lets others pass.
            time.sleep(_TURN_S)

    def _undo(self) -> None:
        self._told = False
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        if self._sums is not None:
            self._sums.undo({})

    def _together(self, group: list[Job]) -> bool:
        """Run ``group`` without savepoints; return False if a closure has failed, and its changes alone must be
        undone.
        """
        connection, sums = self.connection, self._sums
        for job in group:
            # Neither number counts new tables. The sums have also noted changes of a statement that was then undone.
            changes, noted = connection.total_changes, 0 if sums is None else sums.noted
            try:
                result = job.fn(connection)
                # A cursor must not leave this thread: dropping it resets a statement that is used here again.
                job.result = None if isinstance(result, sqlite3.Cursor) else result
                del result
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
                self._failed(job, error)
                if sums is None or connection.total_changes != changes or sums.noted != noted or sums.has_new_schema():
                    return False
            if not connection.in_transaction:
                raise SqlFailed("a closure has ended the transaction of its group") from None
        return True

    def _apart(self, group: list[Job]) -> None:
        connection, sums = self.connection, self._sums
        for job in group:
            job.result = job.error = None
            connection.execute("SAVEPOINT job")
            before = {} if sums is None else sums.changes
            try:
                result = job.fn(connection)
                job.result = None if isinstance(result, sqlite3.Cursor) else result
                del result
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
                self._failed(job, error)
                connection.execute("ROLLBACK TO job")
                if sums is not None:
                    sums.undo(before)
            connection.execute("RELEASE job")

    def _failed(self, job: Job, error: Exception) -> None:
        """Record ``error`` of a closure; call it where the error is caught. Raises the error again if the whole
        transaction is lost.
        """
        traceback.clear_frames(error.__traceback__)  # it may have cursors
        job.error = _of_disk(error) or error
        if not self.connection.in_transaction:
            raise error  # SQLite gave it up (disk full, I/O error)

    def _flush(self) -> None:
        """Flush what was committed: in WAL mode the log's file, and its directory."""
        for path in (self.path.with_name(f"{self.path.name}-wal"), self.path.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def check_version(name: str, version: int, known: int) -> None:
    """Check that no newer release has written the database ``name``. Raises StoreVersionError."""
    if version > known:
        raise StoreVersionError(
            f"{name} has schema version {version}, and this program knows versions up to {known}: it was written by a "
            "newer release; start that one, or restore a backup"
        )


def _of_disk(error: Exception) -> SqlFailed | None:
    """Translate an error that comes from the disk; None for any other."""
    # Extended codes carry the primary one in their low byte.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF if isinstance(error, sqlite3.Error) else 0
    told: SqlFailed
    if code == sqlite3.SQLITE_FULL:
        told = SqlFull(str(error))
    elif code in _DAMAGE:
        told = SqlDamaged(str(error))
    else:
        return None
    told.__cause__ = error
    return told
