"""Listener that serves a handler to TCP clients in one dialect; its connections are in
:mod:`sbp_back.transport.connection`.
"""

from __future__ import annotations

import asyncio
import logging

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.server import Server
from anabranch_kit.run.barrier import Barrier
from sbp_back.transport.connection import Connection, GoAwayForm, ListenerOptions
from sbp_back.transport.handler import Handler
from sbp_back.wire.base import Dialect

__all__ = ["GoAwayForm", "Listener", "ListenerOptions"]

logger = logging.getLogger(__name__)


class Listener(Server[Connection]):
    """Listener for ``handler`` at ``host``:``port`` (0: the system chooses a port, see :attr:`address`).

    ``budget`` bounds what the connections of all listeners that share it hold together; without one it has its own, of
    ``options.memory_bytes``.
    """

    limits: ListenerOptions

    def __init__(
        self,
        handler: Handler,
        dialect: Dialect,
        host: str,
        port: int,
        options: ListenerOptions | None = None,
        budget: MemoryBudget | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        options = options or ListenerOptions()
        budget = budget or MemoryBudget(options.memory_bytes, asyncio.get_running_loop().call_soon)
        super().__init__(options, budget, barrier or Barrier())
        self.handler = handler
        self.dialect = dialect
        self._host = host
        self._port = port
        self._address: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port it listens at. Raises ``RuntimeError`` before :meth:`start`."""
        if self._address is None:
            raise RuntimeError("the listener was not started")
        return self._address

    @property
    def sweep_seconds(self) -> float:
        times = [time for time in (self.limits.idle_seconds, self.limits.stall_seconds) if time > 0]
        return min(times) / 4 if times else 0.0

    async def start(self) -> None:
        """Start listening. Raises ``OSError`` when the address cannot be bound."""
        self._address = await self._open(lambda: Connection(self), self._host, self._port, self.limits.tls)
        self.sweep_later()

    async def drain(self) -> None:
        """Accept no more, say GOAWAY, answer requests in flight, and close; takes ``drain_seconds`` at most."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.go_away()
        try:
            async with asyncio.timeout(self.limits.drain_seconds):
                await self._empty()
        except TimeoutError:
            logger.warning("%d connections did not end in time and are cut", len(self.connections))
        await self.close()

    async def close(self) -> None:
        """Cut all connections at once. Idempotent."""
        self._stop_sweeping()
        self._stop_listening()
        for connection in list(self.connections):
            connection.abort()
        await self._empty()
