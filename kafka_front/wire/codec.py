"""Codec functions by API key and version, and whole frames.

Functions are generated on first use, from the layout of that API and version alone. A frame here is what follows the
int32 length on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from kafka_front.wire import generate
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.generate import Decoder, Encoder
from kafka_front.wire.primitives import Buffer, UnsupportedVersion, WireError, skip_tags
from kafka_front.wire.schema import MessageType, load

_HEADER = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD = struct.Struct(">iix")
_REQUEST_HEAD = struct.Struct(">ihhih")
_CORRELATION = struct.Struct(">i")
_new = tuple.__new__
"""Constructor of named tuples in half the time that their class takes, for those made with every request."""
_SHORT_RESPONSE = 4096
"""Bytes below which a response is joined into one buffer."""


class RequestHeader(NamedTuple):
    """Header of a request; ``body`` is the position of what follows it in the frame."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


@cache
def message_type(key: int, version: int, request: bool) -> MessageType:
    """Return the layout of a message. Raises UnsupportedVersion."""
    return load(key, version, request)


@cache
def request_decoder(key: int, version: int) -> Decoder:
    return generate.decoder(message_type(key, version, True))


@cache
def request_encoder(key: int, version: int) -> Encoder:
    return generate.encoder(message_type(key, version, True))


@cache
def response_decoder(key: int, version: int) -> Decoder:
    return generate.decoder(message_type(key, version, False))


@cache
def response_encoder(key: int, version: int) -> Encoder:
    return generate.encoder(message_type(key, version, False))


class ServerCodec:
    """The functions that a server needs for one API and version, found in one look-up: see :func:`server_codec`."""

    __slots__ = ("_head", "_head_size", "decode", "encode", "flexible", "has_error_code", "key", "version")

    def __init__(self, key: int, version: int) -> None:
        self.key = key
        self.version = version
        self.flexible = is_flexible(key, version)
        self.decode = request_decoder(key, version)
        self.encode = response_encoder(key, version)
        self.has_error_code = any(field.name == "error_code" for field in message_type(key, version, False).body.fields)
        head = _FLEXIBLE_RESPONSE_HEAD if has_flexible_response_header(key, version) else _RESPONSE_HEAD
        self._head = head.pack
        self._head_size = head.size - 4

    def response(self, correlation_id: int, message: Any) -> list[Buffer]:
        """Return the buffers of a whole response with its length prefix; record data are not copied. Raises WireError.

        A short response is one buffer, since the sender would otherwise look at each of its fields. It stays in pieces
        if its records are only located and not yet read.
        """
        out: list[Buffer] = [b""]
        self.encode(message, out)
        size = sum(map(len, out))
        out[0] = self._head(size + self._head_size, correlation_id)
        if size >= _SHORT_RESPONSE:
            return out
        try:
            return [b"".join(out)]
        except TypeError:
            return out  # records that are located but not yet read


@cache
def server_codec(key: int, version: int) -> ServerCodec:
    """Return the server's functions for an API and version, generated on first use. Raises UnsupportedVersion."""
    return ServerCodec(key, version)


def is_flexible(key: int, version: int) -> bool:
    """Return whether the request's header carries tagged fields (header version 2). Raises UnsupportedVersion."""
    return message_type(key, version, True).header_version >= 2


def has_flexible_response_header(key: int, version: int) -> bool:
    """Return whether the response has header version 1. ApiVersions never has, since older clients must be able to read
    it."""
    return key != ApiKey.API_VERSIONS and message_type(key, version, False).header_version >= 1


def decode_header(frame: bytes | bytearray) -> RequestHeader:
    """Read the header of a request frame.

    Raises WireError, or UnsupportedVersion (a WireError) when the layout of the key and version is unknown. The header
    of ApiVersions is read in any version, so that the answer can list what is supported.
    """
    try:
        key, version, correlation_id, length = _HEADER.unpack_from(frame)
        pos = 10
        client_id = None
        if length >= 0:
            end = pos + length
            if end > len(frame):
                raise WireError("client id exceeds the message")
            client_id = frame[pos:end].decode()
            pos = end
        elif length != -1:
            raise WireError("negative length of the client id")
        try:
            flexible = server_codec(key, version).flexible
        except UnsupportedVersion:
            if key != ApiKey.API_VERSIONS:
                raise
            flexible = False
        if flexible:
            tags = frame[pos]
            pos += 1
            if tags:
                pos = skip_tags(frame, pos, tags)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise WireError(f"malformed request header: {error}") from error
    return _new(RequestHeader, (key, version, correlation_id, client_id, pos))


def decode_request(frame: Buffer) -> tuple[RequestHeader, Any]:
    """Return header and message of a request frame. Raises WireError."""
    if isinstance(frame, memoryview):
        frame = bytes(frame)
    header = decode_header(frame)
    return header, request_decoder(header.key, header.version)(frame, header.body)


def encode_request(version: int, correlation_id: int, client_id: str | None, message: Any) -> list[Buffer]:
    """Return the buffers of a whole request with its length prefix. Raises WireError."""
    key = message.API_KEY
    name = b"" if client_id is None else client_id.encode()
    out: list[Buffer] = [b"", name]
    if is_flexible(key, version):
        out.append(b"\0")
    request_encoder(key, version)(message, out)
    size = sum(map(len, out)) + 10
    out[0] = _REQUEST_HEAD.pack(size, key, version, correlation_id, -1 if client_id is None else len(name))
    return out


def encode_response(key: int, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """Return the buffers of a whole response with its length prefix; record data are not copied. Raises WireError."""
    return server_codec(key, version).response(correlation_id, message)


def decode_response(key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Return correlation id and message of a response frame. Raises WireError."""
    if isinstance(frame, memoryview):
        frame = bytes(frame)
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame, 0)
        pos = 4
        if has_flexible_response_header(key, version):
            tags = frame[pos]
            pos += 1
            if tags:
                pos = skip_tags(frame, pos, tags)
    except (struct.error, IndexError) as error:
        raise WireError(f"malformed response header: {error}") from error
    return correlation_id, response_decoder(key, version)(frame, pos)


def warm(served: Iterable[tuple[int, int]]) -> None:
    """Generate the server's functions for (key, version) pairs now, rather than while a client waits."""
    for key, version in served:
        server_codec(key, version)
