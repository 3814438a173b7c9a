"""Waits that end with their client."""

from __future__ import annotations

import asyncio

from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier
from pravega_front.session.useful_waits import UsefulWaits
from tests.left_behind import left_behind

MANY = 2_000
FEW = 100
"""More than end in one turn of the loop, and far from all."""


def waits_of_a_connection(turn: Turn | None = None) -> UsefulWaits:
    return UsefulWaits(turn or Turn(asyncio.get_running_loop(), Barrier()))


async def test_a_wait_that_was_given_up_leaves_nothing_to_the_collector() -> None:
    """Thousands are given up with their connections, and a collection of all that they know would hold up everybody."""
    waits = waits_of_a_connection()

    async def given_up() -> None:
        task = asyncio.create_task(waits.on(asyncio.Event().wait()))
        await asyncio.sleep(0)
        waits.end()
        await asyncio.wait([task])
        assert task.cancelled()

    async def over() -> None:
        await asyncio.sleep(0)

    assert await left_behind({"given up": given_up}, over) == {}


async def test_thousands_of_waits_end_in_several_turns() -> None:
    """Hundreds of connections that end together held up everybody for a second."""
    turn = Turn(asyncio.get_running_loop(), Barrier())
    connections = [waits_of_a_connection(turn) for _ in range(20)]
    tasks = [
        asyncio.create_task(connections[number % 20].on(asyncio.get_running_loop().create_future()))
        for number in range(MANY)
    ]
    await asyncio.sleep(0)
    for connection in connections:
        connection.end()
        connection.end()
    most = done = 0
    while done < MANY:
        await asyncio.sleep(0)
        now = sum(task.done() for task in tasks)
        most, done = max(most, now - done), now
    assert most <= FEW
    assert all(task.cancelled() for task in tasks)
