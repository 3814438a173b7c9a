"""A client of Pravega's controller and segment stores for reading segments; synchronous, not thread-safe."""

from __future__ import annotations

import base64
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc

from pravega_front.wire.commands import (
    OLDEST_COMPATIBLE,
    WIRE_VERSION,
    AuthTokenCheckFailed,
    Command,
    GetStreamSegmentInfo,
    Hello,
    NoSuchSegment,
    ReadSegment,
    SegmentIsTruncated,
    SegmentRead,
    StreamSegmentInfo,
    WrongHost,
)
from pravega_front.wire.controller import METHODS, SERVICE, message
from pravega_front.wire.fields import Buffer, WireError
from pravega_front.wire.frames import HEAD, MAX_FRAME, decode, encode
from spark_pipeline.core.client.node_client import Access, access_given, address_of
from spark_pipeline.core.errors import EndpointUnavailable, OptionError, PipelineError, UnknownTopic

SCHEMES = ("pravega", "pravega+tls")
_READ_ACCESS = 3
"""``accessOperation`` of readers."""
_ID = 1
"""The id of every request: a connection has one at a time."""

C = TypeVar("C", bound=Command)


@dataclass(frozen=True, slots=True)
class PravegaOptions(Access):
    """The address of the controller, the scope to read, and the access."""

    address: str
    scope: str

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str]) -> PravegaOptions:
        """Parse ``pravega://host:9090/scope`` (or ``pravega+tls://``) and the options of :func:`access_given`.

        Raises OptionError.
        """
        parts = urlsplit(url)
        scope = parts.path.strip("/")
        if parts.scheme not in SCHEMES or not parts.hostname or not scope or "/" in scope or parts.username:
            raise OptionError(f"{url!r} is no address of a Pravega scope: pravega://host:9090/scope, or pravega+tls://")
        return cls(address_of(parts, 9090), scope, **access_given(parts.scheme, options))


