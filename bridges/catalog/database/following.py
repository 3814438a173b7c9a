"""Memory that follows a database which several nodes change.

With a database of one node (SQLite) nothing here does anything. With a shared database, state that is both in memory
and in the database is one of three kinds:

* *followed* (this module): topics and their configuration, the node-level configuration, access rules, quotas, the
  fronts' own data of topics, scopes and directories. Changes are rare, and every node decides by this state.
* *owned*: only the owner touches it, and reads it when it becomes the owner: positions and groups
  (:meth:`bridges.catalog.progress.Progress.reload`), transactional ids, and rows of streams
  (:class:`bridges.log.state.stream_rows.KnownRows`). The node that opens a log reads that stream's rows again, once no
  other node can append.
* *read through*: each request reads everything else from the database.

A transaction that changes followed state *marks* it (:meth:`Changes.mark`): the database's version goes up by one, and
a row names the change. The transaction fails with :class:`Overtaken`, and nothing takes effect, if another node has
made a change that this node had not seen when it decided, because its checks in memory may no longer hold. The node
then catches up, checks again and repeats (:meth:`Changes.settle`). A node's own changes never overtake it: memory has
them already.

Memory applies all changes in the order of the database. A node's own changes are applied in ``then`` of the closure
that makes them (:meth:`bridges.catalog.database.sql.Database.run`), those of other nodes in ``then`` of the closure
that reads them. A *mirror* reads the rows of what has changed, in one transaction with all other mirrors, and applies
them on the loop. It reads the present state and not the change: applying it twice is harmless, and a node that was away
for too long reads everything again.

Nodes are notified at once (LISTEN and NOTIFY). They also poll every second, because a notice that is sent while a
connection is down is lost.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from msgspec import Struct

from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.sql.connection import upsert
from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from anabranch_kit.sql.connection import Connection
    from anabranch_kit.sql.engine import Engine

T = TypeVar("T")

LOOK_S = 1.0
"""Seconds between two polls of the version."""
_KEPT = 10_000
"""Versions whose rows are kept: a node that missed more reads everything."""
_TRIES = 20
_NAMES_PER_QUERY = 200
"""Names in one query."""

_log = structlog.get_logger("anabranch.catalog")


class Overtaken(LogError):
    """Another node has made a change that this node had not seen: nothing took effect."""

    retriable = True


class Mirror(Struct, frozen=True):
    """State in memory that follows rows of ``kind``. ``read`` runs in the database's thread, with the names of what has
    changed, or None for everything. ``take`` runs on the loop, with what ``read`` returned and the same names."""

    kind: str
    read: Callable[[Connection, Collection[str] | None], Any]
    take: Callable[[Any, Collection[str] | None], None]


class _News(Struct, frozen=True):
    version: int
    found: list[tuple[Mirror, Collection[str] | None, Any]]


class Runs(Protocol):
    """The database (:class:`bridges.catalog.database.sql.Database`)."""

    @property
    def engine(self) -> Engine: ...

    async def run(self, fn: Callable[[Connection], T], *, then: Callable[[T], None] | None = None) -> T: ...


class Changes:
    """The changes of followed state in one database: marks this node's and applies those of other nodes."""

    def __init__(self, db: Runs) -> None:
        self.seen = 0
        """The version up to which memory has all changes of other nodes."""
        self._db = db
        self._origin = secrets.token_hex(8)
        self._mirrors: list[Mirror] = []
        self._lock = asyncio.Lock()
        self._looks = 0
        self._tasks = TaskSet()

    @property
    def shared(self) -> bool:
        """Return whether other nodes may use the database."""
        return self._db.engine.shared

    def mirror(
        self,
        kind: str,
        read: Callable[[Connection, Collection[str] | None], T],
        take: Callable[[T, Collection[str] | None], None],
    ) -> None:
        """Register a :class:`Mirror`, before its state is loaded.

        Of one kind, mirrors registered last are applied first. So a listener that hears of a topic from the catalog
        finds the fronts' data of that topic.
        """
        if self.shared:
            self._mirrors.insert(0, Mirror(kind, read, take))

    def mark(self, kind: str, names: Iterable[str]) -> Callable[[Connection], None]:
        """Return a function for a transaction that changes ``names`` of ``kind``, based on what memory holds now. It
        raises Overtaken if memory was out of date."""
        if not self.shared:
            return _nothing
        seen, origin, note = self.seen, self._origin, self.note(kind, names)

        def write(connection: Connection) -> None:
            query = "SELECT 1 FROM changes WHERE version > ? AND origin <> ? LIMIT 1"
            if connection.execute(query, (seen, origin)).fetchone() is not None:
                raise Overtaken("another node was first, and this one has to look again")
            note(connection)

        return write

    def note(self, kind: str, names: Iterable[str]) -> Callable[[Connection], None]:
        """Return a function like that of :meth:`mark`, for a change that is right whatever other nodes have changed."""
        if not self.shared:
            return _nothing
        origin, notice, marked = self._origin, self._db.engine.notice, sorted(set(names))

        def write(connection: Connection) -> None:
            if not marked:
                return
            raised = "UPDATE changes_version SET version = version + 1 RETURNING version"
            (version,) = connection.execute(raised).fetchone()
            rows = [(version, kind, name, origin) for name in marked]
            connection.executemany("INSERT INTO changes (version, kind, name, origin) VALUES (?, ?, ?, ?)", rows)
            if version % 1000 == 0:
                connection.execute("DELETE FROM changes WHERE version <= ?", (version - _KEPT,))
            if notice:
                connection.execute(notice, (CHANNEL,))

        return write

    async def settle(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, which checks and commits. Repeat it after Overtaken."""
        for _ in range(_TRIES - 1):
            try:
                return await work()
            except Overtaken:
                await self.catch_up()
        return await work()

    # --- following --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Read the version, before anything is loaded. Raises an error of the database."""
        if self.shared:
            self.seen = await self._db.run(_version)

    async def follow(self, barrier: Barrier) -> None:
        """Apply other nodes' changes from now on, until :meth:`close`; call it once everything is loaded. Raises an
        error of the database."""
        if self.shared:
            await self.catch_up()
            self._tasks.spawn(self._poll(barrier), "changes of other nodes")
            if self._db.engine.notice:
                self._tasks.spawn(self._listen(barrier), "notices of other nodes")

    async def close(self) -> None:
        """Stop following. Idempotent."""
        await self._tasks.close()

    async def latest(self) -> None:
        """Catch up if other nodes may use the database, before a request whose client may have changed something
        through another node. While the database is away, what memory holds has to do."""
        if self.shared:
            with suppress(LogError):
                await self.catch_up()

    async def catch_up(self) -> None:
        """Return once memory has everything that other nodes had committed when this was called. Raises an error of the
        database, or of a mirror."""
        asked = self._looks
        async with self._lock:
            if self._looks >= asked + 2:
                return  # a later catch-up began after this call
            try:
                await self._db.run(self._reader(), then=self._take)
            finally:
                self._looks += 1

    def _reader(self) -> Callable[[Connection], _News | None]:
        seen, origin, mirrors = self.seen, self._origin, tuple(self._mirrors)

        def read(connection: Connection) -> _News | None:
            version = _version(connection)
            if version == seen:
                return None
            query = "SELECT version, kind, name, origin FROM changes WHERE version > ? ORDER BY version"
            rows = connection.execute(query, (seen,)).fetchall()
            missed = not rows or rows[0][0] != seen + 1
            names: dict[str, set[str]] = {}
            for _, kind, name, by in rows:
                if by != origin:
                    names.setdefault(kind, set()).add(name)
            concerned = [(one, None if missed else names[one.kind]) for one in mirrors if missed or one.kind in names]
            return _News(version, [(one, which, one.read(connection, which)) for one, which in concerned])

        return read

    def _take(self, news: _News | None) -> None:
        if news is None or news.version <= self.seen:
            return
        for mirror, names, found in news.found:
            mirror.take(found, names)
        # Raise ``seen`` last: after an error of a mirror the changes are read again, and until then this node decides
        # nothing without them.
        self.seen = news.version

    async def _poll(self, barrier: Barrier) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._try(barrier)

    async def _listen(self, barrier: Barrier) -> None:
        async for _ in self._db.engine.listen(CHANNEL):
            await self._try(barrier)

    async def _try(self, barrier: Barrier) -> None:
        try:
            await self.catch_up()
        except LogError as error:
            _log.debug("the database does not say what other nodes have changed", error=str(error))
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again
            barrier.caught("following other nodes", error)


CHANNEL = "anabranch_changes"
"""The channel of the notices."""


def _nothing(_: Connection) -> None:
    pass


def _version(connection: Connection) -> int:
    (version,) = connection.execute("SELECT version FROM changes_version").fetchone()
    return int(version)


def rows_named(connection: Connection, query: str, key: str, names: Collection[str] | None) -> list[tuple[Any, ...]]:
    """Return the rows of ``query`` (without WHERE), or only those whose ``key`` is one of ``names``."""
    if names is None:
        return connection.execute(query).fetchall()
    found: list[tuple[Any, ...]] = []
    wanted = sorted(names)
    for first in range(0, len(wanted), _NAMES_PER_QUERY):
        part = wanted[first : first + _NAMES_PER_QUERY]
        found += connection.execute(f"{query} WHERE {key} IN ({', '.join('?' * len(part))})", part)
    return found


class KeyedRows:
    """The rows of a followed table that are announced by their ``key``, as JSON."""

    def __init__(self, table: str, key: str, value: str = "") -> None:
        """``key`` and ``value`` name the columns of a row, in this order."""
        self._select = f"SELECT {', '.join([*key.split(), *value.split()])} FROM {table}"
        self._is_one = " AND ".join(f"{column} = ?" for column in key.split())
        self.store = upsert(table, key, value)
        """The statement that stores a row."""
        self.drop = f"DELETE FROM {table} WHERE {self._is_one}"
        """The statement that deletes the row with a key."""

    def read(self, connection: Connection, names: Collection[str] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows with these names that still exist, or all rows."""
        if names is None:
            return connection.execute(self._select).fetchall()
        query = f"{self._select} WHERE {self._is_one}"
        return [row for name in names for row in connection.execute(query, json.loads(name)).fetchall()]
