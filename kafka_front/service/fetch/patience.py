"""How long the request that waits on a connection may wait, without a timer of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LEAST_SECONDS = 0.001
"""The timer goes off so long from now at the earliest: what it finds must not have it go off again at once."""


class Patience:
    """Of one connection, of whose requests one waits at a time.

    Consumers at the end of a log ask again as soon as they are answered, so nearly all waits end long before their
    time. The timer of the first serves those that come after it: it goes off, finds that the present one has time left,
    and is set to that.
    """

    __slots__ = ("_at", "_handle", "_loop", "_then", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        # When the timer goes off, and when it should for whoever waits; seconds of the loop's clock.
        self._at = 0.0
        self._until = 0.0
        self._then: Callable[[], None] | None = None

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Have ``then`` called in so many seconds, unless :meth:`end` comes before."""
        self._then = then
        self._until = until = self._loop.time() + seconds
        if self._handle is None:
            self._arm(seconds)
        elif until < self._at:
            self._handle.cancel()
            self._arm(seconds)

    def end(self) -> None:
        """Nobody waits any more."""
        self._then = None

    def close(self) -> None:
        """The connection is gone, and with it whoever waited."""
        self._then = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, seconds: float) -> None:
        seconds = max(seconds, _LEAST_SECONDS)
        self._at = self._loop.time() + seconds
        self._handle = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._handle = None
        then = self._then
        if then is None:
            return
        if self._at < self._until:
            # Not by the clock: a loop may run a timer up to its resolution early.
            self._arm(self._until - self._loop.time())
            return
        self._then = None
        then()
