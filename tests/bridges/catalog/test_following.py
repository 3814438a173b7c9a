"""Two catalogs over one database: what either changes, both have; and nothing is decided by what is no more so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.database import following
from bridges.catalog.database.following import Changes, Overtaken
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Connection, Database, DatabaseError
from bridges.catalog.progress import Committed, Progress
from bridges.catalog.topics.catalog import Catalog, CatalogOptions
from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import WHOLE
from bridges.catalog.topics.topic import Change, ChangeKind, TopicExists, TopicNotFound
from bridges.catalog.views.groups import CONSUMERS
from bridges.errors import LogError
from tests.bridges.catalog.test_catalog import Backend
from tests.databases import database, on_postgres
from tests.postgres import Postgres

NAMES = ("a.b", "a_b", "c", "d")


class Node:
    """A catalog, and the topics that its listeners know of."""

    def __init__(self, number: int, db: Database, backend: Backend) -> None:
        self.db = db
        self.catalog = Catalog(db, backend, CatalogOptions(node=number, max_partitions=60))
        self.heard: dict[str, Any] = {}
        self.catalog.on_change.append(self._changed)

    def _changed(self, change: Change) -> None:
        topic = change.topic
        if topic is None:
            return
        if change.kind is ChangeKind.CREATED:
            assert topic.name not in self.heard
            self.heard[topic.name] = topic
        else:
            assert self.heard[topic.name] is topic, change
        if change.kind is ChangeKind.DELETED:
            del self.heard[topic.name]

    async def start(self) -> None:
        await self.db.open()
        await self.db.changes.begin()
        await self.catalog.load()
        self.heard = dict(self.catalog.topics)

        async def seal(name: str, number: int) -> int:
            await asyncio.sleep(0)
            return number * 10

        self.catalog.start_sealing(seal)

    async def stop(self) -> None:
        await self.db.changes.close()
        await self.catalog.close()
        await self.db.close()

    def state(self) -> dict[str, Any]:
        """All that is known, in words that can be compared."""
        index = self.catalog.index
        topics = {
            name: (one.topic_id, one.partitions, one.config, one.names, one.epoch, one.imported, one.spent)
            for name, one in index.all.items()
        }
        assert set(self.heard.values()) == set(index.listed.values())
        assert index.partitions == sum(len(one.partitions) for one in index.all.values())
        assert index.taken.keys() == {name.replace(".", "_") for name in topics}
        assert self.catalog.making == 0
        names = {key: topic.name for key, topic in index.by_name.items()}
        return {"topics": topics, "names": names, "node": dict(self.catalog.node_config), "ids": set(index.by_id)}


class Pair:
    """Two nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = Backend(path / "backend.db")
        self.nodes = [self.node(number) for number in (1, 2)]

    def node(self, number: int) -> Node:
        return Node(number, database(self.path / "node.db", MIGRATIONS, application_id=APPLICATION_ID), self.backend)

    async def caught_up(self) -> None:
        """Both have everything, and a third that starts now has the same."""
        for node in self.nodes:
            while node.catalog.pending_seals:
                await node.db.run(lambda _: None)
        for node in self.nodes:
            await node.db.changes.catch_up()
        fresh = self.node(3)
        await fresh.start()
        assert self.nodes[0].state() == self.nodes[1].state() == fresh.state()
        await fresh.stop()


@pytest.fixture
async def pair(postgres: Postgres, tmp_path: Path) -> AsyncIterator[Pair]:
    with on_postgres(postgres):
        pair = Pair(tmp_path)
        for node in pair.nodes:
            await node.start()
        try:
            yield pair
        finally:
            for node in pair.nodes:
                await node.stop()


async def test_what_one_makes_changes_and_deletes_the_other_has(pair: Pair) -> None:
    one, other = (node.catalog for node in pair.nodes)
    catch_up = pair.nodes[1].db.changes.catch_up
    await one.create_topic("a.b", 2, {SPLIT: "true"})
    await catch_up()
    topic = other.topic("a.b")
    assert (topic, topic.partitions) == (other.by_name("pravega", "default/a.b") or topic, one.topic("a.b").partitions)
    await one.set_config("a.b", {SPLIT: "true", "retention.ms": "5"})
    await one.set_node_config({"log.retention.ms": "7"})
    await one.change_partitions("a.b", [0], [WHOLE])
    while one.pending_seals:
        await pair.nodes[0].db.run(lambda _: None)
    await catch_up()
    assert topic.config["retention.ms"] == "5"
    assert other.node_config == {"log.retention.ms": "7"}
    assert topic.partitions == one.topic("a.b").partitions
    assert other.sealed_as("a.b", 0) == ((2,), 0)
    before = topic.topic_id
    await one.delete_topic("a.b")
    await one.create_topic("a.b", 1)
    await catch_up()
    assert other.topic("a.b").topic_id != before
    await pair.caught_up()


