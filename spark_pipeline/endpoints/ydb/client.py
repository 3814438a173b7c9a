"""A client of a YDB database's topic service, through YDB's own SDK: one driver, its calls, and its errors as ours.

The SDK's readers decode messages and return them one by one, and cannot decode every codec. So the client opens streams
with the SDK's driver, which finds the servers, authenticates and balances, and takes the messages undecoded.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ydb
from ydb import _apis
from ydb._constants import DEFAULT_LONG_STREAM_TIMEOUT
from ydb._grpc.common.protos import ydb_topic_pb2

from spark_pipeline.core.client.node_client import Access, access_given, address_of
from spark_pipeline.core.errors import EndpointUnavailable, OptionError, PipelineError, UnknownTopic

SCHEMES = ("ydb", "ydb+tls")
CREDIT_BYTES = 8 * 1024 * 1024
"""Bytes of one partition that a server may send before they are taken here."""

FromClient = ydb_topic_pb2.StreamReadMessage.FromClient
WriteRequest = ydb_topic_pb2.StreamWriteMessage.WriteRequest

_AGAIN = (
    ydb.issues.ConnectionError,
    ydb.issues.Unavailable,
    ydb.issues.SessionExpired,
    ydb.issues.BadSession,
    ydb.issues.Aborted,
    ydb.issues.Overloaded,
    ydb.issues.InternalError,
    ydb.issues.Cancelled,
    ydb.issues.Undetermined,
    ydb.issues.DeadlineExceed,
    ydb.issues.Timeout,
)
"""Errors after which a retry may succeed (docs/protocols/ydb.md, "Statuses")."""


@dataclass(frozen=True, slots=True)
class YdbOptions(Access):
    """The address of the database, and the access."""

    address: str
    database: str

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str]) -> YdbOptions:
        """Parse ``ydb://host:2136/database`` (or ``ydb+tls://``) and the options of :func:`access_given`.

        Raises OptionError.
        """
        parts = urlsplit(url)
        database = parts.path.rstrip("/")
        if parts.scheme not in SCHEMES or not parts.hostname or not database:
            raise OptionError(f"{url!r} is no address of a YDB database: ydb://host:2136/local, or ydb+tls://")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise OptionError("an address of a YDB database has no user, no query and no fragment: give options")
        return cls(address_of(parts, 2136), database, **access_given(parts.scheme, options))


class Interrupted(EndpointUnavailable):
    """A call, or a stream, ended for a reason that may pass."""


class YdbClient:
    """The driver of one database, connected on first use. It is not thread-safe."""

    def __init__(self, options: YdbOptions) -> None:
        self.options = options
        self._driver: Any = None

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Return the result of ``call`` with the SDK's driver.

        Raises EndpointUnavailable, UnknownTopic, PipelineError.
        """
        driver = self._connected()
        try:
            return call(driver)
        except ydb.issues.Error as error:
            known = to_error(error, self.options.address)
            if isinstance(known, Interrupted):
                self.close()  # a retry then discovers the servers again
            raise known from error

    def stream(self) -> YdbStream:
        """Open a StreamRead. Raises EndpointUnavailable, PipelineError."""
        return YdbStream(self._connected(), self.options.address)

    def close(self) -> None:
        """Close the connections; a second call has no effect."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop(timeout=1)

    def _connected(self) -> Any:
        if self._driver is None:
            options = self.options
            driver = ydb.Driver(ydb.DriverConfig(**_config(options)))
            try:
                driver.wait(timeout=options.timeout, fail_fast=True)
            except (
                ydb.issues.Error,
                TimeoutError,
                AssertionError,
            ) as error:  # the SDK raises AssertionError if it cannot request a token
                details = driver.discovery_debug_details()
                driver.stop(timeout=1)
                known = to_error(error, options.address) if isinstance(error, ydb.issues.Error) else None
                if known is not None and not isinstance(known, EndpointUnavailable):
                    raise known from error
                raise EndpointUnavailable(f"YDB at {options.address} does not answer: {details or error}") from error
            self._driver = driver
        return self._driver


def _config(options: YdbOptions) -> dict[str, Any]:
    config: dict[str, Any] = {
        "endpoint": f"{'grpcs' if options.tls else 'grpc'}://{options.address}",
        "database": options.database,
    }
    try:
        if options.ca:
            config["root_certificates"] = Path(options.ca).read_bytes()
        if options.cert:
            config["certificate_chain"] = Path(options.cert).read_bytes()
            config["private_key"] = Path(options.key or options.cert).read_bytes()
    except OSError as error:
        raise OptionError(f"a certificate cannot be read: {error}") from None
    if options.token:
        config["credentials"] = ydb.AccessTokenCredentials(options.token)
    elif options.user:
        config["credentials"] = ydb.StaticCredentials.from_user_password(options.user, options.password)
    return config


class YdbStream:
    """One StreamRead: ``send`` sends a request to the server, ``next`` returns its next answer. It must be closed."""

    def __init__(self, driver: Any, address: str) -> None:
        self._address = address
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        settings = ydb.BaseRequestSettings().with_timeout(DEFAULT_LONG_STREAM_TIMEOUT)
        try:
            self._call = driver(
                iter(self._requests.get, None),
                _apis.TopicService.Stub,
                _apis.TopicService.StreamRead,
                settings=settings,
            )
        except ydb.issues.Error as error:
            raise to_error(error, address) from error
        threading.Thread(target=self._take, name="ydb-stream", daemon=True).start()

    def send(self, request: Any) -> None:
        """Send a ``FromClient``."""
        self._requests.put(request)

    def next(self, timeout: float) -> Any:
        """Return the next ``FromServer``, None if none came within ``timeout`` seconds.

        Raises PipelineError at the stream's end.
        """
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._call.cancel()

    def _take(self) -> None:
        """Queue the server's answers; the credit that we have granted bounds the queue."""
        try:
            for answer in self._call:
                ydb.issues._process_response(answer)
                self._answers.put(answer)
            self._answers.put(Interrupted(f"YDB at {self._address} has ended a stream"))
        except ydb.issues.Error as error:
            self._answers.put(to_error(error, self._address))
        except Exception as error:  # noqa: BLE001 - raised in the thread that reads the stream
            self._answers.put(error)


def to_error(error: ydb.issues.Error, address: str) -> PipelineError:
    """Return the PipelineError for an error of the SDK."""
    sentence = f"YDB at {address}: {type(error).__name__}: {error}"
    if isinstance(error, _AGAIN):
        return Interrupted(sentence)
    if isinstance(error, ydb.issues.SchemeError | ydb.issues.NotFound):
        return UnknownTopic(sentence)
    return PipelineError(sentence)
