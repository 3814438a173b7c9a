"""What a node promises and what not, and which users it knows, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from bridges.auth import Operation
from bridges.console import paging, rows
from bridges.console.access import Access
from bridges.console.host import Host
from bridges.console.paging import page_of


class NodeFactHandlers:
    """``/api/promises`` and ``/api/users``."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/promises", self.promises)
        app.router.add_get("/api/users", self.users)

    async def promises(self, request: web.Request) -> web.Response:
        """``durability``, and what is not promised as the node is set up (``not_promised``): a ``sentence`` each, and
        whether a setting gives it up (``chosen``)."""
        self._access.require_node(request, Operation.DESCRIBE)
        node = self._node
        told = [{"sentence": sentence, "chosen": chosen} for sentence, chosen in node.not_promised]
        return web.json_response({"durability": node.describe()["durability"], "not_promised": told})

    async def users(self, request: web.Request) -> web.StreamResponse:
        """Users of the node's file by name, and the mechanisms of SCRAM that each may use; never a password. All, or a
        page of them (:mod:`bridges.console.paging`)."""
        self._access.require_node(request, Operation.DESCRIBE)
        users = self._node.authenticator.users
        names = sorted(users)

        def told(name: str) -> Iterator[dict[str, object]]:
            if name in users:
                yield {"user": name, "scram": sorted(users[name].scram)}

        page = page_of(request, {"name"})
        if page is None:
            return await rows.answer(request, "users", (row for name in names for row in told(name)))
        found, total = await paging.chosen(
            (name if page.finds(name) else None for name in names), page, descending=page.descending
        )
        return await paging.answer("users", found, told, page, total)
