"""The timer of a connection's waiting request, shared by its successive requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LEAST_SECONDS = 0.001
"""Shortest time of the timer, so that it never fires again at once."""


class Patience:
    """The timer of one connection, of whose requests one waits at a time.

    Consumers at the end of a log ask again as soon as they are answered, so nearly all waits end long before their
    time. A timer per request would be set and cancelled for each. Instead the first request's timer stays: when it
    fires and the present request has time left, it is set to that time.
    """

    __slots__ = ("_at", "_handle", "_loop", "_then", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        # When the timer fires, and when the waiting request's time ends; seconds of the loop's clock.
        self._at = 0.0
        self._until = 0.0
        self._then: Callable[[], None] | None = None

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Call ``then`` in so many seconds, unless :meth:`end` comes before."""
        self._then = then
        self._until = until = self._loop.time() + seconds
        if self._handle is None:
            self._arm(seconds)
        elif until < self._at:
            self._handle.cancel()
            self._arm(seconds)

    def end(self) -> None:
        """End the wait: the request is answered."""
        self._then = None

    def close(self) -> None:
        """End the wait and the timer: the connection is gone."""
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
            # Compared with _at, not with the clock: a loop may run a timer up to its resolution early.
            self._arm(self._until - self._loop.time())
            return
        self._then = None
        then()
