"""Server of the Pravega front: the segment store, the controller, and the services behind both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.net.grpc_server import GrpcLimits, GrpcServer
from bridges.node.settings.sections import SettingsError
from pravega_front.access import Access
from pravega_front.controller import groups, key_value_tables, lineage, scopes_and_streams, transactions, writers
from pravega_front.controller.core import Controller
from pravega_front.controller.dispatch import Registry
from pravega_front.listeners import CONTROLLER, is_segment_store, segment_store_of
from pravega_front.server import SegmentStore
from pravega_front.service import operations
from pravega_front.service.segments import Segments
from pravega_front.service.tables import commands as tables
from pravega_front.service.tables.life import DroppedTables
from pravega_front.service.transactions.merging import Merges
from pravega_front.service.transactions.running import OpenTransactions, RunningMerges
from pravega_front.service.transactions.view import LiveTransactions
from pravega_front.settings import PravegaSettings

if TYPE_CHECKING:
    from bridges.node.front import NodeServices

#: Modules of the controller's calls; each has ``register(registry, controller)``.
CALLS = (scopes_and_streams, lineage, transactions, groups, key_value_tables, writers)


class PravegaServer:
    """Serves Pravega's clients from a node's shared log; :class:`pravega_front.front.PravegaFront` runs it."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._settings = node.section(PravegaSettings)
        self._stack = AsyncExitStack()
        self.doors: Sequence[GrpcServer | SegmentStore] = ()
        self.transactions: LiveTransactions | None = None
        """The open transactions of writers; None before :meth:`start`."""

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        node, settings = self._node, self._settings
        opened = self._stack
        segments = Segments(node, settings, OpenTransactions(node.catalog), RunningMerges())
        opened.callback(segments.close)
        await segments.load()
        dropped = DroppedTables(node.db, node.barrier)
        opened.push_async_callback(dropped.close)
        dropped.start()
        merges = Merges(node, segments)
        opened.push_async_callback(merges.close)
        access = Access(node, settings.token_ms // 1000)
        controller = Controller(node, settings, segments, access, dropped)
        opened.push_async_callback(controller.close)
        store = SegmentStore(node, settings, segments, merges, access)
        opened.push_async_callback(store.close)
        operations.register(store)
        tables.register(store, node.db, dropped)
        await controller.load()
        self.transactions = LiveTransactions(controller.transactions, node.catalog)
        await merges.load()  # after the controller, since merges look up transactions' segments, too
        registry = Registry(access, node.db.changes)
        for module in CALLS:
            module.register(registry, controller)
        limits = GrpcLimits(
            message_bytes=4 * 1024**2,
            streams=settings.max_calls,
            streams_per_connection=settings.max_calls_per_connection,
            idle_seconds=settings.connections_max_idle_ms / 1000,
            connections=settings.max_controller_connections,
        )
        server = GrpcServer(limits, node.metrics, node.budget, node.barrier)
        opened.push_async_callback(server.stop)
        self.doors = server, store
        registry.fill(server)
        bound: dict[str, Address] = {}
        calls = {name: address for name, address in listen.items() if not is_segment_store(name)}
        for name in calls:
            if name != CONTROLLER and segment_store_of(name) not in listen:
                raise SettingsError(f"listen.{name} needs listen.{segment_store_of(name)}, where it sends its clients")
        for name, address in listen.items():
            if name not in calls:
                host, port = await store.listen(name, address.host, address.port, None, node.tls(name))
                bound[name] = Address(host, port)
                controller.listening(name, bound[name])
        # After the segment store, whose addresses the controller tells clients.
        ports = await server.start({name: (one.host, one.port, node.tls(name)) for name, one in calls.items()})
        for name, port in ports.items():
            bound[name] = Address(calls[name].host, port)
            controller.listening(name, bound[name])
        return bound

    async def drain(self) -> None:
        for door in self.doors:
            await door.drain()

    async def stop(self) -> None:
        await self._stack.aclose()
