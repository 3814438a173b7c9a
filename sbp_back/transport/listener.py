"""Listener that serves a handler to TCP clients in one dialect; its connections are in
:mod:`sbp_back.transport.connection`.
"""

from __future__ import annotations

import asyncio
import logging

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.listening import listen
from anabranch_kit.net.tls_server import served
from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier
from sbp_back.transport.connection import Connection, GoAwayForm, ListenerOptions
from sbp_back.transport.handler import Handler
from sbp_back.wire.base import Dialect
from sbp_back.wire.frame import receive_buffer

#: Seconds that a peer may take to begin TLS, and to end it, before its connection is cut.
HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 2.0

__all__ = ["GoAwayForm", "Listener", "ListenerOptions"]

logger = logging.getLogger(__name__)


class Listener:
    """Listener for ``handler`` at ``host``:``port`` (0: the system chooses a port, see :attr:`address`).

    ``budget`` bounds what the connections of all listeners that share it hold together; without one it has its own, of
    ``options.memory_bytes``.
    """

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
        self._handler = handler
        self._dialect = dialect
        self._host = host
        self._port = port
        self._options = options or ListenerOptions()
        self._budget = budget
        self._barrier = barrier or Barrier()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._address: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port it listens at. Raises ``RuntimeError`` before :meth:`start`."""
        if self._address is None:
            raise RuntimeError("the listener was not started")
        return self._address

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Start listening. Raises ``OSError`` when the address cannot be bound."""
        loop = self._loop = asyncio.get_running_loop()
        budget = self._budget or MemoryBudget(self._options.memory_bytes, loop.call_soon)
        buffer = receive_buffer()
        turn = Turn(loop, self._barrier)
        self._server = await listen(
            served(
                lambda: Connection(
                    self, loop, self._handler, self._dialect, self._options, budget, buffer, turn, self._barrier
                ),
                self._options.tls,
                HANDSHAKE_SECONDS,
                SHUTDOWN_SECONDS,
            ),
            self._host,
            self._port,
        )
        self._address = self._server.sockets[0].getsockname()[:2]
        if self._sweep_seconds > 0:
            self._sweep_timer = loop.call_later(self._sweep_seconds, self._sweep)

    @property
    def _sweep_seconds(self) -> float:
        times = [time for time in (self._options.idle_seconds, self._options.stall_seconds) if time > 0]
        return min(times) / 4 if times else 0.0

    async def drain(self) -> None:
        """Accept no more, say GOAWAY, answer requests in flight, and close; takes ``drain_seconds`` at most."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.go_away()
        try:
            async with asyncio.timeout(self._options.drain_seconds):
                await self._empty.wait()
        except TimeoutError:
            logger.warning("%d connections did not end in time and are cut", len(self._connections))
        await self.close()

    async def close(self) -> None:
        """Cut all connections at once. Idempotent."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    def admit(self, connection: Connection) -> bool:
        """Admit a new connection; return False when there are too many."""
        if len(self._connections) >= self._options.max_connections:
            logger.warning("connection refused: there are %d already", len(self._connections))
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _sweep(self) -> None:
        # One timer for all: connections are many, and closing one a little late does no harm.
        assert self._loop is not None
        self._sweep_timer = self._loop.call_later(self._sweep_seconds, self._sweep)
        now = self._loop.time()
        for connection in list(self._connections):
            connection.look_after(now)
