"""State of a placement driver, in an SQL database (sbp_back/sql).

The rules of the placement driver (``rules.py``) are written as functions of one :class:`Transaction`; :class:`PdState`
runs each of them atomically and serialisably. Another request can never come between a check and the change that rests
on it (docs/protocols/sbp.md, "Placement driver").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from anabranch_kit.errors import StoreError, StoreVersionError
from anabranch_kit.sql.connection import Connection, among, migration, upsert
from anabranch_kit.sql.engine import Engine, Job, SqlDamaged
from anabranch_kit.sql.row_sums import make_table
from anabranch_kit.sql.sqlite import SqliteEngine
from anabranch_kit.sql.thread import SqlThread
from sbp_back.wire.identity import new_identity
from sbp_back.wire.model import ObjectInfo, RangeServerInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StateError(Exception):
    """The state could not be read or written; whether a change took effect is unknown. Message: for an operator."""


class StateVersionError(StateError):
    """The state was written by a version this one does not read."""


LAST_STREAM = (1 << 63) - 1


class StreamRow(Struct):
    """A stream. ``trim_offset``: the largest offset it was ever trimmed to. ``deleted`` rows stay for ever, so that a
    range server can learn for certain that its data of the stream may go. ``inside``: it was made from inside the
    placement driver's process (unknown for rows of format 4 and older).
    """

    stream_id: int
    replica: int
    ack_count: int
    retention_ms: int
    trim_offset: int = 0
    deleted: bool = False
    inside: bool = False


class RangeRow(Struct):
    """A range; ``start`` is where it began, trimmed or not; ``end`` is -1 while it is open. ``document``: the server
    itself writes it for clients of sbp-v0.1, and no writer of another dialect may take it for its own. ``floor``:
    readers were promised everything below it, so the range cannot end before.
    """

    stream_id: int
    index: int
    epoch: int
    start: int
    end: int
    replica_count: int
    ack_count: int
    server_ids: list[int] = field(default_factory=list)
    document: bool = False
    floor: int = 0

    @property
    def is_open(self) -> bool:
        return self.end < 0


SCHEMA = "anabranch_pd"
"""PostgreSQL schema of a state's tables."""
_RESERVE_BYTES = 8 * 1024 * 1024


def _make_identity(connection: Connection) -> None:
    # Early releases created this table without raising the format.
    table = "identity (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL)"
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    connection.execute("INSERT INTO identity VALUES (1, ?) ON CONFLICT DO NOTHING", (new_identity(),))


