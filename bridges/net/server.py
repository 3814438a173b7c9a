"""Listening sockets and what their connections share: limits, the memory budget, admission, the idle sweep."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from msgspec import Struct

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.framing import ReceiveBuffer
from anabranch_kit.net.listening import listen
from anabranch_kit.net.outbox import Turns
from anabranch_kit.net.sockets import hung_up
from anabranch_kit.net.tls import HANDSHAKE_SECONDS
from anabranch_kit.net.tls_server import served
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.cycle import cycle_of
from anabranch_kit.run.task_set import TaskSet
from bridges.auth.quotas import QuotaRules
from bridges.net.quotas import Quotas

if TYPE_CHECKING:
    from bridges.net.connection import Connection

log = structlog.get_logger(__name__)

T = TypeVar("T")

_BUDGET = 256 * 1024 * 1024
_SHED_SECONDS = 1.0
#: Connections that are looked at for an idle one, from the longest silent on, when a new one finds all places taken.
_LOOKED_AT = 64


class Limits(Struct, frozen=True):
    """Bounds of a front; bytes and seconds. Defaults are Kafka's where it has the setting."""

    #: Largest request (socket.request.max.bytes).
    frame_bytes: int = 100 * 1024 * 1024
    #: Bytes of unanswered requests of one connection above which it is not read; all connections share the budget.
    connection_bytes: int = 64 * 1024 * 1024
    #: Unsent bytes of responses above which a connection's next request waits.
    write_buffer_bytes: int = 1024 * 1024
    #: Connections with no request for this long are closed (connections.max.idle.ms).
    idle_seconds: float = 600.0
    #: A request must be complete this long after its first byte: it holds memory that others wait for.
    receive_seconds: float = 120.0
    max_connections: int = 10_000


class Observer(Protocol):
    """Hooks for metrics; all are called on the event loop and must not raise."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self) -> None: ...


class Server(ABC):
    """All listeners of one front, which says in a subclass what a :meth:`connection` is.

    Use: ``await listen(...)`` for each listener, then :meth:`drain` and :meth:`close`. ``budget`` bounds what all
    connections hold; without one the server has its own. ``name`` is the front's.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        observer: Observer,
        budget: MemoryBudget | None = None,
        barrier: Barrier | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.name = name
        self.barrier = barrier or Barrier()
        self.quotas = quotas or Quotas(QuotaRules(), 1, self.barrier)
        self.limits = limits
        self.observer = observer
        self.loop = asyncio.get_running_loop()
        self.cycle = cycle_of(self.loop)
        self.budget = budget or MemoryBudget(_BUDGET, self.loop.call_soon)
        self.turns = Turns(self.loop, self.barrier)
        self.receive_buffer = ReceiveBuffer()
        #: In the order of their last activity, the one that has been silent for longest first.
        self.connections: OrderedDict[Connection, None] = OrderedDict()
        self._servers: list[asyncio.Server] = []
        self._tasks = TaskSet()
        self._executor: ThreadPoolExecutor | None = None
        self._next_id = 0
        self._closed = False
        self._emptied: asyncio.Event | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_later()
        self._shedder = self.loop.call_later(_SHED_SECONDS, self._shed)

    @abstractmethod
    def connection(self, listener: str, advertised: tuple[str, int] | None) -> Connection:
        """What serves a client that came to a listener."""

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        advertised: tuple[str, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[str, int]:
        """Open a listener; gives the bound host and port. Raises OSError.

        ``advertised`` is what clients of this listener are told to connect to; without it, each connection's own
        local address, which is right wherever no address translation lies between.
        """
        server = await listen(served(lambda: self.connection(name, advertised), tls, HANDSHAKE_SECONDS), host, port)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def admit(self, connection: Connection) -> bool:
        """Take a new connection. When there are too many it takes the place of an idle one, if there is any."""
        full = len(self.connections) >= self.limits.max_connections
        if self._closed or (full and not self._make_room()):
            self.observer.connection_refused()
            log.warning("connection refused", peer="{}:{}".format(*connection.peer), connections=len(self.connections))
            return False
        if self.quotas.connection.in_force and not self._within_rate(connection.peer[0]):
            self.observer.connection_refused()
            return False
        self._next_id += 1
        connection.id = self._next_id
        self.connections[connection] = None
        self.observer.connection_opened()
        return True

    def _within_rate(self, host: str) -> bool:
        """Whether one more connection of an address is within its quota: it counts if so."""
        bucket = self.quotas.connection.bucket_at(host)
        if bucket is not None and bucket.is_blocked:
            return False
        if bucket is not None:
            bucket.take(1)
        return True

    def _make_room(self) -> bool:
        """Close the idle connection that has been silent for longest: whoever holds it comes back when it needs one."""
        for connection in islice(self.connections, _LOOKED_AT):
            if connection.idle:
                self.observer.connection_refused()
                self.forget(connection)
                connection.abort()
                return True
        return False

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection in self.connections:
            del self.connections[connection]
            self.observer.connection_closed()
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def touched(self, connection: Connection) -> None:
        """Something came in on the connection."""
        if connection in self.connections:
            self.connections.move_to_end(connection)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a handler's coroutine; the task is kept until it ends."""
        self._tasks.spawn(coroutine)

    async def off_loop(self, work: Callable[..., T], *args: Any) -> T:
        """Do work whose size a client chose in a thread, one such work after the other."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self.name}-long")
        return await self.loop.run_in_executor(self._executor, work, *args)

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
        self._shedder.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._tasks.drain()
        await self._tasks.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        for connection in list(self.connections):
            connection.shut()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._empty()
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
        self._sweep_later()
        now = monotonic()
        oldest, slowest = now - self.limits.idle_seconds, now - self.limits.receive_seconds
        for connection in list(self.connections):
            if connection.receiving_since < slowest:
                connection.close("a request was not complete in time")
            elif connection.stalled_since < oldest:
                connection.abort()
            elif connection.last_active < oldest and connection.idle:
                connection.shut()

    def _shed(self) -> None:
        """While others need memory, nobody keeps what its client does not take."""
        self._shedder = self.loop.call_later(_SHED_SECONDS, self._shed)
        if self.budget.scarce or self.budget.waiting:
            since = monotonic() - _SHED_SECONDS
            for connection in self.connections:
                connection.shed(since)
        self._notice_ends()

    def _notice_ends(self) -> None:
        """Of connections that are not read, since much of them waits, the end would be seen behind all that."""
        unread = {number: one for one in self.connections if (number := one.unread_socket) >= 0}
        for number in hung_up(unread) if unread else ():
            unread[number].hung_up()
