"""What only the owner of a group may store asks for that in its own transaction: over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch_kit.sql.postgres import PostgresEngine
from bridges.catalog.database.counters import identify
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Connection, Database
from bridges.catalog.progress import Committed, FrontProgress, Holding, Progress
from bridges.cluster import tables, wishes
from bridges.errors import NotOwner
from tests.postgres import Postgres

SLOT = 1


@asynccontextmanager
async def opened(url: str, *, serializable: bool = True) -> AsyncIterator[Database]:
    engine = PostgresEngine(url, MIGRATIONS, schema="s", application_id=APPLICATION_ID, serializable=serializable)
    db = Database(engine)
    await db.open()
    try:
        yield db
    finally:
        await db.close()


async def members(db: Database) -> tuple[int, int]:
    """Two, of which the first owns all slots."""
    await db.run(identify)
    await db.run(lambda c: tables.make(c, slots=4))
    first = await db.run(lambda c: tables.enter(c, 1))
    assert isinstance(first, int)
    assert await db.run(lambda c: tables.join(c, first, -1, {}, ""))
    second = await db.run(lambda c: tables.enter(c, 2))
    assert isinstance(second, int)
    assert await db.run(lambda c: tables.join(c, second, -1, {}, ""))
    return first, second


async def handed_over(db: Database, start: int, to: int) -> list[int]:
    look = await db.run(lambda c: tables.read_cluster(c, -1))
    assert look.slots is not None
    epoch = look.slots[SLOT].epoch
    asked = next(one.node_id for one in look.members if one.start == to)
    assert await db.run(lambda c: wishes.pin(c, [SLOT], asked))
    return await db.run(lambda c: tables.give(c, [(SLOT, epoch)], start, to))


def held_by(start: int) -> Holding:
    def hold(connection: Connection) -> None:
        owner = tables.hold(connection, SLOT, start)
        if owner is not None:
            raise NotOwner("the group", owner)

    return hold


async def front_of(db: Database, start: int) -> FrontProgress:
    progress = Progress(db)
    await progress.load()
    front = progress.front("kafka")
    front.holding = lambda group: held_by(start)
    return front


async def test_who_owns_a_group_no_more_stores_nothing_of_it(postgres: Postgres) -> None:
    url = postgres.made()
    async with opened(url) as one, opened(url) as other, opened(url, serializable=False) as cluster:
        first, second = await members(cluster)
        before, after = await front_of(one, first), await front_of(other, second)
        await before.commit("g", [("t", 0, Committed(5))])
        await before.save_group("g", b"old")
        with pytest.raises(NotOwner) as refused:
            await after.commit("g", [("t", 0, Committed(6))])
        assert refused.value.node_id == 1

        assert await handed_over(cluster, first, second) == [SLOT]
        await after.reload(lambda group: True, [])
        await after.commit("g", [("t", 0, Committed(7))])
        for late in (
            before.commit("g", [("t", 0, Committed(5))]),
            before.commit_if("g", {}, [("t", 1, Committed(5))]),
            before.commit_with("x", "g", [("t", 0, Committed(5))]),
            before.save_group("g", None),
            before.delete("g"),
            before.expire("g", dict(before.of_group("g"))),
        ):
            with pytest.raises(NotOwner) as refused:
                await late
            assert refused.value.node_id == 2
        await after.reload(lambda group: True, [])
        assert {place: one.offset for place, one in after.of_group("g").items()} == {("t", 0): 7}
        assert await after.load_groups() == {"g": b"old"}
        assert after.transactions() == []


async def test_nobody_becomes_the_owner_while_the_former_one_commits(postgres: Postgres) -> None:
    """What the next owner reads has in it what the former one was told is committed."""
    url = postgres.made()
    async with opened(url) as one, opened(url, serializable=False) as cluster:
        first, second = await members(cluster)
        loop, held, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def commit(connection: Connection) -> None:
            held_by(first)(connection)
            loop.call_soon_threadsafe(held.set)
            assert go_on.wait(30)
            connection.execute("UPDATE cluster_state SET slots = slots + 0 WHERE 1 = 0")

        committing = asyncio.ensure_future(one.run(commit))
        await held.wait()
        giving = asyncio.ensure_future(handed_over(cluster, first, second))
        done, _ = await asyncio.wait([giving], timeout=0.5)
        assert not done
        go_on.set()
        await committing
        assert await giving == [SLOT]


async def test_a_commit_that_began_before_its_group_went_finds_the_new_owner(postgres: Postgres) -> None:
    """A serializable transaction sees the past: it must not find itself the owner there."""
    url = postgres.made()
    async with opened(url) as one, opened(url, serializable=False) as cluster:
        first, second = await members(cluster)
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def commit(connection: Connection) -> None:
            connection.execute("SELECT version FROM cluster_state").fetchone()  # from here on it sees this moment
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(30)
            held_by(first)(connection)

        committing = asyncio.ensure_future(one.run(commit))
        await begun.wait()
        assert await handed_over(cluster, first, second) == [SLOT]
        go_on.set()
        with pytest.raises(NotOwner):
            await committing