MIGRATIONS = (
    migration(
        "CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID",
        """CREATE TABLE streams (
            stream_id INTEGER PRIMARY KEY,
            replica INTEGER NOT NULL,
            ack_count INTEGER NOT NULL,
            retention_ms INTEGER NOT NULL,
            trim_offset INTEGER NOT NULL,
            deleted INTEGER NOT NULL
        )""",
        """CREATE TABLE ranges (
            stream_id INTEGER NOT NULL,
            range_index INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            start_offset INTEGER NOT NULL,
            end_offset INTEGER NOT NULL,
            replica_count INTEGER NOT NULL,
            ack_count INTEGER NOT NULL,
            PRIMARY KEY (stream_id, range_index)
        ) WITHOUT ROWID""",
        """CREATE TABLE replicas (
            stream_id INTEGER NOT NULL,
            range_index INTEGER NOT NULL,
            position INTEGER NOT NULL,
            server_id INTEGER NOT NULL,
            PRIMARY KEY (stream_id, range_index, position)
        ) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX replicas_by_server ON replicas (server_id, stream_id, range_index)",
        "CREATE TABLE servers (server_id INTEGER PRIMARY KEY, advertise_addr TEXT NOT NULL)",
        """CREATE TABLE deletions (
            server_id INTEGER NOT NULL,
            stream_id INTEGER NOT NULL,
            PRIMARY KEY (server_id, stream_id)
        ) WITHOUT ROWID""",
    ),
    # Ranges of the document's dialect.
    migration("ALTER TABLE ranges ADD COLUMN document INTEGER NOT NULL DEFAULT 0"),
    _make_identity,
    # Earlier formats had no floors of ranges, and queued only deletions for range servers.
    migration(
        "ALTER TABLE ranges ADD COLUMN floor INTEGER NOT NULL DEFAULT 0",
        """CREATE TABLE news (
            server_id INTEGER NOT NULL,
            stream_id INTEGER NOT NULL,
            range_index INTEGER NOT NULL,
            PRIMARY KEY (server_id, stream_id, range_index)
        ) WITHOUT ROWID""",
    ),
    # Origin of a stream: inside or outside the placement driver's process.
    migration("ALTER TABLE streams ADD COLUMN inside INTEGER NOT NULL DEFAULT 0"),
    make_table,
    # Range servers whose log another one has taken over.
    migration("CREATE TABLE adopted (server_id INTEGER PRIMARY KEY, by_server INTEGER NOT NULL)"),
    # Objects of ranges.
    migration(
        """CREATE TABLE objects (
            stream_id INTEGER NOT NULL,
            range_index INTEGER NOT NULL,
            start_offset INTEGER NOT NULL,
            end_offset INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            size INTEGER NOT NULL,
            sparse BLOB NOT NULL,
            PRIMARY KEY (stream_id, range_index, start_offset)
        ) WITHOUT ROWID"""
    ),
)
"""The migrations from each format to the next; never change one that was released."""

_RANGE_COLUMNS = (
    "r.stream_id, r.range_index, r.epoch, r.start_offset, r.end_offset, r.replica_count, r.ack_count, r.document,"
    " r.floor"
)
_STREAM_COLUMNS = "stream_id, replica, ack_count, retention_ms, trim_offset, deleted, inside"
_PUT_STREAM = upsert("streams", "stream_id", "replica ack_count retention_ms trim_offset deleted inside")
_PUT_SERVER = upsert("servers", "server_id", "advertise_addr")
_ADD_DELETION = upsert("deletions", "server_id stream_id")
_PUT_ADOPTED = upsert("adopted", "server_id", "by_server")
_ADD_NEWS = upsert("news", "server_id stream_id range_index")


_OF_SERVERS = {
    "replicas": ("stream_id", "range_index"),
    "deletions": ("stream_id",),
    "news": ("stream_id", "range_index"),
}
"""Tables of what a range server has or has to know, with the columns that identify a row besides the server."""


_AT_ONCE = 1024
"""Streams, or ranges, in one statement."""


class _Known(Struct):
    """The rows of one stream: its own, and its ranges by index."""

    stream: StreamRow | None = None
    ranges: dict[int, RangeRow] = field(default_factory=dict)


class Seen(Struct):
    """Rows that the requests of one transaction have read or written: a thousand of them share four statements.

    It holds for the ``number``-th transaction of the engine and is cleared by whatever undoes changes. ``named``:
    streams that requests of the group read; whoever reads first reads all of them.
    """

    number: int = -1
    named: Collection[int] = ()
    streams: dict[int, _Known] = field(default_factory=dict)
    servers: dict[int, RangeServerInfo] | None = None
    adopted: dict[int, int] | None = None

    def clear(self) -> None:
        self.streams.clear()
        self.servers = self.adopted = None


class Transaction:
    """Reads and changes of one request: the open transaction on the connection of the state's thread, used by one
    closure. Rows that it returns are the caller's own. Every method may raise :class:`StateError`.
    """

    __slots__ = ("_db", "_seen")

    def __init__(self, connection: Connection, seen: Seen | None = None) -> None:
        self._db = connection
        self._seen = Seen() if seen is None else seen

    def load_streams(self, stream_ids: Collection[int]) -> None:
        """Read the rows of these streams, in a number of statements that hardly depends on theirs."""
        seen = self._seen.streams
        for part in _parts([one for one in stream_ids if one not in seen]):
            condition, values = among("stream_id", part)
            seen |= {one: _Known() for one in part}
            streams = self._db.execute(f"SELECT {_STREAM_COLUMNS} FROM streams WHERE {condition}", values)
            for one, replica, acks, retention_ms, start, deleted, inside in streams:
                row = StreamRow(one, replica, acks, retention_ms, start, bool(deleted), bool(inside))
                seen[one].stream = row
            rows = self._db.execute(f"SELECT {_RANGE_COLUMNS} FROM ranges r WHERE {condition}", values)
            servers = self._db.execute(
                f"SELECT stream_id, range_index, server_id FROM replicas WHERE {condition} ORDER BY position", values
            )
            for found in _with_servers(rows, servers):
                seen[found.stream_id].ranges[found.index] = found

    def _read(self, stream_id: int) -> _Known:
        """Return the rows of a stream. Changes of them have to be made here, too."""
        streams = self._seen.streams
        if stream_id not in streams:
            self.load_streams({stream_id, *self._seen.named})
        return streams[stream_id]

    def _take(self, counter: str) -> int:
        row = self._db.execute(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET next = counters.next + 1"
            " RETURNING next - 1",
            (counter,),
        ).fetchone()
        return int(row[0])

    def next_stream_id(self) -> int:
        """Return a stream id never given before and never to be given again, counted from 0."""
        return self._take("stream")

    def next_server_id(self) -> int:
        """Return a range server id never given before, counted from 0."""
        return self._take("server")

    def claim_server_id(self, server_id: int) -> None:
        """Make sure that ``next_server_id`` never gives ``server_id``, which is already in use."""
        self._db.execute(
            "INSERT INTO counters VALUES ('server', ?)"
            " ON CONFLICT (name) DO UPDATE SET next = excluded.next WHERE excluded.next > counters.next",
            (server_id + 1,),
        )

    def get_stream(self, stream_id: int) -> StreamRow | None:
        """Return the stream, also when it is deleted."""
        row = self._read(stream_id).stream
        return None if row is None else replace(row)

    def put_stream(self, stream: StreamRow) -> None:
        self._db.execute(_PUT_STREAM, astuple(stream))
        known = self._seen.streams.get(stream.stream_id)
        if known is not None:
            known.stream = replace(stream)

    def last_range(self, stream_id: int) -> RangeRow | None:
        return self.get_range(stream_id, max(self._read(stream_id).ranges, default=-1))

    def get_range(self, stream_id: int, index: int) -> RangeRow | None:
        row = self._read(stream_id).ranges.get(index)
        return None if row is None else replace(row)

    def ranges_of_stream(self, stream_id: int) -> list[RangeRow]:
        """Return the stream's ranges in order of index."""
        return [replace(row) for _, row in sorted(self._read(stream_id).ranges.items())]

    def put_range(self, row: RangeRow) -> None:
        """Insert or replace a range. Only :meth:`adopt_server` changes the servers of a range after its insertion."""
        ranges = self._read(row.stream_id).ranges
        self._write([row])
        if row.index not in ranges:
            for position, server in enumerate(row.server_ids):
                self._db.execute(
                    "INSERT INTO replicas VALUES (?, ?, ?, ?)", (row.stream_id, row.index, position, server)
                )
        ranges[row.index] = replace(row)

    def _write(self, ranges: list[RangeRow]) -> None:
        rest = "epoch start_offset end_offset replica_count ack_count document floor"
        values: list[int] = []
        for row in ranges:
            values += row.stream_id, row.index, row.epoch, row.start, row.end, row.replica_count, row.ack_count
            values += int(row.document), row.floor
        self._db.execute(upsert("ranges", "stream_id range_index", rest, rows=len(ranges)), values)

    def ranges_of_server(
        self, server_id: int, first: int = 0, last: int = LAST_STREAM, *, only_open: bool = False
    ) -> list[RangeRow]:
        """Return the server's ranges of the streams from ``first`` to ``last``, in order of stream, then index."""
        there = (
            "FROM replicas mine JOIN ranges r USING (stream_id, range_index) {}"
            " WHERE mine.server_id = ? AND mine.stream_id BETWEEN ? AND ?"
            f"{' AND r.end_offset < 0' if only_open else ''} ORDER BY stream_id, range_index"
        )
        asked = server_id, first, last
        rows = self._db.execute(f"SELECT {_RANGE_COLUMNS} {there.format('')}", asked)
        others = there.format("JOIN replicas other USING (stream_id, range_index)")
        servers = self._db.execute(f"SELECT stream_id, range_index, other.server_id {others}, other.position", asked)
        return _with_servers(rows, servers)

    def end_ranges(self, rows: Sequence[RangeRow]) -> None:
        """Write the ends of these ranges, which are the last ones of their streams; lower the trim offset of a stream
        that was trimmed beyond its end. The number of statements hardly depends on the number of ranges: a server
        may have very many.
        """
        for some in _parts(rows):
            self._write(some)
        ends = {row.stream_id: row.end for row in rows}
        beyond: list[tuple[int, int]] = []
        for part in _parts(ends):
            condition, values = among("stream_id", part)
            query = f"SELECT stream_id, trim_offset FROM streams WHERE trim_offset > 0 AND {condition}"
            beyond += [(ends[one], one) for one, start in self._db.execute(query, values) if start > ends[one]]
        if beyond:
            self._db.executemany("UPDATE streams SET trim_offset = ? WHERE stream_id = ?", beyond)
        for stream_id in ends:
            self._seen.streams.pop(stream_id, None)

    def adopt_server(self, server_id: int, by: int) -> None:
        """Give all ranges of server ``server_id``, and all it still has to be told, to server ``by``; it never gets
        anything again.
        """
        for table, columns in _OF_SERVERS.items():
            # Rows that both servers have already belong to the adopter.
            same = " AND ".join(f"mine.{column} = {table}.{column}" for column in columns)
            self._db.execute(
                f"DELETE FROM {table} WHERE server_id = ?"
                f" AND EXISTS (SELECT 1 FROM {table} mine WHERE mine.server_id = ? AND {same})",
                (server_id, by),
            )
            self._db.execute(f"UPDATE {table} SET server_id = ? WHERE server_id = ?", (by, server_id))
        self._db.execute("UPDATE adopted SET by_server = ? WHERE by_server = ?", (by, server_id))
        self._db.execute(_PUT_ADOPTED, (server_id, by))
        self._db.execute("DELETE FROM servers WHERE server_id = ?", (server_id,))
        self._seen.clear()

    def adopted_servers(self) -> dict[int, int]:
        """Return the adopted servers, each with the server that has its ranges now (see :meth:`adopt_server`)."""
        if self._seen.adopted is None:
            self._seen.adopted = dict(self._db.execute("SELECT server_id, by_server FROM adopted"))
        return self._seen.adopted

    def drop_ranges(self, stream_id: int, below_index: int | None) -> None:
        # Indexes are int32 on the wire, so 2**31 is above all of them.
        """Forget the ranges with an index below ``below_index``; all of them when it is None."""
        bound = 1 << 31 if below_index is None else below_index
        for table in ("ranges", "replicas"):
            self._db.execute(f"DELETE FROM {table} WHERE stream_id = ? AND range_index < ?", (stream_id, bound))
        self._seen.streams.pop(stream_id, None)

    def put_object(self, known: ObjectInfo) -> None:
        """Remember an object of a range; it replaces every known object that has offsets of it."""
        key = known.stream_id, known.index
        end = known.start + known.count
        self._db.execute(
            "DELETE FROM objects WHERE stream_id = ? AND range_index = ? AND start_offset < ? AND end_offset > ?",
            (*key, end, known.start),
        )
        self._db.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*key, known.start, end, known.epoch, known.size, known.sparse),
        )

    def objects_of_stream(self, stream_id: int) -> list[ObjectInfo]:
        """Return the objects of a stream in order."""
        rows = self._db.execute(
            "SELECT stream_id, range_index, epoch, start_offset, end_offset - start_offset, size, sparse FROM objects"
            " WHERE stream_id = ? ORDER BY range_index, start_offset",
            (stream_id,),
        )
        return [ObjectInfo(a, b, c, d, e, f, bytes(sparse)) for a, b, c, d, e, f, sparse in rows]

    def drop_objects(self, stream_id: int, below: int | None) -> None:
        """Forget the objects that end at offset ``below`` or before; all of them when it is None."""
        bound = (1 << 63) - 1 if below is None else below
        self._db.execute("DELETE FROM objects WHERE stream_id = ? AND end_offset <= ?", (stream_id, bound))

    def get_servers(self) -> dict[int, RangeServerInfo]:
        if self._seen.servers is None:
            rows = self._db.execute("SELECT server_id, advertise_addr FROM servers")
            self._seen.servers = {server_id: RangeServerInfo(server_id, address) for server_id, address in rows}
        return self._seen.servers

    def put_server(self, server: RangeServerInfo) -> None:
        self._db.execute(_PUT_SERVER, (server.server_id, server.advertise_addr))
        self._seen.servers = None

    def add_deletion(self, server_id: int, stream_id: int) -> None:
        """Remember that ``server_id`` still has to be told that the stream is gone."""
        self._db.execute(_ADD_DELETION, (server_id, stream_id))

    def deletions_of_server(self, server_id: int, most: int) -> list[int]:
        query = "SELECT stream_id FROM deletions WHERE server_id = ? ORDER BY stream_id LIMIT ?"
        rows = self._db.execute(query, (server_id, most))
        return [stream_id for (stream_id,) in rows]

    def drop_deletion(self, server_id: int, stream_id: int) -> None:
        self._db.execute("DELETE FROM deletions WHERE server_id = ? AND stream_id = ?", (server_id, stream_id))

    def add_news(self, server_id: int, stream_id: int, index: int) -> None:
        """Remember that ``server_id`` still has to be told where range ``index`` of the stream ends; -1: how far the
        stream is trimmed."""
        self._db.execute(_ADD_NEWS, (server_id, stream_id, index))

    def news_of_server(self, server_id: int, limit: int) -> list[tuple[int, int]]:
        """Return at most ``limit`` (stream, index) pairs that the server still has to be told of."""
        return self._db.execute(
            "SELECT stream_id, range_index FROM news WHERE server_id = ? ORDER BY stream_id, range_index LIMIT ?",
            (server_id, limit),
        ).fetchall()

    def drop_news(self, server_id: int, stream_id: int, index: int) -> None:
        self._db.execute(
            "DELETE FROM news WHERE server_id = ? AND stream_id = ? AND range_index = ?", (server_id, stream_id, index)
        )


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield those of one statement after the other."""
    left = iter(items)
    while part := list(islice(left, _AT_ONCE)):
        yield part


def _with_servers(rows: Iterable[tuple[Any, ...]], servers: Iterable[tuple[int, int, int]]) -> list[RangeRow]:
    """Join ``rows`` of ranges with their ``servers``: (stream, index, server), those of each range in order."""
    ids: dict[tuple[int, int], list[int]] = {}
    for stream_id, index, server_id in servers:
        ids.setdefault((stream_id, index), []).append(server_id)
    ranges = []
    for stream_id, index, epoch, start, end, replica_count, ack_count, document, floor in rows:
        its = ids.get((stream_id, index), [])
        ranges.append(
            RangeRow(stream_id, index, epoch, start, end, replica_count, ack_count, its, bool(document), floor)
        )
    return ranges


class PdState(SqlThread):
    """Runs transactions without blocking the event loop, in the database of ``engine``, with :data:`MIGRATIONS`."""

    what = "the placement driver's state"
    Failed = Full = Damaged = Closed = StateError
    # A failed transaction does not end the thread: the next one shows whether the database works again.
    ends_when_lost = False

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        """Open the database, which blocks for a few milliseconds. Raises :class:`StateError` or
        :class:`StateVersionError`.
        """
        super().__init__(engine)
        self._seen = Seen()
        try:
            engine.open()
        except StoreVersionError as error:
            raise StateVersionError(f"{self.what}: {error}") from error
        except StoreError as error:
            raise StateError(f"{self.what}: {error}") from error
        row = engine.connection.execute("SELECT value FROM identity").fetchone()
        if row is None:
            engine.close()
            raise StateError(f"{self.what} {engine.name} has lost its identity: restore a backup")
        self.identity: str = row[0]
        """22 URL-safe characters, made with the state and kept for its life (see sbp_back/wire/identity.py)."""
        self.start(loop)

    def submit(
        self,
        work: Callable[[Transaction], T],
        done: Callable[[T], None],
        failed: Callable[[StateError], None],
        *,
        stream_id: int = -1,
        frees: bool = False,
    ) -> None:
        """Run ``work`` atomically; then, on the loop and durably, call ``done`` with its result or ``failed``. Work
        that ``frees`` room may use the reserve of a full disk. The stream that work reads, if it names it, is read
        together with those of other work.

        Submissions take effect and are answered in order. ``work`` runs off the loop and may run more than once, so it
        must touch nothing but the transaction. An exception in ``work`` undoes its changes; one that is no
        :class:`StateError` is a defect and is wrapped into one.
        """
        job = _Asked(partial(self._run, work), False, frees)
        job.done, job.failed, job.stream_id = done, failed, stream_id
        try:
            self.put(job)
        except StateError as error:
            failed(error)

    def _execute(self, group: list[Job]) -> SqlDamaged | None:
        named = {job.stream_id for job in group if isinstance(job, _Asked) and job.stream_id >= 0}
        self._seen = Seen(named=named)
        lost = super()._execute(group)
        self._seen = Seen()
        return lost

    def _run(self, work: Callable[[Transaction], T], connection: Connection) -> T:
        seen = self._seen
        if seen.number != self.engine.begun:
            seen.clear()
            seen.number = self.engine.begun
        try:
            return work(Transaction(connection, seen))
        except BaseException:
            seen.clear()  # it may be undone alone
            raise

    def _translate_error(self, error: Exception) -> Exception:
        told = super()._translate_error(error)
        if isinstance(told, StateError):
            return told.with_traceback(None)  # in which the closure is
        logger.error("placement driver: a request failed unexpectedly", exc_info=told)
        return StateError(f"unexpected {type(told).__name__}: {told}")


class _Asked(Job):
    __slots__ = ("done", "failed", "stream_id")

    done: Callable[[Any], None]
    failed: Callable[[StateError], None]
    stream_id: int

    def give(self) -> None:
        if self.error is None:
            self.done(self.result)
        else:
            assert isinstance(self.error, StateError)
            self.failed(self.error)


def skip_numbers(connection: Connection, count: int) -> None:
    """Skip ``count`` ids of streams and of range servers, which nobody will get. Called in the database's thread."""
    connection.execute("UPDATE counters SET next = next + ?", (count,))


def in_sqlite(path: Path, *, shared: bool = False) -> Engine:
    """Return the engine of a state in the SQLite file ``path``, where every answered change survives loss of power;
    ``shared``: with other processes of this machine.
    """
    return SqliteEngine(path, MIGRATIONS, reserve_bytes=_RESERVE_BYTES, shared=shared)


def in_postgres(url: str, schema: str = SCHEMA) -> Engine:
    """Return the engine of a state in the PostgreSQL database at ``url``. Raises StoreError for an invalid URL."""
    from anabranch_kit.sql.postgres import PostgresEngine  # few have one

    # Admit every version: the node was already admitted to the cluster, whose nodes may be of neighbouring releases.
    return PostgresEngine(url, MIGRATIONS, schema=schema, admit=lambda connection, version: None)
