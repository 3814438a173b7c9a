"""Fetches from a Kafka cluster as the brokers store it: record sets with all their batches, nothing decoded.

kafka-python speaks the protocol: versions, TLS, SASL, which broker leads what. Its consumer decodes every record, so
fetches are sent through its connections instead. It receives 4 KiB at a time, which costs most of the time that a bulk
copy has; :class:`WideTransport` receives more.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.parser import KafkaProtocol

from sbp_back.buffers import fresh
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, OptionError, PipelineError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition

FETCH_BYTES = 8 * 1024 * 1024
"""Bytes of one fetch, unless its first batch is larger."""
_RECEIVED_AT_ONCE = 64 * 1024
"""Bytes of small answers, and of what comes with the length of a large one."""
_LARGE = 256 * 1024
"""An answer of so many bytes is received into its own memory."""
_FRAME_MOST = 256 * 1024 * 1024
_WAIT_MS = 500
_TRIES = 20
_RETRY_S = 0.25
_MOVED = frozenset({3, 5, 6, 9, 74, 75, 76})
"""Errors after which the leader is looked for again: among them unknown topic (for a moment, after it was made), no
leader, not the leader, and leader epochs that one of both does not know yet."""
_OUT_OF_RANGE = 1
_FETCH_VERSION = 12
"""The last one that calls topics by their names."""


class _Frame:
    """An answer while it is received, into itself once its length is known; read as a whole it is not copied."""

    __slots__ = ("_at", "_data")

    def __init__(self, size: int) -> None:
        self._data = fresh(size)
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def room(self) -> memoryview:
        """Where the next bytes go that are received directly; they are to be written all the same."""
        return memoryview(self._data)[self._at :]

    def write(self, data: memoryview) -> None:
        """Put what was received behind what is there, or find it there."""
        if data.obj is not self._data:
            self._data[self._at : self._at + len(data)] = data
        self._at += len(data)

    def read(self, size: int | None = None) -> bytes | memoryview:
        """The next ``size`` bytes; all that is left without one."""
        start, self._at = self._at, len(self._data) if size is None else min(len(self._data), self._at + size)
        part = memoryview(self._data)[start : self._at]
        return part if size is None else bytes(part)

    def seek(self, at: int) -> None:
        """Read on at ``at``."""
        self._at = at

    def tell(self) -> int:
        """Where it is written, or read, on."""
        return self._at


class WideProtocol(KafkaProtocol):  # type: ignore[misc]
    """kafka-python's answers, of large ones a copy less for each step on their way."""

    _receiving: bool
    _header: Any
    _rbuffer: Any

    def room(self) -> memoryview | None:
        """Where the rest of a large answer is best received; None between answers, and for small ones."""
        if not self._receiving or len(self._rbuffer) < _LARGE:
            return None
        room: memoryview = self._rbuffer.room()
        return room

    def receive_bytes(self, data: bytes | memoryview) -> list[Any]:
        """Answers that are complete with ``data``."""
        answers: list[Any] = []
        rest = memoryview(data)
        while rest:
            if not self._receiving:
                missing = 4 - self._header.tell()
                self._header.write(bytes(rest[:missing]))
                rest = rest[missing:]
                if self._header.tell() < 4:
                    break
                self._header.seek(0)
                size = int.from_bytes(self._header.read(4), "big", signed=True)
                self._validate_frame_size(size)
                self._rbuffer = _Frame(size)
                self._receiving = True
            frame: _Frame = self._rbuffer
            missing = len(frame) - frame.tell()
            frame.write(rest[:missing])
            rest = rest[missing:]
            if frame.tell() < len(frame):
                break
            frame.seek(0)
            answers.append(self._process_response(frame))
            self._reset_buffer()
        return answers


