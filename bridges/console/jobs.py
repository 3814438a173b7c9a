"""Jobs over HTTP: what programs that run elsewhere have told a front of themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping

from aiohttp import web

from bridges.auth import Operation
from bridges.catalog.job_view import JobView
from bridges.console.access import Access
from bridges.console.host import Host

_IN_A_TURN = 50
"""Jobs that are written in one turn of the event loop."""


class JobHandlers:
    """``/api/jobs``."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/jobs", self.list)

    async def list(self, request: web.Request) -> web.Response:
        """All that are known, by front, in the order of :meth:`JobDirectory.jobs`."""
        self._access.require_node(request, Operation.DESCRIBE)
        found: list[tuple[dict[str, object], JobView]] = [
            ({"front": front}, view)
            for front, directory in self._node.job_directories.items()
            for view in directory.jobs()
        ]
        return web.Response(body=await listed(found), content_type="application/json")


async def listed(views: Iterable[tuple[Mapping[str, object], JobView]]) -> bytes:
    """An answer with jobs, each with more fields in front; in turns: what jobs say of themselves is up to them."""
    pieces = []
    for number, (more, view) in enumerate(views):
        if number % _IN_A_TURN == _IN_A_TURN - 1:
            await asyncio.sleep(0)
        pieces.append(json.dumps({**more, **view.as_json()}))
    return f'{{"jobs": [{", ".join(pieces)}]}}'.encode()
