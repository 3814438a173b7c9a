"""Health, metrics, and what the node is doing."""

from __future__ import annotations

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from bridges.auth import Operation
from bridges.catalog.group_view import live_groups
from bridges.console.access import Access
from bridges.console.host import Host
from bridges.metric_text import rendered


class StatusHandlers:
    """``/healthz``, ``/readyz``, ``/metrics`` and ``/api/status``."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/readyz", self.ready)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/api/status", self.status)

    async def health(self, request: web.Request) -> web.Response:
        """200 as long as the process can do its work; 503 with the reason when it cannot and should be replaced."""
        failure = self._node.failure
        body = {"healthy": failure is None, "phase": self._node.phase.value, "failure": failure}
        return web.json_response(body, status=200 if failure is None else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """200 while the node takes clients, 503 while it starts or drains."""
        node = self._node
        ready = node.failure is None and node.is_serving
        return web.json_response({"ready": ready, "phase": node.phase.value}, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await rendered(self._node.metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status(self, request: web.Request) -> web.Response:
        node = self._node
        self._access.require_node(request, Operation.DESCRIBE)
        return web.json_response(
            {
                **node.describe(),
                "phase": node.phase.value,
                "failure": node.failure,
                "topics": len(node.catalog.topics),
                "partitions": node.catalog.partition_count,
                "groups": len({*live_groups(node.group_directories), *node.progress.names()}),
                "fronts": [
                    {
                        "name": front.name,
                        "connections": front.connections,
                        "requests": sum(kind.count for kind in front.kinds.values()),
                        "errors": sum(sum(kind.errors.values()) for kind in front.kinds.values()),
                        "records_in": sum(topic.records_in for topic in front.topics.values()),
                        "records_out": sum(topic.records_out for topic in front.topics.values()),
                    }
                    for front in node.metrics.fronts.values()
                ],
            }
        )
