"""Store of the topics that YDB's clients create and alter: the catalog's part and the front's settings, in one
transaction.

The settings of all topics are in memory. Work that has begun is finished even if its caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.following import rows_named
from bridges.catalog.database.sql import upsert
from bridges.catalog.topics.topic import FOLLOWED, Change, ChangeKind, NameCollision, TopicNotFound
from ydb_topic_front.service import paths
from ydb_topic_front.service.paths import PROTOCOL
from ydb_topic_front.service.topics.settings import MAX_BYTES_OF_ALL, NONE, TopicSettings, retention_configuration
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.sql import Connection, Database
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.lineage import KeyRange
    from bridges.catalog.topics.topic import Topic
    from ydb_topic_front.service.topics.directories import Directories


_STORE = upsert("front_ydb_topics", "topic", "settings")


class TopicStore:
    """YDB settings of every topic, by canonical name. Call :meth:`load` first, :meth:`close` last."""

    def __init__(self, catalog: Catalog, db: Database, directories: Directories, barrier: Barrier) -> None:
        self._catalog = catalog
        self._directories = directories
        self._db = db
        self._barrier = barrier
        self.on_change: list[Callable[[Topic], None]] = []
        """Called when a topic's settings have changed durably."""
        self._known: dict[str, TopicSettings] = {}
        self._bytes = 0
        self._creations: dict[str, asyncio.Task[Topic]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._work = TaskSet()

    async def load(self) -> None:
        """Read all settings into memory, and follow the catalog."""

        self._db.changes.mirror(FOLLOWED, _read, self._follow)
        for topic, data in await self._db.run(lambda connection: _read(connection, None)):
            self._keep(topic, TopicSettings.stored(data))
        self._catalog.on_change.append(self._changed)

    def _follow(self, found: list[tuple[str, bytes]], names: Collection[str] | None) -> None:
        """Apply another node's changes: ``found`` are the stored settings of the topics ``names``, or of all if that is
        None."""
        now = {topic: TopicSettings.stored(data) for topic, data in found}
        for name in list(self._known) if names is None else names:
            if name not in now and name in self._known:
                self._bytes -= self._known.pop(name).size
        for name, settings in now.items():
            if settings != self.get_settings(name):
                self._keep(name, settings)
                if (topic := self._catalog.topics.get(name)) is not None:
                    self._tell(topic)

    async def close(self) -> None:
        """Stop following the catalog, and finish work under way."""
        if self._changed in self._catalog.on_change:
            self._catalog.on_change.remove(self._changed)
        await self._work.drain()

    def get_settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings; :data:`NONE` if YDB's clients have set none."""
        return self._known.get(topic, NONE)

    def scaled(self) -> list[str]:
        """Return the topics with partitions that are split, and perhaps merged, by their write rate."""
        return [topic for topic, settings in self._known.items() if settings.scales_up]

    def changing(self, topic: str) -> asyncio.Lock:
        """Return the lock to hold during a change of a topic: its settings do not change meanwhile."""
        return self._locks.setdefault(topic, asyncio.Lock())

    def _changed(self, change: Change) -> None:
        topic = change.topic
        if topic is None:
            return
        if change.kind is ChangeKind.DELETED:
            self._bytes -= self.get_settings(topic.name).size
            self._known.pop(topic.name, None)

    def _keep(self, topic: str, settings: TopicSettings) -> None:
        self._bytes += settings.size - self.get_settings(topic).size
        self._known[topic] = settings

    def _check_room(self, more: int) -> None:
        if self._bytes + more > MAX_BYTES_OF_ALL:
            raise YdbError(
                Status.GENERIC_ERROR, f"attributes and consumers of all topics have {MAX_BYTES_OF_ALL} bytes at most"
            )

    async def create(
        self,
        name: str,
        path: str,
        partitions: int,
        config: Mapping[str, str],
        settings: TopicSettings,
        keys: tuple[KeyRange, ...] = (),
    ) -> Topic:
        """Create a topic with the path ``path``; a topic that has this name and path is returned unchanged.

        ``keys`` are the partitions' key ranges, or empty. Durable when this returns. Raises the errors of
        :meth:`bridges.catalog.topics.catalog.Catalog.create_topic`: NameCollision if another path has this name,
        TopicExists while another client creates or deletes it; and YdbError when there is no room for more settings.
        """
        found = self._catalog.topics.get(name)
        if found is not None:
            if found.names.get(PROTOCOL) == path:
                return found
            called = found.names.get(PROTOCOL)
            raise NameCollision(
                f"topic {name!r} exists, and is called {called!r} here" if called else f"{name!r} is taken"
            )
        task = self._creations.get(path)
        if task is None:
            self._check_room(settings.size)
            self._catalog.check_new_topic(name, partitions, config, {PROTOCOL: path}, keys)
            task = self._work.spawn(self._create(name, path, partitions, config, settings, keys))
            self._creations[path] = task
            task.add_done_callback(lambda _: self._creations.pop(path, None))
        return await asyncio.shield(task)

    async def _create(
        self,
        name: str,
        path: str,
        partitions: int,
        config: Mapping[str, str],
        settings: TopicSettings,
        keys: tuple[KeyRange, ...],
    ) -> Topic:
        data = settings.to_bytes()
        parents = paths.parents(path)

        keep_parents = self._directories.keeping(parents)

        def also(connection: Connection) -> None:
            connection.execute(_STORE, (name, data))
            keep_parents(connection)

        def remember() -> None:
            self._keep(name, settings)
            self._directories.add(parents)

        names = {PROTOCOL: path}
        return await self._catalog.create_topic(name, partitions, config, names, keys, also=also, then=remember)

    async def change(
        self,
        topic: Topic,
        changes: Mapping[str, str | None],
        change: Callable[[TopicSettings], TopicSettings],
        prepare: Callable[[TopicSettings, TopicSettings], Coroutine[Any, Any, None]],
    ) -> None:
        """Change a topic's configuration and settings. Changes of one topic are serialized.

        ``change`` returns the new settings, and raises to refuse. ``prepare`` gets the old and the new ones and runs
        before the new ones are stored. Durable when this returns. Raises the errors of both, TopicNotFound,
        InvalidConfig, YdbError when there is no room for more settings, or an error of the database.
        """
        await self._work.finish(self._db.changes.settle(lambda: self._change(topic, changes, change, prepare)))

    async def _change(
        self,
        topic: Topic,
        changes: Mapping[str, str | None],
        change: Callable[[TopicSettings], TopicSettings],
        prepare: Callable[[TopicSettings, TopicSettings], Coroutine[Any, Any, None]],
    ) -> None:
        name = topic.name
        async with self.changing(name):
            overtaken = self._db.changes.mark(FOLLOWED, ())
            before = self.get_settings(name)
            settings = change(before)
            self._check_room(max(0, settings.size - before.size))
            waits = retention_configuration(settings)
            if waits != retention_configuration(before):
                changes = {**changes, **waits}
            self._catalog.check_config(name, changes)
            await prepare(before, settings)
            data = settings.to_bytes()

            def also(connection: Connection) -> None:
                overtaken(connection)
                connection.execute(_STORE, (name, data))

            if self._catalog.topics.get(name) is not topic:
                raise TopicNotFound(f"topic {name!r} was deleted")

            def changed() -> None:
                if self._catalog.topics.get(name) is topic:
                    self._keep(name, settings)
                    self._tell(topic)

            await self._catalog.set_config(name, changes, also, changed)

    def _tell(self, topic: Topic) -> None:
        for callback in tuple(self.on_change):
            self._barrier.call("change of a YDB topic", callback, topic)


def _read(connection: Connection, names: Collection[str] | None) -> list[tuple[str, bytes]]:
    return rows_named(connection, "SELECT topic, settings FROM front_ydb_topics", "topic", names)
