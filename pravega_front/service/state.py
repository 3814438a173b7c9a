"""The small state of segments that is no data: attributes, and which segments belong to no stream.

It lives in the node's database, and what is changed is durable when a call returns.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from bridges.catalog.sql import Database
from pravega_front.wire.commands import NO_NUMBER


class Loose(NamedTuple):
    """A segment that is no partition of a stream: the hidden topic that holds it, and whether it is sealed."""

    topic: str
    sealed: bool


class Merging(NamedTuple):
    """A merge in pieces that was decided: topic, partition and stream of its target; the producer ids of the attempt
    that is, or is to be, made of it, and of the one before, which may have to be aborted still (-1: none)."""

    target: str
    partition: int
    stream_id: int
    attempt: int
    stale: int


class SegmentState:
    """Reads and changes the state of segments."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def loose(self) -> dict[str, Loose]:
        """All segments that belong to no stream, by name."""

        def read(connection: sqlite3.Connection) -> dict[str, Loose]:
            rows = connection.execute("SELECT name, topic, sealed FROM front_pravega_segments")
            return {name: Loose(topic, bool(sealed)) for name, topic, sealed in rows}

        return await self._db.run(read)

    async def seal_loose(self, name: str) -> None:
        """A segment of no stream takes no more."""
        change = "UPDATE front_pravega_segments SET sealed = 1 WHERE name = ?"
        await self._db.run(lambda connection: connection.execute(change, (name,)))

    async def merges(self) -> dict[str, Merging]:
        """All merges in pieces that were decided and have not ended, by the topics that hold their sources."""

        def read(connection: sqlite3.Connection) -> dict[str, Merging]:
            rows = connection.execute(
                "SELECT topic, target, partition, stream, attempt, stale FROM front_pravega_merges"
            )
            return {topic: Merging(*rest) for topic, *rest in rows}

        return await self._db.run(read)

    async def set_merge(self, topic: str, merging: Merging) -> None:
        """The segment in ``topic`` is to be merged. The row goes with the topic."""
        change = "REPLACE INTO front_pravega_merges VALUES (?, ?, ?, ?, ?, ?)"
        await self._db.run(lambda connection: connection.execute(change, (topic, *merging)))

    async def end_merge(self, topic: str) -> None:
        """The segment in ``topic`` is not to be merged any more."""
        change = "DELETE FROM front_pravega_merges WHERE topic = ?"
        await self._db.run(lambda connection: connection.execute(change, (topic,)))

    async def attribute(self, topic: str, partition: int, attribute: bytes) -> int:
        """An attribute's value; NO_NUMBER if it is not set."""
        return await self._db.run(lambda connection: _attribute(connection, topic, partition, attribute))

    async def set_attribute(self, topic: str, partition: int, attribute: bytes, value: int) -> None:
        """Set an attribute, whatever it was."""
        await self._db.run(lambda connection: set_attribute(connection, topic, partition, attribute, value))

    async def update_attribute(self, topic: str, partition: int, attribute: bytes, new: int, expected: int) -> bool:
        """Set an attribute if it has the expected value; whether it had."""

        def change(connection: sqlite3.Connection) -> bool:
            if _attribute(connection, topic, partition, attribute) != expected:
                return False
            set_attribute(connection, topic, partition, attribute, new)
            return True

        return await self._db.run(change)


def _attribute(connection: sqlite3.Connection, topic: str, partition: int, attribute: bytes) -> int:
    query = "SELECT value FROM front_pravega_attributes WHERE topic = ? AND partition = ? AND id = ?"
    row = connection.execute(query, (topic, partition, attribute)).fetchone()
    return NO_NUMBER if row is None else int(row[0])


def set_attribute(connection: sqlite3.Connection, topic: str, partition: int, attribute: bytes, value: int) -> None:
    """Set an attribute, inside a transaction; NO_NUMBER unsets it."""
    if value == NO_NUMBER:
        query = "DELETE FROM front_pravega_attributes WHERE topic = ? AND partition = ? AND id = ?"
        connection.execute(query, (topic, partition, attribute))
    else:
        row = (topic, partition, attribute, value)
        connection.execute("REPLACE INTO front_pravega_attributes VALUES (?, ?, ?, ?)", row)


def add_loose(connection: sqlite3.Connection, name: str, topic: str) -> None:
    """A segment of no stream is made, in the transaction that makes its topic."""
    connection.execute("INSERT INTO front_pravega_segments (name, topic) VALUES (?, ?)", (name, topic))
