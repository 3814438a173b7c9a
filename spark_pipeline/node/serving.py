"""The HTTP server of the pipeline's front; its routes are in modules of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from bridges.http.access import Doorkeeper
from bridges.http.errors import errors_as_json
from bridges.http.memory import Counted
from spark_pipeline.node import describe, importing, job_routes, reads
from spark_pipeline.node.core import PipelineCore
from spark_pipeline.node.settings import PipelineSettings
from spark_pipeline.node.sinks import routes as write_routes

if TYPE_CHECKING:
    from bridges.node.front import NodeServices

ROUTES: tuple[Callable[[web.Application, PipelineCore], None], ...] = (
    describe.register,
    reads.register,
    importing.register,
    write_routes.register,
    job_routes.register,
)
"""Functions that add routes. With ``app.cleanup_ctx`` they may do work before the first request and after the last."""


class PipelineServer:
    """The server that :class:`spark_pipeline.node.front.PipelineFront` runs."""

    def __init__(self, node: NodeServices, listener_of: Callable[[web.Request], str]) -> None:
        """``listener_of`` returns the name of the listener that a request came by."""
        self._node = node
        self._listener_of = listener_of
        self._settings = node.section(PipelineSettings)
        self.core = PipelineCore(node, self._settings, listener_of)
        self._in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def application(self) -> web.Application:
        """Return the application with all routes; call it once."""
        core = self.core
        counted = Counted(self._node.budget).middleware
        doorkeeper = Doorkeeper(self._node.authenticator, self._listener_of, open_health=False, audience=reads.AUDIENCE)
        middlewares = [self._measured, errors_as_json, doorkeeper.let_in, counted, core.final]
        # Each route reads its body itself, within its own bounds.
        app = web.Application(middlewares=middlewares)
        for register in ROUTES:
            register(app, core)
        return app

    async def drain(self) -> None:
        """Refuse new requests, and return when those in progress are answered."""
        self._draining = True
        await self._idle.wait()

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
