"""Where producers write is remembered as long as they are used, durably, and forgotten then."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from anabranch_kit.run.awaited import awaited
from bridges.catalog.topics.topic import Import, Topic
from bridges.log.interfaces import Appended
from bridges.node.assembly import Node
from tests.conftest import NodeFactory
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.service.test_read_lineage import node
from tests.ydb_topic_front.service.test_write import Session
from ydb_topic_front.front import YdbFront
from ydb_topic_front.service.core import YdbService
from ydb_topic_front.service.write.producers import Producers, place_of
from ydb_topic_front.service.write.start import bound_to
from ydb_topic_front.session.write_batches import Batches
from ydb_topic_front.session.write_request import Part

__all__ = ["node"]

HOUR = 3_600_000
DAY = 24 * HOUR


@dataclass(slots=True)
class Lab:
    """A topic of three partitions, and producers that are remembered for a day."""

    node: Node
    topic: Topic
    now: int = 1000 * DAY

    def producers(self, most: int = 1000) -> Producers:
        return Producers(self.node.services(YdbFront).db, DAY, most, lambda: self.now)

    def elsewhere(self, producer: bytes) -> int:
        """A partition that the producer would not get by itself."""
        return (place_of(producer, self.topic.takers).index + 1) % 3


@pytest.fixture
async def lab(node: Node) -> Lab:
    return Lab(node, await node.catalog.create_topic("pinned", 3))


async def test_who_was_not_seen_for_long_is_forgotten(lab: Lab) -> None:
    producers, wanted = lab.producers(), lab.elsewhere(b"p")
    assert await producers.partition_of(lab.topic, b"p", wanted) == wanted
    await lab.node.catalog.add_partitions("pinned", 7)
    lab.now += DAY
    await producers.expire(lab.now)
    assert await producers.partition_of(lab.topic, b"p", None) == wanted, "a day is not longer than a day"
    lab.now += DAY  # it was used a moment ago, which is what counts
    await producers.expire(lab.now)
    assert await producers.partition_of(lab.topic, b"p", None) == wanted
    lab.now += DAY + 1
    await producers.expire(lab.now)
    chosen = place_of(b"p", lab.topic.takers).index
    assert await producers.partition_of(lab.topic, b"p", None) == chosen
    other = (chosen + 1) % 7
    assert await producers.partition_of(lab.topic, b"q", other) == other


async def test_a_row_is_not_written_each_time(lab: Lab) -> None:
    """Within an hour it is not: so it may be forgotten that much too early, and no sooner."""
    producers, wanted = lab.producers(), lab.elsewhere(b"p")
    await producers.partition_of(lab.topic, b"p", wanted)
    lab.now += HOUR
    await producers.partition_of(lab.topic, b"p", None)
    lab.now += DAY - HOUR
    await producers.expire(lab.now)
    assert await producers.partition_of(lab.topic, b"p", None) == wanted


async def test_of_too_many_the_longest_idle_go(lab: Lab) -> None:
    producers = lab.producers(most=2)
    names = [b"p%d" % number for number in range(5)]
    for name in names:
        await producers.partition_of(lab.topic, name, lab.elsewhere(name))
        lab.now += 1
    await producers.expire(lab.now)
    found = [await producers.partition_of(lab.topic, name, None) for name in names]
    kept = [place == lab.elsewhere(name) for place, name in zip(found, names, strict=True)]
    assert kept == [False] * 3 + [True] * 2


async def test_very_many_are_forgotten_in_several_transactions(lab: Lab) -> None:
    producers, db = lab.producers(), lab.node.services(YdbFront).db
    rows = [("pinned", b"p%d" % number, 0, lab.now - 2 * DAY) for number in range(2_500)]
    await db.run(lambda connection: connection.executemany("INSERT INTO front_ydb_producers VALUES (?, ?, ?, ?)", rows))
    await producers.expire(lab.now)
    count = await db.run(lambda connection: connection.execute("SELECT count(*) FROM front_ydb_producers").fetchone())
    assert count == (0,)


async def test_who_came_with_a_migration_is_looked_for_as_long_as_logs_remember_it(lab: Lab) -> None:
    service, wanted = YdbService(lab.node.services(YdbFront)), lab.elsewhere(b"p")
    log = service.log_of(lab.topic, wanted)
    parts = Batches(b"p", b"").batch(Part(b"\x0a\x02\x08\x01", range(1, 2), -1), 1)
    stored: asyncio.Future[Appended] = awaited(lambda done: log.append(parts, done))
    await stored
    lab.topic.imported = Import("m", 1, 0, handed_over_ms=lab.now - DAY)
    assert await bound_to(service, lab.producers(), lab.topic, b"p", None) == wanted
    lab.now += 1
    chosen = {await bound_to(service, lab.producers(), lab.topic, name, None) for name in (b"p", b"q")}
    assert chosen == {wanted, place_of(b"q", lab.topic.takers).index}, "where it went is remembered"
    opened = [number for number in range(3) if service.log_of(lab.topic, number).is_open]
    assert opened == [0, 1, 2]


async def test_long_after_a_migration_no_log_is_opened_to_look_for_a_producer(lab: Lab) -> None:
    service = YdbService(lab.node.services(YdbFront))
    lab.topic.imported = Import("m", 1, 0, handed_over_ms=lab.now - DAY - 1)
    chosen = place_of(b"p", lab.topic.takers).index
    assert await bound_to(service, lab.producers(), lab.topic, b"p", None) == chosen
    assert not any(service.log_of(lab.topic, number).is_open for number in range(3))


def test_it_survives_the_death_of_the_node(node_factory: NodeFactory) -> None:
    running = node_factory(listen=LISTEN)
    names = [f"p{number}" for number in range(8)]
    with RawClient(running.ydb) as raw:
        raw.result("CreateTopic", path="/local/t", partitioning_settings={"min_active_partitions": 2})
        for number, name in enumerate(names):
            session = Session(raw, "/local/t", producer_id=name, partition_id=number % 2)
            session.write(1)
            # It is durable as soon as the client hears of it, and nobody has ended anything.
    running.restart(kill=True)
    with RawClient(running.ydb) as raw:
        change = {"set_min_active_partitions": 5}
        raw.result("AlterTopic", path="/local/t", alter_partitioning_settings=change)
        for number, name in enumerate(names):
            session = Session(raw, "/local/t", producer_id=name)
            assert (session.init.partition_id, session.init.last_seq_no) == (number % 2, 1)
            assert session.write(1, 2)[0] == (1, None)
            session.end()
