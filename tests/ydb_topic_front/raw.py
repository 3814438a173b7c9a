"""A gRPC client without an SDK: sends what SDKs never send, and sees every message as it is."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc

from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS, Method

PATIENCE = 120.0
DATABASE = "/local"


class RawClient:
    """One connection; ``metadata`` goes with every call."""

    def __init__(self, address: str, **metadata: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(address, [*options, ("grpc.use_local_subchannel_pool", 1)])
        said = {"x_ydb_database": DATABASE, **metadata}
        self._metadata = [(key.replace("_", "-"), value) for key, value in said.items()]

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._channel.close()

    def call(self, name: str, **fields: Any) -> Any:
        """The operation that a call is answered with; ``result`` holds it unpacked."""
        method = METHODS[name]
        response = messages[method.response].FromString(self.bytes(method.path, request_of(method, **fields)))
        return response.operation

    def result(self, name: str, **fields: Any) -> Any:
        """The result of a call that must go well; None where the method has none."""
        operation = self.call(name, **fields)
        assert operation.status == 400000, operation
        if not METHODS[name].result:
            return None
        found = messages[METHODS[name].result]()
        assert operation.result.Unpack(found)
        return found

    def bytes(self, path: str, raw: bytes) -> bytes:
        """What the method at ``path`` answers to these bytes."""
        answer: bytes = self._channel.unary_unary(path)(raw, metadata=self._metadata, timeout=PATIENCE)
        return answer

    def stream(self, name: str) -> RawStream:
        """A stream of the method ``name``."""
        return RawStream(self._channel, METHODS[name], self._metadata)


def request_of(method: Method, **fields: Any) -> bytes:
    """The bytes of a request."""
    raw: bytes = messages[method.request](**fields).SerializeToString()
    return raw


class RawStream:
    """One stream: :meth:`send` and :meth:`receive` in any order, by one thread."""

    def __init__(self, channel: grpc.Channel, method: Method, metadata: list[tuple[str, str]]) -> None:
        self._from_client = messages[method.request]
        self._from_server = messages[method.response]
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = channel.stream_stream(method.path)(self._requests(), metadata=metadata, timeout=PATIENCE)

    def _requests(self) -> Iterator[bytes]:
        while (raw := self._out.get()) is not None:
            yield raw

    def send(self, **fields: Any) -> None:
        """Send one message with these fields."""
        self.send_raw(self._from_client(**fields).SerializeToString())

    def send_raw(self, raw: bytes) -> None:
        """Send bytes that need not be a message."""
        self._out.put(raw)

    def half_close(self) -> None:
        """Send nothing more."""
        self._out.put(None)

    def receive(self) -> Any:
        """The next message; raises StopIteration at the end of the stream and grpc.RpcError for an error of gRPC's."""
        return self._from_server.FromString(next(self.call))

    def rest(self) -> list[Any]:
        """Everything up to the end of the stream."""
        return [self._from_server.FromString(raw) for raw in self.call]

    def cancel(self) -> None:
        """Go away at once."""
        self.half_close()
        self.call.cancel()
