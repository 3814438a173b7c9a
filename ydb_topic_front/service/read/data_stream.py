"""The common part of StreamRead and StreamDirectRead: a stream that receives messages, and sends answers and data.

One task receives the client's messages and one sends; a stream may begin others. An error in any of them becomes the
last message to the client.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.message import DecodeError

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import Turns
from bridges.auth import Operation, Resource, ResourceKind
from bridges.errors import LogError
from bridges.net.grpc_server import Code, GrpcRefusal
from bridges.net.quotas import Throttle
from ydb_topic_front.failures import translate_error
from ydb_topic_front.service.core import TICKET
from ydb_topic_front.service.identity import Identity
from ydb_topic_front.service.read.answers import ReadAnswers
from ydb_topic_front.service.read.chore import Work
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.pump import ReadPump

_MESSAGE_BYTES = 1024 * 1024
"""Longest message of a client: parsing a longer one would block the event loop."""


def parse_message(method: str, raw: bytes) -> Any:
    """Parse a client's message of a stream. Raises YdbError."""
    if len(raw) > _MESSAGE_BYTES:
        raise bad_request(f"a message of {len(raw)} bytes is more than {_MESSAGE_BYTES}")
    try:
        return messages[METHODS[method].request].FromString(raw)
    except DecodeError:
        raise bad_request(f"the bytes are no {method} message") from None


def encode_last(method: str, error: YdbError) -> bytes:
    """Return the last message of a stream, with an error."""
    message = messages[METHODS[method].response]()
    error.tell(message)
    raw: bytes = message.SerializeToString()
    return raw


