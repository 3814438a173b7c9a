"""Topics that a migration fills from elsewhere: which migration may write to them, and when it handed them over.

A topic becomes *importing* in the transaction that makes it. From then on only the latest run of the migration that
made it may change its contents. Each run takes the next epoch, so a worker of an earlier run that still lives is
refused. Everybody may read. One transaction hands all topics of a migration over; then they are ordinary topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from bridges.catalog.sql import Connection

NOT_IMPORTING = -1
"""The import epoch of a topic that takes writes from every client."""


class Import(Struct, frozen=True):
    """The import of one topic: the ``migration``, and the ``epoch`` of the run that may write.

    Times are wall clock in ms; ``handed_over_ms`` is None while the topic is being imported. ``origin`` describes what
    the migration brings, in its own words (empty: no description); a migration with another ``origin`` is another one.
    """

    migration: str
    epoch: int
    begun_ms: int
    handed_over_ms: int | None = None
    origin: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether the topic still belongs to the migration."""
        return self.handed_over_ms is None


def insert(connection: Connection, topic: str, one: Import) -> None:
    """Store an import, inside the transaction that makes the topic."""
    connection.execute(
        "INSERT INTO imports (topic, migration, epoch, begun_ms, origin) VALUES (?, ?, ?, ?, ?)",
        (topic, one.migration, one.epoch, one.begun_ms, one.origin),
    )


def store_epoch(connection: Connection, topic: str, epoch: int) -> None:
    """Store the epoch of another run that has taken the topic."""
    connection.execute("UPDATE imports SET epoch = ? WHERE topic = ?", (epoch, topic))


def store_end(connection: Connection, topics: Iterable[str], now_ms: int) -> None:
    """Store that all of ``topics`` are handed over."""
    connection.executemany("UPDATE imports SET handed_over_ms = ? WHERE topic = ?", [(now_ms, one) for one in topics])


def load(connection: Connection, where: str = "", values: Sequence[str] = ()) -> dict[str, Import]:
    """Return the imports by topic: all, or those that match ``where`` (SQL) with its ``values``."""
    query = f"SELECT topic, migration, epoch, begun_ms, handed_over_ms, origin FROM imports {where}"
    rows = connection.execute(query, values)
    return {topic: Import(*rest) for topic, *rest in rows}
