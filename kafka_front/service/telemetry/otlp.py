"""Metrics of clients on their way to a collector, by OTLP over HTTP.

A client's metrics are OTLP's MetricsData, whose bytes are those of an ExportMetricsServiceRequest. So they are sent on
as they are, but for the attributes of their resources: there the node says who the client is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.run.task_set import TaskSet
from bridges.errors import BatchInvalid
from bridges.formats.protobuf import BYTES, length, put_bytes, put_varint, skip, varint

if TYPE_CHECKING:
    import aiohttp

_MOST_BYTES = 16 * 1024**2
"""Most bytes that wait for the collector; beyond, the oldest are dropped."""
_MOST_FIELDS = 100_000
"""Most fields of one push that are looked at: their number is the client's choice, and each takes a microsecond."""
_TIMEOUT_S = 10.0
_FIRST_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 30.0
_AGAIN = frozenset((408, 429, 502, 503, 504))
"""Statuses after which a collector wants the same request again."""
_FIRST, _SECOND = 1 << 3 | BYTES, 2 << 3 | BYTES
"""Tags of MetricsData.resource_metrics, ResourceMetrics.resource, Resource.attributes, KeyValue.key and
AnyValue.string_value; and of KeyValue.value."""

_log = structlog.get_logger("anabranch.kafka")


def label(metrics: bytes, attributes: Mapping[str, str]) -> bytes:
    """Return OTLP metrics whose resources have these attributes, whatever they said of them before. Raises
    BatchInvalid."""
    own = bytearray()
    for name, text in attributes.items():
        value, pair = bytearray(), bytearray()
        put_bytes(value, _FIRST, text.encode())
        put_bytes(pair, _FIRST, name.encode())
        put_bytes(pair, _SECOND, value)
        put_bytes(own, _FIRST, pair)
    names = {name.encode() for name in attributes}
    walk, labeled = _Walk(), bytearray()
    try:
        for tag, resource_metrics in walk.fields(metrics):
            if tag != _FIRST:
                continue
            kept, rest = bytearray(own), bytearray()
            for inner, field in walk.fields(resource_metrics):
                if inner != _FIRST:
                    _put(rest, inner, field)
                    continue
                for kind, attribute in walk.fields(field):
                    if kind != _FIRST or not any(
                        key == _FIRST and name in names for key, name in walk.fields(attribute)
                    ):
                        _put(kept, kind, attribute)
            resource = bytearray()
            put_bytes(resource, _FIRST, kept)
            put_bytes(labeled, _FIRST, resource + rest)
    except IndexError:
        raise BatchInvalid("the metrics are cut off") from None
    return bytes(labeled)


class _Walk:
    """The reader of one message's fields, which are at most :data:`_MOST_FIELDS`."""

    def __init__(self) -> None:
        self._read = 0

    def fields(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield each field's tag, and its bytes without tag and length. Raises BatchInvalid, IndexError."""
        position, end = 0, len(message)
        while position < end:
            self._read += 1
            if self._read > _MOST_FIELDS:
                raise BatchInvalid(f"the metrics have more than {_MOST_FIELDS} fields that say whose they are")
            tag, position = varint(message, position)
            if tag & 7 == BYTES:
                start, position = length(message, position, end)
            else:
                start, position = position, skip(message, tag, position, end)
            yield tag, message[start:position]


def _put(out: bytearray, tag: int, field: bytes) -> None:
    if tag & 7 == BYTES:
        put_bytes(out, tag, field)
    else:
        put_varint(out, tag)
        out += field


class Exporter:
    """Sends metrics to a collector's ``url``, in their order, and again while it is away. Belongs to the event loop."""

    def __init__(self, url: str, budget: MemoryBudget) -> None:
        self._url = url
        self._account = budget.account(lambda: None)
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._tasks = TaskSet()
        self._tasks.spawn(self._run(), "metrics of clients")

    def put(self, metrics: bytes) -> None:
        """Have metrics sent; they displace older ones if too many wait."""
        self._waiting.append(metrics)
        self._hold(len(metrics))
        dropped = 0
        while self._bytes > _MOST_BYTES:
            self._drop()
            dropped += 1
        if dropped:
            _log.warning(
                "metrics of clients are lost: kafka.client_metrics_url takes them too slowly", requests=dropped
            )
        self._more.set()

    async def close(self) -> None:
        """Give up what has not been sent."""
        await self._tasks.close()
        self._hold(-self._bytes)
        self._account.close()

    def _hold(self, size: int) -> None:
        self._bytes += size
        self._account.count(Kind.REQUESTS, size)

    def _drop(self) -> None:
        self._hold(-len(self._waiting.popleft()))

    async def _run(self) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            back_off = _FIRST_BACK_OFF_S
            while True:
                self._more.clear()
                while self._waiting:
                    sent = self._waiting[0]
                    if not await self._send(session, sent):
                        await asyncio.sleep(back_off)
                        back_off = min(2 * back_off, _LONGEST_BACK_OFF_S)
                        continue
                    back_off = _FIRST_BACK_OFF_S
                    if self._waiting and self._waiting[0] is sent:
                        self._drop()
                await self._more.wait()

    async def _send(self, session: aiohttp.ClientSession, metrics: bytes) -> bool:
        """Send one request; return False if it must be sent again."""
        import aiohttp

        headers = {"Content-Type": "application/x-protobuf"}
        try:
            async with session.post(self._url, data=metrics, headers=headers, allow_redirects=False) as answer:
                if answer.status // 100 == 2:
                    return True
                again, reason = answer.status in _AGAIN, f"status {answer.status}"
        except (OSError, ValueError, TimeoutError, aiohttp.ClientError) as error:
            again, reason = True, str(error) or repr(error)
        _log.warning("kafka.client_metrics_url does not take metrics of clients", reason=reason, again=again)
        return not again
