"""Pravega's protocols as a front of a node (docs/fronts.md): the controller's gRPC and the segment store's wire
protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.node.front import Front, Listener, NodeServices
from pravega_front import checkup
from pravega_front.listeners import CONTROLLER, SEGMENT_STORE
from pravega_front.settings import PravegaSettings
from pravega_front.tables import ERASERS, MIGRATIONS, PROMISES

if TYPE_CHECKING:
    from bridges.catalog.views.transactions import TransactionDirectory
    from bridges.node.settings.setting import Section
    from pravega_front.serving import PravegaServer


class PravegaFront(Front):
    """Pravega's protocols as a plug-in of the node. Their stored format is defined in ``bridges.formats``."""

    name = "pravega"
    listeners = (
        Listener(CONTROLLER, 9090, tls=True, authentication=("basic", "bearer")),
        Listener(SEGMENT_STORE, 12345, tls=True, authentication=("token",)),
    )
    settings = PravegaSettings
    connection_bounds = ("max_connections", "max_controller_connections")
    migrations = MIGRATIONS
    erasers = ERASERS
    promises = PROMISES
    checks = (checkup.refused_appends,)

    @classmethod
    def connection_line(cls, settings: Section | None, addresses: Sequence[str], *, tls: bool, login: bool) -> str:
        return f"{'tls' if tls else 'tcp'}://{','.join(addresses)}"

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self.server: PravegaServer | None = None

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        # In a thread: importing gRPC is slow, and the other fronts serve already.
        serving = await asyncio.to_thread(import_module, "pravega_front.serving")
        server: PravegaServer = serving.PravegaServer(self._node)
        self.server = server
        return await server.start(listen)

    @property
    def transactions(self) -> TransactionDirectory | None:
        return None if self.server is None else self.server.transactions

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()
