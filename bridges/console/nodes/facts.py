"""A node's promises and users over HTTP."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from aiohttp import web

from bridges.auth import Operation
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.paging import ListQuery

if TYPE_CHECKING:
    from bridges.auth.users import User


class NodeFactHandlers(Handlers):
    """Handlers of ``/api/promises`` and ``/api/users``."""

    @route("GET /api/promises", "The promises that the node does not make", Operation.DESCRIBE)
    async def promises(self, request: web.Request) -> web.Response:
        """Return ``durability`` and the promises that the node does not make (``not_promised``).

        Each is a ``sentence``, with whether a setting gives it up (``chosen``).
        """
        node = self._node
        told = [{"sentence": sentence, "chosen": chosen} for sentence, chosen in node.not_promised]
        return web.json_response({"durability": node.describe()["durability"], "not_promised": told})

    @route("GET /api/users", "Names of users", Operation.DESCRIBE, query=ListQuery)
    async def users(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """List the users of the node's file by name, with their SCRAM mechanisms, never a password.

        All, or a page of them (:mod:`bridges.console.paging`).
        """
        users = [*self._node.authenticator.users.items()]

        def as_json(one: tuple[str, User]) -> dict[str, object]:
            return {"user": one[0], "scram": sorted(one[1].scram)}

        return await paging.listed(request, query.page, "users", users, itemgetter(0), as_json)
