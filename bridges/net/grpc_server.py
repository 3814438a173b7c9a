"""A gRPC server for fronts whose protocols are gRPC services: listeners, calls and streams, memory, the end.

Bytes come in and bytes go out: what they mean is the front's, which parses them itself, since how much work that is
depends on the client. Around every handler stands a barrier. gRPC's own C library does HTTP/2 and TLS.
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
from anabranch_kit.net.tls import HANDSHAKE_SECONDS
from bridges.net.call_turns import CallTurns
from bridges.net.grpc_events import take_all_wakenings
from bridges.net.grpc_received import ReceivedMemory
from bridges.net.grpc_tls import credentials

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account, MemoryBudget
    from anabranch_kit.run.barrier import Barrier

Code = grpc.StatusCode
_FEW_BYTES = 64 * 1024
"""Of a request, and of an answer: nobody is refused for so few, and there are as many as there may be calls."""

_TOLD_SECONDS = 5.0
"""How long it is waited for that a client is told how its call ends."""


class GrpcRefusal(Exception):
    """The call ends with a status of gRPC's own: for what the protocol above it has no words for."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class GrpcLimits(Struct, frozen=True):
    """Bounds of a server: bytes of one message; of each listener calls and streams at a time, of one connection and of
    all, and connections, of which a further one is closed as soon as it is made."""

    message_bytes: int
    streams: int
    streams_per_connection: int
    idle_seconds: float
    """A connection without a call is closed after this time."""
    connections: int = 10_000


class Calls(Protocol):
    """Is told what calls of one method cost."""

    def done(self, seconds: float, received: int, sent: int) -> None: ...
    def failed(self, error: str) -> None: ...


class Observer(Protocol):
    """Is told what happens, as a front's metrics are; a stream counts as a connection."""

    def connection_opened(self) -> None: ...
    def connection_closed(self) -> None: ...
    def kind(self, name: str) -> Calls: ...


class GrpcCall:
    """What is known of one call besides its messages, and what memory it holds."""

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
        """Name of the one that it came by."""
        self._task = asyncio.current_task()
        self._metadata: dict[str, str] | None = None
        self._certificate_name: str | None = None
        self._host: str | None = None
        self._connection = received.of(context.peer())
        self._connection.called(sum(len(key) + len(value) for key, value in context.invocation_metadata() or ()))
        self.method = method
        self.account: Account = budget.account(self._on_room())

    def _on_room(self) -> Callable[[], None]:
        """What the account calls when there is room. A call never waits for that."""
        return _nothing

    def header(self, name: str) -> str:
        """What the client says under ``name`` (small letters); empty if it says nothing."""
        return self.headers.get(name, "")

    def replace_header(self, name: str, value: str) -> None:
        """From now on the client says ``value`` under ``name``, for protocols whose messages may tell it anew."""
        self._headers()[name] = value

    @property
    def headers(self) -> Mapping[str, str]:
        """All that the client says, by names in small letters."""
        return self._headers()

    def _headers(self) -> dict[str, str]:
        if self._metadata is None:
            pairs = self._context.invocation_metadata() or ()
            self._metadata = {key: value for key, value in pairs if isinstance(value, str)}
        return self._metadata

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Hold so many bytes of the request, or of what is made of it, in here. Raises GrpcRefusal (UNAVAILABLE) if
        they are many and there is no room: clients come back, and whoever waited would hold them meanwhile."""
        if size <= _FEW_BYTES:
            self.account.take(Kind.REQUESTS, size)
        elif not self.account.admit(Kind.REQUESTS, size):
            raise GrpcRefusal(Code.UNAVAILABLE, "memory is short")
        try:
            yield
        finally:
            self.account.give(Kind.REQUESTS, size)

    def admits(self, size: int) -> bool:
        """Whether the call may hold so many bytes more for its answer. They are counted until gRPC has sent that, or
        the client has gone."""
        if size <= _FEW_BYTES:
            self.account.take(Kind.RESPONSES, size)
        elif not self.account.admit(Kind.RESPONSES, size):
            return False
        # gRPC's task of the call ends when the answer is sent. A callback at its context would be kept by that, and
        # keep it: both would stay until the collector comes.
        assert self._task is not None
        account = self.account
        self._task.add_done_callback(lambda _: account.give(Kind.RESPONSES, size))
        return True

    @property
    def certificate_name(self) -> str:
        """The common name in the client's certificate, the last one if there are several; empty if it has shown none,
        or none that the listener's authority has signed."""
        if self._certificate_name is None:  # it stays the same, and to ask takes its time
            names = self._context.auth_context().get("x509_common_name", ())
            self._certificate_name = str(names[-1], "utf-8", "replace") if names else ""
        return self._certificate_name

    @property
    def peer(self) -> str:
        """The client's address and port, as gRPC writes them: ``ipv4:127.0.0.1:50123``."""
        return str(self._context.peer())

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
        """The node stops: nothing new is to begin."""
        self.received = 0
        self.sent = 0

    def _on_room(self) -> Callable[[], None]:
        return self._go_on

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def read(self) -> bytes | None:
        """The next message, None when the client has sent its last one. Its bytes are held in the account as a
        request, until whoever takes it gives them back.

        While the node is short of memory nothing is read. What gRPC receives meanwhile is bounded by HTTP/2's windows,
        and counted (:mod:`bridges.net.grpc_received`), as is what has come of the next message.
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

    def unread(self, raw: bytes) -> None:
        """Have :meth:`read` give this message once more, whose bytes are held still."""
        self._unread = raw

    async def write(self, raw: bytes) -> None:
        """Send a message; returns when gRPC has taken it, which it does as fast as the client reads. Raises
        CancelledError when the client has gone."""
        self.sent += len(raw)
        size = 2 * len(raw)  # gRPC makes a copy
        self.account.take(Kind.RESPONSES, size)
        try:
            await self._context.write(raw)
            self._connection.sent()
        except grpc.aio.InternalError as error:
            # gRPC sends nothing any more because the client has gone, for which it also cancels who serves the stream.
            raise asyncio.CancelledError from error
        finally:
            self.account.give(Kind.RESPONSES, size)

    def when_draining(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the node begins to stop; at once if it has."""
        self._on_drain = callback
        if self.draining:
            callback()

    def drain(self) -> None:
        """For the server: the node stops."""
        self.draining = True
        if self._on_drain is not None:
            self._on_drain()

    def close(self) -> None:
        """For the server: the stream has ended, and keeps nobody who knows it."""
        self._on_drain = None
        self.account.close()


