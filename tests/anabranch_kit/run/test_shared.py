"""Work that many wait for."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from anabranch_kit.run.shared import SharedWorks
from tests.kit.waiting import until

MANY = 2_000
FEW = 100
"""More than go on in one turn of the loop, and far from all."""


class Works:
    """Works that end when they are told to, and what has ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended: list[tuple[str, BaseException | None]] = []
        self.may_end = asyncio.Event()
        self.shared: SharedWorks[str, int] = SharedWorks(self._ended)

    async def work(self, error: Exception | None = None) -> int:
        self.begun += 1
        await self.may_end.wait()
        if error is not None:
            raise error
        return self.begun

    def _ended(self, key: str, task: asyncio.Task[int]) -> None:
        self.ended.append((key, None if task.cancelled() else task.exception()))


async def begun(works: Works, count: int, error: Exception | None = None) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(works.shared.wait("one", partial(works.work, error))) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def most_at_once(tasks: list[asyncio.Task[int]]) -> int:
    """How many of ``tasks`` ended in one turn of the loop, at most."""
    most, done = 0, 0
    while done < len(tasks):
        await asyncio.sleep(0)
        now = sum(task.done() for task in tasks)
        most, done = max(most, now - done), now
    return most


async def test_all_get_what_one_work_gives() -> None:
    works = Works()
    tasks = await begun(works, MANY)
    works.may_end.set()
    assert await asyncio.gather(*tasks) == [1] * MANY
    assert (works.begun, works.ended, works.shared.tasks) == (1, [("one", None)], [])
    assert await works.shared.wait("one", works.work) == 2  # what has ended is begun anew


async def test_those_that_wait_go_on_in_several_turns() -> None:
    works = Works()
    tasks = await begun(works, MANY)
    works.may_end.set()
    assert await most_at_once(tasks) <= FEW


async def test_who_goes_away_ends_nothing() -> None:
    works = Works()
    tasks = await begun(works, 3)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.wait([tasks[0], tasks[2]])
    assert works.ended == []
    works.may_end.set()
    assert await tasks[1] == 1
    assert tasks[0].cancelled()
    assert tasks[2].cancelled()


async def test_who_goes_away_while_others_go_on_is_not_waited_for() -> None:
    works = Works()
    tasks = await begun(works, MANY)
    works.may_end.set()
    await until(lambda: tasks[0].done())
    for task in tasks[MANY // 2 :]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[: MANY // 2] == [1] * (MANY // 2)


async def test_an_error_is_everybodys() -> None:
    works = Works()
    error = ValueError("no")
    tasks = await begun(works, 3, error)
    works.may_end.set()
    for task in tasks:
        with pytest.raises(ValueError, match="no"):
            await task
    assert works.ended == [("one", error)]


async def test_a_work_that_is_given_up_ends_those_that_wait() -> None:
    works = Works()
    tasks = await begun(works, 3)
    for task in works.shared.tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert works.ended == [("one", None)]


async def test_who_asks_in_the_turn_in_which_a_work_ends_suspends_until_a_new_one_has() -> None:
    works = Works()
    (first,) = await begun(works, 1)
    (task,) = works.shared.tasks
    works.may_end.set()
    await until(task.done)  # the task ends in this turn, before this goes on: its callbacks have not run
    assert works.ended == []
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    assert await works.shared.wait("one", works.work) == 2
    assert turned.is_set()
    assert await first == 1
    assert (works.ended, works.shared.tasks) == ([("one", None), ("one", None)], [])
