"""Which calls begin in a turn of the event loop: gRPC hands over all that came, and each may be as large as it may.

A call counts by what came with it, besides what every call costs. Connections take turns
(:mod:`anabranch_kit.net.turn`), so whoever asks one thing is not behind the hundreds that somebody else asks for; large
calls are not before small ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier

CALL_WORK = 128 * 1024
"""What a call counts besides its bytes: as long as it takes to deal with a small one, in the currency of a turn."""
BYTE_WORK = 16
"""What a byte counts: it is parsed into objects, looked through, and often built again."""

LITTLE = 16 * 1024
"""Bytes of a call that does not wait for larger ones, of which one may be a turn's work."""


class CallTurns:
    """Has calls begin some at a time."""

    __slots__ = ("_large", "_little")

    def __init__(self, loop: asyncio.AbstractEventLoop, barrier: Barrier) -> None:
        self._little = _Line(Turn(loop, barrier))
        self._large = _Line(Turn(loop, barrier))

    async def begin(self, connection: str, size: int) -> None:
        """Return when a call with ``size`` bytes that came by ``connection`` is to be dealt with."""
        await (self._little if size <= LITTLE else self._large).begin(connection, CALL_WORK + BYTE_WORK * size)


class _Line:
    """Calls that have come and wait for their turn, by connection."""

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
            if not granted.done():  # otherwise whoever called has gone
                turn.spend(work)
                granted.set_result(None)
        if waiting:
            turn.wait(connection, partial(self._go_on, connection))
        else:
            del self._waiting[connection]
