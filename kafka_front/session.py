"""One client connection: frames in, responses out, in the order Kafka's clients rely on.

Order (reference/kafka.md, rule 2): responses leave strictly in request order. A Kafka broker handles one request per
connection at a time; we let Produce requests overlap each other, since their effect is ordered by the partition, and
start anything else only when all earlier requests of the connection are answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

import structlog

from bridges.net.budget import Kind
from kafka_front import failures
from kafka_front.dispatch import DEFERRED, NO_RESPONSE, Handler, Outcome
from kafka_front.framing import FrameError, Framer
from kafka_front.outbox import CHUNK, Outbox, joined
from kafka_front.wire import codec
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError
from kafka_front.wire.message import Message
from kafka_front.wire.messages import ProduceRequest
from kafka_front.wire.primitives import Buffer, WireError

if TYPE_CHECKING:
    from kafka_front.server import Server

log = structlog.get_logger(__name__)

#: Requests up to this size are read on the event loop, longer ones in a thread. Those of Produce are read at once:
#: their bytes are records, which are not looked at here.
_SHORT_BYTES = 32 * 1024
#: The same for the elements of a response.
_SHORT_ELEMENTS = 2_000

#: Later than any time: no frame is under way.
_NOT_RECEIVING = float("inf")
#: Bytes that may be queued behind a request that others have to wait for.
_QUEUED_BYTES = 64 * 1024
#: What is read of a response at once while other connections read large ones.
_CROWDED_AHEAD = 64 * 1024
#: What is received at once while memory is short: all connections together may do so in one turn of the loop.
_CAUTIOUS_BYTES = 16 * 1024


class Observer(Protocol):
    """Hooks for metrics; all are called on the event loop and must not raise."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self) -> None: ...

    def request_done(self, key: int, version: int, seconds: float, received: int, sent: int) -> None:
        """A request was answered: time from its arrival, bytes of its frame and of the response."""

    def request_failed(self, key: int) -> None:
        """A handler raised something it should not have."""

    def error_told(self, key: int, code: int) -> None:
        """A response's top-level error, or the one that stands for the whole request."""


class Context:
    """One request in progress. ``arrived`` is the monotonic clock in seconds when its last byte came in."""

    __slots__ = (
        "_done",
        "_output",
        "_request",
        "_retained",
        "_sent",
        "_size",
        "arrived",
        "client_id",
        "connection",
        "correlation_id",
        "key",
        "version",
    )

    def __init__(self, connection: Connection, header: codec.RequestHeader, size: int, arrived: float) -> None:
        self.connection = connection
        self.key = header.key
        self.version = header.version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.arrived = arrived
        self._size = size
        self._request: Any = None
        self._output: list[Buffer] | None = None
        self._sent = 0
        self._done = False
        self._retained = False

    def respond(self, response: Message | Outcome) -> None:
        """Answer a DEFERRED request; NO_RESPONSE finishes it silently. Harmless once the connection is closed.

        Raises RuntimeError when called twice: the client would take the second answer for another request's.
        """
        self.connection.answer(self, response)

    def respond_off_loop(self, response: Message) -> None:
        """Like :meth:`respond`, for a response of so many elements that writing it would take others' time."""
        self.connection.answer_off_loop(self, response)

    def fail(self, code: int, message: str | None = None) -> None:
        """Answer a DEFERRED request with the API's error response for ``code``."""
        self.connection.answer_failure(self, code, message)

    def crashed(self) -> None:
        """In an except clause of whatever was called for a DEFERRED request: log it, and answer as Kafka does."""
        self.connection.unexpected(self)

    def retain(self) -> None:
        """Have the request's memory counted beyond its answer, until :meth:`release`: something still holds it."""
        self._retained = True

    def release(self) -> None:
        """The memory of a retained request is free now."""
        size, self._size = self._size, 0
        self.connection._release(size)

    def __repr__(self) -> str:
        name = APIS[self.key].name if self.key in APIS else str(self.key)
        return f"<{name} v{self.version} #{self.correlation_id} of {self.client_id!r}>"


