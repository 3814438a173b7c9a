"""The cluster over HTTP: its members, and having one of them give away what it owns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import web

from bridges.auth import Operation
from bridges.console import paging
from bridges.console.access import Access
from bridges.console.errors import RequestError
from bridges.console.host import Host

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.cluster.service import Cluster


class ClusterHandlers:
    """``/api/cluster``. Who may describe the node sees it, who may alter it drains nodes."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/cluster", self.status)
        app.router.add_post("/api/cluster/nodes/{node}/drain", self.drain)

    async def status(self, request: web.Request) -> web.StreamResponse:
        """All members, as this node sees them, or a page of them (:mod:`bridges.console.paging`)."""
        self._access.require_node(request, Operation.DESCRIBE)
        return await self._answer(request)

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Have a node hand over all it owns: it has begun to when this is answered."""
        self._access.require_node(request, Operation.ALTER)
        told = request.match_info["node"]
        if not told.isdecimal() or len(told) > 10:
            raise RequestError(f"{told!r} is no node.id")
        await self._cluster.drain(int(told))
        return await self._answer(request)

    @property
    def _cluster(self) -> Cluster:
        cluster = self._node.cluster
        if cluster is None:
            raise RequestError("this node is by itself: it has no cluster.database", 409)
        return cluster

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        cluster = self._cluster
        keeper = cluster.keeper
        head = {"node_id": cluster.node_id, "slots": len(keeper.slots), "version": keeper.version}
        owned = Counter(slot.owner for slot in keeper.slots)

        def told(member: Member) -> dict[str, object]:
            return {
                "node_id": member.node_id,
                "start": member.start,
                "state": member.state.value,
                "slots": owned[member.start],
                "silent_seconds": round(keeper.still(member.start), 3),
                "suspected": keeper.is_suspected(member.start),
                "rack": member.rack,
                "addresses": dict(member.addresses),
            }

        members = sorted(keeper.members.values(), key=lambda one: (one.node_id, one.start))
        return await paging.listed(
            request,
            "nodes",
            members,
            lambda one: f"{one.node_id} {one.rack} {' '.join(one.addresses.values())}",
            told,
            head=head,
            as_they_are=True,
        )
