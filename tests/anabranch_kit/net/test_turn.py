"""What the connections of a listener do together in one turn of the loop."""

from __future__ import annotations

import asyncio

from anabranch_kit.net.turn import FRAME_WORK, LITTLE, RECEIVED_AT_ONCE, Turn
from anabranch_kit.run.barrier import Barrier

TURN_WORK = 2 * 1024 * 1024


class Asking:
    """Has ``work`` to do, in frames, and notes in which turn of the loop the last of it was done."""

    def __init__(self, turn: Turn, frames: int, turns: list[int]) -> None:
        self._turn, self._left, self._turns = turn, frames, turns
        self.ended: int | None = None

    def go_on(self) -> None:
        while self._left:
            if self._turn.is_over:
                self._turn.wait(self, self.go_on)
                return
            self._turn.spend(FRAME_WORK)
            self._left -= 1
        self.ended = self._turns[0]


async def spent(connections: list[Asking], turns: list[int]) -> None:
    for one in connections:
        one.go_on()
    while any(one.ended is None for one in connections):
        await asyncio.sleep(0)
        turns[0] += 1


async def test_one_that_asks_for_little_is_not_behind_all_that_others_ask_for() -> None:
    turns = [0]
    turn = Turn(asyncio.get_running_loop(), Barrier())
    greedy = [Asking(turn, 4 * TURN_WORK // FRAME_WORK, turns) for _ in range(50)]
    modest = Asking(turn, 1, turns)
    await asyncio.wait_for(spent([*greedy, modest], turns), 30)
    assert modest.ended is not None
    assert modest.ended <= 50 // 16 + 2, "fifty others had a sixteenth of a turn each before it"
    assert min(one.ended or 0 for one in greedy) > 100, "and they shared what there was"


async def test_one_alone_has_the_whole_turn() -> None:
    turns = [0]
    turn = Turn(asyncio.get_running_loop(), Barrier())
    alone = Asking(turn, 4 * TURN_WORK // FRAME_WORK, turns)
    await asyncio.wait_for(spent([alone], turns), 30)
    assert alone.ended is not None
    assert alone.ended <= 5


async def test_little_is_received_when_a_turn_is_over() -> None:
    turn = Turn(asyncio.get_running_loop(), Barrier())
    space = memoryview(bytearray(4 * RECEIVED_AT_ONCE))
    assert len(turn.receive(space)) == RECEIVED_AT_ONCE
    turn.spend(TURN_WORK)
    assert turn.is_over
    assert len(turn.receive(space)) == LITTLE
    await asyncio.sleep(0)
    assert not turn.is_over
    assert len(turn.receive(space)) == RECEIVED_AT_ONCE
