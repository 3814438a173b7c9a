"""The pipeline's front of a node (docs/fronts.md, docs/spark.md): HTTP on a port of its own.

Readers query this front for partitions and streams. They then read from the range servers directly, or through this
front if the node does not expose its range servers. All writes go through the node, which owns the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.net.address import Address
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database import front_tables
from bridges.errors import LogError
from bridges.http.site import HttpSite
from bridges.node.front import Front, Listener, NodeServices
from spark_pipeline.node import jobs
from spark_pipeline.node.messages import (
    ABORT,
    ENDS,
    MARKERS,
    WHOLE,
    AbortAttempt,
    Aborted,
    Ends,
    Mark,
    Missing,
    SettleEnds,
    Whole,
)
from spark_pipeline.node.settings import PipelineSettings
from spark_pipeline.node.sinks import tables

if TYPE_CHECKING:
    from aiohttp import web

    from bridges.catalog.views.jobs import JobDirectory
    from bridges.catalog.views.transactions import TransactionDirectory
    from bridges.node.settings.setting import Section
    from spark_pipeline.node.serving import PipelineServer
    from spark_pipeline.node.sinks.view import LiveAttempts

log = structlog.get_logger(__name__)

_AGAIN_S = 0.25

PIPELINE = "pipeline"
"""The name of the front and of its listener."""
PORT = 8090


class PipelineFront(Front):
    """The pipeline's front; it stores records in Kafka's format.

    The server is imported and made when the first client connects, or at once if its tables hold work to be continued.
    """

    name = PIPELINE
    listeners = (Listener(PIPELINE, PORT, tls=True, authentication=("basic", "bearer")),)
    settings = PipelineSettings
    connection_bounds = ("max_connections",)
    migrations = (tables.create, jobs.create, tables.add_targets, tables.add_content)
    """Migrations from each version of the tables to the next; never change one that was released."""
    erasers = (tables.erase_topic,)

    @classmethod
    def connection_line(cls, settings: Section | None, addresses: Sequence[str], *, tls: bool, login: bool) -> str:
        return f"{'https' if tls else 'http'}://{addresses[0]}"

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        settings = node.section(PipelineSettings)
        self._site = HttpSite(
            most_connections=settings.max_connections,
            request_seconds=settings.connections_max_idle_ms / 1000,
            observer=node.metrics,
        )
        self.server: PipelineServer | None = None
        self._taking_up = TaskSet()

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        self._site.serve(self._application, handler_cancellation=True)
        bound = {
            name: await self._site.listen(name, address, self._node.own_names(name), self._node.tls(name))
            for name, address in listen.items()
        }
        self._node.peers.serve(MARKERS, Mark, self._mark)
        self._node.peers.serve(WHOLE, Whole, self._whole)
        self._node.peers.serve(ABORT, AbortAttempt, self._abort)
        self._node.peers.serve(ENDS, SettleEnds, self._settle_ends)
        self._node.owners.on_gained.append(self._gained)
        if self._node.owners.mine:
            await self._open_if_used()
        return bound

    def _gained(self, slots: Collection[int]) -> None:
        """Look for queries to continue in slots that this node has gained, unless the server runs already."""
        if self.server is None:
            self._taking_up.spawn(self._take_up())

    async def _take_up(self) -> None:
        while self.server is None:
            try:
                await self._open_if_used()
                return
            except LogError as error:
                log.warning("sinks' transactions could not be looked for; trying again", error=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _open_if_used(self) -> None:
        if await self._node.db.run(partial(front_tables.used, front=self.name)):
            await self._site.open()

    async def _mark(self, asked: Mark) -> Missing:
        return await (await self.open()).core.writes.queries.mark_here(asked)

    async def _whole(self, asked: Whole) -> Missing:
        return await (await self.open()).core.writes.queries.find_missing_here(asked)

    async def _abort(self, asked: AbortAttempt) -> Aborted:
        await self.open()
        return Aborted(await self._attempts.abort_here(asked.name))

    async def _settle_ends(self, asked: SettleEnds) -> Ends:
        from spark_pipeline.node.import_ends import settle_here  # only when a topic is migrated

        return await settle_here(self._node, asked)

    async def _application(self) -> web.Application:
        serving = await asyncio.to_thread(import_module, "spark_pipeline.node.serving")
        server: PipelineServer = serving.PipelineServer(self._node, self._site.listener_of)
        self.server = server
        return server.application()

    async def open(self) -> PipelineServer:
        """Return the server; make it if needed."""
        await self._site.open()
        assert self.server is not None, "made with the application"
        return self.server

    @property
    def jobs(self) -> JobDirectory | None:
        return None if self.server is None else self.server.core.jobs

    @property
    def transactions(self) -> TransactionDirectory:
        return self._attempts

    @cached_property
    def _attempts(self) -> LiveAttempts:
        from spark_pipeline.node.sinks.view import LiveAttempts  # only when a client lists transactions

        return LiveAttempts(self._node, lambda: None if self.server is None else self.server.core.writes)

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        await self._taking_up.close()
        await self._site.stop()
