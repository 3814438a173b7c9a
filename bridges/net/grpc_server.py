"""A gRPC server for fronts whose protocols are gRPC services: listeners, calls, streams, memory, shutdown.

Handlers get and return bytes. The front parses them itself, because the cost of parsing depends on the client. Every
handler runs inside a barrier. gRPC's C library implements HTTP/2 and TLS.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import grpc
from msgspec import Struct

from anabranch_kit.memory.budget import Kind
from anabranch_kit.net.tls import HANDSHAKE_SECONDS, ListenerTls, Pem
from bridges.net.call_turns import CallTurns
from bridges.net.grpc_events import take_all_wakenings
from bridges.net.grpc_received import ReceivedMemory, peer_of

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account, MemoryBudget
    from anabranch_kit.run.barrier import Barrier

Code = grpc.StatusCode
_FEW_BYTES = 64 * 1024
"""Requests and answers up to this size are never refused: their number is bounded by that of calls."""

_TOLD_SECONDS = 5.0
"""Seconds to wait until the final status of a call has been sent."""


class GrpcRefusal(Exception):
    """The call ends with a gRPC status, for errors that the protocol above gRPC cannot express."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class GrpcLimits(Struct, frozen=True):
    """Bounds of a server.

    ``message_bytes``: largest message. Per listener: ``streams``, calls and streams at a time;
    ``streams_per_connection``, the same per connection; ``connections``, beyond which a new connection is closed at
    once.
    """

    message_bytes: int
    streams: int
    streams_per_connection: int
    idle_seconds: float
    """A connection is closed after this time without a call."""
    connections: int = 10_000


class Calls(Protocol):
    """Metrics of the calls of one method."""

    def done(self, seconds: float, received: int, sent: int) -> None: ...
    def failed(self, error: str) -> None: ...


class Observer(Protocol):
    """Hooks for a front's metrics; a stream counts as a connection."""

    def connection_opened(self) -> None: ...
    def connection_closed(self) -> None: ...
    def kind(self, name: str) -> Calls: ...


class GrpcCall:
    """One call: its metadata and the memory that it holds, without its messages."""

    __slots__ = (
        "_certificate_name",
        "_connection",
        "_context",
        "_host",
        "_metadata",
        "_task",
        "account",
        "listener",
        "method",
    )

    def __init__(
        self, context: Any, method: str, listener: str, budget: MemoryBudget, received: ReceivedMemory
    ) -> None:
        self._context = context
        self.listener = listener
        """Name of the listener on which the call arrived."""
        self._task = asyncio.current_task()
        self._metadata: dict[str, str] | None = None
        self._certificate_name: str | None = None
        self._host: str | None = None
        self._connection = received.find_connection(context.peer())
        self._connection.note_call(sum(len(key) + len(value) for key, value in context.invocation_metadata() or ()))
        self.method = method
        self.account: Account = budget.account(self._on_room())

    def _on_room(self) -> Callable[[], None]:
        """Return the callback for when the budget has room. A unary call never waits for that."""
        return _nothing

    def header(self, name: str) -> str:
        """Return the metadata value ``name`` (lower case), empty if the client has sent none."""
        return self.headers.get(name, "")

    def replace_header(self, name: str, value: str) -> None:
        """Set a metadata value, for protocols in which a message may replace it."""
        self._headers()[name] = value

    @property
    def headers(self) -> Mapping[str, str]:
        """The client's metadata, by lower-case names."""
        return self._headers()

    def _headers(self) -> dict[str, str]:
        if self._metadata is None:
            pairs = self._context.invocation_metadata() or ()
            self._metadata = {key: value for key, value in pairs if isinstance(value, str)}
        return self._metadata

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Hold ``size`` bytes of the request, or of what is decoded from it, while inside.

        Raises GrpcRefusal (UNAVAILABLE) for a large size without room: clients retry, and a waiting call would hold its
        bytes meanwhile.
        """
        if size <= _FEW_BYTES:
            self.account.take(Kind.REQUESTS, size)
        elif not self.account.admit(Kind.REQUESTS, size):
            raise GrpcRefusal(Code.UNAVAILABLE, "memory is short")
        try:
            yield
        finally:
            self.account.give(Kind.REQUESTS, size)

    def admits(self, size: int) -> bool:
        """Return whether the call may hold ``size`` more bytes for its answer.

        They are counted until gRPC has sent the answer, or the client has gone.
        """
        if size <= _FEW_BYTES:
            self.account.take(Kind.RESPONSES, size)
        elif not self.account.admit(Kind.RESPONSES, size):
            return False
        # gRPC's task of the call ends when the answer is sent. A callback on the context would form a reference cycle
        # with it: both would stay until the garbage collector runs.
        assert self._task is not None
        account = self.account
        self._task.add_done_callback(lambda _: account.give(Kind.RESPONSES, size))
        return True

    @property
    def certificate_name(self) -> str:
        """The last common name in the client's certificate.

        Empty if the client has presented none, or none that the listener's authority has signed.
        """
        if self._certificate_name is None:  # it does not change, and asking for it is slow
            names = self._context.auth_context().get("x509_common_name", ())
            self._certificate_name = str(names[-1], "utf-8", "replace") if names else ""
        return self._certificate_name

    @property
    def peer(self) -> str:
        """The client's address and port, as gRPC writes them: ``ipv4:127.0.0.1:50123``."""
        return str(self._context.peer())

    @property
    def address(self) -> tuple[str, int]:
        """The client's address and port; port 0: it is connected to another node."""
        return self.host, peer_of(self.peer)[1]

    @property
    def host(self) -> str:
        """The client's address."""
        if self._host is None:
            _, _, place = unquote(self.peer).partition(":")
            self._host = place.rpartition(":")[0]
        return self._host


