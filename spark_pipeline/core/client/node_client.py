"""A client of a node's pipeline listener: synchronous HTTP over one kept connection.

It runs in drivers and in workers that are started by the hundred, so it imports nothing but the standard library. Every
request is idempotent, and the client retries it until the node answers or patience ends, because nodes restart.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from typing import Any
from urllib.parse import SplitResult, urlsplit

from spark_pipeline.core.errors import Conflict, EndpointUnavailable, Fenced, OptionError, PipelineError, UnknownTopic
from spark_pipeline.core.options import Options

PORT = 8090
SCHEMES = ("anabranch", "anabranch+tls")
_BUSY = frozenset({408, 429, 502, 503, 504})
"""Statuses of answers after which a retry may succeed."""
_ELSEWHERE = 421
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_LONGEST_ANSWER = 64 * 1024 * 1024

Buffer = bytes | bytearray | memoryview


class NodeError(Exception):
    """The node has refused a request: the message, the ``kind`` of failure by its name, and the HTTP ``status``."""

    def __init__(self, message: str, kind: str = "", status: int = 0, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.details = dict(details or {})

    def __reduce__(self) -> tuple[type[NodeError], tuple[Any, ...]]:
        return type(self), (str(self), self.kind, self.status, self.details)


class NodeUnavailable(NodeError):
    """The node could not be reached, or was not ready, until patience ended."""


class NodeElsewhere(NodeUnavailable):
    """Another node of the cluster must be asked: ``details["at"]`` is its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The credentials and time limits for requests to a system.

    Without ``user`` or ``token`` the client does not authenticate; ``ca``, ``cert`` and ``key`` are PEM files. Times
    are in seconds: ``timeout`` bounds the silence of one attempt, ``patience`` all attempts together.
    """

    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout: float = 60.0
    patience: float = 60.0

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for connections. Raises OSError for a file that cannot be read."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


ACCESS_OPTIONS = ("user", "password", "token", "tls", "tls.ca", "tls.cert", "tls.key", "timeoutMs", "patienceMs")
"""Options of :func:`access_given`."""


def access_given(scheme: str, options: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of :class:`Access` from a URL's scheme, ``name`` or ``name+tls``, and the options
    ``ACCESS_OPTIONS``. Raises OptionError."""
    given = Options(options)
    return {
        **{name: given.get(name) or "" for name in ("user", "password", "token")},
        **{name: given.get(f"tls.{name}") or "" for name in ("ca", "cert", "key")},
        "tls": scheme.endswith("+tls") or given.truth("tls", bool(given.get("tls.ca"))),
        "timeout": _seconds(given, "timeoutMs"),
        "patience": _seconds(given, "patienceMs"),
    }


@dataclass(frozen=True, slots=True)
class NodeOptions(Access):
    """The address of a node and the access to it."""

    host: str
    port: int = PORT

    def __repr__(self) -> str:  # without secrets, since it is logged
        return f"NodeOptions({self.url})"

    @property
    def url(self) -> str:
        """Return the node's address, without secrets."""
        return f"{'anabranch+tls' if self.tls else 'anabranch'}://{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str] | None = None) -> NodeOptions:
        """Parse ``anabranch://host:port`` (or ``anabranch+tls://``) and the options of a source or sink, see
        :func:`access_given`.

        Raises OptionError.
        """
        parts = urlsplit(url if "://" in url else f"{SCHEMES[0]}://{url}")
        if parts.scheme not in SCHEMES or not parts.hostname or parts.path.strip("/") or parts.query:
            raise OptionError(f"{url!r} is no address of a node: anabranch://HOST:PORT")
        if parts.username or parts.password:
            raise OptionError("user and password are given as options, not in the address, which is written into logs")
        access = access_given(parts.scheme, options)
        if bool(access["user"]) != bool(access["password"]):
            raise OptionError("user and password are given together")
        return cls(parts.hostname, port_of(parts, PORT), **access)


