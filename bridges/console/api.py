"""The HTTP application at the console address: health, metrics, the JSON API and the web console."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from bridges.console import FRONT
from bridges.console.clients.requests import ClientHandlers
from bridges.console.groups.memberships import MemberHandlers
from bridges.console.groups.requests import GroupHandlers
from bridges.console.groups.resets import ResetHandlers
from bridges.console.handlers import Handlers, route
from bridges.console.history.pictures import PictureHandlers
from bridges.console.host import Host
from bridges.console.nodes.cluster import ClusterHandlers
from bridges.console.nodes.status import StatusHandlers
from bridges.console.openapi import document
from bridges.console.problems.requests import ProblemHandlers
from bridges.console.records.requests import RecordHandlers
from bridges.console.records.sides import SideHandlers
from bridges.console.rights.access_rules import AccessRuleHandlers
from bridges.console.rights.quotas import QuotaHandlers
from bridges.console.topics.requests import TopicHandlers
from bridges.console.transactions import TransactionHandlers
from bridges.http.access import Doorkeeper
from bridges.http.errors import errors_as_json
from bridges.http.memory import Counted, send_parts
from bridges.version import VERSION

_STATIC = Path(__file__).parent / "static"

_PAGE_HEADERS = {
    # Nothing from other sites, no script or style that is not one of our files, and no framing by other pages.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class DescriptionHandlers(Handlers):
    """Handler of the interface's description."""

    @route("GET /api/openapi.json", "This document")
    async def serve(self, request: web.Request) -> web.StreamResponse:
        return await send_parts(request, [json.dumps(document(VERSION, ROUTES)).encode()], "application/json")


HANDLERS: tuple[type[Handlers], ...] = (
    StatusHandlers,
    ProblemHandlers,
    TopicHandlers,
    GroupHandlers,
    PictureHandlers,
    ResetHandlers,
    MemberHandlers,
    SideHandlers,
    DescriptionHandlers,
    AccessRuleHandlers,
    QuotaHandlers,
    ClusterHandlers,
    TransactionHandlers,
    ClientHandlers,
    RecordHandlers,
)
ROUTES = tuple(found for kind in HANDLERS for found, _ in kind.routes())
"""All requests that the console answers, besides those for its page."""


class Console:
    """The HTTP application of a node."""

    def __init__(self, node: Host, *, open_health: bool) -> None:
        """Create the handlers. With ``open_health``, health and metrics need no login where other requests do."""
        self._node = node
        self._open_health = open_health
        self._handlers = [kind(node) for kind in HANDLERS]

    def application(self) -> web.Application:
        """Return the application with all routes; call once."""
        node = self._node
        doorkeeper = Doorkeeper(node.authenticator, lambda request: "console", open_health=self._open_health)
        middlewares = [self._measured, errors_as_json, doorkeeper.let_in]
        app = web.Application(middlewares=[*middlewares, Counted(node.budget).middleware])
        for handlers in self._handlers:
            handlers.add_to(app)
        app.router.add_get("/", self._page)
        app.router.add_static("/static/", _STATIC)
        app.on_response_prepare.append(_ask_each_time)
        return app

    def end_streams(self) -> None:
        """End all streams, and begin no new ones."""
        for handlers in self._handlers:
            handlers.stop()

    def close(self) -> None:
        """Release all resources, once no request is in progress."""
        for handlers in self._handlers:
            handlers.close()

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_STATIC / "index.html", headers=_PAGE_HEADERS)

    @web.middleware
    async def _measured(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        route = request.match_info.route.resource
        kind = f"{request.method} {route.canonical}" if route is not None else "unknown"
        counts = self._node.metrics.front(FRONT).kind(kind)
        start = time.perf_counter()
        response = await handler(request)
        counts.done(time.perf_counter() - start, request.content_length or 0, max(0, response.content_length or 0))
        if response.status >= 400:
            counts.failed(str(response.status))
        return response


async def _ask_each_time(request: web.Request, response: web.StreamResponse) -> None:
    """Have browsers revalidate files: after an upgrade, page, script and style must be of the same release."""
    if isinstance(response, web.FileResponse):
        response.headers["Cache-Control"] = "no-cache"
