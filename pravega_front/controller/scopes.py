"""Index of the scopes and of the streams in each, sorted, and kept in step with the catalog.

A scope exists because a client created it, or because a topic of any protocol has a name in it. Listing returns pages
of names, so only :meth:`Scopes.load` iterates over all topics, once, at the start.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bridges.catalog.database.following import rows_named
from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.topics.topic import Change, ChangeKind, Topic, TopicKind
from bridges.errors import LogError
from pravega_front.names import SYSTEM_SCOPE

if TYPE_CHECKING:
    from bridges.node.front import NodeServices

_FOLLOWED = "pravega scope"


class _Streams(Struct):
    """Names of a scope's streams: the users', sorted, and the internal ones that hold the state of reader groups."""

    users: list[str] = field(default_factory=list)
    internal: set[str] = field(default_factory=set)


class TooManyScopes(LogError):
    """The limit of created scopes is reached."""


class Scopes:
    """All scopes; clients may create ``most``. Call :meth:`load` first, and :meth:`close` at the end."""

    def __init__(self, node: NodeServices, most: int) -> None:
        self._catalog = node.catalog
        self._most = most
        self._db = node.db
        self._made: set[str] = set()
        self._streams: dict[str, _Streams] = {}
        self._sorted: list[str] = []

    async def load(self) -> None:
        """Read the created scopes from the database, index the catalog's topics and follow its changes."""

        self._db.changes.mirror(_FOLLOWED, _read, self._follow)
        self._made = await self._db.run(lambda connection: _read(connection, None))
        for topic in self._catalog.topics.values():
            if place := _place(topic):
                streams = self._streams.setdefault(place[0], _Streams())
                if topic.kind is TopicKind.USER:
                    streams.users.append(place[1])
                else:
                    streams.internal.add(place[1])
        for streams in self._streams.values():
            streams.users.sort()
        self._sorted = sorted({SYSTEM_SCOPE, *self._made, *self._streams})
        self._catalog.on_change.append(self._changed)

    def close(self) -> None:
        """Stop following the catalog."""
        if self._changed in self._catalog.on_change:
            self._catalog.on_change.remove(self._changed)

    def _changed(self, change: Change) -> None:
        topic = change.topic
        if topic is None or not topic.kind.listed or (place := _place(topic)) is None:
            return
        scope, stream = place
        if change.kind is ChangeKind.CREATED:
            self._insert(scope)
            streams = self._streams.setdefault(scope, _Streams())
            if topic.kind is TopicKind.USER:
                insort(streams.users, stream)
            else:
                streams.internal.add(stream)
        elif change.kind is ChangeKind.DELETED:
            streams = self._streams[scope]
            if topic.kind is TopicKind.USER:
                del streams.users[bisect_right(streams.users, stream) - 1]
            else:
                streams.internal.discard(stream)
            if not streams.users and not streams.internal:
                del self._streams[scope]
                self._drop(scope)

    def _insert(self, scope: str) -> None:
        if not self.exists(scope):
            insort(self._sorted, scope)

    def _drop(self, scope: str) -> None:
        if not self.exists(scope):
            del self._sorted[bisect_right(self._sorted, scope) - 1]

    # --- asking ----------------------------------------------------------------------------------------------------

    def exists(self, scope: str) -> bool:
        return scope in self._made or scope in self._streams or scope == SYSTEM_SCOPE

    def page(self, after: str, most: int) -> list[str]:
        """Return at most ``most`` scopes after ``after``, sorted."""
        first = bisect_right(self._sorted, after)
        return self._sorted[first : first + most]

    def streams(self, scope: str, after: str, most: int) -> list[str]:
        """Return at most ``most`` of a scope's user streams after ``after``, sorted."""
        found = self._streams.get(scope)
        if found is None:
            return []
        first = bisect_right(found.users, after)
        return found.users[first : first + most]

    def internal_streams(self, scope: str) -> list[str]:
        """Return a scope's streams that hold the state of reader groups."""
        found = self._streams.get(scope)
        return [] if found is None else sorted(found.internal)

    def is_empty(self, scope: str) -> bool:
        """Return whether a scope has no streams, internal ones included."""
        return scope not in self._streams

    # --- changing --------------------------------------------------------------------------------------------------

    async def add(self, scope: str) -> None:
        """Create a scope, durably. Raises TooManyScopes."""

        def change(connection: Connection) -> None:
            (count,) = connection.execute("SELECT count(*) FROM front_pravega_scopes").fetchone()
            if count >= self._most:
                raise TooManyScopes(f"{count} scopes were made: no more can be")
            note(connection)
            connection.execute(upsert("front_pravega_scopes", "name"), (scope,))

        note = self._db.changes.note(_FOLLOWED, [scope])
        await self._db.run(change, then=lambda _: self._added(scope))

    def _added(self, scope: str) -> None:
        self._insert(scope)
        self._made.add(scope)

    async def remove(self, scope: str) -> None:
        """Delete a created scope, durably."""

        def change(connection: Connection) -> None:
            note(connection)
            connection.execute("DELETE FROM front_pravega_scopes WHERE name = ?", (scope,))

        note = self._db.changes.note(_FOLLOWED, [scope])
        await self._db.run(change, then=lambda _: self._removed(scope))

    def _removed(self, scope: str) -> None:
        if scope in self._made:
            self._made.discard(scope)
            self._drop(scope)

    def _follow(self, found: set[str], names: Collection[str] | None) -> None:
        for scope in (self._made.copy() if names is None else self._made.intersection(names)) - found:
            self._removed(scope)
        for scope in found - self._made:
            self._added(scope)


def _read(connection: Connection, names: Collection[str] | None) -> set[str]:
    return {name for (name,) in rows_named(connection, "SELECT name FROM front_pravega_scopes", "name", names)}


def _place(topic: Topic) -> tuple[str, str] | None:
    name = topic.names.get("pravega")
    if name is None:
        return None
    scope, _, stream = name.partition("/")
    return scope, stream
