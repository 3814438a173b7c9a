"""PostgreSQL as an engine: serializable transactions, one for a group of closures.

A group is sent without waiting for answers that no closure reads, and without savepoints. When a closure fails that has
changed something, everything is undone and the group runs again, each closure in a savepoint. A transaction that
conflicts with another one runs again, too.

A COMMIT that is answered by an error is *unknown*; its outcome is queried, never guessed: the server may have committed
before it said FATAL, and a pooler may answer for a server that it has lost. Every transaction that changes anything
inserts a row of its own (``sql_commits``), and a query inserts the same row with ``infinity`` for a time. The second
insert finds the row taken. A row with a time is the transaction's: it was committed. A row without one is a query's,
maybe of an earlier query whose answer was lost: the transaction, which may still be in flight, can never be committed
any more. Until the outcome is known nothing else is executed, and waiting closures are refused.

A process that stops in the middle of a transaction, or whose machine does, keeps its locks, and its connection lives
on. The server ends an idle transaction; but not while it waits for the rest of an incomplete message, which it takes
for work. So a process that has waited for a lock for nearly as long as a server may be silent ends those connections
that have waited for their client all that time, and tries again.

PostgreSQL has checksums of its pages, so rows have none here (anabranch_kit/sql/row_sums.py); where an operator has not
turned them on the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import threading
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import psycopg
from psycopg import errors, rows
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.sql import dialect
from anabranch_kit.sql.connection import Connection, Migration
from anabranch_kit.sql.engine import Job, Refuse, SqlFailed, SqlFull
from anabranch_kit.sql.row_sums import make_table
from anabranch_kit.sql.sqlite import check_version

T = TypeVar("T")

logger = logging.getLogger(__name__)
logging.getLogger("psycopg").setLevel(logging.ERROR)  # this module logs lost connections itself

TRIES = 10
"""Most runs of a group that fails for reasons that may pass."""
CONFLICTS_S = 5.0
"""Seconds in which conflicts with other transactions do not count: a starved process can lose many races."""
_AGAIN = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.InvalidSqlStatementName,
    errors.LockNotAvailable,
)
_AGAIN_S = 0.2
"""Seconds between two attempts to reach the database."""
_LOCK = 1634628961
"""Key, with the schema's name, of the lock that a process holds while it brings a schema up to date."""
_APPLICATION = "anabranch"
"""Name of our connections, and no others, at the server."""
_END_SLEEPERS = b"""
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = $1 AND pid <> pg_backend_pid()
AND state <> 'idle' AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - make_interval(secs => $2)
"""
_FORGET_EVERY = 1000
"""Commits after which the rows of those before are deleted."""
_ASK = """
INSERT INTO sql_commits (session, number, made) VALUES (%s, %s, 'infinity')
ON CONFLICT (session, number) DO UPDATE SET made = sql_commits.made RETURNING isfinite(made)
"""
"""Queries whether a commit has happened. An update, so that the answer is committed behind the transaction in question,
and a synchronous standby has both.
"""


class _Int(Int8BinaryDumper):
    """Dumper of every number as a BIGINT, truth values as well: a statement is then prepared only once."""

    def dump(self, obj: Any) -> Buffer | None:
        return super().dump(int(obj))


class _Text(Dumper):
    """Dumper of text without a type, like a literal; it escapes the character of number 0."""

    def dump(self, obj: str) -> bytes:
        return dialect.escaped(obj).encode()


class _LoadText(Loader):
    def load(self, data: Buffer) -> str:
        return dialect.unescaped(bytes(data).decode())


