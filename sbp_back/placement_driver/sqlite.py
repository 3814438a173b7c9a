"""State of a single placement driver in one SQLite file.

One thread owns the connection. Requests that queued up while a commit was in progress share the next one; each that
changes anything has its own savepoint, so one that fails undoes only itself. WAL mode with ``synchronous=FULL``: what
was answered survives loss of power (reference/sbp.md, section 3.2). Rows have checksums (sbp_back/row_sums.py): what
a disk has changed is refused at the start.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from sbp_back.placement_driver.state import RangeRow, StateError, StateVersionError, StreamRow, Transaction
from sbp_back.reserve import Reserve
from sbp_back.row_sums import DamagedRows, RowSums, make_table
from sbp_back.wire.identity import new_identity
from sbp_back.wire.model import RangeServerInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT_VERSION = 6

# Format 1 knew no ranges of the document's dialect.
_UPGRADE_1 = "ALTER TABLE ranges ADD COLUMN document INTEGER NOT NULL DEFAULT 0"
# Format 3 had no floors of ranges, and remembered of what servers are to be told only the deletions.
_UPGRADE_3 = (
    "ALTER TABLE ranges ADD COLUMN floor INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE news (server_id INTEGER NOT NULL, stream_id INTEGER NOT NULL, range_index INTEGER NOT NULL,"
    " PRIMARY KEY (server_id, stream_id, range_index)) WITHOUT ROWID",
)
# Format 5 had no checksums of rows. Format 4 did not know who had made a stream.
_UPGRADE_4 = "ALTER TABLE streams ADD COLUMN inside INTEGER NOT NULL DEFAULT 0"
# Format 2 had no identity.
_IDENTITY = "CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL)"

# Bounds how long the first of several queued requests waits for the commit it shares with the others.
GROUP_LIMIT = 512
_RESERVE_BYTES = 8 * 1024 * 1024
# Answers that are given in one turn of the event loop.
_GIVEN_AT_ONCE = 32

_SCHEMA = """
CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (
    stream_id INTEGER PRIMARY KEY,
    replica INTEGER NOT NULL,
    ack_count INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    trim_offset INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    inside INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE ranges (
    stream_id INTEGER NOT NULL,
    range_index INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    replica_count INTEGER NOT NULL,
    ack_count INTEGER NOT NULL,
    document INTEGER NOT NULL DEFAULT 0,
    floor INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream_id, range_index)
) WITHOUT ROWID;
CREATE TABLE replicas (
    stream_id INTEGER NOT NULL,
    range_index INTEGER NOT NULL,
    position INTEGER NOT NULL,
    server_id INTEGER NOT NULL,
    PRIMARY KEY (stream_id, range_index, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX replicas_by_server ON replicas (server_id, stream_id, range_index);
CREATE TABLE servers (server_id INTEGER PRIMARY KEY, advertise_addr TEXT NOT NULL);
CREATE TABLE deletions (
    server_id INTEGER NOT NULL,
    stream_id INTEGER NOT NULL,
    PRIMARY KEY (server_id, stream_id)
) WITHOUT ROWID;
CREATE TABLE news (
    server_id INTEGER NOT NULL,
    stream_id INTEGER NOT NULL,
    range_index INTEGER NOT NULL,
    PRIMARY KEY (server_id, stream_id, range_index)
) WITHOUT ROWID;
"""

_RANGE_COLUMNS = (
    "r.stream_id, r.range_index, r.epoch, r.start_offset, r.end_offset, r.replica_count, r.ack_count, r.document,"
    " r.floor"
)


class _SqliteTransaction(Transaction):
    """The transaction that is open on the connection of the state's thread, in the hands of one job after the other.

    A job has a savepoint from its first change on: most only read, and there is nothing to undo of these.
    """

    def __init__(self, connection: sqlite3.Connection, sums: RowSums) -> None:
        self._db = connection
        self._sums = sums
        self._changed = False
        self._sums_before: dict[str, int] = {}

    def end(self, *, undo: bool) -> None:
        """The job is over."""
        if self._changed:
            self._changed = False
            if undo:
                self._db.execute("ROLLBACK TO job")
                self._sums.undo(self._sums_before)
            self._db.execute("RELEASE job")

    def lost(self) -> None:
        """All of the transaction is undone, savepoints included."""
        self._changed = False
        self._sums.undo({})

    def _change(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        if not self._changed:
            self._db.execute("SAVEPOINT job")
            self._changed = True
            self._sums_before = self._sums.changes
        return self._db.execute(statement, values)

    def _take(self, counter: str) -> int:
        row = self._change(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET next = next + 1 RETURNING next - 1",
            (counter,),
        ).fetchone()
        return int(row[0])

    def next_stream_id(self) -> int:
        return self._take("stream")

    def next_server_id(self) -> int:
        return self._take("server")

    def claim_server_id(self, server_id: int) -> None:
        self._change(
            "INSERT INTO counters VALUES ('server', ?)"
            " ON CONFLICT (name) DO UPDATE SET next = max(next, excluded.next)",
            (server_id + 1,),
        )

    def get_stream(self, stream_id: int) -> StreamRow | None:
        row = self._db.execute(
            "SELECT stream_id, replica, ack_count, retention_ms, trim_offset, deleted, inside FROM streams"
            " WHERE stream_id = ?",
            (stream_id,),
        ).fetchone()
        if row is None:
            return None
        found, replica, ack_count, retention_ms, trim_offset, deleted, inside = row
        return StreamRow(found, replica, ack_count, retention_ms, trim_offset, bool(deleted), bool(inside))

    def put_stream(self, stream: StreamRow) -> None:
        self._change(
            "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                stream.stream_id,
                stream.replica,
                stream.ack_count,
                stream.retention_ms,
                stream.trim_offset,
                int(stream.deleted),
                int(stream.inside),
            ),
        )

    def _ranges(self, rows: list[tuple[Any, ...]]) -> list[RangeRow]:
        ranges = []
        for row in rows:
            servers = self._db.execute(
                "SELECT server_id FROM replicas WHERE stream_id = ? AND range_index = ? ORDER BY position", row[:2]
            )
            stream_id, index, epoch, start, end, replica_count, ack_count, document, floor = row
            ids = [server_id for (server_id,) in servers]
            ranges.append(
                RangeRow(stream_id, index, epoch, start, end, replica_count, ack_count, ids, bool(document), floor)
            )
        return ranges

    def last_range(self, stream_id: int) -> RangeRow | None:
        rows = self._db.execute(
            f"SELECT {_RANGE_COLUMNS} FROM ranges r WHERE stream_id = ? ORDER BY range_index DESC LIMIT 1", (stream_id,)
        ).fetchall()
        return self._ranges(rows)[0] if rows else None

    def get_range(self, stream_id: int, index: int) -> RangeRow | None:
        rows = self._db.execute(
            f"SELECT {_RANGE_COLUMNS} FROM ranges r WHERE stream_id = ? AND range_index = ?", (stream_id, index)
        ).fetchall()
        return self._ranges(rows)[0] if rows else None

    def put_range(self, row: RangeRow) -> None:
        known = self._db.execute(
            "SELECT 1 FROM ranges WHERE stream_id = ? AND range_index = ?", (row.stream_id, row.index)
        ).fetchone()
        self._change(
            "INSERT OR REPLACE INTO ranges (stream_id, range_index, epoch, start_offset, end_offset, replica_count,"
            " ack_count, document, floor) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.stream_id,
                row.index,
                row.epoch,
                row.start,
                row.end,
                row.replica_count,
                row.ack_count,
                row.document,
                row.floor,
            ),
        )
        if known is None:
            for position, server in enumerate(row.server_ids):
                self._change("INSERT INTO replicas VALUES (?, ?, ?, ?)", (row.stream_id, row.index, position, server))

    def ranges_of_stream(self, stream_id: int) -> list[RangeRow]:
        return self._ranges(
            self._db.execute(
                f"SELECT {_RANGE_COLUMNS} FROM ranges r WHERE stream_id = ? ORDER BY range_index", (stream_id,)
            ).fetchall()
        )

    def ranges_of_server(self, server_id: int) -> list[RangeRow]:
        return self._ranges(
            self._db.execute(
                f"SELECT {_RANGE_COLUMNS} FROM replicas JOIN ranges r USING (stream_id, range_index)"
                " WHERE server_id = ? ORDER BY stream_id, range_index",
                (server_id,),
            ).fetchall()
        )

    def drop_ranges(self, stream_id: int, below_index: int | None) -> None:
        # Indexes are int32 on the wire, so 2**31 is above all of them.
        bound = 1 << 31 if below_index is None else below_index
        for table in ("ranges", "replicas"):
            self._change(f"DELETE FROM {table} WHERE stream_id = ? AND range_index < ?", (stream_id, bound))

    def get_servers(self) -> dict[int, RangeServerInfo]:
        rows = self._db.execute("SELECT server_id, advertise_addr FROM servers")
        return {server_id: RangeServerInfo(server_id, address) for server_id, address in rows}

    def put_server(self, server: RangeServerInfo) -> None:
        self._change("INSERT OR REPLACE INTO servers VALUES (?, ?)", (server.server_id, server.advertise_addr))

    def add_deletion(self, server_id: int, stream_id: int) -> None:
        self._change("INSERT OR IGNORE INTO deletions VALUES (?, ?)", (server_id, stream_id))

    def deletions_of_server(self, server_id: int, most: int) -> list[int]:
        query = "SELECT stream_id FROM deletions WHERE server_id = ? ORDER BY stream_id LIMIT ?"
        rows = self._db.execute(query, (server_id, most))
        return [stream_id for (stream_id,) in rows]

    def drop_deletion(self, server_id: int, stream_id: int) -> None:
        self._change("DELETE FROM deletions WHERE server_id = ? AND stream_id = ?", (server_id, stream_id))

    def add_news(self, server_id: int, stream_id: int, index: int) -> None:
        self._change("INSERT OR IGNORE INTO news VALUES (?, ?, ?)", (server_id, stream_id, index))

    def news_of_server(self, server_id: int, limit: int) -> list[tuple[int, int]]:
        return self._db.execute(
            "SELECT stream_id, range_index FROM news WHERE server_id = ? ORDER BY stream_id, range_index LIMIT ?",
            (server_id, limit),
        ).fetchall()

    def drop_news(self, server_id: int, stream_id: int, index: int) -> None:
        self._change(
            "DELETE FROM news WHERE server_id = ? AND stream_id = ? AND range_index = ?", (server_id, stream_id, index)
        )


class _Full(StateError):
    """There is no room on the disk."""


class _Job:
    __slots__ = ("done", "error", "failed", "frees", "result", "work")

    def __init__(
        self,
        work: Callable[[Transaction], object],
        done: Callable[[Any], None],
        failed: Callable[[StateError], None],
        frees: bool = False,
    ) -> None:
        self.work = work
        self.frees = frees
        self.done = done
        self.failed = failed
        self.result: object = None
        self.error: StateError | None = None


class SqliteState:
    """A :class:`~sbp_back.placement_driver.state.PdState` in the SQLite file at ``path`` (created when absent)."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        """Opening blocks for a few milliseconds. Raises :class:`StateError` or :class:`StateVersionError`."""
        self._path = path
        self._loop = loop
        self._wake = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._reserve = Reserve(path.with_name(f"{path.name}-reserve"), _RESERVE_BYTES)
        self._closing = False
        self._closed = asyncio.Event()
        # What was decided and not told yet; and whether a turn of the loop is on its way in which some of it is.
        self._decided: deque[_Job] = deque()
        self._giving = False
        try:
            self._open_on_any_disk()
        except DamagedRows as error:
            raise StateError(f"the placement driver's state {path} is damaged: {error}") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # of text that is none any more
            raise StateError(f"cannot open the placement driver's state {path}: {error}") from error
        self._thread = threading.Thread(target=self._run, name="pd-state", daemon=True)
        self._thread.start()

    def _open_on_any_disk(self) -> None:
        """On a full disk SQLite cannot even open a file, and says that it is broken."""
        try:
            self._open()
        except sqlite3.Error as error:
            if not self._reserve.is_full():
                raise
            if not self._reserve.spend():
                raise StateError(f"cannot open the placement driver's state {self._path}: its disk is full") from error
            self._open()

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._sums = RowSums(self._db)
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StateError(f"the placement driver's state {self._path} is damaged: {found}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            # executescript would commit on its own; one transaction makes a half-made schema impossible.
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._made(version)
        elif version < FORMAT_VERSION:
            self._db.execute("BEGIN IMMEDIATE")
            if version == 1:
                self._db.execute(_UPGRADE_1)
            if version <= 3:
                for statement in _UPGRADE_3:
                    self._db.execute(statement)
            if version <= 4:
                self._db.execute(_UPGRADE_4)
            self._made(version)
        elif version != FORMAT_VERSION:
            raise StateVersionError(
                f"the placement driver's state {self._path} has format {version}, this version reads {FORMAT_VERSION}"
            )
        else:
            self._sums.check()
            self._sums.watch(changed=False)
        row = self._db.execute("SELECT value FROM identity").fetchone()
        if row is None:
            raise StateError(f"the placement driver's state {self._path} has lost its identity: restore a backup")
        self.identity: str = row[0]

    def _made(self, version: int) -> None:
        """End the transaction that makes the schema, or upgrades it from ``version``."""
        if version < 3:
            self._db.execute(_IDENTITY)
            self._db.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (new_identity(),))
        self._db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        make_table(self._db)
        self._sums.watch(changed=True)
        self._db.execute("COMMIT")

    def submit(
        self,
        work: Callable[[Transaction], T],
        done: Callable[[T], None],
        failed: Callable[[StateError], None],
        *,
        frees: bool = False,
    ) -> None:
        with self._wake:
            if not self._closing:
                self._queue.append(_Job(cast("Callable[[Transaction], object]", work), done, failed, frees))
                if len(self._queue) == 1:
                    self._wake.notify()
                return
        failed(StateError("the placement driver is shutting down"))

    async def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        await self._closed.wait()

    def _run(self) -> None:
        transaction = _SqliteTransaction(self._db, self._sums)
        self._reserve.keep()
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    break
                group = [self._queue.popleft() for _ in range(min(GROUP_LIMIT, len(self._queue)))]
            try:
                self._commit_group(transaction, group)
            except Exception as error:
                # Others wait behind these: the thread goes on, and the next transaction tells what the file is worth.
                logger.exception("placement driver: a transaction failed unexpectedly")
                for job in group:
                    job.error = StateError(f"unexpected {type(error).__name__}: {error}")
            self._loop.call_soon_threadsafe(self._deliver, group)
            self._reserve.keep()
        self._db.close()
        ended = _Job(lambda transaction: None, lambda result: self._closed.set(), lambda error: None)
        self._loop.call_soon_threadsafe(self._deliver, [ended])

    def _commit_group(self, transaction: _SqliteTransaction, group: list[_Job]) -> None:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in group:
                self._run_job(transaction, job)
            self._sums.store()
            db.execute("COMMIT")
        except sqlite3.Error as error:
            transaction.lost()
            if db.in_transaction:
                db.execute("ROLLBACK")
            logger.error("placement driver state %s: %s", self._path, error)
            for job in group:
                job.error = _told(error, "written")
        freeing = [job for job in group if job.frees and isinstance(job.error, _Full)]
        if freeing and self._reserve.spend():
            for job in freeing:
                job.error = None
            self._commit_group(transaction, freeing)

    def _run_job(self, transaction: _SqliteTransaction, job: _Job) -> None:
        """Run one job; an SQLite error that ends the whole transaction is left to the caller."""
        db = self._db
        try:
            job.result = job.work(transaction)
        except sqlite3.Error as error:
            if not db.in_transaction:
                raise
            job.error = _told(error, "read or written")
        except StateError as error:
            job.error = error.with_traceback(None)  # in which the job is
        except Exception as error:
            logger.exception("placement driver: a request failed unexpectedly")
            job.error = StateError(f"unexpected {type(error).__name__}: {error}")
        transaction.end(undo=job.error is not None)

    def _deliver(self, group: list[_Job]) -> None:
        """Tell what was decided of a group, behind what is still to be told of earlier ones."""
        self._decided += group
        if not self._giving:
            self._give()

    def _give(self) -> None:
        decided = self._decided
        # Before anything can go wrong: whoever comes next must not wait for ever.
        self._giving = len(decided) > _GIVEN_AT_ONCE
        if self._giving:
            self._loop.call_soon(self._give)
        for _ in range(min(len(decided), _GIVEN_AT_ONCE)):
            job = decided.popleft()
            try:
                if job.error is None:
                    job.done(job.result)
                else:
                    job.failed(job.error)
            except Exception as error:  # noqa: BLE001 - told as the loop tells it; the others have their answers
                told = {"message": "an answer of the placement driver failed", "exception": error}
                self._loop.call_exception_handler(told)


def _told(error: sqlite3.Error, what: str) -> StateError:
    kind = _Full if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL else StateError
    return kind(f"the placement driver's state cannot be {what}: {error}")
