"""Metrics of clients (KIP-714): GetTelemetrySubscriptions and PushTelemetry.

Admin tools make subscriptions: which clients report which metrics, and how often (resource type client metrics). A
client asks for its own, and pushes what they want until a push is answered with UNKNOWN_SUBSCRIPTION_ID because they
have changed. Both requests are served only with ``kafka.client_metrics_url``, as by a broker with a plug-in for them:
clients that find them ask at once.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import re2
from msgspec import Struct

from anabranch_kit.run.turns import in_turns
from bridges.errors import LogError
from bridges.formats.checksum import crc32c
from bridges.formats.codecs.compression import Compression, decompress
from kafka_front.group_config import CLIENT_METRICS_CONFIGS
from kafka_front.service.telemetry.otlp import Exporter, label
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.dispatch import Registry
    from kafka_front.service.core import KafkaService

_NOBODY = bytes(16)
_ACCEPTED = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]
_MOST_BYTES = 1024**2
"""Most bytes of a push as it arrives (telemetry.max.bytes of a broker)."""
_MOST_INFLATED = 8 * _MOST_BYTES
_MOST_CLIENTS = 16_384
"""Most clients of which the last requests are remembered, as at a broker."""
_ALL = "*"
_USUAL_MS = int(CLIENT_METRICS_CONFIGS["interval.ms"].default or 0)
_SOON = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class _Subscribed(Struct, frozen=True):
    """The metrics that one client is to report: names of metrics or their beginnings, ``*`` for all; and how often."""

    metrics: list[str]
    interval_ms: int

    @property
    def id(self) -> int:
        return crc32c(json.dumps([self.metrics, self.interval_ms]).encode()) & 0x7FFF_FFFF


class _Client(Struct):
    """A client's last requests (monotonic clock, s); ``free``: it may ask again at once."""

    asked: float = -1e9
    pushed: float = -1e9
    free: bool = False
    ended: bool = False


class Telemetry:
    """Handlers of requests about metrics of clients."""

    def __init__(self, service: KafkaService, exporter: Exporter) -> None:
        self._subscriptions = service.client_metrics
        self._node_id = service.node_id
        self._exporter = exporter
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()

    async def subscribe(
        self, ctx: Context, request: m.GetTelemetrySubscriptionsRequest
    ) -> m.GetTelemetrySubscriptionsResponse:
        """Return what the client is to report."""
        instance = request.client_instance_id
        if instance == _NOBODY:
            instance = uuid4().bytes
        client, now = self._client(instance), monotonic()
        subscribed = await self._find(_facts(ctx, instance))
        if not client.free and now - max(client.asked, client.pushed) < subscribed.interval_ms / 1000:
            raise KafkaError(_SOON, f"a client asks once in {subscribed.interval_ms} ms (interval.ms)")
        client.asked, client.free = now, False
        return m.GetTelemetrySubscriptionsResponse(
            client_instance_id=instance,
            subscription_id=subscribed.id,
            accepted_compression_types=list(map(int, _ACCEPTED)),
            push_interval_ms=subscribed.interval_ms,
            telemetry_max_bytes=_MOST_BYTES,
            delta_temporality=True,
            requested_metrics=subscribed.metrics,
        )

    async def push(self, ctx: Context, request: m.PushTelemetryRequest) -> m.PushTelemetryResponse:
        """Take metrics that the client was asked for."""
        instance = request.client_instance_id
        if instance == _NOBODY:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client has no instance id")
        client, now, facts = self._client(instance), monotonic(), _facts(ctx, instance)
        subscribed = await self._find(facts)
        if client.ended:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client has pushed its last metrics before")
        # The first push after the question may come early: clients spread their pushes by chance.
        soon = client.asked <= client.pushed and now - client.pushed < subscribed.interval_ms / 1000
        if soon and not request.terminating:
            raise KafkaError(_SOON, f"a client pushes once in {subscribed.interval_ms} ms (interval.ms)")
        client.pushed, client.ended = now, request.terminating
        if request.subscription_id != subscribed.id:
            client.free = True
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the client's subscriptions have changed")
        if request.compression_type not in (Compression.NONE, *_ACCEPTED):
            client.free = True
            text = f"compression {request.compression_type} is unknown"
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
        if len(request.metrics) > _MOST_BYTES:
            text = f"{len(request.metrics)} bytes of metrics; a push has at most {_MOST_BYTES}"
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, text)
        if request.metrics:
            facts |= {"principal": str(ctx.connection.principal), "broker_id": str(self._node_id)}
            try:
                async with ctx.room(_MOST_INFLATED):
                    self._exporter.put(await asyncio.to_thread(_read, request, facts))
            except LogError as error:
                raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None
        return m.PushTelemetryResponse()

    def _client(self, instance: bytes) -> _Client:
        client = self._clients.setdefault(instance, _Client())
        self._clients.move_to_end(instance)
        if len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return client

    async def _find(self, facts: dict[str, str]) -> _Subscribed:
        """Return what all subscriptions together want of a client."""
        metrics: set[str] = set()
        intervals = []
        async for name in in_turns(list(self._subscriptions)):
            wanted = self._subscriptions.value(name, "metrics")
            if wanted and _matches(self._subscriptions.value(name, "match"), facts):
                metrics.update(wanted.split(","))
                intervals.append(int(self._subscriptions.value(name, "interval.ms")))
        return _Subscribed([_ALL] if _ALL in metrics else sorted(metrics), min(intervals, default=_USUAL_MS))


def _facts(ctx: Context, instance: bytes) -> dict[str, str]:
    """Return what is known of a client, by the names that subscriptions have for it."""
    software, _, version = ctx.connection.software.partition(" ")
    host, port = ctx.connection.peer[:2]
    return {
        "client_id": ctx.client_id or "",
        "client_instance_id": str(UUID(bytes=instance)),
        "client_software_name": software,
        "client_software_version": version,
        "client_source_address": host,
        "client_source_port": str(port),
    }


def _matches(rules: str, facts: dict[str, str]) -> bool:
    """Return whether a client is one of those that a subscription is for."""
    return all(
        _pattern(pattern.strip()).fullmatch(facts[name.strip()])
        for name, _, pattern in (rule.partition("=") for rule in rules.split(",") if rule)
    )


@lru_cache(maxsize=1000)
def _pattern(text: str) -> Any:
    return re2.compile(text)


def _read(request: m.PushTelemetryRequest, facts: dict[str, str]) -> bytes:
    return label(decompress(request.compression_type, request.metrics, _MOST_INFLATED), facts)


def register(registry: Registry, service: KafkaService, exporter: Exporter) -> None:
    telemetry = Telemetry(service, exporter)
    registry.register(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, telemetry.subscribe)
    registry.register(ApiKey.PUSH_TELEMETRY, telemetry.push)
