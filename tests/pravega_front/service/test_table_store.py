"""How much memory answers of tables may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch_kit.run.barrier import Barrier
from pravega_front.service.tables.life import DroppedTables
from pravega_front.service.tables.store import MoreRoom, TableStore
from pravega_front.tables import MIGRATIONS
from pravega_front.wire.fields import ANY_VERSION, TableEntry, TableKey
from tests.databases import database, on_each_engine

pytestmark = on_each_engine

ENTRIES = [TableEntry(b"%03d" % place, ANY_VERSION, b"v") for place in range(100)]
KEYS = [TableKey(one.key, ANY_VERSION) for one in ENTRIES]


@pytest.fixture
async def tables(tmp_path: Path) -> AsyncIterator[TableStore]:
    db = database(tmp_path / "tables.db", MIGRATIONS, application_id=1)
    await db.open()
    tables = TableStore(db, DroppedTables(db, Barrier()), lambda: 10, 1 << 20, 1000)
    await tables.create("t")
    await tables.update("t", ENTRIES, -1)
    yield tables
    await db.close()


async def test_what_small_entries_take_besides_their_bytes_has_to_have_room(tables: TableStore) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(MoreRoom) as refused:
            await tables.get("t", KEYS, 100 * 4)
        assert refused.value.size > 10_000
        assert len(await tables.get("t", KEYS, refused.value.size)) == 100
        page = await tables.entries("t", b"", b"", b"", 100, 10_000)
        assert 40 < len(page.entries) < 60
        assert not page.last
