"""What a disk has changed in the node's database is refused, and never shown."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.sql.row_sums import make_table
from bridges.catalog.database import front_tables
from bridges.catalog.database.schema import APPLICATION_ID, HAS_CHECKSUMS, MIGRATIONS
from bridges.catalog.database.sql import Database
from bridges.catalog.progress import Committed, Progress
from tests.databases import database
from tests.node_process import ANY, NodeProcess

FLIPS = 150


async def opened(path: Path, versions: int = len(MIGRATIONS)) -> Database:
    db = database(path, MIGRATIONS[:versions], application_id=APPLICATION_ID, unwatched=HAS_CHECKSUMS)
    await db.open()
    return db


def fill(connection: sqlite3.Connection) -> None:
    for number in range(20):
        connection.execute(
            "INSERT INTO topics (name, topic_id, created_ms) VALUES (?, ?, 7)", (f"t{number}", bytes([number]) * 16)
        )
        connection.executemany(
            "INSERT INTO partitions (topic, idx, stream_id) VALUES (?, ?, ?)",
            [(f"t{number}", index, number * 100 + index) for index in range(10)],
        )
        connection.execute("INSERT INTO topic_config VALUES (?, 'retention.ms', '1000')", (f"t{number}",))


async def filled(path: Path) -> None:
    db = await opened(path)
    await db.run(fill)
    progress = Progress(db)
    await progress.load()
    for group in range(10):
        await progress.front("kafka").commit(f"g{group}", [(f"t{n}", 0, Committed(0x11223344)) for n in range(20)])
        await progress.front("kafka").save_group(f"g{group}", b"state" * 1000)  # rows are most of the file
    await db.close()


def content(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {table: sorted(connection.execute(f"SELECT * FROM {table}")) for table in tables}


async def test_no_damage_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    await filled(path)
    db = await opened(path)
    before = await db.run(content)
    await db.close()
    good, refused, rng = path.read_bytes(), 0, random.Random(8)
    for number in range(FLIPS):
        damaged = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 16))):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        for left in tmp_path.glob("node.db-*"):
            left.unlink()
        try:
            db = await opened(path)
        except StoreError:
            refused += 1
            continue
        found = await db.run(content)
        await db.close()
        assert found == before, number  # what was hit holds nothing
    assert refused > FLIPS // 3


async def test_a_flipped_bit_in_a_position_is_told_with_its_table(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    await filled(path)
    damaged = path.read_bytes()
    at = damaged.index(bytes.fromhex("11223344"))
    path.write_bytes(damaged[:at] + b"\x01" + damaged[at + 1 :])
    with pytest.raises(StoreCorrupt, match="table positions is not what was stored"):
        await opened(path)


async def test_sums_follow_every_kind_of_change(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    await filled(path)
    db = await opened(path)

    def failing(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM positions")
        raise LookupError

    def table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE front_x_made (key TEXT PRIMARY KEY, value REAL, more BLOB) STRICT")
        connection.execute("INSERT INTO front_x_made VALUES ('a', 1.5, NULL)")

    for statement in (
        "INSERT OR REPLACE INTO positions SELECT * FROM positions WHERE grp = 'g1'",
        "UPDATE positions SET offset = offset + 1 WHERE grp = 'g2'",
        "UPDATE positions SET grp = 'moved' WHERE grp = 'g3'",
        "DELETE FROM topics WHERE name = 't3'",  # with what refers to it
        "INSERT INTO node_config VALUES ('a', 'b') ON CONFLICT (key) DO UPDATE SET value = 'c'",
        "INSERT INTO node_config VALUES ('a', 'b') ON CONFLICT (key) DO UPDATE SET value = 'c'",
        "DELETE FROM groups",
    ):
        await db.run(lambda connection, text=statement: connection.execute(text))
        with pytest.raises(LookupError):
            await db.run(failing)
    # Tables that are made make everything be counted anew, so that comes after a look at what was counted.
    await db.close()
    db = await opened(path)
    await db.run(table)
    await db.run(lambda connection: connection.execute("INSERT INTO front_x_made VALUES ('b', 2, x'00')"))
    await db.run(lambda connection: connection.execute("ALTER TABLE front_x_made ADD COLUMN last TEXT DEFAULT 'l'"))
    await db.run(lambda connection: connection.execute("UPDATE front_x_made SET value = 3"))
    before = await db.run(content)
    shutil.copytree(tmp_path, tmp_path / "killed")  # as it is found after the end of the process
    await db.close()
    for path in (tmp_path / "node.db", tmp_path / "killed" / "node.db"):
        db = await opened(path)
        assert await db.run(content) == before
        await db.close()


async def test_a_database_of_a_release_without_sums_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    former = await opened(path, MIGRATIONS.index(make_table))
    await former.run(fill)
    await former.close()
    db = await opened(path)
    assert len((await db.run(content))["topics"]) == 20
    await db.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE partitions SET stream_id = 77777 WHERE stream_id = 1")
        connection.commit()
    with pytest.raises(StoreCorrupt, match="table partitions"):
        await opened(path)


async def test_fronts_may_change_their_tables_as_they_like(tmp_path: Path) -> None:
    def made(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE front_x_t (a INTEGER PRIMARY KEY, b TEXT, c TEXT)")
        connection.execute("INSERT INTO front_x_t VALUES (1, 'b', 'c')")

    def changed(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE front_x_t DROP COLUMN b")

    def rows_only(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE front_x_t SET c = 'd'")

    path = tmp_path / "node.db"
    for number, migrations in enumerate(([made], [made, changed], [made, changed, rows_only])):
        db = await opened(path)
        await db.run(lambda connection, steps=migrations: front_tables.migrate(connection, "x", steps))
        await db.run(
            lambda connection, key=number: connection.execute("INSERT INTO node_config VALUES (?, '')", (key,))
        )
        await db.close()
    db = await opened(path)
    assert (await db.run(content))["front_x_t"] == [(1, "d")]
    await db.close()


async def test_what_is_looked_at_with_another_program_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    await filled(path)
    db = await opened(path)
    await db.run(lambda connection: connection.execute("DELETE FROM groups WHERE grp = 'g1'"))
    shutil.copytree(tmp_path, tmp_path / "killed")
    await db.close()
    path = tmp_path / "killed" / "node.db"
    with closing(sqlite3.connect(path)) as connection:  # which takes the log over into the file
        assert connection.execute("SELECT count(*) FROM groups").fetchone() == (9,)
    await (await opened(path)).close()


def test_a_node_whose_database_is_damaged_does_not_start(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", listen={"console": ANY}) as node:
        assert node.terminate() == 0
        path = node.data / "node.db"
        damaged = path.read_bytes()
        at = damaged.rindex(b"cluster_id") + len(b"cluster_id")
        path.write_bytes(damaged[:at] + b"#" + damaged[at + 1 :])
        node.launch()
        assert node.process is not None
        assert node.process.wait(30) == 4
        said = node.log.read_text()
        assert "node.db is damaged: table meta is not what was stored" in said
        assert "Traceback" not in said
