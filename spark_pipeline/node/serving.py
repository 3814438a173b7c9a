"""Serves the pipeline's front: one HTTP listener, whose routes stand in modules of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from bridges.console.access import Doorkeeper
from bridges.console.errors import errors_as_json, own_pages_only
from bridges.net.http_site import HttpSite
from spark_pipeline.node import describe, groups, importing, job_routes, tokens, write_routes
from spark_pipeline.node.core import PipelineCore
from spark_pipeline.node.settings import PipelineSettings

if TYPE_CHECKING:
    from bridges.net.address import Address
    from bridges.node.front import NodeServices

ROUTES: tuple[Callable[[web.Application, PipelineCore], None], ...] = (
    describe.register,
    groups.register,
    tokens.register,
    importing.register,
    write_routes.register,
    job_routes.register,
)
"""What adds routes. They may use ``app.cleanup_ctx`` for what has to be read before anybody is served, and has to end
after nobody is."""


class PipelineServer:
    """What :class:`spark_pipeline.node.front.PipelineFront` runs."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._settings = node.section(PipelineSettings)
        self.core = PipelineCore(node, self._settings)
        self._site = HttpSite(
            most_connections=self._settings.max_connections,
            request_seconds=self._settings.connections_max_idle_ms / 1000,
        )
        self._in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        """Listen; returns the real addresses. Raises OSError."""
        core = self.core
        doorkeeper = Doorkeeper(self._node.authenticator, open_health=False, audience=tokens.AUDIENCE)
        middlewares = [self._measured, errors_as_json, own_pages_only, doorkeeper.let_in, core.counted]
        # Bodies are read by us, within bounds of each route.
        app = web.Application(middlewares=middlewares)
        for register in ROUTES:
            register(app, core)
        return {
            name: await self._site.start(app, address, handler_cancellation=True, tls=self._node.tls(name))
            for name, address in listen.items()
        }

    async def drain(self) -> None:
        """Take no new requests, and return when those in progress are answered."""
        self._draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        """Close all connections."""
        with suppress(RuntimeError):
            await self._site.stop()

    @web.middleware
    async def _measured(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._draining:
            return web.json_response({"error": "the node is stopping", "kind": "Draining"}, status=503)
        route = request.match_info.route.resource
        counts = self._node.metrics.kind(f"{request.method} {route.canonical}" if route is not None else "unknown")
        self._in_progress += 1
        self._idle.clear()
        start = time.perf_counter()
        try:
            response = await handler(request)
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()
        counts.done(time.perf_counter() - start, request.content_length or 0, max(0, response.content_length or 0))
        if response.status >= 400:
            counts.failed(str(response.status))
        return response
