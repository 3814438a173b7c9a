"""The listeners of one front: connection quotas, metrics, handlers' tasks, and memory that clients leave unread."""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net import server as net
from anabranch_kit.net.sockets import hung_up
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from bridges.auth.quotas import QuotaRules
from bridges.clients import Clients
from bridges.net.quotas import Quotas

if TYPE_CHECKING:
    from bridges.net.connection import Connection

T = TypeVar("T")

_BUDGET = 256 * 1024 * 1024
SHED_SECONDS = 1.0
#: Connections, from the longest silent on, that are searched for an idle one when a new one finds all places taken.
_LOOKED_AT = 64


class Limits(net.Limits, frozen=True):
    """Bounds of a front; bytes and seconds. Defaults are Kafka's where it has the setting."""

    #: Largest request (socket.request.max.bytes).
    frame_bytes: int = 100 * 1024 * 1024
    #: A request must be complete this long after its first byte: it holds memory that others wait for.
    receive_seconds: float = 120.0


class Observer(Protocol):
    """Hooks for metrics; all are called on the event loop and must not raise."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self) -> None: ...


class Server(net.Server["Connection"]):
    """All listeners of one front. A subclass makes each :meth:`connection`.

    Use: ``await listen(...)`` for each listener, then :meth:`drain` and :meth:`close`. ``budget`` bounds the memory of
    all connections, ``clients`` has them by name; by default the server has its own. ``name`` is the front's.
    """

    limits: Limits

    def __init__(
        self,
        name: str,
        limits: Limits,
        observer: Observer,
        budget: MemoryBudget | None = None,
        barrier: Barrier | None = None,
        quotas: Quotas | None = None,
        clients: Clients | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        barrier = barrier or Barrier()
        super().__init__(limits, budget or MemoryBudget(_BUDGET, loop.call_soon), barrier)
        self.name = name
        self.clients = Clients(self.budget) if clients is None else clients
        self.quotas = quotas or Quotas(QuotaRules(), 1, self.barrier)
        self.observer = observer
        self.tasks = TaskSet()
        self._executor: ThreadPoolExecutor | None = None
        self.next_id = 0
        self.sweep_later()
        self._shedder = self.loop.call_later(SHED_SECONDS, self._shed)

    @property
    def sweep_seconds(self) -> float:
        return min(60.0, self.limits.idle_seconds / 4, self.limits.receive_seconds / 4)

    @abstractmethod
    def connection(self, listener: str, advertised: tuple[str, int] | None) -> Connection:
        """Return the protocol object for a client that connects to a listener."""

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        advertised: tuple[str, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[str, int]:
        """Open a listener, and return the bound host and port. Raises OSError.

        ``advertised`` is the address that clients of this listener are told to connect to. By default it is each
        connection's local address, which is right where no address translation lies between.
        """
        return await self._open(lambda: self.connection(name, advertised), host, port, tls)

    def admit(self, connection: Connection) -> bool:
        if (self.quotas.connection.in_force and not self._within_rate(connection.peer[0])) or not super().admit(
            connection
        ):
            self.observer.connection_refused()
            return False
        self.next_id += 1
        connection.id = self.next_id
        self.observer.connection_opened()
        return True

    def _within_rate(self, host: str) -> bool:
        """Return whether one more connection of an address is within its quota; if so, count it."""
        bucket = self.quotas.connection.bucket_at(host)
        if bucket is not None and bucket.is_blocked:
            return False
        if bucket is not None:
            bucket.take(1)
        return True

    def _make_room(self) -> bool:
        """Close the idle connection that has been silent for longest: its client reconnects when it needs to."""
        for connection in islice(self.connections, _LOOKED_AT):
            if connection.idle:
                self.observer.connection_refused()
                self.forget(connection)
                connection.abort()
                return True
        return False

    def forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.observer.connection_closed()
        super().forget(connection)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a handler's coroutine; the task is kept until it ends."""
        self.tasks.spawn(coroutine)

    async def off_loop(self, work: Callable[..., T], *args: Any) -> T:
        """Run ``work`` in a thread, one call at a time: for work whose size a client chose."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{self.name}-long")
        return await self.loop.run_in_executor(self._executor, work, *args)

    async def drain(self) -> None:
        """Accept no more connections and requests; return when the requests in progress are answered."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.drain()
        await self._empty()

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Close all connections. Handlers get ``grace_seconds`` to end before they are cancelled."""
        self._stop_listening()
        self._stop_sweeping()
        self._shedder.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self.tasks.drain()
        await self.tasks.close()
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

    def _shed(self) -> None:
        """While memory is short, free what clients do not read. Called every second."""
        self._shedder = self.loop.call_later(SHED_SECONDS, self._shed)
        if self.budget.scarce or self.budget.waiting:
            since = monotonic() - SHED_SECONDS
            for connection in self.connections:
                connection.shed(since)
        self._notice_ends()

    def _notice_ends(self) -> None:
        """Tell paused connections that their client has hung up.

        They are not read because many requests wait, so the end of the stream would be seen only behind these.
        """
        unread = {number: one for one in self.connections if (number := one.unread_socket) >= 0}
        for number in hung_up(unread) if unread else ():
            unread[number].hung_up()