class _LoadInt(Loader):
    """Loader of NUMERIC as int: sums of BIGINT are NUMERIC."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


_LOOK_S = 0.1
"""Seconds between looks at the clock while waiting for the server."""


class Silent(Exception):
    """The server has not answered for too long."""


def patient(
    gen: Generator[Any, Any, T], patience_s: float, clock: Callable[[], float] = time.monotonic
) -> Generator[Any, Any, T]:
    """Run ``gen``, sending it what the socket is ready for (0 for nothing) at least every ``_LOOK_S``, as long as the
    server is not silent for ``patience_s`` on end.

    An answer in many parts may take longer. Only time in which this process ran counts: a process that was paused, or
    got no processor, first finds the data that arrived meanwhile.
    """
    silent = 0.0
    try:
        state = next(gen)
        looked = clock()
        while True:
            ready = yield state
            now = clock()
            silent = 0.0 if ready else silent + min(now - looked, 2 * _LOOK_S)
            looked = now
            state = gen.send(ready)
            if silent >= patience_s:
                raise Silent
    except StopIteration as ended:
        found: T = ended.value
        return found


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up a server which does not answer."""

    patience_s: ClassVar[float] = 5.0

    def wait(self, gen: PQGen[Any], interval: float = _LOOK_S, timeout: float | None = None) -> Any:
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(patient(gen, self.patience_s), interval)
        except Silent:
            self.pgconn.finish()
            with suppress(psycopg.Error):
                gen.close()  # which reads the rest of a pipeline
            raise psycopg.OperationalError(f"it has not answered for {self.patience_s:.0f} s") from None


class _Rows:
    """A :class:`~anabranch_kit.sql.connection.Cursor`; its statement is in flight until the rows are read."""

    __slots__ = ("_cursor", "_pipeline")

    def __init__(self, cursor: psycopg.RawCursor[tuple[Any, ...]], pipeline: psycopg.Pipeline | None) -> None:
        self._cursor = cursor
        self._pipeline = pipeline

    def _sync(self) -> psycopg.RawCursor[tuple[Any, ...]]:
        if self._pipeline is not None:
            self._pipeline.sync()  # not only flushed: the server has to know that it waits for us, not for the rest
            self._pipeline = None  # one call: each is a round trip
        return self._cursor

    @property
    def rowcount(self) -> int:
        return self._sync().rowcount

    def fetchone(self) -> Any:
        return self._sync().fetchone()

    def fetchall(self) -> list[Any]:
        return self._sync().fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


class _Transaction:
    """A :class:`~anabranch_kit.sql.connection.Connection`. ``changed``: whether a statement has changed anything since
    it was last reset.
    """

    __slots__ = ("_db", "_pipeline", "changed")

    def __init__(self, db: _Connection, pipeline: psycopg.Pipeline | None = None) -> None:
        self._db = db
        self._pipeline = pipeline
        self.changed = False

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> _Rows:
        text = dialect.translated(statement)
        self.changed = self.changed or not text.startswith("SELECT")
        cursor = psycopg.RawCursor(self._db)
        cursor.execute(text.encode(), values or None)
        return _Rows(cursor, self._pipeline)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> _Rows:
        self.changed = True
        cursor = psycopg.RawCursor(self._db)
        cursor.executemany(dialect.translated(statement).encode(), list(rows))
        return _Rows(cursor, self._pipeline)


class _Apart(Exception):
    """The changes of one closure have to be undone, and those of the others not."""


