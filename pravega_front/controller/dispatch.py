"""Registry of the controller's handlers, and translation of their errors into gRPC statuses.

Clients repeat a call for minutes after UNKNOWN and INTERNAL, so each error has a status of its own
(docs/protocols/pravega.md, "Controller errors"). gRPC answers UNIMPLEMENTED for methods without a handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.catalog.topics.topic import TopicNotFound
from bridges.errors import LogError
from bridges.net.grpc_server import Code, GrpcCall, GrpcRefusal, GrpcServer, Unary
from pravega_front.wire.controller import METHODS, SERVICE, message

if TYPE_CHECKING:
    from bridges.catalog.database.following import Changes
    from pravega_front.access import Access

Handler = Callable[[Any, Principal], Awaitable[Any]]
"""``handler(request, caller)`` returns the answer's message. Raises GrpcRefusal, LogError."""
PlaceHandler = Callable[[Any, str], Awaitable[Any]]
"""Handler of a method about addresses: gets the name of the listener instead of the caller."""

ON_NODE = {
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
ON_GROUP = {
    "createReaderGroup": Operation.READ,
    "getReaderGroupConfig": Operation.DESCRIBE,
    "updateReaderGroup": Operation.READ,
    "deleteReaderGroup": Operation.DELETE,
}
"""Operation of each method, by the kind of its resource. Other methods need DESCRIBE on the stream that they name,
except those in _FREE."""

_FREE = frozenset(
    {
        "getControllerServerList",
        "getControllerToBucketMapping",
        "getURI",
        "getDelegationToken",  # checks the rights when it issues the token
        "noteTimestampFromWriter",
        "removeWriter",
    }
)
_EVERY_TIME = frozenset({"getControllerServerList", "getURI", "getDelegationToken"})
"""Methods that clients call with every connection. Their answers do not depend on recent changes of the catalog."""
#: Memory of a parsed message per byte, measured with a map of small numbers.
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
        """Answer calls of the method ``name`` with ``handler``."""
        assert name in METHODS, name
        self._calls[name] = lambda request, caller, call: handler(request, caller)

    def place(self, name: str, handler: PlaceHandler) -> None:
        """Answer calls of the method ``name``, which asks for an address, with ``handler``."""
        assert name in METHODS, name
        self._calls[name] = lambda request, caller, call: handler(request, call.listener)

    def fill(self, server: GrpcServer) -> None:
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
        if (operation := ON_NODE.get(name)) is not None:
            access.allow(caller, operation, NODE)
        elif (operation := _ON_TABLE.get(name)) is not None:
            access.allow(caller, operation, access.topic(request.scope, request.kvtName))
        elif (operation := ON_GROUP.get(name)) is not None:
            group = getattr(request, "readerGroupName", "") or getattr(request, "readerGroup", "")
            access.allow(caller, operation, Resource(ResourceKind.GROUP, f"{request.scope}/{group}"))
        elif name not in _FREE:
            info = getattr(getattr(request, "streamCut", request), "streamInfo", request)
            access.allow(caller, _ON_STREAM.get(name, Operation.DESCRIBE), access.topic(info.scope, info.stream))


def refusal_of(error: LogError) -> GrpcRefusal:
    """Return the gRPC refusal for ``error``. Clients repeat a call after UNAVAILABLE only."""
    return GrpcRefusal(Code.UNAVAILABLE if error.retriable else Code.INVALID_ARGUMENT, str(error))
