"""The Kafka server of a node: its listeners and the services behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anabranch_kit.net.address import Address
from bridges.catalog.views.groups import GroupDirectory
from bridges.catalog.views.transactions import TransactionDirectory
from bridges.net.server import Limits
from kafka_front.dispatch import Registry
from kafka_front.server import Server
from kafka_front.service import api_versions, groups, metadata, sasl, unheard
from kafka_front.service.admin import absent, acls, cluster, configs, quotas, tokens, topics, users
from kafka_front.service.core import KafkaService
from kafka_front.service.fetch import list_offsets
from kafka_front.service.fetch import requests as fetch
from kafka_front.service.groups import GroupService
from kafka_front.service.groups.live import LiveGroups
from kafka_front.service.groups.share import fetch as share_fetch
from kafka_front.service.groups.share import membership as share_membership
from kafka_front.service.groups.share import offsets as share_offsets
from kafka_front.service.groups.share.service import ShareService
from kafka_front.service.groups.streams import membership as streams_membership
from kafka_front.service.produce import requests as produce
from kafka_front.service.telemetry import requests as telemetry
from kafka_front.service.telemetry.otlp import Exporter
from kafka_front.service.transactions import admin, requests, txn_offsets
from kafka_front.service.transactions.view import LiveTransactions
from kafka_front.wire import codec
from kafka_front.wire.apis import APIS
from kafka_front.wire.errors import ErrorCode

if TYPE_CHECKING:
    from bridges.metrics import FrontMetrics
    from bridges.node.front import NodeServices

#: Services by module; each has ``register(registry, service)``.
SERVICES = (
    metadata,
    produce,
    fetch,
    list_offsets,
    topics,
    configs,
    cluster,
    absent,
    tokens,
    users,
    quotas,
    acls,
    sasl,
    requests,
    admin,
)

_SWEEP_MS = 5_000
"""Interval at which expired delegation tokens are removed, and sessions of removed ones end."""
_SETTLE_MS = 1000
_OFFSET_EXPIRY_MS = 600_000
"""Interval at which ended transactions are written to the database."""

#: The first requests of nearly every client, as (key, version).
WARM = ((18, 3), (18, 4), (3, 12))


class KafkaServer:
    """The server that :class:`kafka_front.front.KafkaFront` runs; it serves Kafka clients from the node's shared
    log."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self.server: Server | None = None
        self._groups: GroupService | None = None
        self._live_groups: LiveGroups | None = None
        self.share: ShareService | None = None
        self.service: KafkaService | None = None
        self._live_transactions: LiveTransactions | None = None
        self._exporter: Exporter | None = None

    @property
    def groups(self) -> GroupDirectory | None:
        """Return the groups that clients have joined; None before :meth:`start`."""
        return self._live_groups

    @property
    def transactions(self) -> TransactionDirectory | None:
        """Return the transactions of clients; None before :meth:`start`."""
        return self._live_transactions

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        node = self._node
        service = self.service = KafkaService(node)
        for named in (service.group_configs, service.client_metrics, service.broker_configs):
            await named.load()
        await service.tokens.load()
        node.every(_SWEEP_MS, service.tokens.sweep, "delegation tokens")
        joined = self._groups = groups.groups_of(node, service.settings, service.access, service.group_configs)
        self._live_groups = LiveGroups(joined)
        share = ShareService(node, service.settings, joined, service.group_configs, service.broker_config)
        await joined.start()
        node.every(service.settings.group.share_heartbeat_interval_ms, share.expire, "members of share groups")
        self.share = share
        joined.unstable = node.progress.is_pending
        await service.transactions.load()
        self._live_transactions = LiveTransactions(service.transactions)
        service.internal_topics.start(service.transactions, share)
        node.every(_SETTLE_MS, service.transactions.settle, "ended transactions")
        node.every(_OFFSET_EXPIRY_MS, joined.expire, "offset expiry")
        settings = service.settings
        registry = Registry()
        identity = api_versions.Identity(service.cluster_id, service.node_id)
        api_versions.register(registry, settings.transaction_version, identity)
        for module in SERVICES:
            module.register(registry, service)
        groups.register(registry, joined, service.brokers)
        of_groups = joined.owned.guarding(registry)
        streams_membership.register(of_groups, joined, topics.Topics(service).create)
        share_membership.register(of_groups, service.access, share)
        share_fetch.register(registry, service, share)
        share_offsets.register(of_groups, service, share)
        txn_offsets.register(registry, service, joined)
        if settings.client_metrics_url:
            self._exporter = Exporter(settings.client_metrics_url, node.budget)
            telemetry.register(registry, service, self._exporter)
        unheard.hear_first(registry, service)
        limits = Limits(
            frame_bytes=settings.max_request_bytes,
            connection_bytes=settings.unacknowledged_bytes_per_connection,
            idle_seconds=settings.connections_max_idle_ms / 1000,
            max_connections=settings.max_connections,
        )
        server = self.server = Server(
            registry,
            limits,
            _Observer(service.metrics),
            node.budget,
            node.barrier,
            node.quotas,
            node.clients,
            must_log_in=node.authenticator.required_at,
        )

        def configure() -> None:
            server.limits = replace(server.limits, max_connections=int(service.broker_config("max.connections")))
            node.logs.options.producer_idle_ms = int(service.broker_config("producer.id.expiration.ms"))

        service.broker_configs.changed = configure
        configure()
        bound: dict[str, Address] = {}
        for name, address in listen.items():
            advertised = node.advertised(name)
            told = (advertised.host, advertised.port) if advertised else None
            host, port = await server.listen(name, address.host, address.port, told, node.tls(name))
            bound[name] = Address(host, port)
        # After listening: a client that connects meanwhile only waits for the codecs that it uses itself.
        await asyncio.to_thread(codec.warm, WARM)
        return bound

    async def drain(self) -> None:
        if self._groups is not None:
            self._groups.resign()
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
        if self._exporter is not None:
            await self._exporter.close()
        if self.service is not None:
            await self.service.internal_topics.close()
            await self.service.transactions.close()
        if self.share is not None:
            await self.share.close()
        if self._groups is not None:
            await self._groups.stop()


class _Observer:
    """An observer that adds the connections' reports to the node's metrics."""

    def __init__(self, metrics: FrontMetrics) -> None:
        self._metrics = metrics
        self._kinds = {key: metrics.kind(api.name) for key, api in APIS.items()}
        self.connection_opened = metrics.connection_opened
        self.connection_closed = metrics.connection_closed
        self.connection_refused = metrics.connection_refused

    def request_done(self, key: int, version: int, seconds: float, received: int, sent: int) -> None:
        self._kinds[key].done(seconds, received, sent)

    def request_failed(self, key: int) -> None:
        self._kinds[key].failed("unexpected exception")

    def error_told(self, key: int, code: int) -> None:
        self._kinds[key].failed(_name(code))


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
