"""How processes of one machine that share a file of SQLite's tell each other that they have changed something.

A datagram says *look*, and nothing else: it wakes whoever listens, whatever he listens to. One that finds its
receiver's socket full is not missed, as what lies there says the same.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

_LOOK = b"!"
_READ_AT_ONCE = 64


def mailboxes(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """For so many processes, made before they are: where each reads, and where others write to it."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
    for reading, writing in pairs:
        reading.setblocking(False)
        writing.setblocking(False)
    return pairs


class Notices:
    """Of one process: ``reading`` is its own mailbox, ``writing`` leads to everybody's, its own included."""

    def __init__(self, reading: socket.socket, writing: Sequence[socket.socket]) -> None:
        self._reading = reading
        self._writing = tuple(writing)
        self._listeners: set[asyncio.Event] = set()

    def tell(self) -> None:
        """Have everybody look. From any thread."""
        for one in self._writing:
            with suppress(BlockingIOError, ConnectionRefusedError):
                one.send(_LOOK)

    async def listen(self) -> AsyncIterator[None]:
        """An item when it has begun to listen, and whenever somebody has told since; on the loop."""
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