Unary = Callable[[bytes, GrpcCall], Awaitable[bytes]]
"""Answers a call. Raises GrpcRefusal."""
Streaming = Callable[[GrpcStream], Awaitable[None]]
"""Serves a stream until it ends. Raises GrpcRefusal."""


class GrpcServer:
    """Listeners, and what serves their clients. Use on the event loop."""

    def __init__(self, limits: GrpcLimits, observer: Observer, budget: MemoryBudget, barrier: Barrier) -> None:
        self._limits = limits
        self._observer = observer
        self._budget = budget
        self._barrier = barrier
        # One for each listener: gRPC does not tell of a call by which port it came.
        self._servers: list[grpc.aio.Server] = []
        self._services: dict[str, dict[str, Callable[[str], grpc.RpcMethodHandler]]] = {}
        self.received = ReceivedMemory(budget, barrier)
        """What clients have sent of messages that are not whole."""
        self._turns = CallTurns(asyncio.get_running_loop(), barrier)
        self._watching: asyncio.Task[None] | None = None
        self._streams: set[GrpcStream] = set()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def add_call(self, service: str, method: str, handler: Unary) -> None:
        """Have calls of a method answered by ``handler``."""

        def serve(listener: str) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(partial(self._answer, handler, method, listener))

        self._services.setdefault(service, {})[method] = serve

    def add_stream(self, service: str, method: str, handler: Streaming) -> None:
        """Have streams of a method served by ``handler``."""

        def serve(listener: str) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, handler, method, listener))

        self._services.setdefault(service, {})[method] = serve

    async def start(self, listen: Mapping[str, tuple[str, int, ssl.SSLContext | None]]) -> dict[str, int]:
        """Listen on (host, port, TLS) of each listener, by name; gives the ports. Raises OSError if one is taken.

        Methods that were not added are answered UNIMPLEMENTED.
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
            # gRPC takes calls one by one, each when the loop has come round, from a queue that has no end. With
            # handlers that it knows by method each method has a queue of its own: calls of one do not wait behind
            # those of others.
            server.add_registered_method_handlers(name, handlers)

    async def drain(self) -> None:
        """Refuse what is new, tell streams that the node stops, and return when all calls and streams have ended."""
        self._draining = True
        for stream in list(self._streams):
            self._barrier.call("drain", stream.drain)
        await self._idle.wait()

    async def stop(self) -> None:
        """Cancel what is left, and close every connection."""
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
            # gRPC's context keeps the exception that it raises, and that keeps this frame and those that an exception
            # in progress has come through: while one of them knew the context, all that they know would stay until
            # the collector comes, which a node has come seldom.
            aborting = context.abort(code, message)
            del raw, call, context
            await _told(aborting)
        finally:
            self._leave()
        raise AssertionError("abort raises")

    async def _stream(self, handler: Streaming, method: str, listener: str, requests: object, context: Any) -> None:
        stream = GrpcStream(context, method, listener, self._budget, self.received)
        self._enter()
        self._observer.connection_opened()
        self._streams.add(stream)
        try:
            try:
                if self._draining:
                    raise GrpcRefusal(Code.UNAVAILABLE, "the node is stopping")
                await handler(stream)
                return
            except Exception as error:  # noqa: BLE001 - logged, counted and answered
                code, message = self._failed("gRPC stream", method, error)
            finally:
                self._streams.discard(stream)
                self._observer.connection_closed()
                stream.close()
            aborting = context.abort(code, message)
            del stream, requests, context  # as above
            await _told(aborting)
        finally:
            self._leave()

    def _failed(self, what: str, method: str, error: Exception) -> tuple[grpc.StatusCode, str]:
        """Tell of what a handler raised; gives how its call ends."""
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


async def _told(aborting: Awaitable[None]) -> None:
    """Tell a client how its call ends. Raises what that does, and CancelledError where it is told later or is gone."""
    try:
        async with asyncio.timeout(_TOLD_SECONDS):
            await aborting
    except (TimeoutError, grpc.aio.InternalError):
        # gRPC tells it when the client takes what was sent before. Nobody else waits for that.
        raise asyncio.CancelledError from None


def options(limits: GrpcLimits) -> list[tuple[str, int]]:
    """What a server is told of how to treat its connections."""
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1000)),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        # One that never becomes HTTP/2 does not keep its place for longer.
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        # Clients ping every ten seconds, with and without calls; the default takes that for an attack.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that went away without a word is noticed.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Two nodes on one port would take turns instead of the second being refused.
        ("grpc.so_reuseport", 0),
    ]


def _nothing() -> None:
    pass


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and return when it has ended, whatever came of it."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
