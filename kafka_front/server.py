"""Listening sockets and what their connections share: limits, the handlers, bytes in flight, the idle sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog

from kafka_front.dispatch import Registry
from kafka_front.framing import ReceiveBuffer
from kafka_front.session import Connection, Observer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the front; bytes and seconds. Defaults are Kafka's where it has the setting."""

    #: Largest request (socket.request.max.bytes).
    frame_bytes: int = 100 * 1024 * 1024
    #: Bytes of unanswered requests of one connection above which it is not read.
    connection_bytes: int = 64 * 1024 * 1024
    #: The same for all connections together.
    node_bytes: int = 512 * 1024 * 1024
    #: Unsent bytes of responses above which a connection's next request waits.
    write_buffer_bytes: int = 1024 * 1024
    #: Connections with no request for this long are closed (connections.max.idle.ms).
    idle_seconds: float = 600.0
    #: A large request must be complete this long after its first byte: it holds memory that others wait for.
    receive_seconds: float = 120.0
    max_connections: int = 10_000


class NullObserver:
    """Observes nothing."""

    def connection_opened(self) -> None:
        pass

    def connection_closed(self) -> None:
        pass

    def connection_refused(self) -> None:
        pass

    def request_done(self, key: int, version: int, seconds: float, received: int, sent: int) -> None:
        pass

    def request_failed(self, key: int) -> None:
        pass

    def error_told(self, key: int, code: int) -> None:
        pass


class Flow:
    """Bytes of unanswered requests, and of large ones still being received, on all connections.

    Each has its own bound of ``limit`` bytes, so that senders which stall cannot keep others from being answered.
    Paused connections are woken when there is room again, those that wait longest first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.reserved = 0
        self.full = False
        self.paused: dict[Connection, None] = {}

    def reserve(self, size: int) -> bool:
        """Take room for a large frame if there is any; a single one is never too large."""
        if self.reserved and self.reserved + size > self.limit:
            return False
        self.reserved += size
        return True

    def unreserve(self, size: int) -> None:
        """Give back what :meth:`reserve` granted."""
        self.reserved -= size
        self._wake()

    def take(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.limit:
            self.full = True

    def give(self, size: int) -> None:
        self.bytes -= size
        if self.full and self.bytes <= self.limit // 2:
            self.full = False
            self._wake()

    def _wake(self) -> None:
        for connection in list(self.paused):
            connection.maybe_resume()


class Server:
    """All listeners of one front.

    Use: ``await listen(...)`` for each listener, then :meth:`drain` and :meth:`close`.
    """

    def __init__(self, registry: Registry, limits: Limits | None = None, observer: Observer | None = None) -> None:
        self.registry = registry
        self.limits = limits or Limits()
        self.observer: Observer = observer or NullObserver()
        self.loop = asyncio.get_running_loop()
        self.flow = Flow(self.limits.node_bytes)
        self.receive_buffer = ReceiveBuffer()
        self.connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_id = 0
        self._closed = False
        self._emptied: asyncio.Event | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_later()

    async def listen(
        self, name: str, host: str, port: int, advertised: tuple[str, int] | None = None
    ) -> tuple[str, int]:
        """Open a listener; gives the bound host and port. Raises OSError.

        ``advertised`` is what clients of this listener are told to connect to; without it, each connection's own
        local address, which is right wherever no address translation lies between.
        """
        server = await self.loop.create_server(
            lambda: Connection(self, name, advertised), host, port, backlog=1024, reuse_address=True
        )
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def admit(self, connection: Connection) -> bool:
        """Take a new connection, unless there are too many."""
        if self._closed or len(self.connections) >= self.limits.max_connections:
            self.observer.connection_refused()
            log.warning("connection refused", peer="{}:{}".format(*connection.peer), connections=len(self.connections))
            return False
        self._next_id += 1
        connection.id = self._next_id
        self.connections.add(connection)
        self.observer.connection_opened()
        return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self.flow.paused.pop(connection, None)
        if connection in self.connections:
            self.connections.remove(connection)
            self.observer.connection_closed()
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a handler's coroutine; the task is kept until it ends."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stop_listening(self) -> None:
        self._closed = True
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    async def drain(self) -> None:
        """Accept no more connections and requests; returns when what is in progress is answered."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.drain()
        await self._empty()

    async def _empty(self) -> None:
        if self.connections:
            self._emptied = asyncio.Event()
            await self._emptied.wait()

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Close all connections; coroutine handlers get ``grace_seconds`` to end before they are cancelled."""
        self._stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = list(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
        for connection in list(self.connections):
            connection.shut()
        try:
            await asyncio.wait_for(self._empty(), grace_seconds)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await self._empty()

    def _sweep_later(self) -> None:
        limits = self.limits
        self._sweeper = self.loop.call_later(
            min(60.0, limits.idle_seconds / 4, limits.receive_seconds / 4), self._sweep
        )

    def _sweep(self) -> None:
        """Close connections nobody used for long, and those that send too slowly: one timer for all of them."""
        now = monotonic()
        oldest, slowest = now - self.limits.idle_seconds, now - self.limits.receive_seconds
        for connection in list(self.connections):
            if connection.receiving_since < slowest:
                connection.close("a large request was not complete in time")
            elif connection.last_active < oldest and connection.idle:
                connection.shut()
        self._sweep_later()
