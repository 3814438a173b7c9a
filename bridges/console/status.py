"""Health, metrics, groups, and what the node is doing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from bridges.catalog import TopicNotFound
from bridges.console.errors import RequestError

if TYPE_CHECKING:
    from bridges.node import Node


class StatusHandlers:
    """``/healthz``, ``/readyz``, ``/metrics``, ``/api/status`` and ``/api/groups``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/readyz", self.ready)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/api/status", self.status)
        app.router.add_get("/api/groups", self.groups)
        app.router.add_get("/api/groups/{group}", self.group)

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
        return web.Response(body=self._node.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def status(self, request: web.Request) -> web.Response:
        node = self._node
        return web.json_response(
            {
                **node.describe(),
                "phase": node.phase.value,
                "failure": node.failure,
                "uptime_ms": max(0, time.time_ns() // 1_000_000 - node.started_ms),
                "data_dir": str(node.settings.data_dir),
                "durability": node.settings.sbp.durability,
                "topics": len(node.catalog.topics),
                "partitions": node.catalog.partition_count,
                "groups": len(node.progress.groups()),
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

    async def groups(self, request: web.Request) -> web.Response:
        names = sorted(self._node.progress.groups())
        return web.json_response({"groups": [self._group(name) for name in names]})

    async def group(self, request: web.Request) -> web.Response:
        name = request.match_info["group"]
        if not self._node.progress.of_group(name):
            raise RequestError(f"there is no group {name!r} with committed positions", 404)
        return web.json_response(self._group(name))

    def _group(self, name: str) -> dict[str, object]:
        positions: list[dict[str, object]] = []
        total = 0
        for (topic, partition), committed in sorted(self._node.progress.of_group(name).items()):
            lag = self._lag(topic, partition, committed.offset)
            total += lag or 0
            positions.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": committed.offset,
                    "lag": lag,
                    "metadata": committed.metadata,
                    "commit_ms": committed.commit_ms,
                }
            )
        return {"group": name, "lag": total, "positions": positions}

    def _lag(self, topic: str, partition: int, offset: int) -> int | None:
        """Records not read yet; None where the partition has not been used since the node started."""
        node = self._node
        try:
            node.catalog.topic(topic)
        except TopicNotFound:
            return None
        log = node.logs.get(topic, partition)
        if log is None or not log.is_open:
            return None
        return max(0, log.last_stable_offset - max(offset, log.log_start_offset))
