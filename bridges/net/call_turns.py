"""Turns for gRPC calls: limits how many calls begin in one turn of the event loop.

gRPC hands over all calls that have arrived, each as large as a message may be. A call costs by its bytes, plus a fixed
cost. Connections take turns (:mod:`anabranch_kit.net.turn`), so a client with a single call does not wait behind the
hundreds of another client; small calls do not wait behind large ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier

CALL_WORK = 128 * 1024
"""Fixed cost of a call, in the unit of :class:`anabranch_kit.net.turn.Turn`: the time that a small call takes."""
BYTE_WORK = 16
"""Cost of a byte of a call: it is parsed into objects, examined, and often encoded again."""

LITTLE = 16 * 1024
"""Largest call, in bytes, that does not wait behind larger ones: a single large call may be a turn's work."""


class CallTurns:
    """Lets the calls of a server begin a few per turn of the event loop."""

    __slots__ = ("_large", "_little")

    def __init__(self, loop: asyncio.AbstractEventLoop, barrier: Barrier) -> None:
        self._little = _Line(Turn(loop, barrier))
        self._large = _Line(Turn(loop, barrier))

    async def begin(self, connection: str, size: int) -> None:
        """Return when a call of ``size`` bytes that arrived on ``connection`` may begin."""
        await (self._little if size <= LITTLE else self._large).begin(connection, CALL_WORK + BYTE_WORK * size)


class _Line:
    """A queue of calls that wait for their turn, by connection."""

    __slots__ = ("_turn", "_waiting")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    async def begin(self, connection: str, work: int) -> None:
        turn, waiting = self._turn, self._waiting.get(connection)
        if waiting is None:
            if not turn.is_over:
                turn.spend(work)
                return
            waiting = self._waiting[connection] = deque()
            turn.wait(connection, partial(self._go_on, connection))
        granted = turn.loop.create_future()
        waiting.append((work, granted))
        await granted

    def _go_on(self, connection: str) -> None:
        turn, waiting = self._turn, self._waiting[connection]
        while waiting and not turn.is_over:
            work, granted = waiting.popleft()
            if not granted.done():  # done: the client has cancelled the call
                turn.spend(work)
                granted.set_result(None)
        if waiting:
            turn.wait(connection, partial(self._go_on, connection))
        else:
            del self._waiting[connection]
