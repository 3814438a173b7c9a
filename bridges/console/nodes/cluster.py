"""The cluster over HTTP: its members, draining, and pins of slots to nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import structlog
from aiohttp import web
from msgspec import Meta, Struct

from bridges.auth import Operation
from bridges.catalog.views.groups import CONSUMERS
from bridges.cluster import versions
from bridges.cluster.slots import ANY
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.page import Page
from bridges.console.paging import WHOLE, ListQuery
from bridges.http.access import principal_of
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.cluster.members import Member

_log = structlog.get_logger("anabranch.console")

_Numbers = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=10_000)]


class SlotChoice(Struct, frozen=True, kw_only=True):
    """Slots: by number, those of a topic's ``partitions`` (default: all), or that of a group."""

    slots: _Numbers = []
    topic: str | None = None
    partitions: _Numbers | None = None
    group: str | None = None
    space: str = CONSUMERS


class Move(SlotChoice, frozen=True, kw_only=True):
    """Slots, and the node that shall own them."""

    node_id: Annotated[int, Meta(ge=0)]


class Unpin(SlotChoice, frozen=True, kw_only=True):
    """Slots; or those that are pinned to a node; or all."""

    node_id: int | None = None
    all: bool = False


class ClusterHandlers(Handlers):
    """Handlers of ``/api/cluster`` and the paths below it."""

    @route("GET /api/cluster", "Nodes of the cluster", Operation.DESCRIBE, query=ListQuery)
    async def status(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """List all members as this node sees them, or a page of them (:mod:`bridges.console.paging`)."""
        return await self._answer(request, query.page)

    @route("POST /api/cluster/nodes/{node}/drain", "Have a node hand over all it owns", Operation.ALTER)
    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Have a node hand over all slots that it owns. The answer is sent when the node has begun to."""
        await self._node.cluster.drain(_node(request))
        return await self._answer(request)

    @route("POST /api/cluster/nodes/{node}/undrain", "Have a drained node own its share again", Operation.ALTER)
    async def undrain(self, request: web.Request) -> web.StreamResponse:
        """Have a node own its share of slots again, now or when it comes back."""
        await self._node.cluster.undrain(_node(request))
        return await self._answer(request)

    @route("POST /api/cluster/move", "Pin slots to a node", Operation.ALTER, body=Move)
    async def move(self, request: web.Request, body: Move) -> web.StreamResponse:
        """Pin slots to a node, which takes them over from their owners. Everything else in these slots moves with
        them.
        """
        node_id, slots = body.node_id, self._slots(body)
        if not slots:
            raise RequestError("what is to be moved? slots, a topic or a group")
        await self._node.cluster.move(slots, node_id)
        _log.warning("slots were moved by an operator", slots=len(slots), to=node_id, user=str(principal_of(request)))
        return await self._answer(request, asked=slots)

    @route("POST /api/cluster/unpin", "Let balance decide again whose slots are", Operation.ALTER, body=Unpin)
    async def unpin(self, request: web.Request, body: Unpin) -> web.StreamResponse:
        slots = self._slots(body)
        if (len(slots) > 0) + (body.node_id is not None) + body.all != 1:
            raise RequestError("what is to be unpinned? slots, a topic, a group, all of a node_id, or all")
        await self._node.cluster.unpin(slots or None, body.node_id)
        return await self._answer(request, asked=slots)

    def _slots(self, which: SlotChoice) -> list[int]:
        """Return the numbers of slots. Raises RequestError and TopicNotFound."""
        cluster = self._node.cluster
        count = len(cluster.keeper.slots)
        if any(slot >= count for slot in which.slots):
            raise RequestError(f"slots are numbered from 0 to {count - 1}")
        found = set(which.slots)
        if which.topic is not None:
            known = self._node.catalog.topic(which.topic)
            every = [one.index for one in known.partitions]
            for partition in every if which.partitions is None else which.partitions:
                slot = cluster.slot_of(which.topic, partition) if partition < len(every) else -1
                if slot < 0:
                    raise RequestError(f"topic {which.topic!r} has no partition {partition}", 404)
                found.add(slot)
        if which.group is not None:
            found.add(cluster.slot_of_key(which.space, which.group))
        return sorted(found)

    async def _answer(
        self, request: web.Request, page: Page = WHOLE, asked: Collection[int] | None = None
    ) -> web.StreamResponse:
        cluster = self._node.cluster
        keeper = cluster.keeper
        owned = Counter(slot.owner for slot in keeper.slots)
        here, outages = {one.node_id for one in keeper.members.values()}, cluster.outages()
        pins: dict[str, list[int]] = {}
        for index, slot in enumerate(keeper.slots):
            if slot.pin != ANY:
                pins.setdefault(str(slot.pin), []).append(index)
        head: dict[str, object] = {
            "node_id": cluster.node_id,
            "slots": len(keeper.slots),
            "version": keeper.version,
            "pins": pins,
            "moving": [index for index, to in keeper.pins().items() if keeper.slots[index].owner != to],
            "drained": sorted(keeper.drained),
            # Nodes that others have taken over from, until they come back: seconds since the last sign of each.
            "gone": {str(node): round(silent, 1) for node, silent in outages.silent.items() if node not in here},
            "level": versions.to_json(keeper.level),
        }
        if asked is not None:
            head["asked"] = asked

        def as_json(member: Member) -> dict[str, object]:
            return {
                "node_id": member.node_id,
                "start": member.start,
                "state": member.state.value,
                "slots": owned[member.start],
                "pinned": len(pins.get(str(member.node_id), ())),
                "drained": member.drained,
                "version": versions.to_json(member.version),
                "silent_seconds": round(keeper.still(member.start), 3),
                "suspected": keeper.is_suspected(member.start),
                "rack": member.rack,
                "addresses": dict(member.addresses),
            }

        members = sorted(keeper.members.values(), key=lambda one: (one.node_id, one.start))
        return await paging.listed(
            request,
            page,
            "nodes",
            members,
            lambda one: f"{one.node_id} {one.rack} {' '.join(one.addresses.values())}",
            as_json,
            head=head,
            as_they_are=True,
        )


def _node(request: web.Request) -> int:
    told = request.match_info["node"]
    if not told.isdecimal() or len(told) > 10:
        raise RequestError(f"{told!r} is no node.id")
    return int(told)
