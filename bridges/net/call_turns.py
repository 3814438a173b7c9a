"""Which calls begin in a turn of the event loop: gRPC hands over all that came, and each may be as large as it may.

A call counts by what came with it, besides what every call costs. Connections take turns (:mod:`bridges.net.turn`), so
whoever asks one thing is not behind the hundreds that somebody else asks for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from bridges.net.turn import Turn

CALL_WORK = 128 * 1024
"""What a call counts besides its bytes: as long as it takes to deal with a small one, in the currency of a turn."""
BYTE_WORK = 16
"""What a byte counts: it is parsed into objects, looked through, and often built again."""


class CallTurns:
    """Calls that have come and wait for their turn, by connection."""

    __slots__ = ("_turn", "_waiting")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    async def begin(self, connection: str, size: int) -> None:
        """Return when a call with ``size`` bytes that came by ``connection`` is to be dealt with."""
        work = CALL_WORK + BYTE_WORK * size
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
