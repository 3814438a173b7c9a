"""Jobs over HTTP: programs elsewhere that report their state to a front."""

from __future__ import annotations

from aiohttp import web

from bridges.auth import Operation
from bridges.console import paging
from bridges.console.handlers import Handlers


class JobHandlers(Handlers):
    """Handler of ``/api/jobs``."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/jobs", self.list)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """List all known jobs by front, in the order of :meth:`JobDirectory.jobs`, or a page
        (:mod:`bridges.console.paging`).
        """
        self._access.require_node(request, Operation.DESCRIBE)
        found = [
            (front, view) for front, directory in self._node.job_directories().items() for view in directory.jobs()
        ]
        return await paging.listed(
            request,
            "jobs",
            found,
            lambda one: f"{one[1].kind} {one[1].name}",
            lambda one: {"front": one[0], **one[1].as_json()},
            as_they_are=True,
        )
