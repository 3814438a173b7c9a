"""How far consumers have read: committed positions of every front's groups, and what a front keeps about a group.

Reads are answered from memory; commits return once they are durable. Commits of different callers that wait at the
same time share one flush (bridges/sql.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bridges.sql import Database

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed position: the offset of the next record to read.

    ``leader_epoch`` and ``metadata`` are given back as they came (-1 and "" when unknown). ``commit_ms`` is when it
    was committed and ``expire_ms`` when it may be forgotten (-1: by the group's own retention), both since the epoch.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1


_EMPTY: Mapping[Place, Committed] = MappingProxyType({})


class Progress:
    """Committed positions by group, topic and partition. Call :meth:`load` before anything else."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._groups: dict[str, dict[Place, Committed]] = {}

    async def load(self) -> None:
        """Read all positions into memory."""

        def read(connection: sqlite3.Connection) -> dict[str, dict[Place, Committed]]:
            groups: dict[str, dict[Place, Committed]] = {}
            for group, topic, partition, *rest in connection.execute(
                "SELECT grp, topic, partition, offset, leader_epoch, metadata, commit_ms, expire_ms FROM positions"
            ):
                groups.setdefault(group, {})[topic, partition] = Committed(*rest)
            return groups

        self._groups = await self._db.run(read)

    # --- reading ----------------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """The durable position of a group in a partition."""
        positions = self._groups.get(group)
        return None if positions is None else positions.get((topic, partition))

    def groups(self) -> list[str]:
        """Groups that have committed positions."""
        return list(self._groups)

    def of_group(self, group: str) -> Mapping[Place, Committed]:
        """All positions of a group (a live view; empty for an unknown group)."""
        positions = self._groups.get(group)
        return _EMPTY if positions is None else MappingProxyType(positions)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def commit(self, group: str, positions: Sequence[tuple[str, int, Committed]]) -> None:
        """Store positions; all of them are durable when this returns. Raises an error of the database."""
        if not positions:
            return
        rows = [
            (group, topic, partition, c.offset, c.leader_epoch, c.metadata, c.commit_ms, c.expire_ms)
            for topic, partition, c in positions
        ]
        await self._db.run(
            lambda connection: connection.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
        )
        stored = self._groups.setdefault(group, {})
        for topic, partition, committed in positions:
            stored[topic, partition] = committed

    async def delete(self, group: str, places: Iterable[Place] | None = None) -> None:
        """Forget a group's positions in ``places``, or all of them."""
        if places is None:
            await self._db.run(lambda connection: connection.execute("DELETE FROM positions WHERE grp = ?", (group,)))
            self._groups.pop(group, None)
            return
        gone = list(places)
        rows = [(group, topic, partition) for topic, partition in gone]
        await self._db.run(
            lambda connection: connection.executemany(
                "DELETE FROM positions WHERE grp = ? AND topic = ? AND partition = ?", rows
            )
        )
        self._forget(group, gone)

    async def forget_topic(self, topic: str) -> None:
        """Forget every group's positions in a topic."""
        await self._db.run(lambda connection: erase_topic(connection, topic))
        self.topic_gone(topic)

    def topic_gone(self, topic: str) -> None:
        """Forget a topic in memory, after :func:`erase_topic` did so in the database."""
        for group, positions in list(self._groups.items()):
            self._forget(group, [place for place in positions if place[0] == topic])

    def _forget(self, group: str, places: Iterable[Place]) -> None:
        positions = self._groups.get(group)
        if positions is None:
            return
        for place in places:
            positions.pop(place, None)
        if not positions:
            del self._groups[group]

    # --- what fronts keep about groups ------------------------------------------------------------------------------

    async def load_groups(self) -> dict[str, bytes]:
        """Everything stored with :meth:`save_group`, by group."""
        return await self._db.run(lambda connection: dict(connection.execute("SELECT grp, state FROM groups")))

    async def save_group(self, group: str, state: bytes | None) -> None:
        """Store a group's state, opaque here; None removes it. Durable when this returns."""

        def write(connection: sqlite3.Connection) -> None:
            if state is None:
                connection.execute("DELETE FROM groups WHERE grp = ?", (group,))
            else:
                connection.execute("INSERT OR REPLACE INTO groups VALUES (?, ?)", (group, state))

        await self._db.run(write)


def erase_topic(connection: sqlite3.Connection, topic: str) -> None:
    """Part of the transaction that deletes a topic (see :class:`bridges.catalog.Catalog`)."""
    connection.execute("DELETE FROM positions WHERE topic = ?", (topic,))
