"""Sliced work: steps off the loop, in turn, shortest first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from anabranch_kit.run.sliced import Sliced, SlicedWorks


def counting(steps: int, log: list[str], name: str) -> Sliced[int]:
    for _ in range(steps):
        log.append(name)
        yield None
    return steps


async def test_a_short_work_ends_where_it_began() -> None:
    works = SlicedWorks()
    threads: list[int] = []

    def work() -> Generator[object, None, str]:
        threads.append(threading.get_ident())
        return "done"
        yield

    assert await works.run(work) == "done"
    assert threads == [threading.get_ident()]
    assert works.steps == 0


async def test_only_the_first_step_is_on_the_loop() -> None:
    works = SlicedWorks()
    threads: list[int] = []

    def work() -> Generator[object, None, int]:
        for _ in range(3):
            threads.append(threading.get_ident())
            yield None
        return 7

    assert await works.run(work) == 7
    assert threads[0] == threading.get_ident()
    assert len(set(threads[1:])) == 1
    assert threads[1] != threads[0]
    works.close()


async def test_a_work_that_waits_is_begun_anew() -> None:
    works = SlicedWorks(at_once=1)
    begun: list[str] = []

    def work() -> Generator[object, None, int]:
        begun.append("begun")
        yield None
        return len(begun)

    async with works.turn():
        waiting = asyncio.create_task(works.run(work))
        await asyncio.sleep(0)
        assert begun == ["begun"]
    assert await waiting == 2
    works.close()


async def test_works_under_way_take_turns() -> None:
    works = SlicedWorks()
    log: list[str] = []
    await asyncio.gather(works.finish(counting(5, log, "a")), works.finish(counting(5, log, "b")))
    assert log == ["a", "b"] * 5
    works.close()


async def test_short_works_pass_long_ones_that_wait_but_not_for_ever() -> None:
    now = 0.0
    works = SlicedWorks(at_once=1, clock=lambda: now)
    log: list[str] = []
    tasks = [asyncio.create_task(works.finish(counting(2, log, "first"), 1))]
    await asyncio.sleep(0)
    for name, records, arrival in (("long", 100_000, 0.0), ("short", 10, 1.0), ("late", 10, 11.0)):
        now = arrival
        tasks.append(asyncio.create_task(works.finish(counting(1, log, name), records)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert log == ["first", "first", "short", "long", "late"]
    works.close()


async def test_a_work_that_raises_or_is_given_up_makes_room() -> None:
    works = SlicedWorks(at_once=1)

    def bad() -> Sliced[None]:
        yield None
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await works.finish(bad())
    log: list[str] = []
    async with works.turn():
        given_up = asyncio.create_task(works.finish(counting(1, log, "given up")))
        granted = asyncio.create_task(works.finish(counting(1, log, "granted")))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
    # The turn is handed to "granted", which is cancelled before it could take it: it must not be lost.
    granted.cancel()
    await asyncio.wait_for(works.finish(counting(1, log, "next")), 10)
    assert log == ["next"]
    works.close()


async def test_of_long_works_one_goes_on_at_a_time() -> None:
    works = SlicedWorks()
    log: list[str] = []
    short = asyncio.gather(works.finish(counting(200, log, "a")), works.finish(counting(200, log, "b")))
    assert await short == [200, 200]
    both = log[:256]
    assert both.count("a") == both.count("b") == 128, "until it is known that they are long"
    assert log[256:] == ["a"] * 72 + ["b"] * 72
    works.close()
