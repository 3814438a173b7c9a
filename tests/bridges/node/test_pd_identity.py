"""A node stays with the placement driver its topics' streams are in."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreError
from bridges.catalog.database.pd_identity import StreamHome
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Database
from bridges.node.assembly import Node
from bridges.node.settings.config import Settings, load
from sbp_back.errors import ConnectionLost
from sbp_back.wire.identity import Call, new_identity, pd_name
from sbp_back.wire.model import DescribePdResponse, PdNode, Request, Response, Status
from tests.databases import database, on_each_engine

OWN, OTHER = new_identity(), new_identity()


def named(name: str) -> Call:
    """A placement driver of that name."""

    async def call(_: Request) -> Response:
        return DescribePdResponse(Status(), [PdNode(name, "pd:1", True)])

    return call


async def opened(path: Path, versions: int = len(MIGRATIONS)) -> Database:
    db = database(path / "node.db", MIGRATIONS[:versions], application_id=APPLICATION_ID)
    await db.open()
    return db


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    db = await opened(tmp_path)
    yield db
    await db.close()


def remembered(connection: sqlite3.Connection) -> list[str]:
    return [identity for (identity,) in connection.execute("SELECT identity FROM placement_driver")]


def add_topic(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO topics (name, topic_id, created_ms) VALUES ('t', x'00', 0)")
    connection.execute("INSERT INTO partitions (topic, idx, stream_id) VALUES ('t', 0, 0)")


def add_doomed(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO doomed_streams VALUES (0)")


def add_intent(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO stream_intents (first_stream_id, count) VALUES (0, 1)")


@on_each_engine
async def test_the_first_one_is_remembered_and_others_are_refused(tmp_path: Path) -> None:
    db = await opened(tmp_path)
    assert await StreamHome(db).introduce(named(pd_name(OWN))) is None
    await db.run(add_topic)
    await db.close()
    db = await opened(tmp_path)
    home = StreamHome(db)
    refusal = await home.introduce(named(pd_name(OTHER)))
    assert refusal is not None
    assert refusal == home.refusal
    assert f"this is placement driver {OTHER}, but the topics of this node are in placement driver {OWN}" in refusal
    unnamed = await home.introduce(named("pd-0"))
    assert unnamed is not None
    assert "does not say which one it is" in unnamed
    assert await home.introduce(named(pd_name(OWN))) is None
    assert home.refusal is None
    assert await db.run(remembered) == [OWN]
    await db.close()


@on_each_engine
@pytest.mark.parametrize("add", [add_topic, add_doomed, add_intent])
async def test_whatever_names_a_stream_binds(db: Database, add: Callable[[sqlite3.Connection], None]) -> None:
    await StreamHome(db).require(OWN)
    await db.run(add)
    for identity in (OTHER, ""):
        with pytest.raises(StoreError, match=f"in placement driver {OWN}"):
            await StreamHome(db).require(identity)
    await StreamHome(db).require(OWN)
    assert await db.run(remembered) == [OWN]


@on_each_engine
async def test_without_streams_a_node_may_move(db: Database) -> None:
    await StreamHome(db).require(OWN)
    await db.run(lambda c: c.execute("INSERT INTO partition_snapshots VALUES (0, 10, x'00')"))
    await StreamHome(db).require(OWN)
    assert await db.run(lambda c: c.execute("SELECT count(*) FROM partition_snapshots").fetchone()) == (1,)
    await StreamHome(db).require(OTHER)
    assert await db.run(lambda c: c.execute("SELECT count(*) FROM partition_snapshots").fetchone()) == (0,)
    assert await db.run(remembered) == [OTHER]
    await StreamHome(db).require("")
    assert await db.run(remembered) == []


@on_each_engine
async def test_a_database_of_an_earlier_release_takes_the_first_that_tells(tmp_path: Path) -> None:
    db = await opened(tmp_path, versions=2)
    await db.run(add_topic)
    await db.run(lambda c: c.execute("INSERT INTO partition_snapshots VALUES (0, 10, x'00')"))
    await db.close()
    db = await opened(tmp_path)
    assert await db.run(remembered) == []
    home = StreamHome(db)
    assert await home.introduce(named("anabranch")) is None  # one of an earlier release, too
    assert await db.run(remembered) == []
    assert await home.introduce(named(pd_name(OWN))) is None
    assert await db.run(remembered) == [OWN]
    assert await db.run(lambda c: c.execute("SELECT count(*) FROM partition_snapshots").fetchone()) == (1,)
    assert await home.introduce(named(pd_name(OTHER))) is not None
    await db.close()


async def test_one_that_is_none_of_ours_is_refused_and_changes_nothing(db: Database) -> None:
    await StreamHome(db).require(OWN)
    home = StreamHome(db)
    reason = await home.introduce(named("pd-default"))
    assert reason is not None
    assert reason == home.refusal
    assert "does not say which one it is" in reason
    assert await db.run(remembered) == [OWN]
    home.strangers = True
    assert await home.introduce(named("pd-default")) is None, "there are no topics: the node may move"
    assert home.refusal is None
    assert await db.run(remembered) == []
    await db.run(add_topic)
    await StreamHome(db).require(OWN)
    refused = await home.introduce(named("pd-default"))
    assert refused is not None
    assert f"the topics of this node are in placement driver {OWN}" in refused


@on_each_engine
async def test_what_cannot_be_asked_or_remembered(tmp_path: Path) -> None:
    async def silent(_: Request) -> Response:
        raise ConnectionLost("gone")

    db = await opened(tmp_path)
    home = StreamHome(db)
    with pytest.raises(ConnectionLost):
        await home.introduce(silent)
    await db.close()
    reason = await home.introduce(named(pd_name(OWN)))
    assert reason is not None
    assert "cannot be told: the node is stopping" in reason
    assert home.refusal is None, "nobody knows whether it is another one"


def embedded(path: Path) -> Settings:
    flags = {
        "data_dir": str(path),
        "listen.console": "off",
        "listen.sbp-pd": "127.0.0.1:0",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    return load(flags, environ={}, directory=path.parent).settings


def external(path: Path, pd: str, flavor: str) -> Settings:
    flags = {
        "data_dir": str(path),
        "listen.console": "off",
        "sbp.mode": "external",
        "sbp.pd": pd,
        "sbp.flavor": flavor,
        "sbp.timeout_ms": "60s",
    }
    return load(flags, environ={}, directory=path.parent).settings


async def test_an_embedded_backend_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    nodes = {name: tmp_path / name for name in ("one", "two")}
    for path in nodes.values():
        node = Node(embedded(path), fronts=[])
        await node.start()
        await node.catalog.create_topic("t", 1)
        await node.stop()
    shutil.move(nodes["one"] / "sbp", tmp_path / "kept")
    shutil.copytree(nodes["two"] / "sbp", nodes["one"] / "sbp")
    node = Node(embedded(nodes["one"]), fronts=[])
    with pytest.raises(StoreError, match="but the topics of this node are in placement driver"):
        await node.start()
    shutil.rmtree(nodes["one"] / "sbp")
    shutil.move(tmp_path / "kept", nodes["one"] / "sbp")
    node = Node(embedded(nodes["one"]), fronts=[])
    await node.start()
    assert set(node.catalog.topics) == {"t"}
    await node.stop()


async def test_the_flavor_of_elastic_stream_is_no_way_into_another_placement_driver(tmp_path: Path) -> None:
    """One of ours tells who it is, whatever its range servers are: it binds, and is compared, as ever."""
    other = Node(embedded(tmp_path / "other"), fronts=[])
    await other.start()
    pd = str(other.addresses["sbp-pd"])
    node = Node(embedded(tmp_path / "node"), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    await node.stop()
    for flavor in ("elastic-stream", "anabranch"):
        with pytest.raises(StoreError, match="this is placement driver"):
            await Node(external(tmp_path / "node", pd, flavor), fronts=[]).start()
    node = Node(external(tmp_path / "fresh", pd, "elastic-stream"), fronts=[])
    await node.start()
    assert other.floors.storage.embedded is not None
    assert await node.db.run(remembered) == [other.floors.storage.embedded.placement_driver.identity]
    await node.stop()
    await other.stop()
