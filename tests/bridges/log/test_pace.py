"""A chore goes as fast as it may: what it waits for is the longer of reading and computing, not both."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bridges.log.compaction import pace
from bridges.log.compaction.pace import Pace

RATE = 1_000_000
PIECE = 10_000  # ten milliseconds of the rate


class Clock:
    """Time passes when somebody sleeps or computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0

        async def sleep(seconds: float) -> None:
            self.now += seconds

        monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(pace, "asyncio", SimpleNamespace(sleep=sleep))


async def _pieces(clock: Clock, computed: float, count: int = 1000) -> float:
    """Seconds for so many pieces, with ``computed`` seconds of work for each."""
    one = Pace(RATE)
    began = clock.now
    for _ in range(count):
        await one.spent(PIECE)
        clock.now += computed
        await one.worked(computed)
    return clock.now - began


@pytest.mark.parametrize(("computed", "wanted"), [(0.0, 0.01), (0.001, 0.01), (0.005, 0.02), (0.01, 0.04)])
def test_a_piece_takes_as_long_as_its_bytes_or_its_work(
    monkeypatch: pytest.MonkeyPatch, computed: float, wanted: float
) -> None:
    took = asyncio.run(_pieces(Clock(monkeypatch), computed))
    assert took == pytest.approx(wanted * 1000, rel=0.02)


def test_who_has_done_nothing_for_long_is_let_through_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        clock = Clock(monkeypatch)
        one = Pace(RATE)
        clock.now += 3600
        began = clock.now
        for _ in range(1000):
            await one.spent(PIECE)
        assert clock.now - began == pytest.approx(10, rel=0.02)

    asyncio.run(run())


def test_no_bound_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        clock = Clock(monkeypatch)
        await Pace(0).spent(1 << 40)
        assert clock.now == 100.0

    asyncio.run(run())
