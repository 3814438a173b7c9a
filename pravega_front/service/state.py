"""State of segments besides their data: attributes, loose segments (of no stream), and decided merges.

It is in the node's database. Changes are durable when a method returns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bridges.catalog.database.following import rows_named
from bridges.catalog.database.sql import Connection, Database, upsert
from bridges.catalog.topics.topic import FOLLOWED
from bridges.errors import LogError, PartitionSealed
from pravega_front.wire.commands import NO_NUMBER
from pravega_front.wire.fields import AttributeUpdate

IF_EQUALS = 4
"""Kind of an attribute update that requires an old value; all other kinds replace any value."""


class TooManyAttributes(LogError):
    """The limit of attributes per segment is reached."""


class ConditionFailed(LogError):
    """An attribute does not have the value that its update requires."""


class Loose(NamedTuple):
    """Loose segment: its name, and whether it is sealed."""

    name: str
    sealed: bool


class Merging(NamedTuple):
    """Stored decision of a merge in pieces: topic, partition and backend stream of its target; the producer ids of the
    present attempt, and of the previous one, which may still have to be aborted (-1: none)."""

    target: str
    partition: int
    stream_id: int
    attempt: int
    stale: int


class SegmentState:
    """Reads and changes the state of segments."""

    def __init__(self, db: Database, max_attributes: int) -> None:
        self._db = db
        self._max_attributes = max_attributes

    async def loose(self) -> dict[str, Loose]:
        """Return all loose segments, by the topics that hold them."""
        return await self._db.run(lambda connection: read_loose(connection, None))

    async def seal_loose(self, topic: str) -> None:
        note = self._db.changes.note(FOLLOWED, [topic])

        def change(connection: Connection) -> None:
            note(connection)
            connection.execute("UPDATE front_pravega_segments SET sealed = 1 WHERE topic = ?", (topic,))

        await self._db.run(change)

    async def merges(self) -> dict[str, Merging]:
        """Return all decided merges that have not ended, by the topics that hold their sources."""

        def read(connection: Connection) -> dict[str, Merging]:
            rows = connection.execute(
                "SELECT topic, target, partition, stream, attempt, stale FROM front_pravega_merges"
            )
            return {topic: Merging(*rest) for topic, *rest in rows}

        return await self._db.run(read)

    async def decide_merge(self, topic: str, wanted: Merging, updates: Sequence[AttributeUpdate]) -> Merging:
        """Store the decision to merge the segment in ``topic`` as ``wanted``, unless there is one already; return the
        one that holds. The ``updates`` of the target's attributes are part of the same database transaction. The row is
        deleted with the topic.

        Raises PartitionSealed, ConditionFailed, TooManyAttributes.
        """

        def decide(connection: Connection) -> Merging:
            query = "SELECT target, partition, stream, attempt, stale FROM front_pravega_merges WHERE topic = ?"
            row = connection.execute(query, (topic,)).fetchone()
            if row is not None:
                return Merging(*row)
            query = "SELECT 1 FROM partitions WHERE stream_id = ? AND sealed_epoch IS NOT NULL"
            if connection.execute(query, (wanted.stream_id,)).fetchone() is not None:
                raise PartitionSealed(f"{wanted.target}-{wanted.partition}", ())
            undo = [
                (one.attribute.hex(), one.new, _attribute(connection, wanted.target, wanted.partition, one.attribute))
                for one in updates
            ]
            self._update(connection, wanted.target, wanted.partition, updates)
            row = (topic, *wanted, json.dumps(undo))
            connection.execute("INSERT INTO front_pravega_merges VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            return wanted

        return await self._db.run(decide)

    async def set_attempt(self, topic: str, merging: Merging) -> None:
        """Store another attempt to merge the segment in ``topic``."""
        change = "UPDATE front_pravega_merges SET attempt = ?, stale = ? WHERE topic = ?"
        row = (merging.attempt, merging.stale, topic)
        await self._db.run(lambda connection: connection.execute(change, row))

    async def give_up_merge(self, topic: str) -> None:
        """Delete the decision to merge the segment in ``topic``, and undo its attribute updates, except those changed
        again since."""

        def give_up(connection: Connection) -> None:
            query = "DELETE FROM front_pravega_merges WHERE topic = ? RETURNING target, partition, undo"
            for target, partition, undo in connection.execute(query, (topic,)).fetchall():
                for name, new, old in reversed(json.loads(undo or "[]")):
                    back = AttributeUpdate(bytes.fromhex(name), IF_EQUALS, old, new)
                    if _attribute(connection, target, partition, back.attribute) == new:
                        _set_attributes(connection, target, partition, [back])

        await self._db.run(give_up)

    async def attribute(self, topic: str, partition: int, attribute: bytes) -> int:
        """Return an attribute's value; NO_NUMBER if it is not set."""
        return await self._db.run(lambda connection: _attribute(connection, topic, partition, attribute))

    async def update(self, topic: str, partition: int, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none. Raises ConditionFailed, TooManyAttributes."""
        if updates:
            await self._db.run(lambda connection: self._update(connection, topic, partition, updates))

    def _update(self, connection: Connection, topic: str, partition: int, updates: Sequence[AttributeUpdate]) -> None:
        more = 0
        for update in updates:
            value = _attribute(connection, topic, partition, update.attribute)
            if update.kind == IF_EQUALS and value != update.old:
                raise ConditionFailed("an attribute has another value than it was to have")
            more += value == NO_NUMBER and update.new != NO_NUMBER
        if more:
            query = "SELECT count(*) FROM front_pravega_attributes WHERE topic = ? AND partition = ?"
            (count,) = connection.execute(query, (topic, partition)).fetchone()
            if count + more > self._max_attributes:
                raise TooManyAttributes(f"{count} attributes are set of the segment: no more can be")
        _set_attributes(connection, topic, partition, updates)


def _attribute(connection: Connection, topic: str, partition: int, attribute: bytes) -> int:
    query = "SELECT value FROM front_pravega_attributes WHERE topic = ? AND partition = ? AND id = ?"
    row = connection.execute(query, (topic, partition, attribute)).fetchone()
    return NO_NUMBER if row is None else int(row[0])


def _set_attributes(connection: Connection, topic: str, partition: int, updates: Sequence[AttributeUpdate]) -> None:
    for update in updates:
        if update.new == NO_NUMBER:  # NO_NUMBER unsets the attribute
            query = "DELETE FROM front_pravega_attributes WHERE topic = ? AND partition = ? AND id = ?"
            connection.execute(query, (topic, partition, update.attribute))
        else:
            row = (topic, partition, update.attribute, update.new)
            connection.execute(upsert("front_pravega_attributes", "topic partition id", "value"), row)


def read_loose(connection: Connection, topics: Collection[str] | None) -> dict[str, Loose]:
    """Return the loose segments by topic; only those in ``topics``, unless that is None."""
    rows = rows_named(connection, "SELECT topic, name, sealed FROM front_pravega_segments", "topic", topics)
    return {topic: Loose(name, bool(sealed)) for topic, name, sealed in rows}


def add_loose(connection: Connection, name: str, topic: str) -> None:
    """Store a new loose segment, within the transaction that creates its topic."""
    connection.execute("INSERT INTO front_pravega_segments (name, topic) VALUES (?, ?)", (name, topic))
