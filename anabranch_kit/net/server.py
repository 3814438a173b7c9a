"""Listening sockets, and what their connections share: limits, the memory budget, turns, admission, the sweep."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog
from msgspec import Struct

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.framing import ReceiveBuffer
from anabranch_kit.net.listening import listen
from anabranch_kit.net.tls_server import served
from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.cycle import cycle_of

if TYPE_CHECKING:
    from anabranch_kit.net.connection import Connection

log = structlog.get_logger(__name__)

C = TypeVar("C", bound="Connection")


class Limits(Struct, frozen=True):
    """Bounds of a server's connections; bytes and seconds."""

    #: Bytes of unanswered requests above which a connection is not read; all connections share the budget.
    connection_bytes: int = 64 * 1024 * 1024
    #: Unsent bytes of answers above which a connection's next request waits.
    write_buffer_bytes: int = 1024 * 1024
    #: Connections with no request for this long are closed.
    idle_seconds: float = 600.0
    max_connections: int = 10_000


class Server(ABC, Generic[C]):
    """Listeners and their connections. ``budget`` bounds the memory of all connections."""

    def __init__(self, limits: Limits, budget: MemoryBudget, barrier: Barrier) -> None:
        self.limits = limits
        self.budget = budget
        self.barrier = barrier
        self.loop = asyncio.get_running_loop()
        self.cycle = cycle_of(self.loop)
        self.turn = Turn(self.loop, barrier)
        self.receive_buffer = ReceiveBuffer()
        #: Ordered by last activity, the longest silent first.
        self.connections: OrderedDict[C, None] = OrderedDict()
        self._servers: list[asyncio.Server] = []
        self._closed = False
        self._emptied: asyncio.Event | None = None
        self.sweeper: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def sweep_seconds(self) -> float:
        """Return the seconds between two sweeps; 0: none is needed."""

    async def _open(
        self,
        make: Callable[[], C],
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
    ) -> tuple[str, int]:
        """Open a listener whose connections ``make`` makes, and return the bound host and port. Raises OSError."""
        server = await listen(served(make, tls), host, port)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def admit(self, connection: C) -> bool:
        """Admit a new connection, or return False when all places are taken and none can be made free."""
        if self._closed or (len(self.connections) >= self.limits.max_connections and not self._make_room()):
            log.warning("connection refused", peer="{}:{}".format(*connection.peer), connections=len(self.connections))
            return False
        self.connections[connection] = None
        return True

    def _make_room(self) -> bool:
        """Close a connection in favour of a new one; return whether there was one that could be closed."""
        return False

    def forget(self, connection: C) -> None:
        """Forget a connection that has ended."""
        self.connections.pop(connection, None)
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def touched(self, connection: C) -> None:
        """Note that data has arrived on the connection."""
        if connection in self.connections:
            self.connections.move_to_end(connection)

    def _stop_listening(self) -> None:
        self._closed = True
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def _stop_sweeping(self) -> None:
        if self.sweeper is not None:
            self.sweeper.cancel()

    async def _empty(self) -> None:
        """Wait until all connections have ended. A stop that is hurried waits twice at the same time."""
        if self.connections:
            self._emptied = self._emptied or asyncio.Event()
            await self._emptied.wait()

    def sweep_later(self) -> None:
        if self.sweep_seconds > 0:
            self.sweeper = self.loop.call_later(self.sweep_seconds, self.sweep)

    def sweep(self) -> None:
        """Close connections that were idle for too long, or that send or read too slowly: one timer for all of them."""
        self.sweep_later()
        now = monotonic()
        for connection in list(self.connections):
            connection.look_after(now)