class WideTransport(KafkaTCPTransport):  # type: ignore[misc]
    """A connection without TLS that receives large pieces."""

    def _sock_recv(self) -> tuple[bytes | memoryview, Exception | None]:
        parser = self._protocol.parser
        if type(parser) is KafkaProtocol:
            parser.__class__ = WideProtocol  # connections make their own, which nothing was received with yet
        try:
            room = parser.room()
            data = self._sock.recv(_RECEIVED_AT_ONCE) if room is None else room[: self._sock.recv_into(room)]
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", kafka_errors.KafkaConnectionError(error)
        if not data:
            return b"", kafka_errors.KafkaConnectionError("socket disconnected")
        return data, None


class WideManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's connections, those without TLS as :class:`WideTransport`."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        if self.ssl_enabled:
            return await super()._build_transport(node, timeout_at=timeout_at)
        config = self.config
        sock = await create_connection(
            self._net,
            node.host,
            node.port,
            config["socket_options"],
            proxy_url=config["proxy_url"],
            timeout_at=timeout_at,
        )
        transport = WideTransport(self._net, sock, host=node.host)
        await transport.handshake()
        return transport


class OutOfRange(OffsetsGone):
    """A fetch was of offsets that the broker does not have; whether they are gone, it does not say."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a leader answered: ``records`` are whole batches and maybe a part of one more."""

    records: memoryview
    start: int
    stable: int
    high_watermark: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions, if committed data was asked for."""


class KafkaClient:
    """One connection manager and admin client for a cluster. Not for several threads at the same time."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._config = _config(url, options)
        self._admin: KafkaAdminClient | None = None
        self._manager: Any = None
        self._leaders: dict[TopicPartition, int] = {}

    @property
    def admin(self) -> KafkaAdminClient:
        """kafka-python's admin client, connected. Raises EndpointUnavailable."""
        if self._admin is None:

            def make(**config: Any) -> KafkaNetClient:
                net = NetworkSelector(**config)
                self._manager = WideManager(net, **config)
                return KafkaNetClient(net, self._manager, **config)

            self._admin = self._asking(lambda: KafkaAdminClient(kafka_client=make, **self._config))
        return self._admin

    def ask(self, call: Callable[[KafkaAdminClient], Any]) -> Any:
        """What ``call`` gets of the admin client. Raises PipelineError in place of kafka-python's errors."""
        admin = self.admin
        return self._asking(lambda: call(admin))

    def _asking(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.InvalidTopicError) as error:
            raise UnknownTopic(f"the Kafka cluster says: {error}") from error
        except kafka_errors.KafkaError as error:
            raise EndpointUnavailable(f"the Kafka cluster {self._config['bootstrap_servers']}: {error}") from error

    def close(self) -> None:
        """Let go of the connections."""
        admin, self._admin, self._manager = self._admin, None, None
        if admin is not None:
            admin.close()

    # --- fetches ----------------------------------------------------------------------------------------------------

    def begin_fetch(
        self, part: TopicPartition, offset: int, max_bytes: int = FETCH_BYTES, *, committed: bool = False
    ) -> Callable[[], Fetched]:
        """Send a fetch; what is returned waits for its answer.

        That raises EndpointUnavailable, UnknownTopic, OutOfRange.
        """
        node = self._leader(part)
        request = _request(part, offset, max_bytes, committed=committed)
        future = self._manager.call_soon(self._send, request, node)

        def result() -> Fetched:
            deadline = time.monotonic() + _TRIES * _RETRY_S
            answer = future
            while True:
                try:
                    fetched = _told(self._manager.run(_wait, answer), part, offset)
                except kafka_errors.KafkaError as error:
                    if not error.retriable and not isinstance(error, kafka_errors.KafkaConnectionError):
                        raise EndpointUnavailable(f"fetching {part} failed: {error}") from error
                    if time.monotonic() > deadline:
                        raise EndpointUnavailable(f"{part} cannot be fetched: {error}") from error
                else:
                    if fetched is not None:
                        return fetched
                    if time.monotonic() > deadline:
                        raise EndpointUnavailable(f"{part} has no leader that answers")
                time.sleep(_RETRY_S)
                self._leaders.clear()
                again = _request(part, offset, max_bytes, committed=committed)
                answer = self._manager.call_soon(self._send, again, self._leader(part))

        return result

    async def _send(self, request: FetchRequest, node: int) -> Any:
        return await self._manager.send(request, node_id=node)

    def _leader(self, part: TopicPartition) -> int:
        node = self._leaders.get(part)
        if node is None:
            for topic in self.ask(lambda admin: admin.describe_topics([part.topic])):
                for one in topic["partitions"]:
                    self._leaders[TopicPartition(topic["name"], one["partition_index"])] = one["leader_id"]
            node = self._leaders.get(part)
            if node is None:
                raise UnknownTopic(f"the Kafka cluster has no partition {part}")
        return node


