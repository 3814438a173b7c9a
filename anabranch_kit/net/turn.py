"""Allowance of work that the connections of a listener share in one turn of the event loop.

A turn goes through everything that has become ready. A bound for each connection is not enough when hundreds are ready
at once, so they share one allowance. A connection that finds it used up goes on in the next turn, in order. There each
waiting connection gets a small part and waits again: so a small request does not wait for everything that all others
have asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from anabranch_kit.run.barrier import Barrier

FRAME_WORK = 4 * 1024
ENTRY_WORK = 1024
"""Bytes that a frame, and an entry in it, counts besides its own: handling it takes as long as copying and checking so
many.
"""

_TURN_WORK = 2 * 1024 * 1024
_SHARE = _TURN_WORK // 16
"""Bytes for a connection that has waited, while others wait."""

RECEIVED_AT_ONCE = 1024 * 1024
"""Bytes of one connection: a socket may hold several times as many."""
_READS_AT_ONCE = 2
"""Chunks of large answers that are read in a turn: a request of another waits for no more than a few."""
LITTLE = 64 * 1024
"""Bytes received at once that count as no work; no connection receives more when a turn is over."""


class Turn:
    """An allowance. ``spend`` counts finished work, in bytes; while :attr:`is_over` no connection may begin anything
    more.
    """

    __slots__ = ("_barrier", "_readers", "_scheduled", "_spent", "_until", "_waiting", "is_over", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, barrier: Barrier) -> None:
        self.loop = loop
        self._barrier = barrier
        self._spent = 0
        self._until = _TURN_WORK
        self._scheduled = False
        self._waiting: dict[object, Callable[[], None]] = {}
        self._readers: deque[Callable[[], None]] = deque()
        self.is_over = False

    def spend(self, work: int) -> None:
        """Count ``work`` bytes; negative when less was done than had been counted."""
        self._spent += work
        self.is_over = self._spent >= self._until
        # A little work may stay counted beyond its turn: scheduling a reset costs a system call.
        if self._spent >= _TURN_WORK // 2:
            self._schedule()

    def receive(self, space: memoryview) -> memoryview:
        """Return the part of ``space`` that may be received into at once; :meth:`spend` more than :data:`LITTLE` of
        it.
        """
        return space[: LITTLE if self.is_over else RECEIVED_AT_ONCE]

    def wait(self, who: object, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called in a later turn, once, after those that wait already."""
        self._waiting.setdefault(who, go_on)
        self._schedule()

    def forget(self, who: object) -> None:
        """Undo :meth:`wait`."""
        self._waiting.pop(who, None)

    @property
    def has_readers(self) -> bool:
        """Return whether any connection waits to read."""
        return bool(self._readers)

    def ask_to_read(self, read: Callable[[], None]) -> None:
        """Have ``read``, which reads a chunk of a large answer, called in a later turn: a few of all are in each."""
        self._readers.append(read)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        self._spent = 0
        waiting = self._waiting
        for _ in range(len(waiting)):
            if self._spent >= _TURN_WORK or not waiting:
                break
            who = next(iter(waiting))
            go_on = waiting.pop(who)
            self._until = self._spent + _SHARE if waiting else _TURN_WORK
            self.is_over = False
            self._barrier.call("turn of a connection", go_on)
        self._until = _TURN_WORK
        self.is_over = self._spent >= _TURN_WORK
        readers = self._readers
        if waiting or len(readers) > _READS_AT_ONCE:
            self._schedule()
        for _ in range(min(len(readers), _READS_AT_ONCE)):
            self._barrier.call("answer that is read", readers.popleft())