class Gone(PipelineError):
    """A read was below the segment's ``start``."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.start = start


class PravegaClient:
    """Calls of the controller by their names on the wire, and reads of segments."""

    def __init__(self, options: PravegaOptions) -> None:
        self.options = options
        self._channel: grpc.Channel | None = None
        self._stores: dict[tuple[str, int], _Store] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._tokens: dict[str, str] = {}

    def close(self) -> None:
        """Close all connections; a second call has no effect."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._forget()

    def _forget(self) -> None:
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()
        self._places.clear()
        self._tokens.clear()

    # --- the controller ---------------------------------------------------------------------------------------------

    def call(self, name: str, **fields: Any) -> Any:
        """Make one call. Raises UnknownTopic, EndpointUnavailable, PipelineError."""
        asked, answered = METHODS[name]
        options = self.options
        metadata = None
        if options.user:
            basic = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
            metadata = (("authorization", f"Basic {basic}"),)
        call = self._controller().unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message(answered).FromString,
        )
        try:
            return call(message(asked)(**fields), timeout=options.timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise self._to_error(error, name) from error

    def _controller(self) -> grpc.Channel:
        if self._channel is None:
            options = self.options
            if options.tls:
                try:
                    root = None if not options.ca else open(options.ca, "rb").read()  # noqa: SIM115
                except OSError as error:
                    raise OptionError(f"a certificate cannot be read: {error}") from None
                self._channel = grpc.secure_channel(options.address, grpc.ssl_channel_credentials(root))
            else:
                self._channel = grpc.insecure_channel(options.address)
        return self._channel

    def _to_error(self, error: grpc.RpcError, name: str) -> PipelineError:
        code, details = error.code(), error.details()
        sentence = f"Pravega's controller {self.options.address}: {name}: {code.name}: {details}"
        if code is grpc.StatusCode.NOT_FOUND:
            return UnknownTopic(sentence)
        if code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        ):
            return EndpointUnavailable(sentence)
        return PipelineError(sentence)

    def stream(self, name: str) -> Any:
        """Return the message that names a stream of the scope in calls."""
        return message("StreamInfo")(scope=self.options.scope, stream=name)

    # --- segments ---------------------------------------------------------------------------------------------------

    def info(self, stream: str, segment: int) -> StreamSegmentInfo:
        """Return the bounds of a segment. Raises UnknownTopic."""
        name, token, store = self._place(stream, segment)
        return self._ask(store, GetStreamSegmentInfo(_ID, name, token), name, StreamSegmentInfo)

    def read(self, stream: str, segment: int, offset: int, size: int) -> Buffer:
        """Return at least one byte of a segment from ``offset`` on. Raises Gone, UnknownTopic."""
        name, token, store = self._place(stream, segment)
        found = self._ask(store, ReadSegment(name, offset, size, token, _ID), name, SegmentRead).data
        if not len(found):
            raise EndpointUnavailable(f"the segment store has nothing of segment {name} at {offset}")
        return found

    def _ask(self, store: _Store, request: Command, name: str, kind: type[C]) -> C:
        try:
            answer = store.ask(request)
        except (OSError, WireError) as error:
            self._forget()
            raise EndpointUnavailable(f"Pravega's segment store does not answer for segment {name}: {error}") from error
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, NoSuchSegment):
            raise UnknownTopic(f"Pravega has no segment {name}")
        if isinstance(answer, SegmentIsTruncated):
            raise Gone(answer.start_offset)
        if isinstance(answer, AuthTokenCheckFailed):
            self._tokens.clear()
            raise EndpointUnavailable(f"the token for segment {name} is not good, or not good any more")
        if isinstance(answer, WrongHost):
            self._forget()
            raise EndpointUnavailable(f"segment {name} has moved to another segment store")
        raise PipelineError(f"the segment store answers {type(answer).__name__} about segment {name}")

    def _place(self, stream: str, segment: int) -> tuple[str, str, _Store]:
        """Return a segment's name, the token to read it with, and a connection to its segment store."""
        name = segment_name(self.options.scope, stream, segment)
        at = self._places.get(name)
        if at is None:
            uri = self.call("getURI", streamInfo=self.stream(stream), segmentId=segment)
            at = self._places[name] = (uri.endpoint, uri.port)
        token = self._tokens.get(stream)
        if token is None:
            token = ""
            if self.options.user:
                asked = {"scope": self.options.scope, "stream": stream, "accessOperation": _READ_ACCESS}
                token = self.call("getDelegationToken", **asked).delegationToken
            self._tokens[stream] = token
        store = self._stores.get(at)
        if store is None:
            store = self._stores[at] = _Store(at, self.options)
        return name, token, store


def segment_name(scope: str, stream: str, segment: int) -> str:
    """Return the segment store's name for a segment; its id has the epoch in front of its number."""
    return f"{scope}/{stream}/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}"


class _Store:
    """A connection to one segment store, with one request at a time."""

    def __init__(self, at: tuple[str, int], options: PravegaOptions) -> None:
        self._at = at
        self._options = options
        self._socket: socket.socket | None = None

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def ask(self, request: Command) -> Command:
        """Return the answer. Raises OSError, WireError; the connection is unusable after that."""
        if self._socket is None:
            self._socket = self._connected()
            self._send(Hello(WIRE_VERSION, OLDEST_COMPATIBLE))
            self._send(request)
            self._answer()  # the segment store's own versions
        else:
            self._send(request)
        return self._answer()

    def _send(self, command: Command) -> None:
        assert self._socket is not None
        self._socket.sendall(b"".join(encode(command)))

    def _connected(self) -> socket.socket:
        options = self._options
        connection = socket.create_connection(self._at, options.timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.tls:
            connection = options.tls_context().wrap_socket(connection, server_hostname=self._at[0])
        return connection

    def _answer(self) -> Command:
        head = self._receive(HEAD.size)
        _, size = HEAD.unpack(head)
        if not 0 <= size <= MAX_FRAME:
            raise WireError(f"a frame of {size} bytes")
        return decode(head + self._receive(size))

    def _receive(self, size: int) -> bytearray:
        assert self._socket is not None
        data = bytearray(size)
        view = memoryview(data)
        while len(view):
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionError("the segment store has closed the connection")
            view = view[got:]
        return data
