"""Reads of streams' rows that are shared by the partitions that are opened together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from bridges.errors import LogUnavailable
from bridges.log.state.stream_rows import Gathered


class Table:
    """Rows that are read when the test says so."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.go_on = asyncio.Event()
        self.rows = {1: "one", 2: "two", 3: "three"}
        self.fails = False

    async def read(self, streams: Collection[int]) -> dict[int, str]:
        self.asked.append(list(streams))
        await self.go_on.wait()
        if self.fails:
            raise LogUnavailable("the database is away")
        return {stream: self.rows[stream] for stream in streams if stream in self.rows}


async def _reach(table: Table, reads: int) -> None:
    while len(table.asked) < reads:
        await asyncio.sleep(0)


async def test_what_is_wanted_while_a_read_is_under_way_shares_the_next_one() -> None:
    table = Table()
    gathered = Gathered(table.read)
    first = asyncio.gather(gathered.read(1), gathered.read(9))
    await _reach(table, 1)
    others = asyncio.gather(*(gathered.read(stream) for stream in (2, 3, 1)))
    await asyncio.sleep(0)
    table.rows[1] = "one, since"
    table.go_on.set()
    assert await first == ["one, since", None]
    assert await others == ["two", "three", "one, since"]
    assert table.asked == [[1, 9], [2, 3, 1]], "and no read that began before it was wanted answers for it"


async def test_a_cancelled_waiter_takes_nothing_from_the_others() -> None:
    table = Table()
    gathered = Gathered(table.read)
    cancelled, kept = (asyncio.create_task(gathered.read(stream)) for stream in (1, 2))
    await _reach(table, 1)
    cancelled.cancel()
    table.go_on.set()
    assert await kept == "two"
    assert cancelled.cancelled() or await asyncio.wait([cancelled])


async def test_a_failed_read_is_an_error_of_its_waiters_only() -> None:
    table = Table()
    gathered = Gathered(table.read)
    table.fails = True
    failing = asyncio.gather(gathered.read(1), gathered.read(2), return_exceptions=True)
    await _reach(table, 1)
    later = asyncio.create_task(gathered.read(3))
    table.go_on.set()
    assert [type(error) for error in await failing] == [LogUnavailable, LogUnavailable]
    with pytest.raises(LogUnavailable):
        await later
    table.fails = False
    assert await gathered.read(3) == "three"
