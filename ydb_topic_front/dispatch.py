"""From a method's name to what answers it, and from what goes wrong to the answer that says so.

A call's handler takes the parsed request and gives the result, or None for none. What it raises becomes an operation
with a status: :class:`YdbError` its own, what the log says its nearest word, anything else an internal error, which is
also logged and counted. Methods without a handler are answered UNIMPLEMENTED by gRPC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from bridges.errors import LogError
from bridges.net.grpc_server import GrpcCall, GrpcRefusal, GrpcServer, GrpcStream, Unary
from ydb_topic_front.failures import told
from ydb_topic_front.wire import operation
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS, Method
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.following import Changes
    from bridges.metrics import FrontMetrics

Handler = Callable[[Any, GrpcCall], Awaitable[Any]]
"""``handler(request, call)`` gives the result's message, or None."""
StreamHandler = Callable[[GrpcStream], Awaitable[None]]


FOR_EVERYBODY = frozenset({"Login"})
"""Methods of clients that have not said yet who they are."""


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
    }
)
"""Methods that begin with a name. SDKs ask the nodes in turn, so whoever calls may have made it at another just now."""


class Registry:
    """Handlers by the names of their methods (:data:`ydb_topic_front.wire.methods.METHODS`).

    ``admit`` is asked before every call and stream, and raises GrpcRefusal. ``changes`` are those of other nodes.
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
        """Have calls of the method ``name`` answered by ``handler``; ``led``: at the node that it is for."""
        assert METHODS[name].result or METHODS[name].response, name
        self._calls[name] = handler
        if led is not None:
            self._led[name] = led

    def stream(self, name: str, handler: StreamHandler) -> None:
        """Have streams of the method ``name`` served by ``handler``, which tells its client what goes wrong itself."""
        self._streams[name] = handler

    def fill(self, server: GrpcServer) -> None:
        """Put everything into a server."""
        for name, handler in self._calls.items():
            method = METHODS[name]
            answer = self._unary(method, handler)
            server.add_call(method.service, name, self._led[name](answer) if name in self._led else answer)
        for name, stream in self._streams.items():
            server.add_stream(METHODS[name].service, name, self._admitted(name, stream))

    def _admitted(self, name: str, handler: StreamHandler) -> StreamHandler:
        async def serve(stream: GrpcStream) -> None:
            self._admit(stream)
            if name in _OF_NAMES:
                await self._changes.latest()
            await handler(stream)

        return serve

    def _unary(self, method: Method, handler: Handler) -> Unary:
        request_class = messages[method.request]
        counts = self._metrics.kind(method.name)
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
                refused = told(error)
            except Exception as error:  # noqa: BLE001 - logged, counted and answered
                self._barrier.caught("YDB call", error, method=method.name)
                refused = YdbError(Status.INTERNAL_ERROR, "an unexpected error")
            counts.failed(refused.status.name)
            return operation.refusal(method, refused)

        return answer
