"""Key-value tables of Java's client: a name, and one table segment per partition.

All keys of a table have the same length, so that clients can query ranges. Clients access the table segments
(pravega_front/service/tables/store.py) directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bridges.catalog.topics import former
from bridges.errors import LogError
from pravega_front.names import TABLE, SegmentName, parse_segment
from pravega_front.service.tables.life import DroppedTables, drop_table, drop_tables, insert_table
from pravega_front.service.tables.store import MAX_KEY

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection, Database

MOST_PARTITIONS = 1000
"""Most partitions of one table: clients keep a connection to each."""
_TABLES_PER_TRANSACTION = 1000
"""Most tables deleted in one transaction."""


class KeyValueTableExists(LogError):
    """The key-value table exists already."""


class KeyValueTableMissing(LogError):
    """The key-value table does not exist."""


class KeyValueTableRefused(LogError):
    """The table's number of partitions or key lengths are not allowed."""


def segments_of(scope: str, name: str, partitions: int, first: int) -> list[SegmentName]:
    """Return the names of a key-value table's segments, whose numbers begin with ``first``."""
    return [SegmentName(scope, name + TABLE, first + number, 0) for number in range(partitions)]


class KeyValueTables:
    """Key-value tables in the database. Changes are durable when a method returns."""

    def __init__(self, db: Database, dropped: DroppedTables, room: Callable[[], int]) -> None:
        self._db = db
        self._dropped = dropped
        # Returns how many table segments there may be now.
        self._room = room

    async def create(self, scope: str, name: str, partitions: int, key_lengths: tuple[int, int], config: bytes) -> None:
        """Create a table. ``key_lengths`` are those of the primary and the secondary part of its keys; ``config`` is
        opaque and returned by :meth:`config`. Raises KeyValueTableExists, KeyValueTableRefused, TableExists,
        TooManyTables."""
        primary, secondary = key_lengths
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise KeyValueTableRefused(f"a table has 1 to {MOST_PARTITIONS} partitions, not {partitions}")
        if primary < 1 or secondary < 0 or primary + secondary > MAX_KEY:
            raise KeyValueTableRefused(f"keys have 1 to {MAX_KEY} bytes, not {primary} and {secondary}")

        most = self._room()

        def change(connection: Connection) -> None:
            first = former.first_number(connection, _numbered_as(scope, name))
            row = (scope, name, config, first)
            query = "INSERT INTO front_pravega_key_value_tables VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
            if not connection.execute(query, row).rowcount:
                raise KeyValueTableExists(f"there is a table {scope}/{name}")
            for segment in segments_of(scope, name, partitions, first):
                insert_table(connection, str(segment), primary + secondary, most)

        await self._db.run(change)

    async def config(self, scope: str, name: str) -> tuple[bytes, int]:
        """Return a table's configuration and the number of its first segment. Raises KeyValueTableMissing."""
        query = "SELECT config, first FROM front_pravega_key_value_tables WHERE scope = ? AND name = ?"
        row = await self._db.run(lambda connection: connection.execute(query, (scope, name)).fetchone())
        if row is None:
            raise KeyValueTableMissing(f"there is no table {scope}/{name}")
        return row[0], row[1]

    async def page(self, scope: str, after: str, most: int) -> list[str]:
        """Return at most ``most`` names of a scope's tables after ``after``, sorted."""
        query = "SELECT name FROM front_pravega_key_value_tables WHERE scope = ? AND name > ? ORDER BY name LIMIT ?"
        rows = await self._db.run(lambda connection: connection.execute(query, (scope, after, most)).fetchall())
        return [name for (name,) in rows]

    async def any(self, scope: str) -> bool:
        return bool(await self.page(scope, "", 1))

    async def delete(self, scope: str, name: str, partitions: int) -> None:
        """Delete a table with its entries. Raises KeyValueTableMissing."""

        def change(connection: Connection) -> None:
            query = "DELETE FROM front_pravega_key_value_tables WHERE scope = ? AND name = ? RETURNING first"
            row = connection.execute(query, (scope, name)).fetchone()
            if row is None:
                raise KeyValueTableMissing(f"there is no table {scope}/{name}")
            former.remember(connection, _numbered_as(scope, name), row[0] + partitions)
            drop_tables(connection, [str(segment) for segment in segments_of(scope, name, partitions, row[0])])

        try:
            await self._db.run(change)
        finally:
            self._dropped.wake()

    async def delete_groups(self, scope: str) -> None:
        """Delete the tables in which clients keep the state of a scope's reader groups, unknown to the controller; the
        scope's streams must be gone. Key-value tables stay."""
        await self._drop_within(scope, groups_only=True)

    async def delete_scope(self, scope: str) -> None:
        """Delete all tables and reader groups of a scope, whose streams must be gone."""
        await self._drop_within(scope, groups_only=False)

        def change(connection: Connection) -> None:
            for table in ("key_value_tables", "groups"):
                connection.execute(f"DELETE FROM front_pravega_{table} WHERE scope = ?", (scope,))

        await self._db.run(change)

    async def _drop_within(self, scope: str, *, groups_only: bool) -> None:
        # '0' is the character after '/': all names of the scope's segments lie between the two bounds.
        within = "SELECT segment FROM front_pravega_tables WHERE segment > ? AND segment < ?"
        bounds = (f"{scope}/", f"{scope}0")
        rows = await self._db.run(lambda connection: connection.execute(within, bounds).fetchall())

        def drop(connection: Connection, names: list[str]) -> None:
            following: dict[str, int | None] = {}  # next number per key-value table; None for other table segments
            for name in names:
                parsed = parse_segment(name)
                if parsed is not None and parsed.stream.endswith(TABLE):
                    table = parsed.stream.removesuffix(TABLE)
                    if table not in following:
                        following[table] = 0 if _exists(connection, scope, table) else None
                    before = following[table]
                    if before is not None:
                        if groups_only:
                            continue
                        following[table] = max(before, parsed.number + 1)
                drop_table(connection, name)
            for table, number in following.items():
                if number:
                    former.remember(connection, _numbered_as(scope, table), number)

        names = [name for (name,) in rows]
        try:
            for at in range(0, len(names), _TABLES_PER_TRANSACTION):  # other work needs the database in between
                await self._db.run(partial(drop, names=names[at : at + _TABLES_PER_TRANSACTION]))
        finally:
            self._dropped.wake()


def _exists(connection: Connection, scope: str, name: str) -> bool:
    query = "SELECT 1 FROM front_pravega_key_value_tables WHERE scope = ? AND name = ?"
    return connection.execute(query, (scope, name)).fetchone() is not None


def _numbered_as(scope: str, name: str) -> str:
    """Return the name under which the numbers of a table's segments are remembered; no user stream can have it."""
    return f"{scope}/{name}{TABLE}"
