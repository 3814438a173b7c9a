"""From a method's name to what answers it, and from what goes wrong to gRPC's status for it.

Clients take UNKNOWN and INTERNAL for reasons to repeat a call for minutes, so each error has a status of its own
(docs/protocols/pravega.md, "Controller errors"). Methods without a handler are answered UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.catalog.topic import TopicNotFound
from bridges.errors import LogError
from bridges.net.grpc_server import Code, GrpcCall, GrpcRefusal, GrpcServer, Unary
from pravega_front.wire.controller import METHODS, SERVICE, message

if TYPE_CHECKING:
    from bridges.catalog.following import Changes
    from pravega_front.access import Access

Handler = Callable[[Any, Principal], Awaitable[Any]]
"""``handler(request, caller)`` gives the answer's message. Raises GrpcRefusal, LogError."""
PlaceHandler = Callable[[Any, str], Awaitable[Any]]
"""The same, of where things are: gets the name of the listener instead."""

_ON_NODE = {
    "createScope": Operation.CREATE,
    "deleteScope": Operation.DELETE,
    "deleteScopeRecursive": Operation.DELETE,
    "checkScopeExists": Operation.DESCRIBE,
    "listScopes": Operation.DESCRIBE,
    "listStreamsInScope": Operation.DESCRIBE,
    "listStreamsInScopeForTag": Operation.DESCRIBE,
    "listKeyValueTablesInScope": Operation.DESCRIBE,
}
_ON_STREAM = {
    "createStream": Operation.CREATE,
    "checkStreamExists": Operation.DESCRIBE,
    "getStreamConfiguration": Operation.DESCRIBE_CONFIGS,
    "updateStream": Operation.ALTER_CONFIGS,
    "truncateStream": Operation.ALTER,
    "sealStream": Operation.ALTER,
    "deleteStream": Operation.DELETE,
    "scale": Operation.ALTER,
    "createTransaction": Operation.WRITE,
    "commitTransaction": Operation.WRITE,
    "abortTransaction": Operation.WRITE,
    "pingTransaction": Operation.WRITE,
    "updateSubscriberStreamCut": Operation.READ,
}
_ON_TABLE = {
    "createKeyValueTable": Operation.CREATE,
    "getCurrentSegmentsKeyValueTable": Operation.DESCRIBE,
    "getKeyValueTableConfiguration": Operation.DESCRIBE_CONFIGS,
    "deleteKeyValueTable": Operation.DELETE,
}
_ON_GROUP = {
    "createReaderGroup": Operation.READ,
    "getReaderGroupConfig": Operation.DESCRIBE,
    "updateReaderGroup": Operation.READ,
    "deleteReaderGroup": Operation.DELETE,
}
"""What each method does, and to what; the others describe the stream that they name, or nothing."""

_FREE = frozenset(
    {
        "getControllerServerList",
        "getURI",
        "getDelegationToken",  # the token says what is allowed
        "noteTimestampFromWriter",
        "removeWriter",
    }
)
_EVERY_TIME = frozenset({"getControllerServerList", "getURI", "getDelegationToken"})
"""Methods that are called with every connection, and tell nothing that clients have just changed."""
#: Memory of a parsed message for each byte: of a map of small numbers measured.
_PARSED = 5
#: Longest request: stream cuts and configurations of groups are a few kilobytes for a thousand segments.
_MOST = 1024 * 1024


class Registry:
    """Handlers by the names of their methods."""

    def __init__(self, access: Access, changes: Changes) -> None:
        self._access = access
        self._changes = changes
        self._calls: dict[str, Callable[[Any, Principal, GrpcCall], Awaitable[Any]]] = {}

    def call(self, name: str, handler: Handler) -> None:
        """Have calls of the method ``name`` answered by ``handler``."""
        assert name in METHODS, name
        self._calls[name] = lambda request, caller, call: handler(request, caller)

    def place(self, name: str, handler: PlaceHandler) -> None:
        """Have calls of the method ``name``, which asks where something is, answered by ``handler``."""
        assert name in METHODS, name
        self._calls[name] = lambda request, caller, call: handler(request, call.listener)

    def fill(self, server: GrpcServer) -> None:
        """Put everything into a server."""
        for name, handler in self._calls.items():
            server.add_call(SERVICE, name, self._unary(name, handler))

    def _unary(self, name: str, handler: Callable[[Any, Principal, GrpcCall], Awaitable[Any]]) -> Unary:
        request_class = message(METHODS[name][0])

        async def answer(raw: bytes, call: GrpcCall) -> bytes:
            if len(raw) > _MOST:
                raise GrpcRefusal(Code.INVALID_ARGUMENT, f"a request of {len(raw)} bytes is more than {_MOST}")
            with call.room(_PARSED * len(raw)):
                return await answered(raw, call)

        async def answered(raw: bytes, call: GrpcCall) -> bytes:
            try:
                request = request_class.FromString(raw)
            except DecodeError:
                raise GrpcRefusal(Code.INVALID_ARGUMENT, f"this is no {METHODS[name][0]}") from None
            caller = await self._access.caller(call)
            if name not in _EVERY_TIME:
                await self._changes.latest()
            self._allow(name, request, caller)
            try:
                found = await handler(request, caller, call)
            except TopicNotFound as error:
                raise GrpcRefusal(Code.NOT_FOUND, str(error)) from error
            except LogError as error:
                raise refusal_of(error) from error
            encoded: bytes = found.SerializeToString()
            if not call.admits(len(encoded)):
                raise GrpcRefusal(Code.UNAVAILABLE, "memory is short")
            return encoded

        return answer

    def _allow(self, name: str, request: Any, caller: Principal) -> None:
        access = self._access
        if (operation := _ON_NODE.get(name)) is not None:
            access.allow(caller, operation, NODE)
        elif (operation := _ON_TABLE.get(name)) is not None:
            access.allow(caller, operation, access.topic(request.scope, request.kvtName))
        elif (operation := _ON_GROUP.get(name)) is not None:
            group = getattr(request, "readerGroupName", "") or getattr(request, "readerGroup", "")
            access.allow(caller, operation, Resource(ResourceKind.GROUP, f"{request.scope}/{group}"))
        elif name not in _FREE:
            info = getattr(getattr(request, "streamCut", request), "streamInfo", request)
            access.allow(caller, _ON_STREAM.get(name, Operation.DESCRIBE), access.topic(info.scope, info.stream))


def refusal_of(error: LogError) -> GrpcRefusal:
    """Return what a call is ended with for ``error``: clients repeat it after UNAVAILABLE, not after others."""
    return GrpcRefusal(Code.UNAVAILABLE if error.retriable else Code.INVALID_ARGUMENT, str(error))
