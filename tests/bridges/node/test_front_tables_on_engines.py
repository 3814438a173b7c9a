"""The tables that fronts bring can be made on every engine, and are recognised as theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch_kit.errors import StoreError
from bridges.catalog.database import front_tables
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Connection
from kafka_front.front import KafkaFront
from pravega_front.front import PravegaFront
from spark_pipeline.node.front import PipelineFront
from tests.databases import database, on_each_engine
from ydb_topic_front.front import YdbFront

pytestmark = on_each_engine


async def test_fronts_make_their_tables_and_erase_a_topic(tmp_path: Path) -> None:
    db = database(tmp_path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    for kind in (KafkaFront, PravegaFront, YdbFront, PipelineFront):
        for _ in range(2):  # nothing is left to do the second time

            def bring(connection: Connection, kind: type = kind) -> None:
                front_tables.migrate(connection, kind.name, kind.migrations)
                for erase in kind.erasers:
                    erase(connection, "t")

            await db.run(bring)
    await db.run(lambda c: c.execute("INSERT INTO front_ydb_topics VALUES (?, ?)", ("t", b"\x00\xff")))
    assert await db.run(lambda c: front_tables.used(c, "ydb"))
    assert not await db.run(lambda c: front_tables.used(c, "pipeline"))

    def foreign(connection: Connection) -> None:
        connection.execute("CREATE INDEX front_other_x ON topics (created_ms)")

    with pytest.raises(StoreError, match="which is not its own"):
        await db.run(lambda c: front_tables.migrate(c, "other", (foreign,)))
    await db.close()
