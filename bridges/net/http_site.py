"""Serves an aiohttp application to strangers: bounded in connections and in how long one may hold one for nothing.

aiohttp itself takes every connection and waits for ever for the first request's end. Each connection holds a file
descriptor, of which the other listeners of the process need some, too.

The application is made, and aiohttp imported, when the first client has come: it takes a quarter of the time and of the
memory of a node's start, and many nodes are never asked anything over HTTP.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, cast

import structlog

from bridges.net.address import Address
from bridges.net.tls import HANDSHAKE_SECONDS
from sbp_back.transport.tls_memory import bound_tls_memory
from sbp_back.transport.tls_server import served
from sbp_back.transport.untie import socket_transport, untie

if TYPE_CHECKING:
    from aiohttp import web

    from bridges.net.http_running import Running

_log = structlog.get_logger("anabranch.http")


class _Gated(asyncio.Protocol):
    """A connection on its way to aiohttp's handler; ``since``: when it last had no request in progress any more."""

    __slots__ = ("_early", "_handler", "_site", "_socket", "since", "transport")

    def __init__(self, site: HttpSite) -> None:
        self._site = site
        self._handler: asyncio.Protocol | None = None
        self._early = b""
        self._socket: object = None
        self.since = monotonic()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket = socket_transport(transport)
        if transport.get_extra_info("sslcontext") is not None:
            bound_tls_memory(transport)
        self._site.admit(self)

    def serve(self, handler: asyncio.Protocol) -> None:
        """Hand over to ``handler`` from now on, with what has come already."""
        assert self.transport is not None
        self._handler = handler
        handler.connection_made(self.transport)
        early, self._early = self._early, b""
        if early:
            self.transport.resume_reading()  # first: the handler may pause it again
            handler.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            assert self.transport is not None
            self._early += data
            self.transport.pause_reading()
        else:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        if self._handler is not None:
            self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.forget(self)
        untie(self._socket)
        if self._handler is not None:
            self._handler.connection_lost(exc)


class HttpSite:
    """One HTTP listener.

    At most ``most_connections`` at the same time: a further one takes the place of the one that has gone without a
    request for longest, or is closed at once when all of them have one in progress. A connection that has no request
    in progress for ``request_seconds``, be it the first or a later one, is closed.
    """

    def __init__(self, *, most_connections: int, request_seconds: float) -> None:
        self._most = most_connections
        self._request_s = request_seconds
        self._make: Callable[[], Awaitable[web.Application]] | None = None
        self._cancelling = False
        self._opening: asyncio.Task[None] | None = None
        self._running: Running | None = None
        self._listener: asyncio.Server | None = None
        self._open: dict[asyncio.Transport, _Gated] = {}
        # Those without a request in progress, the one that has gone without for longest first.
        self._owing: dict[_Gated, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self.refused = 0

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def is_running(self) -> bool:
        """Whether the application has been made."""
        return self._running is not None

    async def start(
        self,
        make: Callable[[], Awaitable[web.Application]],
        address: Address,
        *,
        handler_cancellation: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> Address:
        """Listen; returns the real address. Raises OSError.

        ``make`` makes the application, when the first client has come or :meth:`open` is called. If it raises, that is
        logged, those who have come are sent away, and it is asked again for the next one.
        """
        self._make, self._cancelling = make, handler_cancellation
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            served(lambda: _Gated(self), tls, HANDSHAKE_SECONDS),
            address.host,
            address.port,
            backlog=128,
            reuse_address=True,
        )
        self._sweep_later(loop)
        host, port = self._listener.sockets[0].getsockname()[:2]
        return Address(str(host), int(port))

    async def open(self) -> None:
        """Make the application now, unless it is there. Raises what that raises."""
        if self._running is None:
            await asyncio.shield(self._opening or self._begin())

    def _begin(self) -> asyncio.Task[None]:
        self._opening = task = asyncio.create_task(self._run())
        task.add_done_callback(self._begun)
        return task

    async def _run(self) -> None:
        assert self._make is not None, "started before"
        # In a thread: others are served meanwhile.
        running = await asyncio.to_thread(import_module, "bridges.net.http_running")
        app = await self._make()
        self._running = await running.run(app, self.request_begins, self.request_ends, self._cancelling)
        for gated in list(self._open.values()):
            self._serve(gated)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an HTTP listener cannot serve", exc_info=error)
            for gated in list(self._open.values()):
                self._drop(gated)

    async def stop(self) -> None:
        """Finish requests in progress for a short time, then close everything. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._opening is not None:
            await asyncio.wait({self._opening})  # what it has begun can be ended then
        running, self._running = self._running, None
        if running is not None:
            await running.stop()
        for gated in list(self._open.values()):
            self._drop(gated)

    def admit(self, gated: _Gated) -> None:
        """Count a new connection, and close one when there are too many."""
        assert gated.transport is not None
        if len(self._open) >= self._most:
            self.refused += 1
            idle = next(iter(self._owing), None)
            if idle is None:
                gated.transport.abort()
                return
            self._drop(idle)
        self._open[gated.transport] = gated
        self._owing[gated] = None
        if self._running is not None:
            self._serve(gated)
        elif self._opening is None:
            self._begin()

    def _serve(self, gated: _Gated) -> None:
        assert self._running is not None
        gated.serve(self._running.protocol())

    def _drop(self, gated: _Gated) -> None:
        self.forget(gated)
        if gated.transport is not None:
            gated.transport.abort()

    def forget(self, gated: _Gated) -> None:
        """The connection is gone."""
        if gated.transport is not None:
            self._open.pop(gated.transport, None)
        self._owing.pop(gated, None)

    def request_begins(self, transport: asyncio.Transport) -> None:
        """For the application: a request of the connection is in progress."""
        gated = self._open.get(transport)
        if gated is not None:
            self._owing.pop(gated, None)

    def request_ends(self, transport: asyncio.Transport) -> None:
        """For the application: it is no more."""
        gated = self._open.get(transport)
        if gated is not None:
            gated.since = monotonic()
            self._owing[gated] = None

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(max(self._request_s / 4, 0.01), self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_later(loop)
        oldest = monotonic() - self._request_s
        while (idle := next(iter(self._owing), None)) is not None and idle.since < oldest:
            self._drop(idle)
