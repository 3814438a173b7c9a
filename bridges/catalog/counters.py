"""What a data directory is known by, and numbers that it gives to nobody twice."""

from __future__ import annotations

from bridges.catalog.sql import Connection, Database
from sbp_back.wire.identity import new_identity


def identify(connection: Connection) -> str:
    """The cluster's id, which is made on first use, with the counters."""
    store = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
    connection.execute(store, ("cluster_id", new_identity()))
    for counter in ("next_epoch", "next_producer_id"):
        connection.execute(store, (counter, "0"))
    (found,) = connection.execute("SELECT value FROM meta WHERE key = 'cluster_id'").fetchone()
    return str(found)


def advance(connection: Connection, counter: str, step: int) -> int:
    """The first of ``step`` numbers that nobody was given before: called in the database's thread. One statement, since
    not all who count are kept from others in their transaction."""
    (value,) = connection.execute(
        "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + ? AS TEXT) WHERE key = ? RETURNING value", (step, counter)
    ).fetchone()
    return int(value) - step


class Counters:
    """The numbers of one data directory."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def next_epoch(self) -> int:
        """A number above every one given before in this data directory, also across crashes; the first is 0."""
        return await self._count("next_epoch", 1)

    async def allocate_producer_ids(self, count: int) -> int:
        """The first of ``count`` producer ids that nobody was given before."""
        if count < 1:
            raise ValueError("at least one producer id must be asked for")
        return await self._count("next_producer_id", count)

    async def _count(self, counter: str, step: int) -> int:
        # Numbers must not be given twice, whatever is lost: a producer with another's id would count as its repetition.
        # Nobody opens, and so reads, a partition without one: on a full disk there is a reserve for that.
        return await self._db.run(lambda connection: advance(connection, counter, step), flush=True, frees=True)
