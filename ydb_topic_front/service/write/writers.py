"""Open write sessions: at most one for each producer of a partition, the latest (docs/protocols/ydb.md, "Takeover")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bridges.catalog.topics.topic import Change, ChangeKind
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, unknown_topic

if TYPE_CHECKING:
    import uuid

    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.topic import Topic

Key = tuple["uuid.UUID", int, bytes]
"""Topic, partition, producer."""


class Writer(Protocol):
    """A write session, as :class:`Writers` sees it."""

    def end(self, error: YdbError) -> None:
        """Take nothing more, and end with ``error`` when everything in flight is answered."""

    async def await_decided(self) -> None:
        """Wait until the log has decided everything the session has in flight."""


class Writers:
    """All open write sessions."""

    def __init__(self, catalog: Catalog) -> None:
        self._owners: dict[Key, Writer] = {}
        # Former owners that may still have requests in flight.
        self._former: dict[Key, dict[Writer, None]] = {}
        self._by_topic: dict[uuid.UUID, dict[Writer, None]] = {}
        catalog.on_change.append(self._changed)

    @property
    def open(self) -> int:
        """Return the number of sessions that are open or have requests in flight."""
        return sum(map(len, self._by_topic.values()))

    def enter(self, topic: Topic, writer: Writer) -> None:
        """Add a session; it is ended when the topic is deleted."""
        self._by_topic.setdefault(topic.topic_id, {})[writer] = None

    async def own(self, key: Key, writer: Writer) -> None:
        """Make ``writer`` the only session of a producer. The former one ends with SESSION_EXPIRED. When this returns,
        everything that former sessions had in flight is decided."""
        before = self._owners.get(key)
        self._owners[key] = writer
        if before is not None and before is not writer:
            self._former.setdefault(key, {})[before] = None
            message = "the session is ended by another one of the same producer"
            before.end(YdbError(Status.SESSION_EXPIRED, message, Issue.WRONG_COOKIE))
        # A former session that was still waiting here has nothing in flight, but those it waited for may have.
        for former in list(self._former.get(key, ())):
            await former.await_decided()
            self._forget(key, former)

    def leave(self, topic: Topic, key: Key | None, writer: Writer) -> None:
        """Remove a session that has ended and has nothing in flight."""
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
