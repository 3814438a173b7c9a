"""Long works on the event loop share the beginning of each of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from anabranch_kit.run import cycle, turns
from anabranch_kit.run.turns import in_turns

STEP_SECONDS = 0.0002


class Clock:
    """Time passes by work alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def work(self) -> Iterator[None]:
        """Without an end."""
        while True:
            self.now += STEP_SECONDS
            yield


async def longest_turn(works: int, clock: Clock) -> float:
    """Of twenty turns of the loop, while so many works are done on it."""

    async def one() -> None:
        async for _ in in_turns(clock.work()):
            pass

    tasks = [asyncio.ensure_future(one()) for _ in range(works)]
    longest = 0.0
    for _ in range(20):
        began = clock.now
        await asyncio.sleep(0)
        longest = max(longest, clock.now - began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return longest


@pytest.mark.parametrize(("works", "seconds"), [(1, 0.003), (3, 0.005), (10, 0.012)])
def test_several_works_make_a_turn_little_longer_than_one(
    works: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(turns, "monotonic", clock)
    monkeypatch.setattr(cycle, "monotonic", clock)
    with asyncio.Runner(loop_factory=cycle.CycleLoop) as runner:
        longest = runner.run(longest_turn(works, clock))
    # A step may begin within the time and end behind it.
    assert longest == pytest.approx(seconds, abs=(works + 1) * STEP_SECONDS)
