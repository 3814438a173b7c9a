"""Directories: topics lie in them, and clients make and remove them.

A directory is there while something lies in it, and as long as nobody removes it. Those of YDB's clients are kept, the
directories of topics that they make included; those that only a topic of another protocol lies in follow from its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from anabranch_kit.run.turns import portions
from bridges.catalog.following import rows_named
from ydb_topic_front.service.paths import PROTOCOL, parents
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection, Database
    from bridges.catalog.topic import Topic
    from bridges.catalog.topics import Catalog

T = TypeVar("T")

MOST = 100_000
"""Directories that are kept: they stay in memory."""
_FOLLOWED = "ydb directory"


class Directories:
    """Directories by their paths below the database. Call :meth:`load` before anything else."""

    def __init__(self, catalog: Catalog, db: Database) -> None:
        self._catalog = catalog
        self._db = db
        self._kept: set[str] = set()

    async def load(self) -> None:
        """Read all that are kept into memory, and follow what other nodes change."""
        self._db.changes.mirror(_FOLLOWED, _read, self._follow)

        self._kept = await self._db.run(lambda connection: _read(connection, None))

    def _follow(self, found: set[str], paths: Collection[str] | None) -> None:
        self._kept.difference_update(self._kept.copy() if paths is None else paths)
        self._kept.update(found)

    # --- looking ----------------------------------------------------------------------------------------------------

    async def has(self, path: str) -> bool:
        """Whether there is a directory at ``path``; the database itself, whose path is empty, is one."""
        if not path or path in self._kept:
            return True
        async for topics in portions(list(self._catalog.topics.values())):
            if any(topic.names.get(PROTOCOL, "").startswith(f"{path}/") for topic in topics):
                return True
        return False

    async def children(self, path: str) -> dict[str, Topic | None]:
        """What lies in a directory, by name: topics, and None for directories.

        A topic of another protocol may have a name that is also that of a directory; it is told as a topic then.
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
        """Keep a directory and those it lies in; nothing happens to those that are kept. Durable when this returns.

        Raises YdbError when there are too many, or an error of the database.
        """
        await self._db.changes.settled(lambda: self._make(path))

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

        await self._db.run(write, then=lambda _: self.made(new))

    def keeping(self, paths: Sequence[str]) -> Callable[[Connection], None]:
        """What a transaction calls that keeps directories; when it is durable, :meth:`made` is to be called."""
        note = self._db.changes.note(_FOLLOWED, paths)

        def write(connection: Connection) -> None:
            note(connection)
            _insert(connection, paths)

        return write

    def made(self, paths: Iterable[str]) -> None:
        """Directories are durably kept."""
        self._kept.update(paths)

    async def remove(self, path: str) -> None:
        """Keep a directory no more. Durable when this returns. Raises an error of the database."""
        note = self._db.changes.note(_FOLLOWED, [path])

        def write(connection: Connection) -> None:
            note(connection)
            connection.execute("DELETE FROM front_ydb_directories WHERE path = ?", (path,))

        await self._db.run(write, then=lambda _: self._kept.discard(path))


def _read(connection: Connection, paths: Collection[str] | None) -> set[str]:
    query = "SELECT path FROM front_ydb_directories"
    return {path for (path,) in rows_named(connection, query, "path", paths)}


def _insert(connection: Connection, paths: Iterable[str]) -> None:
    now = time.time_ns() // 1_000_000
    connection.executemany(
        "INSERT INTO front_ydb_directories VALUES (?, ?) ON CONFLICT DO NOTHING", [(path, now) for path in paths]
    )
