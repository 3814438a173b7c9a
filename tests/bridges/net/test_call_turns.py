"""Calls begin in turns of the event loop: a few of each connection, however many have come and however large."""

from __future__ import annotations

import asyncio

from anabranch_kit.run.barrier import Barrier
from bridges.net.call_turns import BYTE_WORK, CallTurns

MIB = 1024 * 1024


class Begun:
    """Which calls have begun, and in which turn of the loop each did."""

    def __init__(self) -> None:
        self.turns = CallTurns(asyncio.get_running_loop(), Barrier())
        self.order: list[str] = []
        self.at: list[int] = []
        self._tick = 0
        self._ticking = asyncio.create_task(self._ticks())

    async def _ticks(self) -> None:
        while True:
            self._tick += 1
            await asyncio.sleep(0)

    async def call(self, connection: str, size: int) -> None:
        await self.turns.begin(connection, size)
        self.order.append(connection)
        self.at.append(self._tick)

    def most_in_a_turn(self) -> int:
        return max(self.at.count(tick) for tick in set(self.at))

    async def all(self, *calls: tuple[str, int]) -> None:
        await asyncio.gather(*(self.call(*one) for one in calls))
        self._ticking.cancel()


async def test_a_few_small_calls_begin_at_once() -> None:
    begun = Begun()
    await begun.all(*(("a", 100),) * 8)
    assert begun.most_in_a_turn() == 8


async def test_of_very_many_calls_some_begin_in_each_turn() -> None:
    begun = Begun()
    await begun.all(*((f"c{number}", 100) for number in range(200)))
    assert begun.most_in_a_turn() <= 17
    assert len(begun.order) == 200


async def test_large_calls_begin_one_in_a_turn() -> None:
    begun = Begun()
    await begun.all(*((f"c{number}", MIB) for number in range(20)))
    assert begun.most_in_a_turn() == 1
    assert BYTE_WORK * MIB > 2 * MIB


async def test_who_asks_little_is_not_behind_all_that_another_asks() -> None:
    begun = Begun()
    await begun.all(*(("many", 1000) for _ in range(300)), ("little", 10))
    assert begun.order.index("little") < 40
    assert [one for one in begun.order if one == "many"] == ["many"] * 300


async def test_little_calls_are_not_behind_large_ones() -> None:
    begun = Begun()
    await begun.all(*((f"c{number}", MIB) for number in range(20)), *((f"c{number}", 10) for number in range(20)))
    assert max(begun.at[10:20]) <= min(begun.at) + 3


async def test_who_has_gone_takes_no_turn() -> None:
    begun = Begun()
    tasks = [asyncio.create_task(begun.call("a", MIB)) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks[1:]:
        task.cancel()
    await begun.all(("a", 10), ("b", 10))
    assert begun.order == ["a", "a", "b"] or begun.order == ["a", "b", "a"]
