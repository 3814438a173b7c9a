"""The cluster over HTTP: its members, draining, and pins of slots to nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from bridges.auth import Operation
from bridges.catalog.views.groups import CONSUMERS
from bridges.cluster import versions
from bridges.cluster.slots import ANY
from bridges.console import paging
from bridges.console.handlers import Handlers
from bridges.http.access import principal_of
from bridges.http.bodies import json_object
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.cluster.members import Member

_log = structlog.get_logger("anabranch.console")

_FIELDS = {"node_id", "slots", "topic", "partitions", "group", "space"}
_MOST = 10_000


class ClusterHandlers(Handlers):
    """Handlers of ``/api/cluster``. Seeing it needs DESCRIBE on the node, draining nodes and moving slots ALTER."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/cluster", self.status)
        app.router.add_post("/api/cluster/nodes/{node}/drain", self.drain)
        app.router.add_post("/api/cluster/nodes/{node}/undrain", self.undrain)
        app.router.add_post("/api/cluster/move", self.move)
        app.router.add_post("/api/cluster/unpin", self.unpin)

    async def status(self, request: web.Request) -> web.StreamResponse:
        """List all members as this node sees them, or a page of them (:mod:`bridges.console.paging`)."""
        self._access.require_node(request, Operation.DESCRIBE)
        return await self._answer(request)

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """Have a node hand over all slots that it owns. The answer is sent when the node has begun to."""
        self._access.require_node(request, Operation.ALTER)
        await self._node.cluster.drain(_node(request))
        return await self._answer(request)

    async def undrain(self, request: web.Request) -> web.StreamResponse:
        """Have a node own its share of slots again, now or when it comes back."""
        self._access.require_node(request, Operation.ALTER)
        await self._node.cluster.undrain(_node(request))
        return await self._answer(request)

    async def move(self, request: web.Request) -> web.StreamResponse:
        """Pin slots to a node, which takes them over from their owners.

        Body: ``node_id``; ``slots`` (a list), or ``topic`` with ``partitions`` (a list; default: all), or ``group``
        with ``space``. Everything else in these slots moves with them.
        """
        self._access.require_node(request, Operation.ALTER)
        body = await json_object(request, _FIELDS)
        node_id = body.get("node_id")
        if type(node_id) is not int or node_id < 0:
            raise RequestError("node_id is to be the node.id of who is to own them")
        slots = self._slots(body)
        if not slots:
            raise RequestError("what is to be moved? slots, a topic or a group")
        await self._node.cluster.move(slots, node_id)
        _log.warning("slots were moved by an operator", slots=len(slots), to=node_id, user=str(principal_of(request)))
        return await self._answer(request, asked=slots)

    async def unpin(self, request: web.Request) -> web.StreamResponse:
        """Remove pins, so that balancing decides again.

        Body: slots as for :meth:`move`; or ``node_id``, for all slots pinned to it; or ``all``.
        """
        self._access.require_node(request, Operation.ALTER)
        body = await json_object(request, _FIELDS | {"all"})
        slots, node_id = self._slots(body), body.get("node_id")
        if (len(slots) > 0) + (type(node_id) is int) + (body.get("all") is True) != 1:
            raise RequestError("what is to be unpinned? slots, a topic, a group, all of a node_id, or all")
        await self._node.cluster.unpin(slots or None, node_id)
        return await self._answer(request, asked=slots)

    def _slots(self, body: dict[str, Any]) -> list[int]:
        """Return the slots that a body names, directly, by topic or by group. Raises RequestError and TopicNotFound."""
        cluster = self._node.cluster
        slots = _numbers(body, "slots") or []
        count = len(cluster.keeper.slots)
        if any(slot >= count for slot in slots):
            raise RequestError(f"slots are numbered from 0 to {count - 1}")
        found = set(slots)
        topic, group = body.get("topic"), body.get("group")
        if topic is not None:
            known = self._node.catalog.topic(_text(body, "topic"))
            partitions = _numbers(body, "partitions")
            if partitions is None:
                partitions = [one.index for one in known.partitions]
            for partition in partitions:
                slot = cluster.slot_of(topic, partition) if partition < len(known.partitions) else -1
                if slot < 0:
                    raise RequestError(f"topic {topic!r} has no partition {partition}", 404)
                found.add(slot)
        if group is not None:
            space = _text(body, "space") if "space" in body else CONSUMERS
            found.add(cluster.slot_of_key(space, _text(body, "group")))
        return sorted(found)

    async def _answer(self, request: web.Request, asked: Collection[int] | None = None) -> web.StreamResponse:
        cluster = self._node.cluster
        keeper = cluster.keeper
        owned = Counter(slot.owner for slot in keeper.slots)
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


def _text(body: dict[str, Any], field: str) -> str:
    told = body[field]
    if not isinstance(told, str):
        raise RequestError(f"{field} is to be text")
    return told


def _numbers(body: dict[str, Any], field: str) -> list[int] | None:
    told = body.get(field)
    if told is None:
        return None
    if not isinstance(told, list) or len(told) > _MOST or any(type(one) is not int or one < 0 for one in told):
        raise RequestError(f"{field} is to be a list of at most {_MOST} numbers")
    return told
