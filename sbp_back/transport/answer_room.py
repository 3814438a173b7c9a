"""Room in memory for the answers of one connection: reads in flight for them, and bytes that the client has not taken.

See :class:`sbp_back.wire.room.Room`, whose calls come here. A fetch reads once there is room, in order of arrival: when
the connection holds less, when the budget of all connections has more, or in the next turn of the event loop, depending
on what is missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.turn import ENTRY_WORK, Turn
from anabranch_kit.run.barrier import Barrier

if TYPE_CHECKING:
    from sbp_back.transport.connection import Asked

_LONE_BYTES = 1024 * 1024
"""A read that needs at least this much is made even late in a turn, since its room may be gone in the next."""


class AnswerRoom:
    """Room of one connection. ``limit``: bytes that it may hold, past which fetches wait; a single answer is never too
    long. ``next_turn`` has :meth:`grant` called in a later turn of the event loop.
    """

    __slots__ = (
        "_barrier",
        "_closed",
        "_grant_scheduled",
        "_granting",
        "_handed_over",
        "_hopeful",
        "_limit",
        "_loop",
        "_next_turn",
        "_reading",
        "_reserved",
        "_turn",
        "_unsent",
        "account",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        budget: MemoryBudget,
        turn: Turn,
        limit: int,
        barrier: Barrier,
        next_turn: Callable[[], None],
    ) -> None:
        self._loop = loop
        self.account = budget.account(self.grant)
        self._turn = turn
        self._limit = limit
        self._barrier = barrier
        self._next_turn = next_turn
        # Fetches that wait for room: most and least bytes they can use, and the callback.
        self._hopeful: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._granting = False
        self._grant_scheduled = False
        self._closed = False
        self._reserved = 0  # reserved for answers to come
        self._reading = 0  # the part of that for reads in flight
        self._handed_over = 0  # the part for answers that are written and not counted by the outbox yet
        self._unsent = 0  # bytes of unsent answers

    # --- for requests -----------------------------------------------------------------------------------------------

    def reserve(self, asked: Asked, most: int, least: int) -> int:
        if self._hopeful and not self._granting:
            return 0  # other fetches have waited longer
        if not self._has_room(most, least) or self._must_yield(least):
            return 0
        granted = self.account.grant(Kind.READS, max(least, min(most, self._limit)), least)
        asked.held += granted
        self._reserved += granted
        self._reading += granted
        self._turn.spend(granted)
        return granted

    def settle(self, asked: Asked, reserved: int, used: int, pieces: int) -> None:
        self._reading -= reserved
        if reserved:
            self._turn.spend(max(used, pieces * ENTRY_WORK) - reserved)
        more = used - reserved
        if asked.done:
            return  # nothing is held for it any more
        if more > 0:
            asked.held += more
            self._reserved += more
            self.account.take(Kind.READS, more)
        else:
            self.give_back(asked, -more)
        self.more()

    def wait(self, most: int, least: int, again: Callable[[], None]) -> None:
        if self._closed:
            self._loop.call_soon(again)
        elif self._granting:
            self._hopeful.appendleft((most, least, again))  # it had its turn, and there was no room yet
        else:
            self._hopeful.append((most, least, again))
            if len(self._hopeful) == 1:
                self._wait_for_grant()

    # --- for the connection -----------------------------------------------------------------------------------------

    def give_back(self, asked: Asked, size: int) -> None:
        """Release ``size`` reserved bytes of a request: they are not needed any more, or count as unsent now."""
        asked.held -= size
        self._reserved -= size
        self.account.give(Kind.READS, size)
        self.more()

    def hand_over(self, asked: Asked, size: int) -> None:
        """Hold ``size`` reserved bytes of a request for its written answer, until :meth:`flushed`."""
        asked.held -= size
        self._handed_over += size

    def flushed(self, unsent: int) -> None:
        """Release what was handed over: the outbox counts it among ``unsent``, or it is sent."""
        size, self._handed_over = self._handed_over, 0
        self._reserved -= size
        self.account.give(Kind.READS, size)
        self.note_unsent(unsent)

    def note_unsent(self, unsent: int) -> None:
        """Note that the client has ``unsent`` bytes of answers to take."""
        self._unsent = unsent
        self.more()

    def more(self) -> None:
        """Have waiting fetches ask again: the connection holds less, or may do so."""
        if self._hopeful and not self._grant_scheduled and not self._granting:
            self._grant_scheduled = True
            self._loop.call_soon(self._grant_on)

    def grant(self) -> None:
        """Have fetches that wait for room ask again, in order, as long as they get any."""
        if self._granting or self._closed:
            return
        hopeful = self._hopeful
        self._granting = True
        while hopeful:
            left = len(hopeful)
            self._barrier.call("request that waited for room", hopeful.popleft()[2])
            if len(hopeful) == left:
                break
        self._granting = False
        if hopeful:
            self._wait_for_grant()

    def close(self) -> None:
        """End the room with its connection: nothing is unsent, and waiting fetches are called."""
        self._closed = True
        self.flushed(0)
        self.account.close()
        while self._hopeful:
            self._barrier.call("abandoned request", self._hopeful.popleft()[2])
        self._next_turn = _nothing  # whose connection has this room

    # --- own --------------------------------------------------------------------------------------------------------

    def _must_yield(self, least: int) -> bool:
        return self._turn.is_over and least <= _LONE_BYTES

    def _has_room(self, most: int, least: int) -> bool:
        """Return whether the connection itself has room. A fetch waits for its turn rather than be answered with
        little.
        """
        alone = not self._reading and not self._unsent
        return alone or self._reserved + self._unsent + max(least, min(most, self._limit)) <= self._limit

    def _wait_for_grant(self) -> None:
        """Wait for room for the fetch that has waited longest: until the connection holds less if it has too much
        itself, else until the budget calls.
        """
        most, least, _ = self._hopeful[0]
        if not self._has_room(most, least):
            return
        if self._must_yield(least):
            self._next_turn()
        else:
            self.account.wait(least)

    def _grant_on(self) -> None:
        self._grant_scheduled = False
        self.grant()


def _nothing() -> None:
    """Do nothing: a connection that has ended needs no turn."""
