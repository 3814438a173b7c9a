"""Who writes now: one session for each producer of a partition, the latest (docs/protocols/ydb.md, "Takeover")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bridges.catalog.topic import Change, ChangeKind
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, unknown_topic

if TYPE_CHECKING:
    import uuid

    from bridges.catalog.topic import Topic
    from bridges.catalog.topics import Catalog

Key = tuple["uuid.UUID", int, bytes]
"""Topic, partition, producer."""


class Writer(Protocol):
    """A session that writes."""

    def end(self, error: YdbError) -> None:
        """Take nothing more, and end with ``error`` when what is in flight is answered."""

    async def settled(self) -> None:
        """Return when the fate of everything that was taken is decided."""


class Writers:
    """The sessions that are open."""

    def __init__(self, catalog: Catalog) -> None:
        self._owners: dict[Key, Writer] = {}
        # Those that own nothing any more and may still have something in flight.
        self._former: dict[Key, dict[Writer, None]] = {}
        self._by_topic: dict[uuid.UUID, dict[Writer, None]] = {}
        catalog.on_change.append(self._changed)

    @property
    def open(self) -> int:
        """Sessions that are open, or still have something in flight."""
        return sum(map(len, self._by_topic.values()))

    def enter(self, topic: Topic, writer: Writer) -> None:
        """``writer`` is to be told when the topic goes."""
        self._by_topic.setdefault(topic.topic_id, {})[writer] = None

    async def own(self, key: Key, writer: Writer) -> None:
        """Make ``writer`` the one that writes as the producer of ``key``. The one before ends with SESSION_EXPIRED, and
        what it and those before it had in flight is decided when this returns."""
        before = self._owners.get(key)
        self._owners[key] = writer
        if before is not None and before is not writer:
            self._former.setdefault(key, {})[before] = None
            message = "the session is ended by another one of the same producer"
            before.end(YdbError(Status.SESSION_EXPIRED, message, Issue.WRONG_COOKIE))
        # One that was itself still waiting has nothing in flight; those it waited for may have.
        for former in list(self._former.get(key, ())):
            await former.settled()
            self._forget(key, former)

    def leave(self, topic: Topic, key: Key | None, writer: Writer) -> None:
        """``writer`` has ended and has nothing in flight."""
        writers = self._by_topic.get(topic.topic_id, {})
        writers.pop(writer, None)
        if not writers:
            self._by_topic.pop(topic.topic_id, None)
        if key is not None:
            if self._owners.get(key) is writer:
                del self._owners[key]
            self._forget(key, writer)

    def _forget(self, key: Key, former: Writer) -> None:
        formers = self._former.get(key)
        if formers is not None:
            formers.pop(former, None)
            if not formers:
                del self._former[key]

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            for writer in list(self._by_topic.get(change.topic.topic_id, ())):
                writer.end(unknown_topic(change.topic.name))