async def _wait(future: Awaitable[Any]) -> Any:
    return await future


def _request(part: TopicPartition, offset: int, max_bytes: int, *, committed: bool) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    wanted = topic.FetchPartition(
        partition=part.partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=1 if committed else 0,
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=part.topic, partitions=[wanted])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=4,
        max_version=_FETCH_VERSION,
    )


def _told(response: Any, part: TopicPartition, offset: int) -> Fetched | None:
    """The answer to one fetch; None if the leader is to be looked for again."""
    if response.API_VERSION >= 7 and response.error_code:
        raise EndpointUnavailable(f"fetching {part} was refused with error {response.error_code}")
    (topic,) = response.responses
    (one,) = topic.partitions
    code = one.error_code
    if code in _MOVED:
        return None
    if code == _OUT_OF_RANGE:
        raise OutOfRange(part.topic, part.partition, offset, -1)  # brokers do not say where the log begins
    if code:
        raise PipelineError(f"fetching {part} at offset {offset}: {kafka_errors.for_code(code).__name__}")
    records = one.records
    return Fetched(
        memoryview(b"" if records is None else records).cast("B"),
        one.log_start_offset if response.API_VERSION >= 5 else 0,
        one.last_stable_offset,
        one.high_watermark,
        tuple((row.producer_id, row.first_offset) for row in one.aborted_transactions or ()),
    )


_NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "bootstrap.timeout.ms": "bootstrap_timeout_ms",
    "request.timeout.ms": "request_timeout_ms",
}
"""Options as librdkafka calls them -> what kafka-python calls them."""
_NUMBERS = ("bootstrap_timeout_ms", "request_timeout_ms")


def _config(url: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Settings of kafka-python's clients. Raises OptionError for an address, or an option, that is none."""
    split = urlsplit(url)
    if split.scheme != "kafka" or not split.netloc:
        raise OptionError(f"{url!r} is no address of a Kafka cluster: kafka://host:9092[,host:9092...]")
    config: dict[str, Any] = {
        "bootstrap_servers": list(_servers(split.netloc.split(","))),
        "receive_message_max_bytes": _FRAME_MOST,
        "client_id": "anabranch-pipeline",
        "bootstrap_timeout_ms": 30_000,
    }
    for name, value in options.items():
        if not name.startswith("kafka."):
            continue
        known = _NAMES.get(name.removeprefix("kafka."))
        if known is None:
            names = ", ".join(f"kafka.{one}" for one in sorted(_NAMES))
            raise OptionError(f"option {name!r} is none of a Kafka endpoint: there are {names}")
        config[known] = value
    for name in _NUMBERS:
        if name in config and not isinstance(config[name], int):
            if not config[name].isdigit():
                raise OptionError(f"{name} = {config[name]!r} is no number of milliseconds")
            config[name] = int(config[name])
    return config


def _servers(given: Sequence[str]) -> Sequence[str]:
    return [one if ":" in one.rpartition("]")[2] else f"{one}:9092" for one in given if one]
