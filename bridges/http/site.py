"""A bounded HTTP server around an aiohttp application: limits connections and how long an idle client may keep one.

aiohttp itself accepts every connection, and waits without limit for the end of a request, including its body, and for a
client to read its answer. Each connection holds a file descriptor, and the other listeners of the process need
descriptors too.

The application is made, and aiohttp imported, when the first client connects: this takes a quarter of the time and of
the memory of a node's start, and many nodes never get an HTTP request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from importlib import import_module
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import structlog

from anabranch_kit.net.address import Address
from anabranch_kit.net.listening import listen
from anabranch_kit.net.tls_memory import bound_tls_memory
from anabranch_kit.net.tls_server import served
from anabranch_kit.net.untie import socket_transport, untie

if TYPE_CHECKING:
    from aiohttp import StreamReader, web

    from bridges.http.own_names import OwnNames
    from bridges.http.running import Running
    from bridges.net.server import Observer

_log = structlog.get_logger("anabranch.http")


HEALTH = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths for monitoring the process."""

_KEPT_PLACES = 16
"""Connections reserved for the paths that are answered under any load."""
_RECEIVED_AT_ONCE = 64 * 1024
"""Bytes received at once per connection. asyncio receives four times as much by default, before a reader asks
for it.
"""
_LOOKED_AT = 16
"""Connections that are examined for one to close, when a new one arrives and all places are taken."""


class BodyStalled(ConnectionError):
    """The client has stopped sending its body.

    A :class:`ConnectionError`, so that the connection ends with the answer, if that can be sent.
    """


class _Gated(asyncio.Protocol):
    """A connection whose data passes through to aiohttp's handler.

    ``since``: when the client last made progress with what it owes: a request, the rest of a body (``body``), or
    reading its answer (``unsent`` bytes are left). ``busy``: a request is in progress. ``extra``: it came when all
    places were taken. ``told``: the body's reader has got :class:`BodyStalled`.
    """

    __slots__ = (
        "_early",
        "_handler",
        "_site",
        "_socket",
        "body",
        "busy",
        "extra",
        "listener",
        "names",
        "since",
        "told",
        "transport",
        "unsent",
    )

    def __init__(self, site: HttpSite, listener: str, names: OwnNames) -> None:
        self._site = site
        self.listener = listener
        self.names = names
        self._handler: asyncio.Protocol | None = None
        self._early = b""
        self._socket: object = None
        self.since = monotonic()
        self.transport: asyncio.Transport | None = None
        self.body: StreamReader | None = None
        self.unsent = 0
        self.busy = False
        self.extra = False
        self.told = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket = socket_transport(transport)
        cast(Any, self._socket).max_size = _RECEIVED_AT_ONCE
        if transport.get_extra_info("sslcontext") is not None:
            bound_tls_memory(transport)
        self._site.admit(self)

    def serve(self, handler: asyncio.Protocol) -> None:
        """Pass data to ``handler`` from now on, with the data received so far."""
        assert self.transport is not None
        self._handler = handler
        handler.connection_made(self.transport)
        early, self._early = self._early, b""
        if early:
            self.transport.resume_reading()  # before the handler gets data: it may pause reading again
            handler.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            assert self.transport is not None
            self._early += data
            self.transport.pause_reading()
        else:
            if self.body is not None:
                self._site.moved(self)
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        if self._handler is not None:
            self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()
        assert self.transport is not None
        self.unsent = self.transport.get_write_buffer_size()
        self._site.moved(self)

    def resume_writing(self) -> None:
        self.unsent = 0
        self._site.moved(self)
        if self._handler is not None:
            self._handler.resume_writing()

    @property
    def owes(self) -> bool:
        """Return whether the connection waits for its client."""
        return not self.busy or self.body is not None or self.unsent > 0

    def has_moved(self) -> bool:
        """Return whether the client has read more since the last call, or reading of its body is paused on this
        side.
        """
        transport, before = self.transport, self.unsent
        assert transport is not None
        if transport.is_closing():
            return False
        if before:
            self.unsent = max(1, transport.get_write_buffer_size())
        return self.unsent < before or (self.body is not None and not transport.is_reading())

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.forget(self)
        untie(self._socket)
        if self._handler is not None:
            self._handler.connection_lost(exc)


