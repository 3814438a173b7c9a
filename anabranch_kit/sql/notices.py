"""Notices of changes between processes of one machine that share an SQLite file.

A datagram only says *look*: it wakes all listeners, whatever they listen to. One that finds its receiver's socket full
is not missed, as the datagrams there say the same.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

_LOOK = b"!"
_READ_AT_ONCE = 64


def mailboxes(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return ``count`` mailboxes, made before their processes start: the socket that each reads, and the one others
    write to.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
    for reading, writing in pairs:
        reading.setblocking(False)
        writing.setblocking(False)
    return pairs


class Notices:
    """Notices of one process: ``reading`` is its own mailbox, ``writing`` leads to all mailboxes, its own included."""

    def __init__(self, reading: socket.socket, writing: Sequence[socket.socket]) -> None:
        self._reading = reading
        self._writing = tuple(writing)
        self._listeners: set[asyncio.Event] = set()

    def tell(self) -> None:
        """Wake the listeners of all processes. From any thread."""
        for one in self._writing:
            with suppress(BlockingIOError, ConnectionRefusedError):
                one.send(_LOOK)

    async def listen(self) -> AsyncIterator[None]:
        """Yield an item once it listens, and after each notice since; on the loop."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        told.set()
        if not self._listeners:
            loop.add_reader(self._reading.fileno(), self._read)
        self._listeners.add(told)
        try:
            while True:
                await told.wait()
                told.clear()
                yield
        finally:
            self._listeners.discard(told)
            if not self._listeners:
                loop.remove_reader(self._reading.fileno())

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_READ_AT_ONCE):
                self._reading.recv(16)
        for one in self._listeners:
            one.set()
