"""Serves an aiohttp application to strangers: bounded in connections and in how long one may hold one for nothing.

aiohttp itself takes every connection and waits for ever for the first request's end. Each connection holds a file
descriptor, of which the other listeners of the process need some, too.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from bridges.net.address import Address
from bridges.net.tls import HANDSHAKE_SECONDS
from sbp_back.transport.tls_memory import bound_tls_memory

_SHUTDOWN_S = 2.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _PeersFault(logging.Filter):
    """What is no HTTP, or a peer that does not stay for the answer: for those who debug, in a line, no traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | ConnectionError):
            logger.debug("%s: %s", record.getMessage(), str(error).partition("\n")[0])
            return False
        return True


logger = logging.getLogger(__name__)
_server_logger = logging.getLogger(f"{__name__}.server")
_server_logger.addFilter(_PeersFault())


class _Gated(asyncio.Protocol):
    """A connection on its way to aiohttp's handler; ``since``: when it last had no request in progress any more."""

    __slots__ = ("_handler", "_site", "since", "transport")

    def __init__(self, site: HttpSite, handler: asyncio.Protocol) -> None:
        self._site = site
        self._handler = handler
        self.since = monotonic()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("sslcontext") is not None:
            bound_tls_memory(transport)
        self._handler.connection_made(transport)
        self._site.admit(self)

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.forget(self)
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
        self._runner: web.AppRunner | None = None
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

    async def start(
        self,
        app: web.Application,
        address: Address,
        *,
        handler_cancellation: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> Address:
        """Listen and serve ``app``, which must not be running; returns the real address. Raises OSError."""
        app.middlewares.insert(0, self._request_in_progress)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_server_logger,
            handler_cancellation=handler_cancellation,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await runner.setup()
        self._runner = runner
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None, "set up above"
        self._listener = await loop.create_server(
            lambda: _Gated(self, server()),
            address.host,
            address.port,
            backlog=128,
            reuse_address=True,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
        )
        self._sweep_later(loop)
        host, port = self._listener.sockets[0].getsockname()[:2]
        return Address(str(host), int(port))

    async def stop(self) -> None:
        """Finish requests in progress for a short time, then close everything. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

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

    def _drop(self, gated: _Gated) -> None:
        self.forget(gated)
        if gated.transport is not None:
            gated.transport.abort()

    def forget(self, gated: _Gated) -> None:
        """The connection is gone."""
        if gated.transport is not None:
            self._open.pop(gated.transport, None)
        self._owing.pop(gated, None)

    @web.middleware
    async def _request_in_progress(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        gated = self._open.get(request.transport) if request.transport is not None else None
        if gated is None:
            return await handler(request)
        self._owing.pop(gated, None)
        try:
            return await handler(request)
        finally:
            gated.since = monotonic()
            if gated.transport in self._open:
                self._owing[gated] = None

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(max(self._request_s / 4, 0.01), self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_later(loop)
        oldest = monotonic() - self._request_s
        while (idle := next(iter(self._owing), None)) is not None and idle.since < oldest:
            self._drop(idle)