class GrpcStream(GrpcCall):
    """A stream in both directions. One task reads and one writes; both may be the same."""

    __slots__ = ("_on_drain", "_unread", "_waiting", "draining", "received", "sent")

    def __init__(
        self, context: Any, method: str, listener: str, budget: MemoryBudget, received: ReceivedMemory
    ) -> None:
        super().__init__(context, method, listener, budget, received)
        self._waiting: asyncio.Future[None] | None = None
        self._on_drain: Callable[[], None] | None = None
        self._unread: bytes | None = None
        self.draining = False
        """The node is stopping: handlers must begin nothing new."""
        self.received = 0
        self.sent = 0

    def _on_room(self) -> Callable[[], None]:
        return self._go_on

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def read(self) -> bytes | None:
        """Return the next message, None after the client's last one.

        The message counts in the account as a request until the caller gives its bytes back. While the node is short of
        memory, no message is read. What gRPC receives meanwhile is bounded by HTTP/2's windows, and is counted
        (:mod:`bridges.net.grpc_received`), as are the bytes of an incomplete next message.
        """
        if self._unread is not None:
            unread, self._unread = self._unread, None
            return unread
        while self.account.crowded:
            self._waiting = asyncio.get_running_loop().create_future()
            self.account.wait()
            await self._waiting
        raw = await self._context.read()
        if raw is grpc.aio.EOF:
            return None
        size = len(raw)
        self.account.take(Kind.REQUESTS, size)
        self._connection.took(size)
        self.received += size
        message: bytes = raw
        return message

    async def await_gone(self) -> None:
        """Wait until the client has gone, in a stream that takes no more messages. gRPC cancels the stream's task
        then."""
        await asyncio.get_running_loop().create_future()

    def unread(self, raw: bytes) -> None:
        """Have :meth:`read` return this message again; its bytes are still counted."""
        self._unread = raw

    async def write(self, raw: bytes) -> None:
        """Send a message. Return when gRPC has taken it, which happens as fast as the client reads.

        Raises CancelledError when the client has gone.
        """
        self.sent += len(raw)
        size = 2 * len(raw)  # gRPC copies it
        self.account.take(Kind.RESPONSES, size)
        try:
            await self._context.write(raw)
            self._connection.note_sent()
        except grpc.aio.InternalError as error:
            # gRPC sends no more because the client has gone; it also cancels the task that serves the stream.
            raise asyncio.CancelledError from error
        finally:
            self.account.give(Kind.RESPONSES, size)

    def when_draining(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the node begins to stop; at once if it has."""
        self._on_drain = callback
        if self.draining:
            callback()

    def drain(self) -> None:
        """Called by the server when the node begins to stop."""
        self.draining = True
        if self._on_drain is not None:
            self._on_drain()

    def close(self) -> None:
        """Called by the server when the stream has ended; drops the reference to its handler."""
        self._on_drain = None
        self.account.close()


Unary = Callable[[bytes, GrpcCall], Awaitable[bytes]]
"""Handler of a unary call. Raises GrpcRefusal."""
Streaming = Callable[[GrpcStream], Awaitable[None]]
"""Handler of a stream, which runs until the stream ends. Raises GrpcRefusal."""


class GrpcServer:
    """Listeners, and the handlers that serve their clients. Use on the event loop."""

    def __init__(self, limits: GrpcLimits, observer: Observer, budget: MemoryBudget, barrier: Barrier) -> None:
        self._limits = limits
        self._observer = observer
        self._budget = budget
        self._barrier = barrier
        # One server per listener: gRPC does not report on which port a call arrived.
        self._servers: list[grpc.aio.Server] = []
        self._services: dict[str, dict[str, Callable[[str], grpc.RpcMethodHandler]]] = {}
        self.received = ReceivedMemory(budget, barrier)
        """Memory of incomplete messages."""
        self._turns = CallTurns(asyncio.get_running_loop(), barrier)
        self._watching: asyncio.Task[None] | None = None
        self.streams: set[GrpcStream] = set()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def add_call(self, service: str, method: str, handler: Unary) -> None:
        """Have ``handler`` answer the calls of a method."""

        def serve(listener: str) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(partial(self._answer, handler, method, listener))

        self._services.setdefault(service, {})[method] = serve

    def add_stream(self, service: str, method: str, handler: Streaming) -> None:

        def serve(listener: str) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, handler, method, listener))

        self._services.setdefault(service, {})[method] = serve

    async def start(self, listen: Mapping[str, tuple[str, int, ssl.SSLContext | None]]) -> dict[str, int]:
        """Listen on (host, port, TLS) of each listener, by name, and return the ports. Raises OSError if a port is
        taken.

        Methods without a handler are answered with UNIMPLEMENTED.
        """
        ports: dict[str, int] = {}
        for listener, (host, port, tls) in listen.items():
            server = grpc.aio.server(options=options(self._limits), maximum_concurrent_rpcs=self._limits.streams)
            self._add_handlers(server, listener)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            try:
                if tls is None:
                    ports[listener] = server.add_insecure_port(address)
                else:
                    ports[listener] = server.add_secure_port(address, credentials(tls))
            except RuntimeError as error:
                raise OSError(f"cannot listen on {address}: {error}") from None
            await server.start()
            self._servers.append(server)
        take_all_wakenings(asyncio.get_running_loop())
        self._watching = asyncio.create_task(self.received.watch(ports.values()))
        return ports

    def _add_handlers(self, server: grpc.aio.Server, listener: str) -> None:
        for name, methods in self._services.items():
            handlers = {method: serve(listener) for method, serve in methods.items()}
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
            # gRPC takes calls one per turn of the event loop, from an unbounded queue. Registered handlers give each
            # method its own queue, so that calls of one method do not wait behind those of others.
            server.add_registered_method_handlers(name, handlers)

    async def drain(self) -> None:
        """Refuse new calls, tell streams that the node is stopping, and return when all calls and streams have
        ended.
        """
        self._draining = True
        for stream in list(self.streams):
            self._barrier.call("drain", stream.drain)
        await self._idle.wait()

    async def stop(self) -> None:
        """Cancel the remaining calls, and close every connection."""
        self._draining = True
        if self._watching is not None:
            await ended(self._watching)
        if self._servers:
            await asyncio.gather(*(server.stop(0) for server in self._servers))
            await self._idle.wait()

    async def _answer(self, handler: Unary, method: str, listener: str, raw: bytes, context: Any) -> bytes:
        call = GrpcCall(context, method, listener, self._budget, self.received)
        held = len(raw)
        call._connection.took(held)
        began = time.monotonic()
        self._enter()
        try:
            try:
                if self._draining:
                    raise GrpcRefusal(Code.UNAVAILABLE, "the node is stopping")
                with call.room(held):
                    await self._turns.begin(call.peer, held)
                    answer = await handler(raw, call)
                self._observer.kind(method).done(time.monotonic() - began, held, len(answer))
                return answer
            except Exception as error:  # noqa: BLE001 - logged, counted and answered
                code, message = self._failed("gRPC call", method, error)
            finally:
                call.account.close()
            # gRPC's context keeps the exception that it raises. That exception keeps this frame, and the frames of any
            # exception in progress. If one of them referred to the context, everything they refer to would stay until
            # the garbage collector runs, which happens seldom in a node.
            aborting = context.abort(code, message)
            del raw, call, context
            await _send_refusal(aborting)
        finally:
            self._leave()
        raise AssertionError("abort raises")

    async def _stream(self, handler: Streaming, method: str, listener: str, requests: object, context: Any) -> None:
        stream = GrpcStream(context, method, listener, self._budget, self.received)
        self._enter()
        self._observer.connection_opened()
        self.streams.add(stream)
        try:
            try:
                if self._draining:
                    raise GrpcRefusal(Code.UNAVAILABLE, "the node is stopping")
                await handler(stream)
                return
            except Exception as error:  # noqa: BLE001 - logged, counted and answered
                code, message = self._failed("gRPC stream", method, error)
            finally:
                self.streams.discard(stream)
                self._observer.connection_closed()
                stream.close()
            aborting = context.abort(code, message)
            del stream, requests, context  # as above
            await _send_refusal(aborting)
        finally:
            self._leave()

    def _failed(self, what: str, method: str, error: Exception) -> tuple[grpc.StatusCode, str]:
        """Report an exception of a handler, and return the status with which its call ends."""
        if isinstance(error, GrpcRefusal):
            self._observer.kind(method).failed(error.code.name)
            return error.code, str(error)
        self._barrier.caught(what, error, method=method)
        self._observer.kind(method).failed("unexpected exception")
        return Code.INTERNAL, "an unexpected error"

    def _enter(self) -> None:
        self._calls += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()


async def _send_refusal(aborting: Awaitable[None]) -> None:
    """Send the final status of a call.

    Raises the exception of ``aborting``, and CancelledError if the client is gone or takes longer than
    :data:`_TOLD_SECONDS`.
    """
    try:
        async with asyncio.timeout(_TOLD_SECONDS):
            await aborting
    except (TimeoutError, grpc.aio.InternalError):
        # gRPC sends the status when the client has read what was sent before. Nothing else waits for that.
        raise asyncio.CancelledError from None


def options(limits: GrpcLimits) -> list[tuple[str, int]]:
    """Return the channel options of a server."""
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1000)),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        # A connection that never becomes HTTP/2 does not keep its place for longer.
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        # Clients ping every ten seconds, with and without calls; by default, gRPC takes that for an attack.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # Notices a client that vanished without closing its connection.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # With SO_REUSEPORT, two nodes could share a port instead of the second being refused.
        ("grpc.so_reuseport", 0),
    ]


def _nothing() -> None:
    pass


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel ``task``, and return when it has ended; ignore its result and exception."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


def credentials(tls: ssl.SSLContext) -> Any:
    """Return server credentials for ``add_secure_port``: a new connection gets the files that the node has read last.

    gRPC either requires client certificates or requests none; ``client=optional`` therefore requests none. Raises
    TypeError for a context that the node did not make.
    """
    if not isinstance(tls, ListenerTls):
        raise TypeError("a gRPC listener's TLS is made by the node")
    given: list[Pem] = [tls.pem]

    def latest() -> Any:
        # gRPC calls this in its own thread when a connection begins; None means that nothing has changed.
        if tls.pem is given[0]:
            return None
        given[0] = tls.pem
        return _tls_configuration(given[0])

    return grpc.dynamic_ssl_server_credentials(_tls_configuration(tls.pem), latest, tls.pem.client_required)


def _tls_configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)
