"""Queue from other threads to the event loop, in order."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_PER_TURN = 100
"""Things received in one turn of the loop: after a pause of it any number may wait."""


class Inbox(Generic[T]):
    """Takes things from any thread; ``receive`` gets each of them on the loop, in the order in which they were put in.

    The loop is woken through an eventfd, once for everything that is put in before it reads. ``call_soon_threadsafe``
    costs both sides more: it makes a handle with a context, and sends a byte through a socket pair that the loop then
    reads until nothing is left.
    """

    def __init__(self, receive: Callable[[T], None]) -> None:
        self._receive = receive
        self._things: deque[T] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = -1
        self._woken = False
        """The loop was woken and has not begun to look. Cleared before it looks, so that nothing is missed."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive things as they come from now on. Raises ``OSError``."""
        self._loop = loop
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._wakened)

    def put(self, thing: T) -> None:
        """Add a thing, on any thread. Before :meth:`start` and after :meth:`close` it waits for :meth:`drain`."""
        self._things.append(thing)
        self._wake()

    def _wake(self) -> None:
        if not self._woken and self._event >= 0:
            self._woken = True
            os.eventfd_write(self._event, 1)

    def _wakened(self) -> None:
        os.eventfd_read(self._event)
        self._take(_PER_TURN)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits to be received now. On the loop."""
        return not self._things

    def receive_next(self, thing: T) -> None:
        """Receive everything that is there already, and ``thing`` behind it, at once. On the loop."""
        self._things.append(thing)
        self.drain()

    def drain(self) -> None:
        """Receive everything there is now. On the loop. An exception of ``receive`` delays the rest by a turn of the
        loop.
        """
        self._take(sys.maxsize)

    def _take(self, most: int) -> None:
        self._woken = False
        things = self._things
        try:
            while things and most:
                most -= 1
                self._receive(things.popleft())
        finally:
            if things:
                self._wake()

    def close(self) -> None:
        """Stop receiving; no thread may put in anything any more. The loop may be closed already. Idempotent."""
        if self._event < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._event)
        os.close(self._event)
        self._event = -1
