"""Jobs over HTTP: what programs that run elsewhere have told a front of themselves."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from bridges.auth import Operation
from bridges.console.access import Access
from bridges.console.host import Host


class JobHandlers:
    """``/api/jobs``."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/jobs", self.list)

    async def list(self, request: web.Request) -> web.Response:
        """All that are known, by front those heard of last first."""
        self._access.require_node(request, Operation.DESCRIBE)
        found = [
            {"front": front, **asdict(view)}
            for front, directory in self._node.job_directories.items()
            for view in directory.jobs()
        ]
        return web.json_response({"jobs": found})
