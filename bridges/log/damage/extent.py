"""How far damage reaches: found by looking at single offsets, since what is damaged does not say where it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

SAMPLES = 64
"""Offsets looked at inside a damaged stretch, lest something good lies between two damaged batches."""

GoodFrom = Callable[[int], Awaitable[int | None]]
"""Where what can be read at an offset begins; the offset itself where the log has ended; None if it is damaged."""


async def end_of_damage(offset: int, good_from: GoodFrom) -> int:
    """The first offset behind the damaged one at ``offset`` that can be read, or at which the log ends."""
    step = 1
    while (good := await good_from(offset + step)) is None:
        step *= 2
    while True:
        good = await _begin(offset, good, good_from)
        width = max(1, (good - offset) // SAMPLES)
        for sample in range(offset + width, good, width):
            found = await good_from(sample)
            if found is not None:
                good = found
                break
        else:
            return good


async def _begin(bad: int, good: int, good_from: GoodFrom) -> int:
    """An offset up to ``good`` that can be read while the one before it cannot."""
    while good - bad > 1:
        middle = (bad + good) // 2
        found = await good_from(middle)
        if found is None:
            bad = middle
        else:
            good = max(found, bad + 1)
    return good
