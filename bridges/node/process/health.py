"""Health and metrics over HTTP, for a process that is no node and has no console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.http.own_names import OwnNames
from bridges.http.site import HEALTH, HttpSite

if TYPE_CHECKING:
    from aiohttp import web

    from bridges.life import Life
    from bridges.metrics import Metrics

_CONNECTIONS = 200
_REQUEST_S = 60.0
_UNTOLD = "the reason is in the log"


class HealthServer:
    """Serves ``/healthz``, ``/readyz`` and ``/metrics`` as a node does (docs/operations.md).

    Clients do not log in here: with ``tells``, everybody sees why the process cannot go on; without it, nobody does.
    """

    def __init__(self, process: Life, metrics: Metrics, names: OwnNames, *, tells: bool = True) -> None:
        self._process = process
        self._tells = tells
        self._metrics = metrics
        self._names = names
        self._site = HttpSite(
            most_connections=_CONNECTIONS, request_seconds=_REQUEST_S, observer=metrics.front("http"), kept=HEALTH
        )

    async def start(self, address: Address) -> Address:
        """Listen, and return the bound address. Raises OSError."""
        self._site.serve(self._application)
        return await self._site.listen("metrics", address, self._names)

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        await self._site.stop()

    async def _application(self) -> web.Application:
        from aiohttp import web  # imported at the first request, as the next two
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        from bridges.metric_text import rendered

        process, tells = self._process, self._tells

        async def health(request: web.Request) -> web.Response:
            failure = process.failure
            body = {"healthy": failure is None, "failure": failure if tells or failure is None else _UNTOLD}
            return web.json_response(body, status=200 if failure is None else 503)

        async def ready(request: web.Request) -> web.Response:
            is_ready = process.failure is None and process.is_serving
            return web.json_response({"ready": is_ready}, status=200 if is_ready else 503)

        async def scrape(request: web.Request) -> web.Response:
            return web.Response(body=await rendered(self._metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application()
        app.router.add_get("/healthz", health)
        app.router.add_get("/readyz", ready)
        app.router.add_get("/metrics", scrape)
        return app
