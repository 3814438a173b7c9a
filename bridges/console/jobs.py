"""Jobs over HTTP: programs elsewhere that report their state to a front."""

from __future__ import annotations

from aiohttp import web

from bridges.auth import Operation
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.paging import ListQuery


class JobHandlers(Handlers):
    """Handler of ``/api/jobs``."""

    @route("GET /api/jobs", "Jobs of the data pipeline that have reported", Operation.DESCRIBE, query=ListQuery)
    async def list(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """List all known jobs by front, in the order of :meth:`JobDirectory.jobs`, or a page
        (:mod:`bridges.console.paging`).
        """
        found = [
            (front, view) for front, directory in self._node.job_directories().items() for view in directory.jobs()
        ]
        return await paging.listed(
            request,
            query.page,
            "jobs",
            found,
            lambda one: f"{one[1].kind} {one[1].name}",
            lambda one: {"front": one[0], **one[1].as_json()},
            as_they_are=True,
        )
