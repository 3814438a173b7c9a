"""The extent of damage, found by reading single offsets, because damaged data does not say where it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

SAMPLES = 64
"""Offsets sampled inside a damaged stretch, in case something readable lies between two damaged batches."""

GoodFrom = Callable[[int], Awaitable[int | None]]
"""Returns the beginning of the readable batch at an offset; the offset itself where the log has ended; None if it is
damaged."""


async def end_of_damage(offset: int, good_from: GoodFrom) -> int:
    """Return the first offset behind the damage at ``offset`` that is readable, or at which the log ends."""
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
    """Return an offset up to ``good`` that is readable while the one before it is not."""
    while good - bad > 1:
        middle = (bad + good) // 2
        found = await good_from(middle)
        if found is None:
            bad = middle
        else:
            good = max(found, bad + 1)
    return good
