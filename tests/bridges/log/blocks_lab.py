"""Databases for aborted ranges, and blocks so small that few of these fill many."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Database
from bridges.log.transactions import aborted_blocks
from bridges.log.transactions import partition_transactions as transactions
from tests.databases import database


@asynccontextmanager
async def a_database(path: Path) -> AsyncIterator[Database]:
    """One that knows a partition with the stream 1."""
    db = database(path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    try:
        await db.run(lambda c: c.execute("INSERT INTO topics (name, topic_id, created_ms) VALUES ('t', x'00', 1)"))
        await db.run(lambda c: c.execute("INSERT INTO partitions (topic, idx, stream_id) VALUES ('t', 0, 1)"))
        yield db
    finally:
        await db.close()


@contextmanager
def small_blocks(kept: int = 1, in_block: int = 2, told: int = 2) -> Iterator[None]:
    """Memory keeps ``kept`` aborted ranges; of more, ``in_block`` make a block; a read is told of ``told``."""
    with (
        patch.object(transactions, "KEPT", kept),
        patch.object(transactions, "IN_BLOCK", in_block),
        patch.object(transactions, "MOST_TOLD", told),
        patch.object(aborted_blocks, "MOST_TOLD", told),
    ):
        yield