class Connection(asyncio.BufferedProtocol):
    """A client's connection.

    Public for handlers: ``id``, ``peer`` and ``local`` (host, port), ``listener`` (name), ``advertised`` (the host and
    port clients of this listener must be told), ``attributes`` (state of services), ``principal``, ``account`` (the
    memory it holds), on_close, close.
    """

    def __init__(self, server: Server, listener: str, advertised: tuple[str, int] | None) -> None:
        self.server = server
        self.listener = listener
        self.id = 0
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.advertised: tuple[str, int] = advertised or ("", 0)
        self.attributes: dict[str, Any] = {}
        self.principal = "ANONYMOUS"
        self.last_active = 0.0
        self.in_flight = 0
        self.receiving_since = _NOT_RECEIVING
        self._advertised = advertised
        self._loop = server.loop
        self._budget = server.budget
        self.account = server.budget.account(self._on_room)
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._framer = Framer(server.receive_buffer, server.limits.frame_bytes, self._reserve)
        self._stashed = 0
        self._waiting: deque[tuple[bytes | bytearray, float]] = deque()
        self._waiting_bytes = 0
        self._slots: deque[Context] = deque()
        self._only_produce = True
        self._output: list[Buffer] = []
        self._output_bytes = 0
        self._busy = False
        self._scheduled = False
        self._reading = True
        self._write_paused = False
        self._closing = False
        self._draining = False
        self._on_close: set[Callable[[], None]] = set()

    # --- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.advertised = self._advertised or self.local
        self.last_active = monotonic()
        self._transport.set_write_buffer_limits(high=0)
        self._outbox = Outbox(self._transport, self.server.turns, self.account, self._check_unsent, self._cannot_send)
        if not self.server.admit(self):
            self._closing = True
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        framer = self._framer
        if self._budget.scarce and not framer.receiving:
            return framer.space()[:_CAUTIOUS_BYTES]
        return framer.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing or self._draining:
            return
        self.last_active = now = monotonic()
        self.server.touched(self)
        framer = self._framer
        try:
            frames = framer.received(nbytes)
        except FrameError as error:
            self.close(f"{error}", client_id=None)
            return
        if self._stashed or framer.stashed:
            self._count_stash()
        if not frames:
            self.receiving_since = min(self.receiving_since, now)
            if self._reading and self._must_pause():
                self._pause()
            return
        self.receiving_since = now if framer.partial else _NOT_RECEIVING
        size = 0
        for frame in frames:
            size += len(frame)
            self._waiting.append((frame, now))
        self.in_flight += size
        self._waiting_bytes += size
        if framer.reserved and not framer.receiving:
            size -= framer.reserved  # what was reserved for it is the frame's from now on
            framer.reserved = 0
        if size:
            self.account.take(Kind.REQUESTS, size)
        self._work()
        if framer.blocked and not self._closing:
            framer.retry()
            self._count_stash()
        if self._reading and self._must_pause():
            self._pause()

    def _count_stash(self) -> None:
        """The bytes of a small frame that is not complete count as well: connections are many."""
        stashed = self._framer.stashed
        if stashed > self._stashed:
            self.account.take(Kind.REQUESTS, stashed - self._stashed)
        elif stashed < self._stashed:
            self.account.give(Kind.REQUESTS, self._stashed - stashed)
        self._stashed = stashed

    def _reserve(self, size: int) -> bool:
        """May a large frame be received? Not while what came before it keeps it from being started."""
        if self._waiting or (self._slots and not self._only_produce):
            return False
        if not self.account.admit(Kind.REQUESTS, size, self._stashed):
            return False
        self._stashed = 0
        return True

    def eof_received(self) -> bool:
        """Close our side as well: a client that stops sending has no use for later answers."""
        return False

    def pause_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.block()

    def resume_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.unblock()
            self._check_unsent()

    def _check_unsent(self) -> None:
        """Start no more requests while too much is unsent, or anything when memory is scarce."""
        if self._outbox is None:
            return
        unsent = self._outbox.unsent
        most = 0 if self._budget.scarce else self.server.limits.write_buffer_bytes
        if self._write_paused:
            if unsent <= most // 2:
                self._write_paused = False
                self._schedule()
                self.maybe_resume()
        elif unsent > most:
            self._write_paused = True
            if self._reading:
                self._pause()

    def _cannot_send(self, reason: str) -> None:
        """The rest of a response cannot be had: the client must not take what comes next for it."""
        self._tell_closed(reason, None, None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        if self._outbox is not None:
            self._outbox.drop()
        self._outbox = None
        self._reading = False
        framer = self._framer
        self.account.give(Kind.REQUESTS, framer.reserved + self._stashed)
        framer.reserved = self._stashed = 0
        released = self._forget_waiting()
        for slot in self._slots:
            # The appends of a Produce go on and hold its bytes: they stay accounted until the handler answers.
            if slot.key != ApiKey.PRODUCE:
                released += slot._size
                slot._size = 0
        self._slots.clear()
        self._output.clear()
        self._release(released)
        self.account.close()
        self.server.forget(self)
        callbacks, self._on_close = self._on_close, set()
        for callback in callbacks:
            self.server.barrier.call("end of a connection", callback)

    # --- for handlers ----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closing

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the connection is gone; at once if it is gone already. It must not raise."""
        if self._closing and self._transport is None:
            callback()
        else:
            self._on_close.add(callback)

    def forget_on_close(self, callback: Callable[[], None]) -> None:
        """Undo :meth:`on_close`."""
        self._on_close.discard(callback)

    def close(self, reason: str, *, client_id: str | None = None, api: str | None = None) -> None:
        """Close after what is already answered has been sent; the rest is dropped. ``reason`` is logged."""
        if self._closing:
            return
        self._closing = True
        self._tell_closed(reason, client_id, api)
        self._close_transport()

    def _tell_closed(self, reason: str, client_id: str | None, api: str | None) -> None:
        log.warning(
            "connection closed",
            reason=reason,
            api=api,
            client_id=client_id,
            peer="{}:{}".format(*self.peer),
            listener=self.listener,
        )

    def drain(self) -> None:
        """Start nothing more, and close as soon as what is in progress is answered."""
        self._draining = True
        self._release(self._forget_waiting())
        if self._reading:
            self._pause()
        if self.idle:
            self.shut()

    def shut(self) -> None:
        """Close quietly: shutdown, or an idle connection."""
        if self._closing:
            return
        self._closing = True
        self._close_transport()

    def abort(self) -> None:
        """Close now, dropping what is not sent yet."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def idle(self) -> bool:
        """Nothing is in progress."""
        return not self._slots and not self._waiting and not self._output

    # --- requests --------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Go on in the next turn of the loop: answers of one turn leave in one write."""
        if not self._scheduled and not self._closing:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._closing:
            self._work()

    def _work(self) -> None:
        """Start what may start, then write what is answered."""
        self._busy = True
        waiting, slots = self._waiting, self._slots
        while waiting and not self._closing:
            if self._output_bytes > self.server.limits.write_buffer_bytes:
                self._flush()  # what is not sent yet must count before more is started
            if self._write_paused:
                break
            frame, arrived = waiting[0]
            if slots and not (self._only_produce and not frame[0] and not frame[1]):
                break
            waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._start(frame, arrived)
        self._busy = False
        if self._output:
            self._flush()
        if self._draining and self.idle:
            self.shut()
        elif not self._reading:
            self.maybe_resume()

    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        """Decode and handle one request."""
        try:
            header = codec.decode_header(frame)
        except WireError as error:
            self._reject(frame, None, str(error))
            return
        ctx = Context(self, header, len(frame), arrived)
        key, version = header.key, header.version
        handler = self.server.registry.handlers.get(key)
        if handler is None:
            self._reject(frame, ctx, "the API is not served")
            return
        self._slots.append(ctx)
        self._only_produce = key == 0 and (self._only_produce or len(self._slots) == 1)
        api = APIS[key]
        if not api.lowest <= version <= api.highest:
            self._refuse_version(ctx, frame, header.body)
            return
        if len(frame) > _SHORT_BYTES and key != ApiKey.PRODUCE:
            self.server.spawn(self._start_long(ctx, frame, header.body, handler))
            return
        try:
            request = codec.server_codec(key, version).decode(frame, header.body)
        except WireError as error:
            self._reject(frame, ctx, str(error))
            return
        self._handle(ctx, request, handler)

    async def _start_long(self, ctx: Context, frame: bytes | bytearray, body: int, handler: Handler) -> None:
        """Like :meth:`_start`, for what may have so many elements that reading them takes others' time."""
        wire = codec.server_codec(ctx.key, ctx.version)
        try:
            request = await self.server.off_loop(wire.decode, frame, body)
        except WireError as error:
            self._reject(frame, ctx, str(error))
            return
        except Exception:  # noqa: BLE001  # as in _handle
            self.unexpected(ctx)
            return
        if not self._closing:
            self._handle(ctx, request, handler)

    def _handle(self, ctx: Context, request: Message, handler: Handler) -> None:
        ctx._request = request
        try:
            result = handler(ctx, request)
            if isinstance(result, Message):
                self.answer(ctx, result)
            elif asyncio.iscoroutine(result):
                self.server.spawn(self._await(ctx, result))
            elif result is not DEFERRED:
                self._check(ctx, result)
                self.answer(ctx, result)
        except KafkaError as error:
            self.answer_failure(ctx, error.code, error.message)
        except Exception:  # noqa: BLE001  # whatever it is, the client gets an answer and the log a traceback
            self.unexpected(ctx)

    async def _await(self, ctx: Context, coroutine: Coroutine[Any, Any, Message | Outcome]) -> None:
        try:
            result = await coroutine
            if result is not DEFERRED:
                self._check(ctx, result)
                prepared = await self._prepared(ctx, result) if isinstance(result, Message) else None
                self.answer(ctx, result, prepared)
        except KafkaError as error:
            self.answer_failure(ctx, error.code, error.message)
        except Exception:  # noqa: BLE001  # whatever it is, the client gets an answer and the log a traceback
            self.unexpected(ctx)

    async def _prepared(self, ctx: Context, response: Message) -> list[Buffer] | None:
        """The bytes of a response whose writing would take others' time; None for any other."""
        if self._closing or ctx._done or not _is_long(response):
            return None
        wire = codec.server_codec(ctx.key, ctx.version)
        try:
            # In few pieces: sending very many small ones takes others' time, too.
            return await self.server.off_loop(lambda: joined(wire.response(ctx.correlation_id, response)))
        except WireError:
            return None  # written again where everything else is told of that

    def _check(self, ctx: Context, result: Any) -> None:
        if not isinstance(result, Message) and result is not NO_RESPONSE:
            raise TypeError(f"handler of {ctx!r} gave {type(result).__name__}")

    def unexpected(self, ctx: Context) -> None:
        """In an except clause: log the exception and answer as Kafka does (rule 69)."""
        log.exception("request failed", api=APIS[ctx.key].name, version=ctx.version, client_id=ctx.client_id)
        self.server.observer.request_failed(ctx.key)
        if not ctx._done:
            self.answer_failure(ctx, ErrorCode.UNKNOWN_SERVER_ERROR, None)

    def _refuse_version(self, ctx: Context, frame: bytes | bytearray, body: int) -> None:
        """Answer a version we know of but do not serve, where the protocol has a way (rules 4, 5 and B)."""
        if ctx.key == ApiKey.API_VERSIONS and self.server.registry.versions_mismatch is not None:
            ctx.version = 0
            self.answer(ctx, self.server.registry.versions_mismatch())
            return
        if ctx.key == ApiKey.PRODUCE and ctx.version < APIS[0].lowest:
            try:
                ctx._request = codec.request_decoder(ctx.key, ctx.version)(frame, body)
            except WireError as error:
                self._reject(frame, ctx, str(error))
                return
            self.answer_failure(ctx, ErrorCode.UNSUPPORTED_VERSION, None)
            return
        self._reject(frame, ctx, f"version {ctx.version} is not served")

    def _reject(self, frame: bytes | bytearray, ctx: Context | None, reason: str) -> None:
        key = int.from_bytes(frame[:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        name = APIS[key].name if key in APIS else f"key {key}"
        self.close(reason, client_id=ctx.client_id if ctx else None, api=f"{name} v{version}")

    # --- responses -------------------------------------------------------------------------------------------------

    def answer_failure(self, ctx: Context, code: int, message: str | None) -> None:
        """Answer with the API's error response, or close where there is none (acks=0, rule 3)."""
        request = ctx._request
        if isinstance(request, ProduceRequest) and request.acks == 0:
            self.answer(ctx, NO_RESPONSE)
            self.close(f"request failed with {code}", client_id=ctx.client_id, api="Produce without acks")
            return
        response = failures.response(ctx.key, ctx.version, request, code, message)
        if response is not None and not codec.server_codec(ctx.key, ctx.version).has_error_code:
            self.server.observer.error_told(ctx.key, code)
        if response is None:
            self.answer(ctx, NO_RESPONSE)
            self.close(f"request failed with {code}", client_id=ctx.client_id, api=APIS[ctx.key].name)
        else:
            self.answer(ctx, response)

    def answer_off_loop(self, ctx: Context, response: Message) -> None:
        """See :meth:`Context.respond_off_loop`."""

        async def given() -> Message | Outcome:
            return response

        self.server.spawn(self._await(ctx, given()))

    def answer(self, ctx: Context, response: Message | Outcome, prepared: list[Buffer] | None = None) -> None:
        """See :meth:`Context.respond`; ``prepared`` are the response's bytes, if they are there already."""
        if ctx._done:
            raise RuntimeError(f"{ctx!r} was answered twice")
        ctx._done = True
        size = 0
        if not ctx._retained:
            size, ctx._size = ctx._size, 0
        if self._closing:
            self._release(size)
            return
        output: list[Buffer] = []
        if isinstance(response, Message):
            output = self._encode(ctx, response, prepared)
            if self._closing:
                self._release(size)
                return
        ctx._output = output
        ctx._sent = sent = sum(map(len, output))
        self.server.observer.request_done(ctx.key, ctx.version, monotonic() - ctx.arrived, size or ctx._size, sent)
        slots = self._slots
        if slots[0] is ctx:
            while slots and slots[0]._output is not None:
                done = slots.popleft()
                if done._output:
                    self._output += done._output
                    self._output_bytes += done._sent
                done._request = None
            if not self._busy:
                if slots or self._waiting or self._draining:
                    self._schedule()
                else:
                    self._flush()  # nothing can join it in this turn
        self._release(size)

    def _encode(self, ctx: Context, response: Message, prepared: list[Buffer] | None) -> list[Buffer]:
        wire = codec.server_codec(ctx.key, ctx.version)
        if wire.has_error_code:
            code: int = getattr(response, "error_code", 0)
            if code:
                self.server.observer.error_told(ctx.key, code)
        if prepared is not None:
            return prepared
        try:
            return wire.response(ctx.correlation_id, response)
        except WireError:
            log.exception("response cannot be written", api=APIS[ctx.key].name, version=ctx.version)
            self.server.observer.request_failed(ctx.key)
        failure = failures.response(ctx.key, ctx.version, ctx._request, ErrorCode.UNKNOWN_SERVER_ERROR, None)
        if failure is not None and failure != response:
            return wire.response(ctx.correlation_id, failure)
        self.close("response cannot be written", client_id=ctx.client_id, api=APIS[ctx.key].name)
        return []

    def _flush(self) -> None:
        """Send all output, or as much as the socket takes."""
        output, outbox = self._output, self._outbox
        if not output or outbox is None:
            return
        self._output = []
        self._output_bytes = 0
        outbox.send(output)
        self._check_unsent()

    def _close_transport(self) -> None:
        """Close once everything answered so far has been sent."""
        self._flush()
        if self._outbox is not None and self._transport is not None:
            self._outbox.finish(self._transport.close)

    # --- back-pressure ---------------------------------------------------------------------------------------------

    def _must_pause(self) -> bool:
        framer = self._framer
        if framer.receiving:
            return False  # its memory is reserved: the sooner it is complete the better
        return (
            framer.blocked
            or self._write_paused
            or self.in_flight > self.server.limits.connection_bytes
            or self._waiting_bytes > _QUEUED_BYTES
            or self.account.crowded
        )

    def _pause(self) -> None:
        if self._transport is not None and not self._closing:
            self._reading = False
            self._transport.pause_reading()
            if self.in_flight or self._framer.blocked:
                self.receiving_since = _NOT_RECEIVING  # it is we who keep it from sending
            if not self._draining:
                self.maybe_resume()  # or wait for room

    def _forget_waiting(self) -> int:
        """Drop what was not started; returns its bytes."""
        size, self._waiting_bytes = self._waiting_bytes, 0
        self._waiting.clear()
        return size

    def _release(self, size: int) -> None:
        if size:
            self.in_flight -= size
            self.account.give(Kind.REQUESTS, size)
            if not self._reading:
                self.maybe_resume()

    def _on_room(self) -> None:
        """The budget has room for what this connection waits for: what is to be sent goes first."""
        if self._outbox is not None and self._outbox.starved:
            self._outbox.go_on()
        if not self._reading:
            self.maybe_resume()

    @property
    def read_ahead(self) -> int:
        """Bytes of a response that may be read before it is sent: few while others wait for their turns to read."""
        return _CROWDED_AHEAD if self.server.turns.busy else CHUNK

    def shed(self, since: float) -> None:
        """Give back memory of a response that the client has taken nothing of since then (monotonic clock)."""
        if self.stalled_since < since and self._outbox is not None:
            self._outbox.shed()

    @property
    def stalled_since(self) -> float:
        """When the client was last known to take what it asked for (monotonic clock)."""
        if self._outbox is None or self._outbox.blocked_since is None:
            return _NOT_RECEIVING
        return self._outbox.blocked_since

    def maybe_resume(self) -> None:
        """Read again if nothing stands against it any more; if it is memory, wait for that."""
        if self._reading or self._closing or self._draining or self._transport is None:
            return
        if (
            self._write_paused
            or self.in_flight > self.server.limits.connection_bytes // 2
            or self._waiting_bytes > _QUEUED_BYTES // 2
        ):
            return
        framer = self._framer
        if self._outbox is not None and self._outbox.starved:
            return
        if framer.blocked:
            framer.retry()
            if framer.blocked:
                if not self._waiting and not self._slots:
                    self.account.wait(framer.blocked_by, self._stashed)
                return
            self._count_stash()
        elif self.account.crowded:
            self.account.wait()
            return
        self.account.stop_waiting()
        if framer.partial:
            self.receiving_since = min(self.receiving_since, monotonic())
        self._reading = True
        self._transport.resume_reading()


def _is_long(response: Message) -> bool:
    """Whether a response has very many elements, as far as two levels of lists show it."""
    count = 0
    for name in response.__slots__:
        rows = getattr(response, name)
        if isinstance(rows, list):
            count += len(rows)
            if count > _SHORT_ELEMENTS:
                return True
            for row in rows:
                if isinstance(row, Message):
                    for inner in row.__slots__:
                        value = getattr(row, inner)
                        if isinstance(value, list):
                            count += len(value)
    return count > _SHORT_ELEMENTS


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else (str(name), 0)
