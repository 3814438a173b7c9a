"""Problems of all nodes, and how to connect to them, over HTTP."""

from __future__ import annotations

from aiohttp import web
from msgspec import to_builtins

from bridges.auth import Operation
from bridges.console.handlers import Handlers, route
from bridges.console.problems.nodes import find_everywhere
from bridges.console.problems.rules import Problem


class ProblemHandlers(Handlers):
    """Handlers of the console's first screen."""

    @route("GET /api/problems", "What is wrong now in all nodes, and what to do", Operation.DESCRIBE)
    async def problems(self, request: web.Request) -> web.Response:
        """List what is wrong in all nodes: nodes that do not answer first, then by importance.

        What is about a topic or a group that the client may not see is left out.
        """
        found = await find_everywhere(self._node)
        shown = [to_builtins(one) for one in found if self._shows(request, one)]
        cluster = self._node.cluster
        nodes = len({cluster.node_id, *cluster.outages().silent})
        return web.json_response({"nodes": nodes, "problems": shown}, headers={"Cache-Control": "no-store"})

    @route("GET /api/connect", "How clients of each protocol connect")
    async def connect(self, request: web.Request) -> web.Response:
        """List the listeners for clients, each with the line that a client is configured with.

        The addresses are the advertised ones of all nodes, this node's first. A node that advertises none is reached
        at the host under which the client has reached this one.
        """
        lines = self._node.connect(request.url.host or "")
        return web.json_response({"connect": [{"listener": name, "line": line} for name, line in lines.items()]})

    def _shows(self, request: web.Request, one: Problem) -> bool:
        return (one.topic is None or self._access.topic(request, Operation.DESCRIBE, one.topic)) and (
            one.group is None or self._access.group(request, Operation.DESCRIBE, one.group)
        )
