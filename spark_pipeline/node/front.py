"""What the data pipeline needs of a node, as a front of it (docs/fronts.md, docs/spark.md): HTTP on a port of its own.

Readers ask here what to read and where it lies, and then read from the range servers themselves, or here where the node
keeps these to itself. Whoever writes does it through the node, which owns the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from bridges.catalog import front_tables
from bridges.net.address import Address
from bridges.net.http_site import HttpSite
from bridges.node.front import Front, Listener, NodeServices
from spark_pipeline.node.settings import PipelineSettings
from spark_pipeline.node.tables import ERASERS, MIGRATIONS

if TYPE_CHECKING:
    from aiohttp import web

    from bridges.catalog.job_view import JobDirectory
    from bridges.catalog.transaction_view import TransactionDirectory
    from spark_pipeline.node.serving import PipelineServer

PIPELINE = "pipeline"
"""Name of the front and of its listener."""
PORT = 8090


class PipelineFront(Front):
    """What the pipeline's front brings; it stores records in Kafka's format.

    What serves is imported and made when the first client has come, or at once where its tables hold something that is
    to be carried on.
    """

    name = PIPELINE
    listeners = (Listener(PIPELINE, PORT, tls=True, authentication=("basic", "bearer")),)
    settings = PipelineSettings
    connection_bounds = ("max_connections",)
    migrations = MIGRATIONS
    erasers = ERASERS

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        settings = node.section(PipelineSettings)
        self._site = HttpSite(
            most_connections=settings.max_connections,
            request_seconds=settings.connections_max_idle_ms / 1000,
        )
        self.server: PipelineServer | None = None

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        self._site.serve(self._application, handler_cancellation=True)
        bound = {
            name: await self._site.listen(name, address, self._node.own_names(name), self._node.tls(name))
            for name, address in listen.items()
        }
        if await self._node.db.run(partial(front_tables.used, front=self.name)):
            await self._site.open()
        return bound

    async def _application(self) -> web.Application:
        serving = await asyncio.to_thread(import_module, "spark_pipeline.node.serving")
        server: PipelineServer = serving.PipelineServer(self._node, self._site.listener_of)
        self.server = server
        return server.application()

    async def open(self) -> PipelineServer:
        """What serves, made now unless it is there."""
        await self._site.open()
        assert self.server is not None, "made with the application"
        return self.server

    @property
    def jobs(self) -> JobDirectory | None:
        return None if self.server is None else self.server.core.jobs

    @property
    def transactions(self) -> TransactionDirectory | None:
        return None if self.server is None else self.server.core.transactions

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        await self._site.stop()