async def test_who_has_not_seen_what_another_did_looks_again_before_it_decides(pair: Pair) -> None:
    one, other = (node.catalog for node in pair.nodes)
    await one.create_topic("t", 1)
    with pytest.raises(TopicExists):
        await other.create_topic("t", 1)
    await other.add_partitions("t", 3)
    with pytest.raises(LogError, match="cannot be taken away"):
        await one.add_partitions("t", 2)
    await other.delete_topic("t")
    with pytest.raises(TopicNotFound):
        await one.set_config("t", {"retention.ms": "1"})
    await pair.caught_up()


async def test_who_is_told_has_it_at_once_and_who_missed_too_much_reads_everything(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair.nodes
    monkeypatch.setattr(following, "LOOK_S", 3600.0)
    await other.db.changes.follow(Barrier())
    seen = asyncio.Event()
    other.catalog.on_change.append(lambda _: seen.set())
    for number in range(5):
        seen.clear()
        await one.catalog.create_topic(f"t{number}", 1)
        async with asyncio.timeout(20):
            while f"t{number}" not in other.catalog.topics:
                await asyncio.wait_for(seen.wait(), 20)
                seen.clear()
    await other.db.changes.close()
    await one.catalog.delete_topic("t0")
    await one.catalog.create_topic("late", 1)
    await one.catalog.delete_topic("t1")
    await one.db.run(lambda c: c.execute("DELETE FROM changes WHERE version < (SELECT version FROM changes_version)"))
    await pair.caught_up()
    assert set(other.catalog.topics) == {"t2", "t3", "t4", "late"}


async def churn(pair: Pair, seed: int) -> None:
    """Much at the same time at both, and now and then a look at what the other did."""
    draw = random.Random(seed)

    async def one_change(node: Node) -> None:
        catalog, name = node.catalog, draw.choice(NAMES)
        try:
            match draw.randrange(7):
                case 0 | 1:
                    config = {SPLIT: draw.choice(("true", "false")), "retention.ms": str(draw.randrange(100))}
                    await catalog.create_topic(name, draw.randint(1, 3), config)
                case 2:
                    await catalog.delete_topic(name)
                case 3:
                    await catalog.add_partitions(name, draw.randint(1, 6))
                case 4:
                    await catalog.set_config(name, {"retention.ms": str(draw.randrange(100))})
                case 5:
                    await catalog.change_partitions(name, [draw.randrange(3)], [WHOLE])
                case 6:
                    await catalog.set_node_config({"log.retention.ms": str(draw.randrange(100))})
        except DatabaseError:
            raise
        except LogError:
            pass  # another one was first

    for _ in range(6):
        await asyncio.gather(*(one_change(draw.choice(pair.nodes)) for _ in range(5)))
        if draw.random() < 0.5:
            await draw.choice(pair.nodes).db.changes.catch_up()
    await pair.caught_up()


@pytest.mark.parametrize("seed", range(5))
async def test_both_have_the_same_whatever_happens_at_the_same_time(pair: Pair, seed: int) -> None:
    await churn(pair, seed)


def _unchecked(self: Changes, kind: str, names: Any) -> Callable[[Connection], None]:
    seen, self.seen = self.seen, 1 << 40
    try:
        return WHOLE_MARK(self, kind, names)
    finally:
        self.seen = seen


def _forgetful(self: Changes, news: Any) -> None:
    WHOLE_TAKE(self, None if news is None else following._News(news.version, news.found[:1]))


WHOLE_MARK, WHOLE_TAKE = Changes.mark, Changes._take


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mark", _unchecked),
        ("mark", lambda self, kind, names: lambda connection: None),
        ("_take", _forgetful),
    ],
    ids=["deciding by what was", "telling nobody", "taking a part"],
)
async def test_what_is_left_out_is_noticed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Changes, name, wrong)
    with pytest.raises((AssertionError, KeyError, LogError, psycopg.Error)):  # noqa: PT012 - any of the schedules
        for seed in range(5):
            await churn(pair, seed)


async def test_nothing_takes_effect_of_what_was_overtaken(pair: Pair) -> None:
    one, other = (node.db for node in pair.nodes)
    mark = other.changes.mark("topic", ["x"])
    mine = one.changes.mark("topic", ["y"])
    await one.run(mine)
    await one.run(mine)  # nobody is overtaken by what is its own

    def change(connection: Connection) -> None:
        mark(connection)
        connection.execute("INSERT INTO node_config VALUES ('k', 'v')")

    with pytest.raises(Overtaken):
        await other.run(change)
    assert await other.run(lambda c: c.execute("SELECT * FROM node_config").fetchall()) == []
    await other.changes.catch_up()
    await other.run(other.changes.mark("topic", ["x"]))


async def test_what_another_node_has_committed_is_asked_of_the_database(pair: Pair) -> None:
    """As by retention, which must not go by a position that a consumer has gone back from elsewhere."""
    here, elsewhere = (Progress(node.db) for node in pair.nodes)
    await here.front("kafka").commit("g", [("t", 0, Committed(9))])
    await elsewhere.front("kafka").commit("g", [("t", 0, Committed(2))])
    name = (CONSUMERS, "g")
    assert here.committed(name, "t", 0) == Committed(9)
    assert await here.durable(name, "t", 0) == Committed(2)
    assert await here.durable(name, "t", 1) is None
