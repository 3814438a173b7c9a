"""Requests of very many bytes are worked on a few at a time, in the order in which they came."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.memory.budget import Kind, MemoryBudget
from kafka_front.long_requests import LONG_BYTES, LongRequests

MOST = 4 * LONG_BYTES


class Lab:
    """Requests that are worked on until they are told to end."""

    def __init__(self, budget: int = 1024 * MOST) -> None:
        self.budget = MemoryBudget(budget, asyncio.get_running_loop().call_soon)
        self.gate = LongRequests(self.budget, MOST)
        self.inside: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def come(self, number: int, size: int) -> None:
        self.ends[number] = asyncio.Event()
        self.tasks[number] = asyncio.create_task(self._work(number, size))

    async def _work(self, number: int, size: int) -> None:
        async with self.gate.room(size):
            self.inside.append(number)
            try:
                await self.ends[number].wait()
            finally:
                self.inside.remove(number)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_as_fit_are_worked_on_together_and_the_others_in_turn() -> None:
    lab = Lab()
    for number, size in enumerate((2 * LONG_BYTES, 2 * LONG_BYTES, 100 * MOST, 2 * LONG_BYTES, LONG_BYTES)):
        lab.come(number, size)
    await settle()
    assert lab.inside == [0, 1, 4]  # the last is short
    lab.ends[0].set()
    await settle()
    assert lab.inside == [1, 4]  # one that needs all the room is not overtaken for ever
    lab.ends[1].set()
    await settle()
    assert lab.inside == [4, 2]
    lab.ends[2].set()
    await settle()
    assert lab.inside == [4, 3]


async def test_what_is_made_of_them_is_counted_while_they_are_worked_on() -> None:
    lab = Lab()
    for number, size in enumerate((LONG_BYTES + 1, LONG_BYTES, 2 * LONG_BYTES, 100 * MOST)):
        lab.come(number, size)
    await settle()
    assert lab.inside == [0, 1, 2]
    assert lab.budget.held == 30 * (3 * LONG_BYTES + 1)
    for number in (0, 1, 2):
        lab.ends[number].set()
    await settle()
    assert lab.inside == [3]
    assert 30 * MOST < lab.budget.held < 100 * 1024 * 1024, "it cannot have more elements than any other"
    lab.tasks[3].cancel()
    await settle()
    assert lab.budget.held == lab.budget.accounts == 0


async def test_without_room_in_the_budget_they_are_worked_on_one_by_one() -> None:
    lab = Lab(64 * LONG_BYTES)
    other = lab.budget.account(lambda: None)
    other.take(Kind.REQUESTS, 60 * LONG_BYTES)
    for number in range(3):
        lab.come(number, LONG_BYTES + 1)
    for number in range(3):
        await settle()
        assert lab.inside == [number]
        lab.ends[number].set()
    await settle()
    assert lab.budget.held == 60 * LONG_BYTES
    other.give(Kind.REQUESTS, 60 * LONG_BYTES)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["come", "end", "cancel"]), st.integers(0, 30)), max_size=60))
def test_whatever_is_ended_or_given_up_the_room_is_free_for_the_next(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        lab = Lab()
        for step, number in steps:
            if step == "come":
                lab.come(len(lab.tasks), LONG_BYTES * (1 + number % 5) + 1)
            elif lab.tasks:
                at = number % len(lab.tasks)
                if step == "end":
                    lab.ends[at].set()
                else:
                    lab.tasks[at].cancel()
            if number % 3:
                await settle()
        await settle()
        for end in lab.ends.values():
            end.set()
        await asyncio.gather(*lab.tasks.values(), return_exceptions=True)
        last = len(lab.tasks)
        lab.come(last, 100 * MOST)
        await settle()
        assert lab.inside == [last]
        lab.ends[last].set()
        await lab.tasks[last]
        assert lab.budget.held == lab.budget.accounts == 0

    asyncio.run(run())
