"""The cluster id of a data directory, and its counters, which give no number twice."""

from __future__ import annotations

from bridges.catalog.database.sql import Connection, Database
from sbp_back.wire.identity import new_identity


def identify(connection: Connection) -> str:
    """Return the cluster's id. On first use, make the id and the counters."""
    store = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
    connection.execute(store, ("cluster_id", new_identity()))
    for counter in ("next_epoch", "next_producer_id", "next_mark"):
        connection.execute(store, (counter, "0"))
    (found,) = connection.execute("SELECT value FROM meta WHERE key = 'cluster_id'").fetchone()
    return str(found)


def advance(connection: Connection, counter: str, step: int) -> int:
    """Return the first of ``step`` numbers that were never given out. Runs in the database's thread.

    One UPDATE does it all, because other transactions may advance the same counter at the same time.
    """
    (value,) = connection.execute(
        "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + ? AS TEXT) WHERE key = ? RETURNING value", (step, counter)
    ).fetchone()
    return int(value) - step


class Counters:
    """The counters of one data directory."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def next_epoch(self) -> int:
        """Return a number above every epoch given out before in this data directory, also across crashes; the first is
        0."""
        return await self._count("next_epoch", 1)

    async def allocate_producer_ids(self, count: int) -> int:
        """Return the first of ``count`` producer ids that were never given out."""
        if count < 1:
            raise ValueError("at least one producer id must be asked for")
        return await self._count("next_producer_id", count)

    async def _count(self, counter: str, step: int) -> int:
        # A number must never be given out twice, even after a loss of power: the ledger would take a producer with
        # another producer's id for a repetition. Opening a partition, even to read it, needs an epoch, so a full disk
        # has a reserve for this (``frees``).
        return await self._db.run(lambda connection: advance(connection, counter, step), flush=True, frees=True)
