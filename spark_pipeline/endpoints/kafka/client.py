"""Fetches from a Kafka cluster as the brokers store them: record sets with all their batches, nothing decoded.

kafka-python speaks the protocol: versions, TLS, SASL, the lookup of leaders. Its consumer decodes every record, so
fetches are sent through its connections instead. kafka-python receives 4 KiB at a time and copies the received bytes
six times, which is half of the CPU of a bulk copy's reading; none of its settings changes that. :class:`WideTransport`
receives more at once, into the memory that answers are read from. It uses three names that are not public
(``_sock_recv``, ``_rbuffer``, ``_build_transport``), so the version is pinned exactly (pyproject.toml): check these
names here before taking another version.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.frame import KafkaBytes

from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, PipelineError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.kafka.options import kafka_config

FETCH_BYTES = 8 * 1024 * 1024
"""Bytes of one fetch, unless its first batch is larger."""
_RECEIVED_AT_ONCE = 64 * 1024
"""Bytes received at once for small answers and for the head of a large one, whose rest goes into its own memory."""
_WAIT_MS = 500
_TRIES = 20
_RETRY_S = 0.25
_MOVED = frozenset({3, 5, 6, 9, 74, 75, 76})
"""Error codes after which the leader is looked up again: among them unknown topic (right after its creation), no
leader, not the leader, and leader epochs that client or broker does not know yet."""
_OUT_OF_RANGE = 1
_CORRUPT = 2
_FETCH_VERSION = 12
"""The last version that identifies topics by their names."""


class _Frame(KafkaBytes):  # type: ignore[misc]
    """A large answer whose bytes are copied once when they are read, instead of twice."""

    def read(self, nbytes: int | None = None) -> bytes:
        start = self.tell()
        self.seek(len(self) if nbytes is None else min(len(self), start + nbytes))
        with memoryview(self) as whole:
            return bytes(whole[start : self.tell()])


class WideTransport(KafkaTCPTransport):  # type: ignore[misc]
    """A connection without TLS that receives large pieces, and large answers into their own memory."""

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        frame = self._protocol.parser._rbuffer  # of the answer that is being received, if its length is known
        data = b""
        try:
            if frame is None or len(frame) - frame.tell() <= _RECEIVED_AT_ONCE:
                data = self._sock.recv(_RECEIVED_AT_ONCE)
                count = len(data)
            else:
                frame.__class__ = _Frame
                with memoryview(frame) as whole:
                    # The last byte goes through the parser, which then sees that the answer is complete.
                    count = self._sock.recv_into(whole[frame.tell() : -1])
                frame.seek(frame.tell() + count)
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", kafka_errors.KafkaConnectionError(error)
        return data, None if count else kafka_errors.KafkaConnectionError("socket disconnected")


class WideManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's connection manager; connections without TLS become :class:`WideTransport`."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        if type(transport) is KafkaTCPTransport:
            transport.__class__ = WideTransport  # safe, since it has not received anything yet
        return transport


class OutOfRange(OffsetsGone):
    """The broker does not have the offsets of a fetch; it does not say whether they are trimmed."""


class Corrupt(PipelineError):
    """A broker cannot read its data at the offset of a fetch."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A leader's answer to a fetch: ``records`` are whole batches and possibly a part of one more."""

    records: memoryview
    start: int
    stable: int
    high_watermark: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions, if the fetch was for committed data."""


class KafkaClient:
    """A connection manager and admin client for one cluster. Not thread-safe."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._config = kafka_config(url, options)
        self._admin: KafkaAdminClient | None = None
        self._manager: Any = None
        self._leaders: dict[TopicPartition, int] = {}

    @property
    def admin(self) -> KafkaAdminClient:
        """Return kafka-python's admin client, connected. Raises EndpointUnavailable."""
        if self._admin is None:

            def make(**config: Any) -> KafkaNetClient:
                net = NetworkSelector(**config)
                self._manager = WideManager(net, **config)
                return KafkaNetClient(net, self._manager, **config)

            self._admin = self._asking(lambda: KafkaAdminClient(kafka_client=make, **self._config))
        return self._admin

    def ask(self, call: Callable[[KafkaAdminClient], Any]) -> Any:
        """Return the result of ``call`` with the admin client. Raises PipelineError for kafka-python's errors."""
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
        admin, self._admin, self._manager = self._admin, None, None
        if admin is not None:
            admin.close()

    # --- fetches ----------------------------------------------------------------------------------------------------

    def begin_fetch(
        self, part: TopicPartition, offset: int, max_bytes: int = FETCH_BYTES, *, committed: bool = False
    ) -> Callable[[], Fetched]:
        """Send a fetch; return a function that waits for its answer.

        That function raises EndpointUnavailable, UnknownTopic, OutOfRange, Corrupt.
        """
        node = self._leader(part)
        request = _request(part, offset, max_bytes, committed=committed)
        future = self._manager.call_soon(self._send, request, node)

        def result() -> Fetched:
            deadline = time.monotonic() + _TRIES * _RETRY_S
            answer = future
            while True:
                try:
                    fetched = _read_answer(self._manager.run(_wait, answer), part, offset)
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


def _read_answer(response: Any, part: TopicPartition, offset: int) -> Fetched | None:
    """Return the answer to one fetch; None if the leader must be looked up again."""
    if response.API_VERSION >= 7 and response.error_code:
        raise EndpointUnavailable(f"fetching {part} was refused with error {response.error_code}")
    (topic,) = response.responses
    (one,) = topic.partitions
    code = one.error_code
    if code in _MOVED:
        return None
    if code == _OUT_OF_RANGE:
        raise OutOfRange(part.topic, part.partition, offset, -1)  # brokers do not send the log start
    if code == _CORRUPT:
        raise Corrupt(f"{part} is damaged at offset {offset}, says its broker")
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
