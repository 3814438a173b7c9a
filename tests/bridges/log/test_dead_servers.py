"""A server that is gone holds up the partitions that it has: others are opened, retained and sealed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bridges.errors import LogUnavailable
from bridges.log import opener
from sbp_back.errors import ConnectionLost
from tests.bridges.log.log_lab import Backend, World, Writer, batch
from tests.kit.waiting import until

DAY = 86_400_000
LATE = 1 << 60


class Cluster(World):
    """Streams with a backend each; those in ``dead`` are on a server that does not answer."""

    def __init__(self, partitions: int, dead: set[int], **options: int) -> None:
        super().__init__(partitions=partitions, **options)
        self.backends = {stream: Backend() for stream in self.streams.values()}
        self.dead = dead
        self.asked: list[int] = []
        self.back = asyncio.Event()
        self.backend = self  # type: ignore[assignment]

    overtaken: Any = None

    async def open(self, stream_id: int, epoch: int) -> Writer:
        self.asked.append(stream_id)
        if stream_id in self.dead:
            await self.back.wait()
            raise ConnectionLost("the server is gone")
        return await self.backends[stream_id].open(stream_id, epoch)

    async def fetch_entries(self, stream_id: int, offset: int, max_bytes: int, *, limit: int = -1) -> Any:
        return await self.backends[stream_id].fetch_entries(stream_id, offset, max_bytes, limit=limit)

    async def trim(self, stream_id: int, offset: int) -> int:
        return await self.backends[stream_id].trim(stream_id, offset)


async def test_partitions_of_other_servers_are_opened_while_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opener, "SLOW_S", 0.001)
    world = Cluster(200, dead=set(range(1, 101)), open_concurrency=4)
    await world.boot(open_it=False)
    logs = [world.logs.get("t", number) for number in range(200)]
    waiting = [asyncio.ensure_future(log.ready()) for log in logs if log is not None]
    await asyncio.wait_for(asyncio.gather(*waiting[100:]), 30)
    assert not any(one.done() for one in waiting[:100])
    world.back.set()
    answers = await asyncio.gather(*waiting[:100], return_exceptions=True)
    assert {type(one) for one in answers} == {LogUnavailable}
    assert world.logs.opener.openers == world.logs.opener.slow == 0
    await world.close()


async def test_no_more_are_rebuilt_at_the_same_time_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow to be taken gives its place away, and what holds memory does not."""
    monkeypatch.setattr(opener, "SLOW_S", 0.0)
    world = Cluster(50, dead=set(), open_concurrency=4)
    held = most = 0

    async def load(stream_id: int) -> None:
        nonlocal held, most
        held += 1
        most = max(most, held)
        for _ in range(5):
            await asyncio.sleep(0)
        held -= 1

    async def slowly(stream_id: int, epoch: int) -> Writer:
        await asyncio.sleep(0.01)  # as a slow server answers
        return await world.backends[stream_id].open(stream_id, epoch)

    world.snapshots.load = load  # type: ignore[assignment]
    world.open = slowly  # type: ignore[method-assign]
    await world.boot(open_it=False)
    logs = [world.logs.get("t", number) for number in range(50)]
    await asyncio.gather(*(log.ready() for log in logs if log is not None))
    assert most == 4
    await world.close()


async def test_a_server_that_hangs_while_it_is_read_from_holds_up_its_own_partitions_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where all that a stream has there is sealed: to take the stream it need not be asked."""
    monkeypatch.setattr(opener, "SLOW_S", 0.001)
    world = Cluster(60, dead=set(), open_concurrency=4)
    hanging = set(range(1, 31))

    async def opened(stream_id: int, epoch: int) -> Writer:
        writer = await world.backends[stream_id].open(stream_id, epoch)
        writer.servers = frozenset({1 if stream_id in hanging else 2})
        return writer

    async def load(stream_id: int) -> None:
        if stream_id in hanging:
            await world.back.wait()

    world.open = opened  # type: ignore[method-assign]
    world.snapshots.load = load  # type: ignore[assignment]
    await world.boot(open_it=False)
    logs = [world.logs.get("t", number) for number in range(60)]
    waiting = [asyncio.ensure_future(log.ready()) for log in logs if log is not None]
    await asyncio.wait_for(asyncio.gather(*waiting[30:]), 30)
    assert not any(one.done() for one in waiting[:30])
    world.back.set()
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert world.logs.opener.openers == world.logs.opener.slow == 0
    await world.close()


async def test_a_partition_that_cannot_be_opened_is_not_tried_as_fast_as_clients_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opener, "RETRY_FIRST_S", 3600.0)
    world = Cluster(2, dead={1})
    world.back.set()
    log = await world.boot(open_it=False)
    for _ in range(2):  # once may be a coincidence
        with pytest.raises(LogUnavailable):
            await log.ready()
    waiting = [asyncio.ensure_future(log.ready()) for _ in range(5)]
    other = world.logs.get("t", 1)
    assert other is not None
    await other.ready()
    assert world.asked == [1, 1, 2]
    await world.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in answers} == {LogUnavailable}, "and nobody is left without an answer"


async def test_a_partition_that_is_back_is_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opener, "RETRY_FIRST_S", 0.001)
    world = Cluster(1, dead={1})
    world.back.set()
    log = await world.boot(open_it=False)
    for _ in range(3):
        with pytest.raises(LogUnavailable):
            await log.ready()
    world.dead.clear()
    await log.ready()
    assert not world.logs.opener.has_failed(log)


def aged(world: Cluster) -> None:
    """A record in each stream of a server that is there."""
    for stream, backend in world.backends.items():
        if stream not in world.dead:
            writer = Writer(backend, 0)
            writer.append(batch(timestamp=1).payload, 1, 1, 1, lambda error: None)
            writer.acknowledge(1)


async def test_retention_reaches_every_partition_of_servers_that_are_there() -> None:
    """It opens some in each call, goes on behind them in the next, and leaves those out that do not open."""
    world = Cluster(60, dead=set(range(1, 31)), retention_openings=10, retention_patience_s=0)
    aged(world)
    await world.boot(open_it=False)
    places = [("t", number) for number in range(60)]
    for _ in range(20):
        await world.retain(places, lambda topic: (DAY, -1), LATE)
        for _ in range(100):
            await asyncio.sleep(0)
    assert [backend.start for backend in world.backends.values()] == [0] * 30 + [1] * 30
    world.back.set()
    await world.close()


async def test_retention_reaches_them_before_it_gives_up_those_that_do_not_open() -> None:
    """With a thousand of them on the server that is gone it would take minutes otherwise."""
    world = Cluster(80, dead=set(range(1, 61)))
    aged(world)
    await world.boot(open_it=False)
    places = [("t", number) for number in range(80)]
    retaining = asyncio.ensure_future(world.retain(places, lambda topic: (DAY, -1), LATE))
    await until(lambda: [backend.start for backend in world.backends.values()] == [0] * 60 + [1] * 20)
    world.back.set()
    await retaining
    await world.close()


async def test_retention_begins_with_what_it_had_not_reached() -> None:
    world = Cluster(30, dead=set(), retention_openings=7)
    aged(world)
    await world.boot(open_it=False)
    places = [("t", number) for number in range(30)]
    for calls in range(1, 6):
        await world.retain(places, lambda topic: (DAY, -1), LATE)
        assert sum(backend.start for backend in world.backends.values()) == min(7 * calls, 30)
