"""One client connection: frames in, responses out, in the order Kafka's clients rely on.

Order (docs/protocols/kafka.md, rule 2): responses leave in request order. A Kafka broker handles one request per
connection at a time. This front lets Produce requests overlap, since the partition orders their effect, and starts any
other request only when all earlier ones of the connection are answered.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from copy import copy
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from anabranch_kit.net.outbox import joined
from bridges.auth import Principal
from bridges.errors import LogError
from bridges.net import server as net_server
from kafka_front import failures
from kafka_front.context import DEFERRED, NO_RESPONSE, Client, Context, Outcome
from kafka_front.dispatch import Handler
from kafka_front.long_requests import LONG_BYTES
from kafka_front.service.fetch.patience import Patience
from kafka_front.service.fetch.read_ahead import ReadAhead
from kafka_front.service.log_errors import code_for
from kafka_front.wire import codec
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError
from kafka_front.wire.message import Message
from kafka_front.wire.messages import ProduceRequest
from kafka_front.wire.primitives import Buffer, TooManyElements, WireError

if TYPE_CHECKING:
    from kafka_front.server import Server

log = structlog.get_logger(__name__)

#: Requests up to this size are decoded on the event loop, longer ones in a thread. A Produce is decoded on the loop
#: unless it has many elements: most of its bytes are records, which decoding does not touch.
_SHORT_BYTES = 32 * 1024
#: The same limit in elements of a message.
_SHORT_ELEMENTS = 2_000


#: Longest request of a client that must authenticate first (sasl.server.max.receive.size).
_LOGIN_BYTES = 512 * 1024
#: APIs open to it until then (docs/protocols/kafka.md, rule 68).
_BEFORE_LOGIN = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

#: APIs that the quota of created and deleted partitions applies to (KIP-599).
MUTATIONS = frozenset({ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS})

_LONGEST_THROTTLE_MS = 2**31 - 1


class Observer(net_server.Observer, Protocol):
    """Hooks for metrics; all are called on the event loop and must not raise."""

    def request_done(self, key: int, version: int, seconds: float, received: int, sent: int) -> None:
        """Count an answered request: seconds since its arrival, bytes of its frame and of the response."""

    def request_failed(self, key: int) -> None:
        """Count an unexpected exception of a handler."""

    def error_told(self, key: int, code: int) -> None:
        """Count a response's top-level error, or the error that stands for the whole request."""


