"""A chore's round over many: what one of them does costs the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.rounds import Rounds


async def test_what_one_raises_is_counted_and_the_others_have_their_turn() -> None:
    barrier = Barrier()
    rounds: Rounds[int] = Rounds(barrier, "work")
    done = []

    async def work(item: int) -> None:
        if item % 2:
            raise ValueError(item)
        done.append(item)

    for _ in range(2):
        await rounds.each(range(10), work)
    assert done == [0, 2, 4, 6, 8] * 2
    assert barrier.failures == {"work": 10}


async def test_who_takes_long_holds_up_nobody_and_is_left_out_until_it_has_ended() -> None:
    rounds: Rounds[str] = Rounds(Barrier(), "work", at_once=2, patience=0.01)
    end = asyncio.Event()
    begun = []

    async def work(item: str) -> None:
        begun.append(item)
        if item.startswith("slow"):
            await end.wait()

    items = ["slow 1", "a", "slow 2", "slow 3", "b"]
    await rounds.each(items, work)
    assert sorted(begun) == sorted(items)
    begun.clear()
    await rounds.each(items, work)
    assert begun == ["a", "b"]
    end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    begun.clear()
    await rounds.each(items, work)
    assert sorted(begun) == sorted(items)


async def test_few_are_worked_on_at_once_and_few_are_left_behind() -> None:
    rounds: Rounds[int] = Rounds(Barrier(), "work", at_once=3, patience=0.001, left=5)
    now = most = 0

    async def work(item: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await asyncio.Event().wait()
        finally:
            now -= 1

    def items() -> Iterator[int]:
        yield from range(100)

    await rounds.each(items(), work)
    assert most == now == 5
    await rounds.close()
    assert now == 0


async def test_a_chore_that_is_cancelled_leaves_nothing_behind() -> None:
    rounds: Rounds[int] = Rounds(Barrier(), "work", patience=60)
    begun = asyncio.Event()
    ended = 0

    async def work(item: int) -> None:
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    chore = asyncio.create_task(rounds.each([1, 2], work))
    await begun.wait()
    await asyncio.sleep(0)
    chore.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chore
    assert ended == 2