class PostgresEngine:
    """Tables in the schema ``schema``, created when absent, of the database at ``url``.

    ``migrations`` and ``application_id`` as :class:`anabranch_kit.sql.sqlite.SqliteEngine` has them. Any number of
    processes share the schema. A server that does not answer within ``patience_s`` counts as lost; a transaction in
    which a process does nothing for nearly as long is undone, as others may wait for it. Without ``serializable`` each
    statement sees what is committed as it begins: for closures that lock the rows they decide by.
    """

    shared = True
    notice = "SELECT pg_notify(?, '')"

    def __init__(
        self,
        url: str,
        migrations: Sequence[Migration],
        *,
        schema: str,
        application_id: int = 0,
        patience_s: float = 5.0,
        waits_s: float = math.inf,
        serializable: bool = True,
        admit: Callable[[Connection, int], None] | None = None,
    ) -> None:
        """Prepare the engine. ``waits_s``: how long a transaction waits for a lock at most, and may hold one for a
        silent client, where other work waits behind it here that cannot wait as long as for a silent server. ``admit``
        is called before anything is changed where there are tables already, with their version: it raises
        StoreVersionError where this release may not use them. Without it, any newer version is refused.
        """
        try:
            known = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # The library's message contains the URL, which may have a password.
            raise StoreError("the database's URL is none that PostgreSQL's library understands") from None
        self.name = f"database {known.get('dbname', '')} at {known.get('host', 'localhost')}, schema {schema}"
        self.commits = self.begun = 0
        self._url = url
        self._schema = schema
        self._quoted = '"' + schema.replace('"', '""') + '"'
        self._migrations = tuple(migrations)
        self._application_id = application_id
        self._admit = admit
        self._patience_s = patience_s
        self._waits_s = min(0.8 * patience_s, waits_s)
        self._begin = f"BEGIN ISOLATION LEVEL {'SERIALIZABLE' if serializable else 'READ COMMITTED'}".encode()
        self._db: _Connection | None = None
        self._session = ""
        self._number = 0
        self._undone = 0
        self._refused_until = 0.0
        self._why = ""
        self._stopping = threading.Event()

    @property
    def connection(self) -> _Transaction:
        assert self._db is not None
        return _Transaction(self._db)

    # --- opening ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        try:
            db = self._connect()
            self._migrate(db)
            (sums,) = db.execute("SHOW data_checksums").fetchone() or ("off",)
        except psycopg.Error as error:
            self.close()
            raise StoreError(f"cannot use {self.name}: {str(error).strip()}") from error
        except StoreError:
            self.close()
            raise
        if sums != "on":
            logger.warning("%s: its server has no data checksums, so damage on its disk is not noticed", self.name)

    def _connect(self) -> _Connection:
        db = _Connection.connect(
            self._url,
            autocommit=True,
            connect_timeout=max(2, int(self._patience_s)),
            application_name=_APPLICATION,
            row_factory=rows.tuple_row,
        )
        try:
            db.patience_s = self._patience_s  # type: ignore[misc]
            db.prepare_threshold = 2
            for kind in (int, bool):
                db.adapters.register_dumper(kind, _Int)
            db.adapters.register_dumper(str, _Text)
            for name in ("text", "varchar", "name"):
                db.adapters.register_loader(name, _LoadText)
            db.adapters.register_loader("numeric", _LoadInt)
            # The server, too, has to notice a client that is gone or has stopped: others wait for its rows.
            for setting in ("idle = 5", "interval = 2", "count = 3"):
                db.execute(f"SET tcp_keepalives_{setting}".encode())
            for setting in ("idle_in_transaction_session_timeout", "lock_timeout"):
                db.execute(f"SET {setting} = {int(self._waits_s * 1000)}".encode())
            # A scan of a whole table, however small, conflicts with every change of a row in it.
            db.execute("SET enable_seqscan = off")
            # Without sequential scans the planner rates small tables as so expensive that it compiles the statement,
            # each time anew: some 20 ms of the server instead of some microseconds.
            db.execute("SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit'")
            db.execute(f"SET search_path = {self._quoted}".encode())
        except BaseException:
            db.close()
            raise
        self._db = db
        self._session = secrets.token_hex(16)
        self._number = 0
        return db

    def _migrate(self, db: _Connection) -> None:
        db.execute("BEGIN")
        db.execute("SET LOCAL lock_timeout = 0")  # other starting processes may have much to do
        # Starting processes share a busy machine; between two statements one may get no processor for seconds.
        db.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
        lock = _LOCK << 32 | zlib.crc32(self._schema.encode())
        db.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {self._quoted}".encode())
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = %s"
        (tables,) = db.execute(query, (self._schema,)).fetchone() or (0,)
        found: tuple[Any, ...] | None = (self._application_id, 0)
        if tables:
            query = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename = 'sql_schema'"
            (ours,) = db.execute(query, (self._schema,)).fetchone() or (0,)
            found = db.execute("SELECT application, version FROM sql_schema").fetchone() if ours else None
        if found is None or found[0] != self._application_id:
            raise StoreCorrupt(f"{self.name} is a database of another application")
        version = found[1]
        transaction = _Transaction(db)
        if self._admit is None:
            check_version(self.name, version, len(self._migrations))
        elif version:
            self._admit(transaction, version)
        if not tables:
            db.execute("CREATE TABLE sql_schema (application BIGINT NOT NULL, version BIGINT NOT NULL)")
            db.execute("INSERT INTO sql_schema VALUES (%s, 0)", (self._application_id,))
            db.execute(
                "CREATE TABLE sql_commits (session TEXT, number BIGINT, made TIMESTAMPTZ NOT NULL DEFAULT now(), "
                "PRIMARY KEY (session, number))"
            )
        for migration in self._migrations[version:]:
            if migration is not make_table:
                migration(transaction)
        db.execute("UPDATE sql_schema SET version = %s", (max(version, len(self._migrations)),))
        # Rows of processes that have ended. A living one may query its last commit after a long outage.
        db.execute("DELETE FROM sql_commits WHERE made < now() - interval '30 days'")
        db.execute("COMMIT")

    def idle(self) -> None:
        if self._db is not None and self._number >= _FORGET_EVERY:
            # Outside the closures' transactions: there it would conflict with those of others.
            with suppress(psycopg.Error):
                self._db.execute(
                    "DELETE FROM sql_commits WHERE session = %s AND number < %s", (self._session, self._number)
                )
                self._session, self._number = secrets.token_hex(16), 0

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    async def listen(self, channel: str) -> AsyncIterator[None]:
        while True:
            try:
                timeout = max(2, int(self._patience_s))
                db = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=timeout)
                async with db:
                    await db.execute(f'LISTEN "{channel}"'.encode())
                    yield
                    while True:
                        told = False
                        async for _ in db.notifies(timeout=self._patience_s, stop_after=1):
                            told = True  # once for all that came together: a listener looks at everything
                        if told:
                            yield
                            continue
                        # Check that the server is still there.
                        async with asyncio.timeout(self._patience_s):
                            await db.execute("SELECT 1")
            except (psycopg.Error, TimeoutError, OSError) as error:
                logger.info("%s: who listens has lost the connection: %s", self.name, str(error).strip())
            await asyncio.sleep(_AGAIN_S)

    def stop_waiting(self) -> None:
        self._stopping.set()

    # --- executing --------------------------------------------------------------------------------------------------

    def execute(self, group: list[Job], refuse: Refuse) -> None:
        tried = conflicts = 0
        started = time.monotonic()
        while tried < TRIES:
            tried += 1
            for job in group:
                job.result = job.error = None
            db = self._reached()
            if db is None:
                _fail(group, SqlFailed(self._why))
                return
            try:
                self._attempt(db, group)
                return
            except (errors.SerializationFailure, errors.DeadlockDetected) as error:
                self._undo(db)
                conflicts += 1
                _fail(group, SqlFailed(f"it conflicted with other transactions {conflicts} times: {error}"))
                time.sleep(random.random() * 0.001 * (1 << min(conflicts, 9)))
                if time.monotonic() - started < CONFLICTS_S:
                    tried = 0
            except errors.LockNotAvailable as error:
                self._undo(db)
                _fail(group, SqlFailed(f"others hold what it changes: {str(error).strip()}"))
                if not self._end_sleepers(db):
                    return
            except errors.InvalidSqlStatementName as error:
                # Statements to be prepared in a pipeline that failed were not, but the library believes they were.
                _fail(group, SqlFailed(str(error)))
                db.close()
            except _Unknown as unknown:
                committed = self._ask(unknown, refuse)
                if committed:
                    self.commits += 1
                    return
                _fail(group, SqlFailed(f"its COMMIT was answered by an error {TRIES} times: {unknown.__cause__}"))
                if committed is None:
                    _fail(group, SqlFailed("whether it was committed is unknown: the node stopped before it could ask"))
                    return
            except psycopg.Error as error:
                self._undo(db)
                kind = SqlFull if isinstance(error, errors.DiskFull) else SqlFailed
                _fail(group, kind(str(error).strip()))
                return

    def _end_sleepers(self, db: _Connection) -> int:
        """End our connections that wait in a transaction for silent clients; return how many there were."""
        try:
            ended = psycopg.RawCursor(db).execute(_END_SLEEPERS, (_APPLICATION, float(self._waits_s))).fetchall()
        except psycopg.Error as error:
            logger.warning("%s: who holds locks and has stopped cannot be ended: %s", self.name, str(error).strip())
            return 0
        if ended:
            logger.warning(
                "%s: ended %d connections that held locks while their clients were silent", self.name, len(ended)
            )
        return len(ended)

    def _reached(self) -> _Connection | None:
        """Return the connection, made anew if it was lost; None, with the reason in ``_why``, where that is not
        possible.
        """
        if self._db is not None and not self._db.closed:
            return self._db
        if time.monotonic() < self._refused_until:
            return None
        try:
            self._db = None
            return self._connect()
        except (psycopg.Error, StoreError) as error:
            self._why = f"it cannot be reached: {str(error).strip()}"
            self._refused_until = time.monotonic() + _AGAIN_S
            return None

    def _undo(self, db: _Connection) -> None:
        """Roll back, or close the connection if that fails."""
        try:
            if not db.closed:
                # The driver believes statements to be prepared whose preparation was part of a failed pipeline. It
                # forgets all of them with a rollback, if it has not seen that statement before.
                self._undone += 1
                db.execute(f"ROLLBACK /* {self._undone} */".encode())
        except psycopg.Error:
            db.close()

    def _attempt(self, db: _Connection, group: list[Job]) -> None:
        try:
            self._commit(db, self._together(db, group))
            return
        except _Apart:
            pass
        except psycopg.Error as error:
            if db.closed or isinstance(error, _AGAIN):
                raise
        self._undo(db)
        self._commit(db, self._apart(db, group))

    def _together(self, db: _Connection, group: list[Job]) -> _Unknown | None:
        """Run ``group`` as one; return the transaction's mark, None where nothing has changed.

        The pipeline ends before COMMIT is sent: failures until here are undone, and nothing follows COMMIT whose loss
        could be taken for the commit's.
        """
        with db.pipeline() as pipeline:
            transaction = _Transaction(db, pipeline)
            self._start(db)
            changed = False
            for job in group:
                transaction.changed = False
                try:
                    job.result = _value(job.fn(transaction))
                except psycopg.Error:
                    raise  # it may be the error of any earlier statement
                except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
                    if transaction.changed:
                        raise _Apart from None
                    traceback.clear_frames(error.__traceback__)
                    job.error = error
                changed |= transaction.changed
            return self._mark(db) if changed else None

    def _apart(self, db: _Connection, group: list[Job]) -> _Unknown:
        transaction = _Transaction(db)
        self._start(db)
        for job in group:
            job.result = job.error = None
            db.execute("SAVEPOINT job")
            try:
                job.result = _value(job.fn(transaction))
            except _AGAIN:
                raise
            except Exception as error:
                if db.closed:
                    raise
                traceback.clear_frames(error.__traceback__)
                full = isinstance(error, errors.DiskFull)
                job.error = SqlFull(str(error)) if full else error
                db.execute("ROLLBACK TO job")
            db.execute("RELEASE job")
        return self._mark(db)

    def _start(self, db: _Connection) -> None:
        self.begun += 1
        db.execute(self._begin)

    def _mark(self, db: _Connection) -> _Unknown:
        """Insert the row by which the transaction's outcome can be queried."""
        self._number += 1
        mark = _Unknown(self._session, self._number)
        db.execute("INSERT INTO sql_commits (session, number) VALUES (%s, %s)", (mark.session, mark.number))
        return mark

    def _commit(self, db: _Connection, mark: _Unknown | None) -> None:
        """Commit; raise ``mark`` where the outcome is unknown."""
        try:
            ended = db.execute("COMMIT").statusmessage
        except (errors.SerializationFailure, errors.DeadlockDetected):
            raise  # these errors mean that everything was undone
        except psycopg.Error as error:
            if mark is None:
                raise
            db.close()
            raise mark from error
        if ended != "COMMIT":
            raise psycopg.OperationalError(f"the transaction was undone: {ended}")
        self.commits += 1

    def _ask(self, lost: _Unknown, refuse: Refuse) -> bool | None:
        """Return whether a commit has happened; None if the process stops before that is known."""
        logger.warning("%s: a COMMIT was answered by an error (%s); asking", self.name, str(lost.__cause__).strip())
        while not self._stopping.is_set():
            db = self._reached()
            if db is not None:
                try:
                    ((committed,),) = db.execute(_ASK, (lost.session, lost.number)).fetchall()
                except psycopg.Error as error:
                    self._undo(db)
                    self._why = str(error).strip()
                else:
                    logger.warning("%s: that commit has %shappened", self.name, "" if committed else "not ")
                    return bool(committed)
            refuse(SqlFailed(self._why))
            self._stopping.wait(_AGAIN_S)
        return None


class _Unknown(Exception):
    """The outcome of a transaction is unknown; identifies the row that tells it."""

    def __init__(self, session: str, number: int) -> None:
        super().__init__(session, number)
        self.session = session
        self.number = number


def _value(result: Any) -> Any:
    """Return a closure's result; unread rows do not leave the transaction, so they become None."""
    return None if isinstance(result, _Rows) else result


def _fail(group: list[Job], error: SqlFailed) -> None:
    for job in group:
        job.result, job.error = None, error
