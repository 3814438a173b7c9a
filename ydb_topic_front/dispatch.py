"""Registry of the YDB methods' handlers, and translation of their exceptions into status codes.

A call's handler takes the parsed request and returns the result message, or None. An exception becomes an operation
with a status: a :class:`YdbError` its own, a LogError the nearest status (:mod:`ydb_topic_front.failures`), any other
INTERNAL_ERROR, which is also logged and counted. gRPC answers UNIMPLEMENTED for methods without a handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from bridges.errors import LogError
from bridges.net.grpc_server import GrpcCall, GrpcRefusal, GrpcServer, GrpcStream, Unary
from ydb_topic_front.failures import translate_error
from ydb_topic_front.wire import operation
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS, Method
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.following import Changes
    from bridges.metrics import FrontMetrics

Handler = Callable[[Any, GrpcCall], Awaitable[Any]]
"""``handler(request, call)`` returns the result message, or None."""
StreamHandler = Callable[[GrpcStream], Awaitable[None]]


FOR_EVERYBODY = frozenset({"Login"})
"""Methods that need no authentication."""


_OF_NAMES = frozenset(
    {
        "CreateTopic",
        "AlterTopic",
        "DropTopic",
        "DescribeTopic",
        "DescribePartition",
        "DescribeConsumer",
        "DescribePath",
        "ListDirectory",
        "MakeDirectory",
        "RemoveDirectory",
        "StreamWrite",
        "StreamRead",
        "StreamDirectRead",
        "UpdateOffsetsInTransaction",
    }
)
"""Methods whose request names a topic or path. SDKs ask the nodes in turn, so the client may just have created it at
another node: the catalog's changes are read first."""


class Registry:
    """Handlers by the names of their methods (:data:`ydb_topic_front.wire.methods.METHODS`).

    ``admit`` is called before every call and stream, and raises GrpcRefusal to refuse it. ``changes`` reads the changes
    of other nodes.
    """

    def __init__(
        self,
        barrier: Barrier,
        metrics: FrontMetrics,
        call_bytes: int,
        admit: Callable[[GrpcCall], object],
        changes: Changes,
    ) -> None:
        self._changes = changes
        self._barrier = barrier
        self._metrics = metrics
        self._call_bytes = call_bytes
        self._admit = admit
        self._calls: dict[str, Handler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._led: dict[str, Callable[[Unary], Unary]] = {}

    def call(self, name: str, handler: Handler, led: Callable[[Unary], Unary] | None = None) -> None:
        """Answer calls of the method ``name`` with ``handler``. ``led``, if given, sends each call to the node that
        must answer it."""
        assert METHODS[name].result or METHODS[name].response, name
        self._calls[name] = handler
        if led is not None:
            self._led[name] = led

    def stream(self, name: str, handler: StreamHandler) -> None:
        """Serve streams of the method ``name`` with ``handler``, which reports errors to its client itself."""
        self._streams[name] = handler

    def fill(self, server: GrpcServer) -> None:
        """Add all handlers to a server."""
        for name, handler in self._calls.items():
            method = METHODS[name]
            answer = self._unary(method, handler)
            server.add_call(method.service, method.name, self._led[name](answer) if name in self._led else answer)
        for name, stream in self._streams.items():
            server.add_stream(METHODS[name].service, METHODS[name].name, self._admitted(name, stream))

    def _admitted(self, name: str, handler: StreamHandler) -> StreamHandler:
        async def serve(stream: GrpcStream) -> None:
            self._admit(stream)
            if name in _OF_NAMES:
                await self._changes.latest()
            await handler(stream)

        return serve

    def _unary(self, method: Method, handler: Handler) -> Unary:
        request_class = messages[method.request]
        counts = self._metrics.kind(method.key)
        admit = None if method.name in FOR_EVERYBODY else self._admit

        async def answer(raw: bytes, call: GrpcCall) -> bytes:
            try:
                if admit is not None:
                    admit(call)
                if len(raw) > self._call_bytes:
                    raise bad_request(f"a request of {len(raw)} bytes is more than {self._call_bytes}")
                try:
                    request = request_class.FromString(raw)
                except DecodeError:
                    raise bad_request(f"this is no {method.request}") from None
                if method.name in _OF_NAMES:
                    await self._changes.latest()
                return operation.answer(method, await handler(request, call))
            except GrpcRefusal:
                raise
            except (YdbError, LogError) as error:
                refused = translate_error(error)
            except Exception as error:  # noqa: BLE001 - logged, counted and answered
                self._barrier.caught("YDB call", error, method=method.name)
                refused = YdbError(Status.INTERNAL_ERROR, "an unexpected error")
            counts.failed(refused.status.name)
            return operation.refusal(method, refused)

        return answer
