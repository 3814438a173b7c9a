"""Rows about streams in the node's database, beside their logs; they are deleted with their partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from anabranch_kit.run.shared import SharedWorks
from anabranch_kit.sql.connection import among
from bridges.catalog.database.sql import Connection, Database

V = TypeVar("V")


class Gathered(Generic[V]):
    """Reads of streams' rows: those that are wanted while a read is under way share the next one, because partitions
    are opened in large numbers. ``read`` returns what streams have."""

    __slots__ = ("_number", "_read", "_streams", "_works")

    def __init__(self, read: Callable[[Collection[int]], Awaitable[Mapping[int, V]]]) -> None:
        self._read = read
        self._works: SharedWorks[int, Mapping[int, V]] = SharedWorks()
        # The streams of the next read, and its number.
        self._streams: list[int] = []
        self._number = 0

    async def read(self, stream_id: int) -> V | None:
        """Return what a stream has, as it is after this call; None if it has nothing. Raises the errors of ``read``."""
        number = self._number
        self._streams.append(stream_id)
        return (await self._works.wait(number, partial(self._next, number))).get(stream_id)

    async def _next(self, number: int) -> Mapping[int, V]:
        await self._works.await_end(number - 1)
        streams, self._streams = self._streams, []
        self._number += 1
        return await self._read(streams)


class StreamRows:
    """One table of the node's database."""

    __slots__ = ()

    table: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """The columns to read, after ``stream_id``; :meth:`store_row` needs all, in the table's order."""

    @classmethod
    def erase(cls, connection: Connection, topic: str) -> None:
        """Delete a topic's rows, inside the transaction that deletes the topic (see
        :class:`bridges.catalog.topics.catalog.Catalog`)."""
        connection.execute(
            f"DELETE FROM {cls.table} WHERE stream_id IN (SELECT stream_id FROM partitions WHERE topic = ?)", (topic,)
        )

    @classmethod
    def store_row(cls, connection: Connection, stream_id: int, row: Sequence[object], unless: str = "") -> None:
        """Store ``row`` for a stream, unless the condition ``unless`` (SQL) holds for its present row. Does nothing for
        a deleted partition."""
        columns = ", ".join(f"{name} = excluded.{name}" for name in cls.columns)
        connection.execute(
            f"INSERT INTO {cls.table} SELECT stream_id, {', '.join('?' * len(row))} FROM partitions "
            f"WHERE stream_id = ? ON CONFLICT (stream_id) DO UPDATE SET {columns} "
            f"{unless and f'WHERE NOT ({unless})'}",
            (*row, stream_id),
        )

    @classmethod
    def store_existing(cls, connection: Connection, stream_id: int, row: Sequence[object], unless: str = "") -> bool:
        """Store like :meth:`store_row`; return whether there is such a partition."""
        cls.store_row(connection, stream_id, row, unless)
        query = f"SELECT 1 FROM {cls.table} WHERE stream_id = ?"
        return connection.execute(query, (stream_id,)).fetchone() is not None


class KnownRows(StreamRows, Generic[V]):
    """A small table, whose rows are all in memory, too; only there if a node has no database."""

    __slots__ = ("_db", "_known")

    def __init__(self, db: Database | None = None) -> None:
        self._db = db
        self._known: dict[int, V] = {}

    async def load(self) -> None:
        """Read all rows. Raises an error of the database."""
        if self._db is None:
            return
        query = f"SELECT stream_id, {', '.join(self.columns)} FROM {self.table}"
        for stream_id, *row in await self._db.run(lambda connection: connection.execute(query).fetchall()):
            self._known[stream_id] = self._with_row(stream_id, row)

    @property
    def shared(self) -> bool:
        """Return whether other nodes may have changed rows."""
        return self._db is not None and self._db.engine.shared

    async def reload(self, streams: Collection[int]) -> None:
        """Read the rows of ``streams`` again, because another node may have owned their logs. Raises an error of the
        database."""
        if self._db is None or not streams:
            return
        condition, values = among("stream_id", streams)
        query = f"SELECT stream_id, {', '.join(self.columns)} FROM {self.table} WHERE {condition}"

        def take(rows: list[Any]) -> None:
            for stream_id in streams:
                self._known.pop(stream_id, None)
            for stream_id, *row in rows:
                self._known[stream_id] = self._with_row(stream_id, row)

        await self._db.run(lambda connection: connection.execute(query, values).fetchall(), then=take)

    def _with_row(self, stream_id: int, row: Sequence[int]) -> V:
        """Return a stream's value with one more of its rows."""
        raise NotImplementedError

    def find(self, stream_id: int) -> V | None:
        """Return a stream's value; None without a row."""
        return self._known.get(stream_id)

    def drop(self, stream_id: int) -> None:
        """Forget a stream whose rows were deleted with its topic."""
        self._known.pop(stream_id, None)


class RaisedRows(KnownRows[V]):
    """A table with one row for each stream: the one with the highest number in its first column."""

    __slots__ = ()

    frees: ClassVar[bool] = False
    """Whether saving a row makes room on the disk."""

    def _row(self, value: V) -> tuple[int, ...]:
        raise NotImplementedError

    async def save(self, stream_id: int, value: V) -> None:
        """Raise a stream's row to ``value``; never lowers it. Does nothing for a deleted partition. Durable when it
        returns. Raises an error of the database."""
        row = self._row(value)

        lower = f"{self.table}.{self.columns[0]} >= excluded.{self.columns[0]}"
        kept = self._db is None or await self._db.run(
            lambda connection: self.store_existing(connection, stream_id, row, lower), frees=self.frees
        )
        known = self._known.get(stream_id)
        if kept and (known is None or self._row(known)[0] < row[0]):
            self._known[stream_id] = value
