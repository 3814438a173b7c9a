"""Directories, which contain topics and which clients create and remove.

A directory exists while a topic lies in it, and until a client removes it. Those of YDB's clients are stored, including
the parents of topics they create. Directories that only topics of other protocols lie in follow from these topics'
names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from anabranch_kit.run import clock
from anabranch_kit.run.turns import portions
from bridges.catalog.database.following import rows_named
from ydb_topic_front.service.paths import PROTOCOL, parents
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection, Database
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.topic import Topic

T = TypeVar("T")

MOST = 100_000
"""Most stored directories: they are all in memory."""
_FOLLOWED = "ydb directory"


class Directories:
    """Directories by their paths below the database. Call :meth:`load` first."""

    def __init__(self, catalog: Catalog, db: Database) -> None:
        self._catalog = catalog
        self._db = db
        self._kept: set[str] = set()

    async def load(self) -> None:
        """Read all stored directories into memory, and follow the changes of other nodes."""
        self._db.changes.mirror(_FOLLOWED, _read, self._follow)

        self._kept = await self._db.run(lambda connection: _read(connection, None))

    def _follow(self, found: set[str], paths: Collection[str] | None) -> None:
        self._kept.difference_update(self._kept.copy() if paths is None else paths)
        self._kept.update(found)

    # --- looking ----------------------------------------------------------------------------------------------------

    async def has(self, path: str) -> bool:
        """Return whether there is a directory at ``path``. The database itself, with an empty path, is one."""
        if not path or path in self._kept:
            return True
        async for topics in portions(list(self._catalog.topics.values())):
            if any(topic.names.get(PROTOCOL, "").startswith(f"{path}/") for topic in topics):
                return True
        return False

    async def children(self, path: str) -> dict[str, Topic | None]:
        """Return the entries of a directory by name: topics, and None for directories.

        A topic of another protocol may have the same name as a directory; the topic wins.
        """
        found: dict[str, Topic | None] = {}
        prefix = f"{path}/" if path else ""
        async for topics in portions(list(self._catalog.topics.values())):
            for topic in topics:
                below = topic.names.get(PROTOCOL, "")
                if below and below.startswith(prefix):
                    name, slash, _ = below[len(prefix) :].partition("/")
                    if not slash or name not in found:
                        found[name] = None if slash else topic
        async for kept in portions(list(self._kept)):
            for one in kept:
                if one.startswith(prefix):
                    found.setdefault(one[len(prefix) :].partition("/")[0], None)
        return found

    # --- changing ---------------------------------------------------------------------------------------------------

    async def make(self, path: str) -> None:
        """Store a directory and its parents; those that are stored already stay unchanged. Durable when this returns.
        Raises YdbError when there are too many directories, or an error of the database."""
        await self._db.changes.settle(lambda: self._make(path))

    async def _make(self, path: str) -> None:
        mark = self._db.changes.mark(_FOLLOWED, [*parents(path), path])
        new = [one for one in (*parents(path), path) if one not in self._kept]
        if not new:
            return
        if len(self._kept) + len(new) > MOST:
            raise YdbError(
                Status.GENERIC_ERROR, f"there are {len(self._kept)} directories, and at most {MOST} are kept"
            )

        def write(connection: Connection) -> None:
            mark(connection)
            _insert(connection, new)

        await self._db.run(write, then=lambda _: self.add(new))

    def keeping(self, paths: Sequence[str]) -> Callable[[Connection], None]:
        """Return a function that stores directories within the caller's transaction. Call :meth:`add` when that is
        durable."""
        note = self._db.changes.note(_FOLLOWED, paths)

        def write(connection: Connection) -> None:
            note(connection)
            _insert(connection, paths)

        return write

    def add(self, paths: Iterable[str]) -> None:
        """Note that directories are durably stored."""
        self._kept.update(paths)

    async def remove(self, path: str) -> None:
        """Delete a stored directory. Durable when this returns. Raises an error of the database."""
        note = self._db.changes.note(_FOLLOWED, [path])

        def write(connection: Connection) -> None:
            note(connection)
            connection.execute("DELETE FROM front_ydb_directories WHERE path = ?", (path,))

        await self._db.run(write, then=lambda _: self._kept.discard(path))


def _read(connection: Connection, paths: Collection[str] | None) -> set[str]:
    query = "SELECT path FROM front_ydb_directories"
    return {path for (path,) in rows_named(connection, query, "path", paths)}


def _insert(connection: Connection, paths: Iterable[str]) -> None:
    now = clock.now_ms()
    connection.executemany(
        "INSERT INTO front_ydb_directories VALUES (?, ?) ON CONFLICT DO NOTHING", [(path, now) for path in paths]
    )
