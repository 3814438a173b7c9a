"""Ports for processes that must find theirs again when they are started a second time."""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 16_000, 32_000
"""Below the ports that Linux gives to whoever asks for any, so that nobody takes one while its process is down."""
WORKERS = 8


class Ports:
    """A share of the ports between ``FIRST`` and ``LAST`` for each process that runs tests; none is given twice.

    The shares of different runs are the same, so each begins somewhere, and only ports that are free are given.
    """

    def __init__(self, worker: str) -> None:
        """``worker`` is what pytest-xdist calls this process, empty without it."""
        number = int(worker.removeprefix("gw") or 0) % WORKERS
        size = (LAST - FIRST) // WORKERS
        self._first, self._size = FIRST + number * size, size
        self._next = random.SystemRandom().randrange(size)

    def free(self) -> int:
        """A port of loopback that nobody listens on. Raises OSError when there is none left."""
        for _ in range(self._size):
            port = self._first + self._next
            self._next = (self._next + 1) % self._size
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
        raise OSError("no port is free")


_PORTS = Ports(os.environ.get("PYTEST_XDIST_WORKER", ""))
free_port = _PORTS.free
