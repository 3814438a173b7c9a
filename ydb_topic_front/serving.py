"""Server of the YDB front: the gRPC listeners and the services behind them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.net.grpc_server import GrpcLimits, GrpcServer
from ydb_topic_front.dispatch import Registry
from ydb_topic_front.service import connecting
from ydb_topic_front.service.core import YdbService
from ydb_topic_front.service.read import calls as read
from ydb_topic_front.service.topics import auto_partitioning, describe, scheme
from ydb_topic_front.service.topics import calls as topics
from ydb_topic_front.service.transactions import calls as transactions
from ydb_topic_front.service.write import stream as write

if TYPE_CHECKING:
    from bridges.catalog.views.groups import GroupDirectory
    from bridges.node.front import NodeServices

#: Modules of the services; each has ``register(registry, service)``.
SERVICES = (connecting, topics, read, describe, scheme, write, transactions, auto_partitioning)


class YdbServer:
    """Serves YDB's clients from a node's shared log; :class:`ydb_topic_front.front.YdbFront` runs it."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._stack = AsyncExitStack()
        self.server: GrpcServer | None = None
        self.service: YdbService | None = None

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        node = self._node
        service = self.service = YdbService(node)
        self._stack.push_async_callback(service.close)
        await service.load()
        settings = service.settings
        limits = GrpcLimits(
            message_bytes=settings.max_request_bytes,
            streams=settings.max_streams,
            streams_per_connection=settings.max_streams_per_connection,
            idle_seconds=settings.connections_max_idle_ms / 1000,
            connections=settings.max_connections,
        )
        registry = Registry(node.barrier, node.metrics, settings.max_call_bytes, service.principal, node.db.changes)
        for module in SERVICES:
            module.register(registry, service)
        server = self.server = GrpcServer(limits, node.metrics, node.budget, node.barrier)
        self._stack.push_async_callback(server.stop)
        registry.fill(server)
        ports = await server.start(
            {name: (address.host, address.port, node.tls(name)) for name, address in listen.items()}
        )
        bound = {name: Address(listen[name].host, port) for name, port in ports.items()}
        service.listening(bound)
        return bound

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    @property
    def groups(self) -> GroupDirectory | None:
        """Return the consumers with sessions, as groups; None before the start."""
        return None if self.service is None else self.service.readers

    async def stop(self) -> None:
        await self._stack.aclose()
