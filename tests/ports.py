"""Ports for processes that must find theirs again when they are started a second time, and those no test may open."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

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
            if _is_free(port):
                return port
        raise OSError("no port is free")

    def free_step(self, ports: Collection[int]) -> int:
        """How much further than each of ``ports`` there is one that is free as well. Raises OSError without."""
        for step in range(1, self._size):
            further = {port + step for port in ports}
            if not further & set(ports) and all(map(_is_free, further)):
                return step
        raise OSError("no ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_PORTS = Ports(os.environ.get("PYTEST_XDIST_WORKER", ""))
free_port = _PORTS.free
free_step = _PORTS.free_step


class UsualPortOpened(AssertionError):
    """A test opened a port on which a node of whoever runs the tests may be listening."""


@cache
def usual_ports() -> Mapping[int, str]:
    """The ports that a node opens where nobody names others, each with its listener."""
    from bridges.node.front import installed
    from bridges.node.listening import CONSOLE, CONSOLE_PORT
    from bridges.node.storage import backend
    from sbp_document.backend import DocumentBackend

    ports = {CONSOLE_PORT: CONSOLE}
    for name, port in {**backend.LISTENERS, **DocumentBackend.listeners}.items():
        ports[port] = name
    for kind in installed():
        ports.update({listener.port: listener.name for listener in kind.listeners})
    return ports


def refuse_usual(port: int, who: str) -> None:
    """Raises UsualPortOpened for one of :func:`usual_ports`."""
    if port in usual_ports():
        raise UsualPortOpened(f"{who} is on {port}, the usual port of {usual_ports()[port]}: tests take any free one")


def guard() -> None:
    """From now on no socket of this process is bound to a usual port; NodeProcess sees to nodes of other processes."""
    bind: Callable[..., None] = socket.socket.bind

    def checked(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            refuse_usual(address[1], "a socket of the tests")
        bind(self, address)

    socket.socket.bind = checked  # type: ignore[method-assign, assignment]