class HttpSite:
    """One application, at one or several HTTP listeners.

    At most ``most_connections`` are open at a time. A further one replaces the connection that has waited longest for
    its client: for a request, the rest of a body, or reading its answer. A connection that waits so for
    ``request_seconds`` without progress is closed. Only requests for one of the listener's names are answered.

    When no connection waits for its client, a few extra ones are accepted. They are answered if they ask for one of the
    paths in ``kept``, and otherwise with status 503. Without ``kept`` they are closed at once.
    """

    def __init__(
        self, *, most_connections: int, request_seconds: float, observer: Observer, kept: Collection[str] = ()
    ) -> None:
        self._most = most_connections
        self._observer = observer
        self._kept = kept
        self._request_s = request_seconds
        self._make: Callable[[], Awaitable[web.Application]] | None = None
        self._cancelling = False
        self._opening: asyncio.Task[None] | None = None
        self._running: Running | None = None
        self._listeners: list[asyncio.Server] = []
        self._open: dict[asyncio.Transport, _Gated] = {}
        # Connections that wait for their client, the one without progress for longest first.
        self._owing: dict[_Gated, None] = {}
        self._extra: set[_Gated] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    @property
    def waited_for(self) -> Collection[_Gated]:
        """The connections that wait for their client, the one without progress for longest first (a live view)."""
        return self._owing.keys()

    @property
    def is_running(self) -> bool:
        """Return whether the application has been made."""
        return self._running is not None

    def serve(self, make: Callable[[], Awaitable[web.Application]], *, handler_cancellation: bool = False) -> None:
        """Have ``make`` make the application when the first client connects or :meth:`open` is called.

        If it raises, the error is logged, all clients are disconnected, and ``make`` is called again for the next
        client.
        """
        self._make, self._cancelling = make, handler_cancellation
        self._sweep_later(asyncio.get_running_loop())

    async def listen(self, name: str, address: Address, names: OwnNames, tls: ssl.SSLContext | None = None) -> Address:
        """Listen at an address, after :meth:`serve`, and return the bound address. Raises OSError.

        ``name`` identifies the listener in :meth:`listener_of`; requests must be for one of ``names``.
        """
        gated = served(lambda: _Gated(self, name, names), tls)
        listener = await listen(gated, address.host, address.port)
        self._listeners.append(listener)
        host, port = listener.sockets[0].getsockname()[:2]
        return Address(str(host), int(port))

    def listener_of(self, request: web.Request) -> str:
        """Return the name of the listener on which a request arrived; empty once its connection has ended."""
        gated = self._gated(request)
        return "" if gated is None else gated.listener

    def refusal(self, request: web.Request) -> str | None:
        """Return why the listener must not answer a request, None if it may. Called by the application."""
        gated = self._gated(request)
        return "the connection has ended" if gated is None else gated.names.refusal(request)

    def _gated(self, request: web.Request) -> _Gated | None:
        return None if request.transport is None else self._open.get(request.transport)

    async def open(self) -> None:
        """Make the application now, unless it exists. Raises what making it raises."""
        if self._running is None:
            await asyncio.shield(self._opening or self._begin())

    def _begin(self) -> asyncio.Task[None]:
        self._opening = task = asyncio.create_task(self._run())
        task.add_done_callback(self._begun)
        return task

    async def _run(self) -> None:
        assert self._make is not None, "started before"
        # In a thread, so that the event loop serves other clients meanwhile.
        running = await asyncio.to_thread(import_module, "bridges.http.running")
        app = await self._make()
        self._running = await running.run(app, self.refusal, self.request_begins, self.request_ends, self._cancelling)
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
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._opening is not None:
            await asyncio.wait({self._opening})  # wait, so that what it has begun can be stopped
        running, self._running = self._running, None
        if running is not None:
            await running.stop()
        for gated in list(self._open.values()):
            self._drop(gated)

    def admit(self, gated: _Gated) -> None:
        """Count a new connection, and close one if there are too many."""
        assert gated.transport is not None
        if len(self._open) - len(self._extra) >= self._most and not self._make_room():
            self._observer.connection_refused()
            if not self._kept or (len(self._extra) >= _KEPT_PLACES and not self._make_room(extra=True)):
                gated.transport.abort()
                return
            gated.extra = True
            self._extra.add(gated)
        self._open[gated.transport] = gated
        self._observer.connection_opened()
        self._owing[gated] = None
        if self._running is not None:
            self._serve(gated)
        elif self._opening is None:
            self._begin()

    def _make_room(self, *, extra: bool = False) -> bool:
        """Close the connection that has waited longest for its client; return False if none waits."""
        for gated in [*islice((one for one in self._owing if one.extra is extra), _LOOKED_AT)]:
            if not gated.has_moved():
                self._drop(gated)
                if not extra:
                    self._observer.connection_refused()
                return True
            self._wait_for(gated)
        return False

    def _serve(self, gated: _Gated) -> None:
        assert self._running is not None
        gated.serve(self._running.protocol())

    def _drop(self, gated: _Gated) -> None:
        self.forget(gated)
        if gated.transport is not None:
            gated.transport.abort()

    def forget(self, gated: _Gated) -> None:
        if gated.transport is not None and self._open.pop(gated.transport, None) is not None:
            self._observer.connection_closed()
        self._owing.pop(gated, None)
        self._extra.discard(gated)

    def request_begins(self, transport: asyncio.Transport, request: web.Request) -> bool:
        """Note that a request of the connection begins; return False if there is no room for it. Called by the
        application.
        """
        gated = self._open.get(transport)
        if gated is None:
            return True
        gated.busy, gated.told = True, False
        if gated.extra and len(self._open) - len(self._extra) < self._most:
            gated.extra = False
            self._extra.discard(gated)
        if not request.content.is_eof():
            gated.body = request.content
            request.content.on_eof(partial(self._body_ends, gated, request.content))
        self.moved(gated)
        return not gated.extra or request.path in self._kept

    def _body_ends(self, gated: _Gated, body: StreamReader) -> None:
        if gated.body is body:
            gated.body = None
            self.moved(gated)

    def moved(self, gated: _Gated) -> None:
        """Note that the client of a request in progress has made progress."""
        if gated.busy and gated.transport in self._open:
            if gated.owes:
                self._wait_for(gated)
            else:
                self._owing.pop(gated, None)

    def request_ends(self, transport: asyncio.Transport) -> None:
        """Note that a request of the connection has ended. Called by the application."""
        gated = self._open.get(transport)
        if gated is not None:
            gated.busy, gated.body = False, None
            self._wait_for(gated)

    def _wait_for(self, gated: _Gated) -> None:
        gated.since = monotonic()
        self._owing.pop(gated, None)
        self._owing[gated] = None

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(max(self._request_s / 4, 0.01), self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_later(loop)
        oldest = monotonic() - self._request_s
        while (idle := next(iter(self._owing), None)) is not None and idle.since < oldest:
            if idle.has_moved():
                self._wait_for(idle)
            elif idle.body is not None and not idle.told:
                # The body's reader can still answer. If it does not, the next sweep closes the connection.
                idle.told = True
                idle.body.set_exception(BodyStalled(f"nothing of the body came for {self._request_s:g} s"))
                self._wait_for(idle)
            else:
                self._drop(idle)