class DataStream(ABC):
    """One call of a method that sends data."""

    method: ClassVar[str]
    _pump: ReadPump | None = None
    """Source of the data; None before the init_request."""

    def __init__(self, service: YdbService, stream: GrpcStream) -> None:
        self._service = service
        self._stream = stream
        self.session_id = ""
        """Id of the read session; empty before the init_request."""
        self.identity = Identity(service, stream, self._refused)
        self._error: YdbError | None = None
        # Code and text instead of the exception, whose traceback would keep its frames and this stream in memory.
        self._refusal: tuple[Code, str] | None = None
        self._half_closed = False
        self._cut = False
        self._wake = asyncio.Event()
        self.answers = ReadAnswers(stream.account, self._wake.set)
        self._task: asyncio.Task[Any] | None = None
        self._others: list[asyncio.Task[None]] = []
        self._quota = service.node.quotas.fetch
        self._throttle = Throttle(self._released)
        # Whether the throttle has just let this stream pass after waiting for its quota.
        self._its_turn = False
        self._over = False
        self.writing_since = 0.0

    # --- what the two methods do in their own ways --------------------------------------------------------------------

    @abstractmethod
    async def _open(self, request: Any) -> None:
        """Handle the init_request, and set the session's id. Raises YdbError, GrpcRefusal."""

    @abstractmethod
    async def _handle(self, kind: str | None, message: Any) -> None:
        """Handle another message, besides update_token_request. Raises YdbError."""

    @abstractmethod
    def _identify(self) -> None:
        """Authenticate the client again and check that it may read its topics and consumer. Raises GrpcRefusal,
        YdbError."""

    @abstractmethod
    def _leave(self) -> None:
        """Free the partitions at once: the stream ends. Does nothing when repeated."""

    @abstractmethod
    def _close(self) -> None:
        """Drop the state of the stream, which has ended."""

    @abstractmethod
    def _untie(self) -> None:
        """Break the reference cycles of an ended stream. Otherwise it would stay in memory until the garbage collector
        runs, which is rare in a node."""

    @property
    def _unsettled(self) -> bool:
        """Return whether the client that sends no more is still owed answers."""
        return False

    # --- the stream's life --------------------------------------------------------------------------------------------

    def end(self, error: YdbError) -> None:
        """End the stream with ``error``, and free its partitions at once. Only the first error counts."""
        if self._error is None:
            self._error = error
            self._leave()
            self._wake.set()
            self.answers.close()

    def _refused(self, refusal: GrpcRefusal) -> None:
        self._refusal = refusal.code, str(refusal)
        self.end(YdbError(Status.UNAUTHORIZED, str(refusal)))

    def wake(self) -> None:
        """Look for something to send."""
        self._wake.set()

    def cut_if_stuck(self, since: float) -> None:
        """End the stream if its client has taken nothing since ``since`` (monotonic clock): its unsent answer holds
        memory."""
        if self._task is not None and 0 < self.writing_since < since and not self._cut:
            self._cut = True
            self._task.cancel()

    async def serve(self) -> None:
        """Serve the stream until the client or an error ends it."""
        self._task = asyncio.current_task()
        self._stream.when_draining(lambda: self.end(YdbError(Status.UNAVAILABLE, "the node is stopping")))
        self._begin(self._receive)
        try:
            await self._guarded(self._send(), self._end_reading)
            await self._say_why()
        except asyncio.CancelledError:
            if not self._cut:
                raise
            # The client gets this status when it reads again, behind the answer that it has not taken.
            raise GrpcRefusal(Code.UNAVAILABLE, "nothing was taken of what was sent, and memory is short") from None
        finally:
            self._throttle.end()
            self._leave()
            self._close()
            self._over = True
            others, self._others = self._others, []
            for task in others:
                task.cancel()
            try:
                await asyncio.gather(*others, return_exceptions=True)
            finally:
                self.answers.drop()
                self._untie()
                self.identity.close()

    def _begin(self, work: Work) -> None:
        """Run ``work`` as a task until the stream has ended."""
        if not self._over:
            self._others.append(asyncio.create_task(self._guarded(work(), self.end)))

    def _end_reading(self, error: YdbError) -> None:
        """End the stream with an error of the data."""
        self.end(error)

    async def _guarded(self, work: Coroutine[Any, Any, None], end: Callable[[YdbError], None]) -> None:
        try:
            await work
        except (YdbError, LogError) as error:
            end(translate_error(error))
        except GrpcRefusal as refusal:
            self._refused(refusal)
        except Exception as error:  # noqa: BLE001 - logged, counted and told
            self._service.node.barrier.caught(self.method, error)
            end(YdbError(Status.INTERNAL_ERROR, "an unexpected error"))

    async def _say_why(self) -> None:
        if self._refusal is not None:
            raise GrpcRefusal(*self._refusal)
        if self._error is not None:
            self._service.node.metrics.kind(self.method).failed(self._error.status.name)
            await self._stream.write(encode_last(self.method, self._error))

    # --- data and answers ---------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Send answers first, and data when there are none, until the stream ends."""
        turns = Turns()
        while self._error is None:
            self._wake.clear()
            pump = self._pump
            if self.answers:
                await self._write(self.answers.take())
            elif self._half_closed and not self._unsettled:
                return
            elif pump is not None and pump.ready and not self._half_closed:
                if self.identity.is_old:
                    self._identify()
                if self._quota.in_force and not self._may_read():
                    await self._wake.wait()
                    continue
                raw = await pump.response()
                if raw is None:
                    await turns.rest()  # many partitions in a row may have nothing to send
                elif self._error is None:
                    if self._quota.in_force:
                        self._throttle.charge(self._quota.bucket(self.identity.principal.name, None), len(raw))
                        self._its_turn = False
                    await self._write(raw)
            else:
                await self._wake.wait()

    def _may_read(self) -> bool:
        """Return whether the client's quota allows data now; if not, the throttle wakes the sender when it does."""
        if self._throttle.waits:
            return False
        return self._its_turn or self._throttle.passes(self._quota.bucket(self.identity.principal.name, None))

    def _released(self) -> None:
        self._its_turn = True
        self._wake.set()

    async def _write(self, raw: bytes) -> None:
        self.writing_since = time.monotonic()
        await self._stream.write(raw)
        self.writing_since = 0.0

    # --- messages of the client ---------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        stream = self._stream
        while (raw := await stream.read()) is not None:
            stream.account.give(Kind.REQUESTS, len(raw))
            if self._error is not None:
                return
            message = parse_message(self.method, raw)
            kind = message.WhichOneof("client_message")
            if not self.session_id:
                if kind != "init_request":
                    raise bad_request("the first message of a stream is an init_request")
                await self._open(message.init_request)
            elif kind == "update_token_request":
                self._update_token(message.update_token_request)
            else:
                await self._handle(kind, message)
            await self.answers.few()
        self._half_closed = True
        self._wake.set()

    def _update_token(self, request: Any) -> None:
        self._stream.replace_header(TICKET, request.token)
        self._identify()
        message = self._success()
        message.update_token_response.SetInParent()
        self.answers.put(message)

    def _success(self) -> Any:
        return messages[METHODS[self.method].response](status=Status.SUCCESS)

    def _require_read(self, consumer: str, topics: Collection[str]) -> None:
        """Authenticate the client again and check that it may read. Raises GrpcRefusal, YdbError."""
        principal = self.identity.identify()
        if consumer:
            self._service.require(self._stream, Operation.READ, Resource(ResourceKind.GROUP, consumer), principal)
        for name in topics:
            self._service.require(self._stream, Operation.READ, Resource(ResourceKind.TOPIC, name), principal)
