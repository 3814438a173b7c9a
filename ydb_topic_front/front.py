"""YDB's topic service as a front of a node (docs/fronts.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.node.front import Front, Listener, NodeServices
from ydb_topic_front.settings import YdbSettings
from ydb_topic_front.tables import ERASERS, MIGRATIONS

if TYPE_CHECKING:
    from bridges.catalog.views.groups import GroupDirectory
    from bridges.node.settings.setting import Section
    from ydb_topic_front.serving import YdbServer


class YdbFront(Front):
    """YDB's topic service as a plug-in of the node. Its stored format is defined in ``bridges.formats``."""

    name = "ydb"
    listeners = (Listener("ydb", 2136, tls=True, authentication=("token",)),)
    settings = YdbSettings
    connection_bounds = ("max_connections",)
    migrations = MIGRATIONS
    erasers = ERASERS

    @classmethod
    def connection_line(cls, settings: Section | None, addresses: Sequence[str], *, tls: bool, login: bool) -> str:
        assert isinstance(settings, YdbSettings)
        return f"{'grpcs' if tls else 'grpc'}://{addresses[0]}{settings.database}"  # clients ask it for the others

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self.server: YdbServer | None = None

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        # In a thread: importing gRPC is slow, and the other fronts serve already.
        serving = await asyncio.to_thread(import_module, "ydb_topic_front.serving")
        server: YdbServer = serving.YdbServer(self._node)
        self.server = server
        return await server.start(listen)

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()

    @property
    def groups(self) -> GroupDirectory | None:
        return None if self.server is None else self.server.groups
