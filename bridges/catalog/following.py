"""How what a node has in memory of a database that other nodes change, too, follows it.

Where one node alone has the database (SQLite) nothing here does anything. Where several share it, whatever is both in
memory and in the database is one of three:

* *followed* (this module): topics and their configuration, the node-level configuration, access rules, what fronts keep
  of topics, scopes and directories. Few change it, everybody decides by it.
* *owned*: what only its owner touches, who reads it when it becomes the owner: positions and groups
  (:meth:`bridges.catalog.progress.Progress.reload`), transactional ids; and rows of streams
  (:class:`bridges.log.state.stream_rows.KnownRows`), which whoever opens a log reads again once nobody else can append.
* *read through*: everything else is asked of the database each time.

A transaction that changes what is followed *marks* it (:meth:`Changes.mark`): the database's version goes up by one,
and a row says what was changed. It fails with :class:`Overtaken`, and nothing takes effect, if another node has changed
anything that this one had not seen when it decided: what it has checked in memory may not hold any more. It then
catches up, checks again, and repeats (:meth:`Changes.settled`). Own changes overtake nobody: memory has them.

Memory takes others' changes, and its own, in the order of the database: own ones in ``then`` of the closure that makes
them (:meth:`bridges.catalog.sql.Database.run`), others' in that of the closure that reads them. A *mirror* reads, in
one transaction with all others, the rows of what has changed, and takes them on the loop. What it reads is the state
now, and not the change: taking it twice makes no difference, and of a node that was away for too long everything is
read again.

Nodes are told at once (LISTEN and NOTIFY), and look every second, since what is told while a connection is lost is
lost.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from msgspec import Struct

from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from anabranch_kit.sql.connection import Connection
    from anabranch_kit.sql.engine import Engine

T = TypeVar("T")

LOOK_S = 1.0
"""Between two looks at the version."""
_KEPT = 10_000
"""Versions of which the rows are kept: who has missed more reads everything."""
_TRIES = 20
_AT_ONCE = 200
"""Names in one query."""

_log = structlog.get_logger("anabranch.catalog")


class Overtaken(LogError):
    """Another node has changed something meanwhile that this node has not seen: nothing took effect."""

    retriable = True


class Mirror(Struct, frozen=True):
    """Something in memory that follows rows of ``kind``. ``read`` runs in the database's thread, with the names of what
    has changed, or None for everything; ``take`` gets what it gave, and the same names, on the loop."""

    kind: str
    read: Callable[[Connection, Collection[str] | None], Any]
    take: Callable[[Any, Collection[str] | None], None]


class _News(Struct, frozen=True):
    version: int
    found: list[tuple[Mirror, Collection[str] | None, Any]]


class Runs(Protocol):
    """The database (:class:`bridges.catalog.sql.Database`)."""

    @property
    def engine(self) -> Engine: ...

    async def run(self, fn: Callable[[Connection], T], *, then: Callable[[T], None] | None = None) -> T: ...


class Changes:
    """Of one database."""

    def __init__(self, db: Runs) -> None:
        self.seen = 0
        """The version of which memory has everything that others have changed."""
        self._db = db
        self._origin = secrets.token_hex(8)
        self._mirrors: list[Mirror] = []
        self._lock = asyncio.Lock()
        self._looks = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def shared(self) -> bool:
        """Whether there may be other nodes."""
        return self._db.engine.shared

    def mirror(
        self,
        kind: str,
        read: Callable[[Connection, Collection[str] | None], T],
        take: Callable[[T, Collection[str] | None], None],
    ) -> None:
        """Have memory follow: see :class:`Mirror`. Of one kind, those that are told last take first, so that whoever
        hears of a topic from the catalog finds there what fronts know of it. To be called before it is loaded."""
        if self.shared:
            self._mirrors.insert(0, Mirror(kind, read, take))

    def mark(self, kind: str, names: Iterable[str]) -> Callable[[Connection], None]:
        """What a transaction calls that changes ``names`` of ``kind``, whatever was decided until now by what is in
        memory. It raises Overtaken."""
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
        """As :meth:`mark`, of a change that is right whatever others have changed meanwhile."""
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

    async def settled(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, which checks and commits, and is repeated when another node was first."""
        for _ in range(_TRIES - 1):
            try:
                return await work()
            except Overtaken:
                await self.catch_up()
        return await work()

    # --- following --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Before anything is loaded. Raises an error of the database."""
        if self.shared:
            self.seen = await self._db.run(_version)

    async def follow(self, barrier: Barrier) -> None:
        """From now on, when everything is loaded, until :meth:`close`. Raises an error of the database."""
        if self.shared:
            await self.catch_up()
            self._tasks.append(asyncio.create_task(self._look(barrier), name="changes of other nodes"))
            if self._db.engine.notice:
                self._tasks.append(asyncio.create_task(self._listen(barrier), name="notices of other nodes"))

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def latest(self) -> None:
        """The same where there may be other nodes, for whoever is asked by a client that may have changed something at
        one of them; while the database is away what is known has to do."""
        if self.shared:
            with suppress(LogError):
                await self.catch_up()

    async def catch_up(self) -> None:
        """When this returns, memory has what others had committed when it was called. Raises an error of the database,
        or what a mirror could not take."""
        asked = self._looks
        async with self._lock:
            if self._looks >= asked + 2:
                return  # one of them was begun since
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
        # Last: what could not be taken is read again, and until then nothing is decided without it.
        self.seen = news.version

    async def _look(self, barrier: Barrier) -> None:
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
"""What listeners are told on."""


def _nothing(_: Connection) -> None:
    pass


def _version(connection: Connection) -> int:
    (version,) = connection.execute("SELECT version FROM changes_version").fetchone()
    return int(version)


def rows_named(connection: Connection, query: str, key: str, names: Collection[str] | None) -> list[tuple[Any, ...]]:
    """The rows that ``query`` (without WHERE) finds, or those of them whose ``key`` is one of ``names``."""
    if names is None:
        return connection.execute(query).fetchall()
    found: list[tuple[Any, ...]] = []
    wanted = sorted(names)
    for first in range(0, len(wanted), _AT_ONCE):
        part = wanted[first : first + _AT_ONCE]
        found += connection.execute(f"{query} WHERE {key} IN ({', '.join('?' * len(part))})", part)
    return found
