"""Waits that end with their client."""

from __future__ import annotations

import asyncio

from pravega_front.session.useful_waits import UsefulWaits
from tests.left_behind import left_behind


async def test_a_wait_that_was_given_up_leaves_nothing_to_the_collector() -> None:
    """Thousands are given up with their connections, and a collection of all that they know would hold up everybody."""
    waits = UsefulWaits()

    async def given_up() -> None:
        task = asyncio.create_task(waits.on(asyncio.Event().wait()))
        await asyncio.sleep(0)
        waits.end()
        await asyncio.wait([task])
        assert task.cancelled()

    async def over() -> None:
        await asyncio.sleep(0)

    assert await left_behind({"given up": given_up}, over) == {}
