"""What the data pipeline needs of a node, as a front of it (docs/fronts.md, docs/spark.md): HTTP on a port of its own.

Readers ask here what to read and where it lies, and then read from the range servers themselves. Whoever writes does it
through the node, which owns the partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bridges.net.address import Address
from bridges.node.front import Front, Listener, NodeServices
from spark_pipeline.node.settings import PipelineSettings
from spark_pipeline.node.tables import ERASERS, MIGRATIONS

if TYPE_CHECKING:
    from bridges.catalog.job_view import JobDirectory
    from spark_pipeline.node.serving import PipelineServer

PIPELINE = "pipeline"
"""Name of the front and of its listener."""
PORT = 8090


class PipelineFront(Front):
    """What the pipeline's front brings; it stores records in Kafka's format."""

    name = PIPELINE
    listeners = (Listener(PIPELINE, PORT, tls=True, authentication=("basic", "bearer")),)
    settings = PipelineSettings
    connection_bounds = ("max_connections",)
    migrations = MIGRATIONS
    erasers = ERASERS

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self.server: PipelineServer | None = None

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        from spark_pipeline.node.serving import PipelineServer  # not before: settings are read by every command

        self.server = PipelineServer(self._node)
        return await self.server.start(listen)

    @property
    def jobs(self) -> JobDirectory | None:
        return None if self.server is None else self.server.core.jobs

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()