class Connection(Client):
    """A client's connection: starts its requests, and sends their answers in order."""

    server: Server

    def __init__(self, server: Server, listener: str, advertised: tuple[str, int] | None) -> None:
        super().__init__(server, listener, advertised, server.framing)
        self.attributes: dict[str, Any] = {}
        self.ahead = ReadAhead(self.account)
        self.patience = Patience(server.loop)
        self._only_produce = True
        self._barred = False
        # Deadline by which the client must authenticate again (KIP-368).
        self._until = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.principal.is_anonymous and self.server.must_log_in(self.listener):
            self._barred = True
            self._framer.allow(_LOGIN_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ahead.close()
        self.patience.close()
        super().connection_lost(exc)

    def shed(self, since: float) -> None:
        """Give up memory: first what was read ahead, since no client has asked for it yet."""
        self.ahead.drop()
        super().shed(since)

    def logged_in(self, principal: Principal, until: float) -> None:
        self.principal = principal.at(self.peer[0])
        self._until = until
        self._barred = False
        self._framer.allow(self.server.framing.most)

    # --- requests --------------------------------------------------------------------------------------------------

    def _may_start(self, frame: bytes | bytearray | None) -> bool:
        return self._only_produce and (frame is None or (not frame[0] and not frame[1]))

    def _admits(self, frame: bytes | bytearray) -> bool:
        if self._barred:
            return True
        quotas = self.server.quotas
        try:
            header = codec.decode_header(frame)
        except WireError:
            return True  # _start reports it
        self.client_id = header.client_id
        if header.key == ApiKey.PRODUCE and not self._passes(quotas.produce):
            return False
        if header.key == ApiKey.FETCH and not self._passes(quotas.fetch):
            return False
        if header.key in MUTATIONS and not self._passes(quotas.mutation):
            return False
        return self._passes(quotas.request)

    def _outlives(self, slot: Context) -> bool:
        # Appends of a Produce go on after the connection and hold its bytes: count them until the handler answers.
        return slot.key == ApiKey.PRODUCE

    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        """Decode and handle one request."""
        try:
            header = codec.decode_header(frame)
        except WireError as error:
            self._reject(frame, None, str(error))
            return
        self.client_id = header.client_id
        ctx = Context(self, header, len(frame), arrived)
        key, version = header.key, header.version
        handler = self.server.registry.handlers.get(key)
        if handler is None:
            self._reject(frame, ctx, "the API is not served")
            return
        if self._barred and key not in _BEFORE_LOGIN:
            self._reject(frame, ctx, "the client has not said who it is")
            return
        if arrived >= self._until and key not in _BEFORE_LOGIN:
            self._reject(frame, ctx, "the client has not said again in time who it is")
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
            request = codec.server_codec(key, version).decode(frame, header.body, _SHORT_ELEMENTS)
        except TooManyElements:
            self._only_produce = False  # later requests must stay behind it
            self.server.spawn(self._start_long(ctx, frame, header.body, handler))
            return
        except WireError as error:
            self._reject(frame, ctx, str(error))
            return
        rest = self._handle(ctx, request, handler)
        if rest is not None:
            self.server.spawn(rest)

    async def _start_long(self, ctx: Context, frame: bytes | bytearray, body: int, handler: Handler) -> None:
        """Handle a request like :meth:`_start`, but decode it in a thread: its elements may be so many that decoding
        them would block the event loop."""
        wire = codec.server_codec(ctx.key, ctx.version)
        async with self.server.long_requests.room(len(frame)):
            if self._closing:
                ctx.release()
                return
            try:
                request = await self.server.off_loop(wire.decode, frame, body)
            except WireError as error:
                self._reject(frame, ctx, str(error))
                return
            except Exception:  # noqa: BLE001  # as in _handle
                self.unexpected(ctx)
                return
            if self._closing:
                ctx.release()
                return
            rest = self._handle(ctx, request, handler)
            if rest is not None:
                await rest

    def _handle(self, ctx: Context, request: Message, handler: Handler) -> Coroutine[Any, Any, None] | None:
        """Call the handler and answer with its result. If the handler returns a coroutine, return one that the caller
        must run; else return None."""
        ctx._request = request
        try:
            result = handler(ctx, request)
            if result is DEFERRED:
                return None
            if isinstance(result, Message):
                self.answer(ctx, result)
            elif asyncio.iscoroutine(result):
                return self._await(ctx, result)
            else:
                self._check(ctx, result)
                self.answer(ctx, result)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets an answer
            self._fail(ctx, error)
        return None

    async def _await(self, ctx: Context, coroutine: Coroutine[Any, Any, Message | Outcome]) -> None:
        try:
            result = await coroutine
            if result is not DEFERRED:
                self._check(ctx, result)
                prepared = await self._prepared(ctx, result) if isinstance(result, Message) else None
                self.answer(ctx, result, prepared)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets an answer
            self._fail(ctx, error)

    async def _prepared(self, ctx: Context, response: Message) -> list[Buffer] | None:
        """Encode a response off the event loop if it has very many elements, and return its bytes; None for any
        other."""
        if self._closing or ctx._done or not _is_long(response):
            return None
        return await self.server.off_loop(self._written, ctx, response)

    def _written(self, ctx: Context, response: Message) -> list[Buffer] | None:
        """Return the bytes of a response; None if it cannot be encoded. Runs in a thread."""
        if self._muted:
            self._tell_throttled(response)
        try:
            # Joined into few buffers: sending very many small ones would block the loop, too.
            return joined(codec.server_codec(ctx.key, ctx.version).response(ctx.correlation_id, response))
        except WireError:
            return None  # _encode tries again, and logs the error

    def _check(self, ctx: Context, result: Any) -> None:
        if not isinstance(result, Message) and result is not NO_RESPONSE:
            raise TypeError(f"handler of {ctx!r} gave {type(result).__name__}")

    def unexpected(self, ctx: Context) -> None:
        """Log the current exception and answer as Kafka does (rule 69). Call it in an except clause."""
        log.exception("request failed", api=APIS[ctx.key].name, version=ctx.version, client_id=ctx.client_id)
        self.server.observer.request_failed(ctx.key)
        if not ctx._done:
            self.answer_failure(ctx, ErrorCode.UNKNOWN_SERVER_ERROR, None)

    def _fail(self, ctx: Context, error: Exception) -> None:
        """Answer the exception of a handler: a retriable error of the log or the database with a code on which clients
        retry, any other one but a KafkaError as unexpected. Call it in an except clause."""
        if isinstance(error, KafkaError):
            self.answer_failure(ctx, error.code, error.message)
        elif not isinstance(error, LogError) or not error.retriable:
            self.unexpected(ctx)
        elif not ctx._done:
            self.answer_failure(ctx, code_for(ctx.key, error), str(error))

    def _refuse_version(self, ctx: Context, frame: bytes | bytearray, body: int) -> None:
        """Answer a version that is known but not served, if the protocol has a way (rules 4, 5 and B)."""
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
        # No answer frees its memory, and it is not among the requests that end with their connection.
        if ctx is None:
            self._release(len(frame))
        else:
            ctx.release()

    # --- responses -------------------------------------------------------------------------------------------------

    def answer_failure(self, ctx: Context, code: int, message: str | None) -> None:
        """Answer with the API's error response, or close where there is none (acks=0, rule 3)."""
        request = ctx._request
        if isinstance(request, ProduceRequest) and request.acks == 0:
            self.answer(ctx, NO_RESPONSE)
            self.close(f"request failed with {code}", client_id=ctx.client_id, api="Produce without acks")
            return
        if ctx._size > _SHORT_BYTES and not self._closing:
            self.server.spawn(self._fail_off_loop(ctx, code, message))
        else:
            self._answer_with(ctx, code, failures.response(ctx.key, ctx.version, request, code, message))

    async def _fail_off_loop(self, ctx: Context, code: int, message: str | None) -> None:
        """Answer like :meth:`answer_failure`, in a thread: a long request may need the error repeated for each of its
        elements."""
        ctx._done = True  # so that nothing else answers meanwhile
        response, prepared = await self.server.off_loop(self._failed, ctx, code, message)
        ctx._done = False
        self._answer_with(ctx, code, response, prepared)

    def _failed(self, ctx: Context, code: int, message: str | None) -> tuple[Message | None, list[Buffer] | None]:
        """Return the API's error response and its bytes, if they can be encoded. Runs in a thread."""
        response = failures.response(ctx.key, ctx.version, ctx._request, code, message)
        return response, None if response is None else self._written(ctx, response)

    def _answer_with(
        self, ctx: Context, code: int, response: Message | None, prepared: list[Buffer] | None = None
    ) -> None:
        if response is not None and not codec.server_codec(ctx.key, ctx.version).has_error_code:
            self.server.observer.error_told(ctx.key, code)
        if response is None:
            self.answer(ctx, NO_RESPONSE)
            self.close(f"request failed with {code}", client_id=ctx.client_id, api=APIS[ctx.key].name)
        else:
            self.answer(ctx, response, prepared)

    def room(self, ctx: Context, worth: int) -> AbstractAsyncContextManager[None]:
        """Limit the memory of a short request; see :meth:`Context.room`."""
        # A long request is in a room already and must not wait for a second one. The size of a request whose client has
        # gone is no longer known.
        short = ctx._size <= LONG_BYTES and not self._closing
        return self.server.long_requests.room(worth if short else 0)

    def answer_off_loop(self, ctx: Context, response: Message, then: Callable[[], None]) -> None:
        """Answer a request and encode the response in a thread; see :meth:`Context.respond_off_loop`."""

        async def respond() -> Message | Outcome:
            return response

        async def answered() -> None:
            try:
                await self._await(ctx, respond())
            finally:
                then()

        self.server.spawn(answered())

    def answer(self, ctx: Context, response: Message | Outcome, prepared: list[Buffer] | None = None) -> None:
        """Answer a request; see :meth:`Context.respond`. ``prepared`` are the response's bytes, if they are encoded
        already."""
        if ctx._done:
            raise RuntimeError(f"{ctx!r} was answered twice")
        ctx._done = True
        output: list[Buffer] = []
        if not self._closing and isinstance(response, Message):
            output = self._encode(ctx, response, prepared)
        sent = len(output[0]) if len(output) == 1 else sum(map(len, output))
        if not self._closing:
            self.server.observer.request_done(ctx.key, ctx.version, monotonic() - ctx.arrived, ctx._size, sent)
        self._fill(ctx, output, sent)

    def _tell_throttled(self, response: Message) -> Message:
        """Set a response's throttle time (KIP-219), if it has that field: how long its client should send no
        requests."""
        if "throttle_time_ms" in response.__slots__:
            told = getattr(response, "throttle_time_ms")  # noqa: B009  # a field of most messages
            wait = min(math.ceil(self.throttled_seconds * 1000), _LONGEST_THROTTLE_MS)
            response.throttle_time_ms = max(told, wait)  # type: ignore[attr-defined]
        return response

    def _encode(self, ctx: Context, response: Message, prepared: list[Buffer] | None) -> list[Buffer]:
        wire = codec.server_codec(ctx.key, ctx.version)
        if wire.has_error_code:
            code: int = getattr(response, "error_code", 0)
            if code:
                self.server.observer.error_told(ctx.key, code)
        if prepared is not None:
            return prepared
        if self._muted:
            response = self._tell_throttled(copy(response))
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


def _is_long(response: Message) -> bool:
    """Return whether a response has more than _SHORT_ELEMENTS elements, counting two levels of lists."""
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