def address_of(parts: SplitResult, port: int) -> str:
    """Return host and port of a URL, with ``port`` as default. Raises OptionError for an invalid port."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{port_of(parts, port)}"


def port_of(parts: SplitResult, port: int) -> int:
    """Return the port of a URL, ``port`` if it has none. Raises OptionError for an invalid one."""
    try:
        return parts.port or port
    except ValueError as error:
        raise OptionError(f"{parts.geturl()!r}: {error}") from None


def _seconds(given: Options, name: str) -> float:
    try:
        return (given.number(name) or 60_000) / 1000
    except OptionError:
        raise OptionError(f"{name} = {given.get(name)!r} is no number of milliseconds") from None


class NodeClient:
    """A client of one node. It follows the node's redirect to another node of the cluster until that one fails.

    It is not thread-safe. It may be pickled, and used on in a forked process.
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self._connection: HTTPConnection | None = None
        self._pid = 0
        self._led: tuple[str, int] | None = None
        self._head: dict[str, str] = {}
        if options.token:
            self._head = {"Authorization": f"Bearer {options.token}"}
        elif options.user:
            both = f"{options.user}:{options.password}".encode()
            self._head = {"Authorization": f"Basic {b64encode(both).decode()}"}

    def __reduce__(self) -> tuple[type[NodeClient], tuple[NodeOptions]]:
        return type(self), (self.options,)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            connection.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Send a GET request and return the JSON object of the answer. Raises NodeError."""
        from urllib.parse import urlencode

        return self._object("GET", f"{path}?{urlencode(query)}" if query else path, ())

    def post(self, path: str, content: Mapping[str, Any], *, patience: float | None = None) -> dict[str, Any]:
        """Send a JSON object and return the JSON object of the answer. Raises NodeError."""
        return self._object("POST", path, (json.dumps(content).encode(),), patience)

    def post_for_bytes(self, path: str, content: Mapping[str, Any]) -> bytes:
        """Send a JSON object and return the bytes of the answer. Raises NodeError."""
        return self.request("POST", path, (json.dumps(content).encode(),))

    def post_bytes(self, path: str, parts: Sequence[Buffer]) -> dict[str, Any]:
        """Send bytes, without joining them, and return the JSON object of the answer. Raises NodeError."""
        return self._object("POST", path, parts)

    def _object(self, method: str, path: str, parts: Sequence[Buffer], patience: float | None = None) -> dict[str, Any]:
        answer = json.loads(self.request(method, path, parts, patience))
        if not isinstance(answer, dict):
            raise NodeError(f"the node's answer to {path} is not a JSON object")
        return answer

    def request(self, method: str, path: str, parts: Sequence[Buffer], patience: float | None = None) -> bytes:
        """Return the body of the answer, after as many attempts as fit into ``patience`` seconds. Raises NodeError."""
        give_up = time.monotonic() + (self.options.patience if patience is None else patience)
        wait, fresh = _FIRST_WAIT_S, self._connection is None
        while True:
            try:
                return self._attempt(method, path, parts)
            except NodeElsewhere as error:
                straight = self._led is None
                self.close()
                if straight and (at := _place(error.details.get("at"))) is not None:
                    self._led = at
                    continue
                self._led = None
                unavailable: NodeError = error
            except NodeUnavailable as error:
                unavailable = error
                self._leave()
            except (OSError, HTTPException) as error:
                self.close()
                if isinstance(error, ssl.SSLCertVerificationError):
                    told = f"the node at {self.options.url} shows a certificate that is not trusted"
                    raise NodeError(f"{told}: {error}") from error
                if not fresh:
                    # The node has closed the kept connection; a new one may work.
                    fresh = True
                    continue
                self._leave()
                words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                told = f"the node at {self.options.url} cannot be reached"
                unavailable = NodeUnavailable(f"{told}: {words}", "Unreachable")
            if time.monotonic() + wait > give_up:
                raise unavailable
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _leave(self) -> None:
        """Go back to the configured node: the node that it redirected to is not the right one any more, or not now."""
        if self._led is not None:
            self._led = None
            self.close()

    def _attempt(self, method: str, path: str, parts: Sequence[Buffer]) -> bytes:
        connection = self._connected()
        head = {**self._head, "Content-Length": str(sum(memoryview(part).nbytes for part in parts))}
        connection.request(method, path, body=iter(parts) if parts else None, headers=head)
        response = connection.getresponse()
        promised = response.length
        data = response.read(_LONGEST_ANSWER + 1)
        if promised is None and not response.chunked:
            raise IncompleteRead(data)  # the head was cut off: nodes always send the length of the answer
        if promised is not None and len(data) < min(promised, _LONGEST_ANSWER):
            # The node died while it answered. HTTPResponse.read(size) returns a short body without an error.
            raise IncompleteRead(data, promised - len(data))
        if len(data) > _LONGEST_ANSWER:
            self.close()
            raise NodeError(f"the answer to {path} is longer than {_LONGEST_ANSWER} bytes")
        if response.will_close:
            self.close()
        if response.status < 400:
            return data
        raise _refusal(response.status, data, path)

    def _connected(self) -> HTTPConnection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        options = self.options
        host, port = self._led or (options.host, options.port)
        if options.tls:
            made: HTTPConnection = HTTPSConnection(
                host, port, timeout=options.timeout, context=options.tls_context(), blocksize=1024 * 1024
            )
        else:
            made = HTTPConnection(host, port, timeout=options.timeout, blocksize=1024 * 1024)
        made.connect()
        made.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection, self._pid = made, os.getpid()
        return made


def _place(told: object) -> tuple[str, int] | None:
    """Return host and port of the address in a redirect, None if it is invalid."""
    try:
        parts = urlsplit(f"//{told}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


def _refusal(status: int, data: bytes, path: str) -> NodeError:
    try:
        body = json.loads(data)
        message, kind = str(body["error"]), str(body.get("kind", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        body, message, kind = {}, f"the answer to {path} has status {status}", ""
    error = NodeElsewhere if status == _ELSEWHERE else NodeUnavailable if status in _BUSY else NodeError
    return error(message, kind, status, body)


@contextmanager
def as_pipeline_errors() -> Iterator[None]:
    """Translate every NodeError of the block."""
    try:
        yield
    except NodeError as error:
        raise pipeline_error(error) from error


def pipeline_error(error: NodeError) -> PipelineError:
    """Return the PipelineError for a node's refusal."""
    if isinstance(error, NodeUnavailable):
        return EndpointUnavailable(str(error))
    if error.kind == "ImportFenced":
        return Fenced(str(error))
    if error.status == 404:
        return UnknownTopic(str(error))
    if error.status == 409:
        return Conflict(str(error), int(error.details.get("offset", -1)))
    return PipelineError(str(error))
