"""Topics that a migration fills from elsewhere: who may write to them, and when they were handed over.

A topic is made *importing* in the transaction that makes it. From then on only the migration that made it may change
what is in it, and of that only its latest run: each run takes the next epoch, so a worker of an earlier one that still
lives is refused. Everybody may read. One transaction hands a migration's topics over; then they are like others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from bridges.catalog.sql import Connection

NOT_IMPORTING = -1
"""The import epoch of a topic that takes writes from everybody."""


class Import(Struct, frozen=True):
    """The import of one topic: by which ``migration``, and which of its runs may write, the one numbered ``epoch``.

    Times are wall clock in ms; ``handed_over_ms`` is None while the topic is being imported. ``origin`` is what the
    migration has said that it brings, in words of its own (empty: nothing): what says otherwise is another one.
    """

    migration: str
    epoch: int
    begun_ms: int
    handed_over_ms: int | None = None
    origin: str = ""

    @property
    def is_running(self) -> bool:
        """Whether the topic still belongs to the migration."""
        return self.handed_over_ms is None


def insert(connection: Connection, topic: str, one: Import) -> None:
    """Part of the transaction that makes the topic."""
    connection.execute(
        "INSERT INTO imports (topic, migration, epoch, begun_ms, origin) VALUES (?, ?, ?, ?, ?)",
        (topic, one.migration, one.epoch, one.begun_ms, one.origin),
    )


def store_epoch(connection: Connection, topic: str, epoch: int) -> None:
    """Another run has taken the topic."""
    connection.execute("UPDATE imports SET epoch = ? WHERE topic = ?", (epoch, topic))


def store_end(connection: Connection, topics: Iterable[str], now_ms: int) -> None:
    """All of ``topics`` are handed over."""
    connection.executemany("UPDATE imports SET handed_over_ms = ? WHERE topic = ?", [(now_ms, one) for one in topics])


def load(connection: Connection, where: str = "", values: Sequence[str] = ()) -> dict[str, Import]:
    """By topic; of all, or of those ``where`` (SQL) holds with its ``values``."""
    query = f"SELECT topic, migration, epoch, begun_ms, handed_over_ms, origin FROM imports {where}"
    rows = connection.execute(query, values)
    return {topic: Import(*rest) for topic, *rest in rows}
