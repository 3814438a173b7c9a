"""``anabranch doctor`` tells what the node's database has that will trouble clients, and changes nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from bridges.catalog.database import front_tables
from bridges.catalog.database.sql import Connection, Database
from bridges.checkup import contents
from bridges.node.finding import Severity
from bridges.node.settings.config import Settings, load
from bridges.node.storage import databases
from bridges.node.storage.data_dir import DataDirectory
from tests.postgres import Postgres

_TOPICS = {
    "kept": {"cleanup.policy": "delete", "max.message.bytes": "10000"},
    "tables": {"cleanup.policy": "compact,delete"},
    "scope.keyed": {"cleanup.policy": "compact"},
    "scope.small": {"max.message.bytes": "10000"},
    "scope.large": {"max.message.bytes": "8388608"},
}


def _fill(connection: Connection) -> None:
    for number, (topic, config) in enumerate(_TOPICS.items()):
        row = (topic, bytes([number]) * 16, 0)
        connection.execute("INSERT INTO topics (name, topic_id, created_ms) VALUES (?, ?, ?)", row)
        for key, value in config.items():
            connection.execute("INSERT INTO topic_config (topic, key, value) VALUES (?, ?, ?)", (topic, key, value))
        if topic.startswith("scope."):
            connection.execute("INSERT INTO front_pravega_streams VALUES (?, ?)", (topic, b""))
    for number in range(8):
        txn = (f"tx-{number}", number, *[0] * 8)
        connection.execute(f"INSERT INTO front_kafka_transactions VALUES ({', '.join('?' * len(txn))})", txn)


def _told(settings: Settings, severity: Severity) -> list[str]:
    return [one.sentence for one in contents.check(settings) if one.severity is severity]


@pytest.mark.parametrize("cluster", [False, True])
async def test_ids_near_their_bound_and_streams_that_refuse_appends(
    cluster: bool, tmp_path: Path, postgres: Postgres
) -> None:
    data = tmp_path / "data"
    flags = {"data_dir": str(data), "kafka.transactional_ids": "10"}
    if cluster:
        flags |= {"cluster.database": postgres.url()}
    settings = load(flags, environ={}).settings
    assert list(contents.check(settings)) == [] or cluster, "of a directory without a database"
    directory = DataDirectory(data)
    db = Database(databases.engine_of(settings, directory))
    await db.open()
    for front in settings.fronts:
        await db.run(partial(front_tables.migrate, front=front.name, migrations=front.migrations))
    await db.run(_fill)
    for is_open in (True, False):
        before = sorted(data.iterdir())
        ids, keyed, small = await asyncio.to_thread(_told, settings, Severity.WARNING)
        assert ids.startswith("there are 8, and memory may have 10 (kafka.transactional_ids)")
        assert "scope.keyed refuses appends (cleanup.policy=compact, and events have no keys)" in keyed
        assert "scope.small refuses appends (max.message.bytes=10000" in small
        (others,) = await asyncio.to_thread(_told, settings, Severity.NOTE)
        assert "1 topics with cleanup.policy=compact (tables)" in others
        assert sorted(data.iterdir()) == before, "nothing is made"
        if is_open:
            await db.close()
            directory.release()
    listen = flags | {"listen.pravega-segmentstore": "off", "kafka.transactional_ids": "11"}
    shut = load(listen, environ={}).settings
    assert len(await asyncio.to_thread(_told, shut, Severity.WARNING)) == 2, "ids have room"
    assert await asyncio.to_thread(_told, shut, Severity.NOTE) == [], "no client of Pravega's comes"


async def test_tables_of_an_older_release_are_a_note(tmp_path: Path) -> None:
    settings = load({"data_dir": str(tmp_path)}, environ={}).settings
    directory = DataDirectory(tmp_path)
    db = Database(databases.engine_of(settings, directory))
    await db.open()
    await db.close()
    directory.release()
    (found,) = contents.check(settings)
    assert found.severity is Severity.NOTE
    assert "no such table" in found.sentence
