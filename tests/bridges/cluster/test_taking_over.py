"""Which node ends a member that has stopped: services over a real PostgreSQL, and what range servers would say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.sql.postgres import PostgresEngine
from bridges.catalog.database.counters import identify
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Database
from bridges.cluster import tables
from bridges.cluster.members import Patience
from bridges.cluster.service import Cluster
from bridges.cluster.versions import OURS
from sbp_back.range_server.adoption import AdoptionRefused
from tests.kit.waiting import until
from tests.postgres import Postgres

PATIENCE = Patience(heartbeat=0.05, lease=0.6)
WAIT_S = 60
GONE = 9
"""Node, and range server, of the member that has stopped."""


def database(url: str) -> Database:
    return Database(PostgresEngine(url, MIGRATIONS, schema="s", application_id=APPLICATION_ID, serializable=False))


async def stopped(url: str) -> int:
    """A cluster in which one node was, and has stopped in order; its start."""
    db = database(url)
    await db.open()
    await db.run(identify)
    await db.run(lambda c: tables.make(c, slots=4))
    start = await db.run(lambda c: tables.enter(c, GONE))
    assert isinstance(start, int)
    assert await db.run(lambda c: tables.join(c, start, GONE, {}, ""))
    await db.run(lambda c: tables.mark_stopped(c, start))
    await db.close()
    return start


@asynccontextmanager
async def served(url: str, number: int, adopt: Callable[[int, int], None]) -> AsyncIterator[Cluster]:
    service = Cluster(database(url), number, PATIENCE, Barrier(), pytest.fail, OURS)

    async def asked(server_id: int) -> None:
        adopt(number, server_id)

    service.adopt = asked
    await service.enter()
    await service.join(number, {}, "")
    try:
        yield service
    finally:
        await service.close()


@pytest.mark.parametrize("has", [1, 2, 3])
@pytest.mark.parametrize("told", [True, False])
async def test_whose_range_server_has_the_log_already_takes_over(postgres: Postgres, has: int, told: bool) -> None:
    """``told``: that server is a living node's; otherwise it was itself taken over from by the node that has it."""
    url = postgres.made()
    start = await stopped(url)
    taken = asyncio.Event()

    def adopt(number: int, server_id: int) -> None:
        assert server_id == GONE
        if number != has:
            raise AdoptionRefused("another range server has it", has if told else 77)
        taken.set()

    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(served(url, number, adopt)) for number in (1, 2, 3)]
        async with asyncio.timeout(WAIT_S):
            await taken.wait()
            await until(lambda: start not in services[0].keeper.members)  # it hears of it with a heartbeat
            await until(lambda: services[has - 1].taken_over == 1)  # which may hear of it later
        assert sum(service.taken_over for service in services) == 1


async def test_a_node_that_hears_of_others_as_it_stops_does_not_wait_to_be_taken_for_dead(postgres: Postgres) -> None:
    url = postgres.made()
    db = database(url)
    await db.open()
    await db.run(identify)
    await db.close()
    service = Cluster(database(url), 1, PATIENCE, Barrier(), pytest.fail, OURS)
    await service.enter()
    await service.join(1, {}, "")
    async with asyncio.timeout(WAIT_S):
        while not service._wake._waiters:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
    service._wake.set()
    async with asyncio.timeout(10):
        await service.close()


async def test_a_node_that_is_cut_off_from_the_database_finds_out_that_it_was_taken_over() -> None:
    """Nobody asks it for anything but who leads what: of that it would tell what was true before."""
    server = Postgres()
    try:
        ended = asyncio.Event()
        url = server.made()
        db = database(url)
        await db.open()
        await db.run(identify)
        await db.close()
        service = Cluster(database(url), 1, PATIENCE, Barrier(), lambda _: ended.set(), OURS)
        asked: list[bool] = []

        async def fenced() -> bool:
            asked.append(len(asked) > 1)
            return asked[-1]

        service.fenced = fenced
        await service.enter()
        await service.join(1, {}, "")
        await until(lambda: service.is_sure)  # its first heartbeat
        assert not asked, "while its heart beats there is nothing to ask"
        await asyncio.to_thread(server.stop)
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
        assert asked == [False, False, True], "it goes on until somebody has taken over"
        await service.close()
    finally:
        server.close()
