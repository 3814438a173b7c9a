"""The pages of :class:`bridges.node.health.HealthServer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from bridges.metric_text import rendered

if TYPE_CHECKING:
    from bridges.life import Life
    from bridges.metrics import Metrics

_UNTOLD = "the reason is in the log"


def application(process: Life, metrics: Metrics, *, tells: bool) -> web.Application:
    """Return the application. ``tells``: show why the process cannot go on; that text contains names and paths."""

    async def health(request: web.Request) -> web.Response:
        failure = process.failure
        body = {"healthy": failure is None, "failure": failure if tells or failure is None else _UNTOLD}
        return web.json_response(body, status=200 if failure is None else 503)

    async def ready(request: web.Request) -> web.Response:
        is_ready = process.failure is None and process.is_serving
        return web.json_response({"ready": is_ready}, status=200 if is_ready else 503)

    async def scrape(request: web.Request) -> web.Response:
        return web.Response(body=await rendered(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", scrape)
    return app
