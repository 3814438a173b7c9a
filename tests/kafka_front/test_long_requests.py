"""Requests of very many bytes are worked on a few at a time, in the order in which they came."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_front.long_requests import LONG_BYTES, LongRequests

MOST = 4 * LONG_BYTES


class Lab:
    """Requests that are worked on until they are told to end."""

    def __init__(self) -> None:
        self.gate = LongRequests(MOST)
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

    asyncio.run(run())
