"""Positions of groups over HTTP: set to where a partition begins or ends, to an offset or a time; shown before that."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from bridges.auth import Operation
from bridges.catalog.group_view import CONSUMERS, GroupName
from bridges.catalog.progress import Committed
from bridges.console import rows
from bridges.console.access import Access, principal_of
from bridges.console.bodies import json_object
from bridges.console.errors import RequestError
from bridges.console.groups import views_of
from bridges.console.host import Host
from bridges.turns import in_turns

if TYPE_CHECKING:
    from bridges.log.readable import ReadableLog

_log = structlog.get_logger("anabranch.console")

_FIELDS = {"space", "topic", "partitions", "to", "offset", "time_ms", "dry_run"}
_TOLD = 1_000
_TO = ("earliest", "latest", "offset", "time")


class ResetHandlers:
    """``/api/groups/{group}/reset``."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/groups/{group}/reset", self.reset)

    async def reset(self, request: web.Request) -> web.StreamResponse:
        """Body: ``topic``; ``partitions`` (a list; all when it is left out); ``to``: ``earliest``, ``latest``,
        ``offset`` (with ``offset``, brought to within what there is) or ``time`` (with ``time_ms``: the first record
        that is not older, else the end); ``space``; ``dry_run``: only show. Answers with what was, and what is then, of
        the first :data:`_TOLD` of its ``partitions``.

        409 while the group has members, and where somebody commits meanwhile."""
        body = await json_object(request, _FIELDS)
        group, topic = request.match_info["group"], body.get("topic")
        space = body.get("space", CONSUMERS)
        if not isinstance(topic, str) or not isinstance(space, str):
            raise RequestError("topic is not given as text")
        dry = body.get("dry_run", False)
        if not isinstance(dry, bool):
            raise RequestError("dry_run is to be true or false")
        self._access.require_group(request, Operation.DESCRIBE if dry else Operation.READ, group)
        self._access.require_topic(request, Operation.DESCRIBE if dry else Operation.READ, topic)
        name = (space, group)
        front = self._front(name)
        logs = self._logs(topic, body.get("partitions"))
        self._require_empty(name)
        await rows.opened(logs)
        before = {log: self._node.progress.committed(name, topic, log.partition) for log in logs}
        targets = {log: await self._target(log, body) async for log in in_turns(logs)}
        if not dry:
            await self._commit(name, front, topic, before, targets)
            _log.warning(
                "positions of a group were set by an operator",
                group=group,
                topic=topic,
                partitions=len(logs),
                to=body.get("to"),
                user=str(principal_of(request)),
            )
        told = (_row(log, before[log], target) for log, target in islice(targets.items(), _TOLD))
        head = {"group": group, "space": space, "topic": topic, "dry_run": dry, "partitions": len(targets)}
        return await rows.answer(request, "positions", told, head=head)

    async def _commit(
        self,
        name: GroupName,
        front: str,
        topic: str,
        before: dict[ReadableLog, Committed | None],
        targets: dict[ReadableLog, int],
    ) -> None:
        node, (space, group) = self._node, name
        progress = node.progress.front(front, space)
        cluster = node.cluster
        if cluster is not None:
            progress.holding = lambda one: cluster.holding(cluster.slot_of_key(space, one))
        now_ms = time.time_ns() // 1_000_000
        self._require_empty(name)
        expected = {(topic, log.partition): None if known is None else known.offset for log, known in before.items()}
        positions = [(topic, log.partition, Committed(target, commit_ms=now_ms)) for log, target in targets.items()]
        if await progress.commit_if(group, expected, positions):
            raise RequestError(f"group {group!r} has committed positions meanwhile: nothing was changed", 409)

    def _front(self, name: GroupName) -> str:
        """Whose a position is that nobody of the group's own committed: a front's that has the group, or such groups.
        Raises RequestError where there is no such group, or another node coordinates it."""
        node, (space, group) = self._node, name
        views = views_of(node, name)
        positions = node.progress.of_group(name)
        if not views and not positions:
            raise RequestError(f"there is no group {group!r}", 404)
        cluster = node.cluster
        if cluster is not None:
            slot = cluster.slot_of_key(space, group)
            if not cluster.is_mine(slot):
                owner = cluster.owner(slot)
                where = "another node" if owner is None else f"node {owner.node_id} ({owner.addresses.get('console')})"
                raise RequestError(f"group {group!r} is coordinated by {where}: ask there", 409)
        for committed in positions.values():
            if committed.front:
                return committed.front
        fronts = [one for one, directory in node.group_directories.items() if directory.space == space]
        return next(iter(views), fronts[0] if fronts else "")

    def _require_empty(self, name: GroupName) -> None:
        members = sum(len(view.members) for view in views_of(self._node, name).values())
        if members:
            told = "a member" if members == 1 else f"{members} members"
            raise RequestError(f"group {name[1]!r} has {told}: positions are set while nobody reads", 409)

    def _logs(self, topic: str, partitions: Any) -> list[ReadableLog]:
        known = self._node.catalog.topic(topic)
        wanted = [info.index for info in known.partitions] if partitions is None else partitions
        if not isinstance(wanted, list) or not all(type(one) is int for one in wanted):
            raise RequestError("partitions is to be a list of numbers")
        logs = []
        for number in sorted(set(wanted)):
            log = self._node.logs.to_read(topic, number)
            if log is None:
                raise RequestError(f"topic {topic!r} has no partition {number}", 404)
            logs.append(log)
        return logs

    async def _target(self, log: ReadableLog, body: dict[str, Any]) -> int:
        start, end = log.log_start_offset, log.last_stable_offset
        match body.get("to"):
            case "earliest":
                return start
            case "latest":
                return end
            case "offset":
                return min(max(_number(body, "offset"), start), end)
            case "time":
                found = await log.find_timestamp(_number(body, "time_ms"))
                return end if found is None else min(found[0], end)
        raise RequestError(f"to is to be one of {', '.join(_TO)}")


def _number(body: dict[str, Any], key: str) -> int:
    value = body.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise RequestError(f"{key} is to be a whole number")
    return value


def _row(log: ReadableLog, before: Committed | None, target: int) -> dict[str, object]:
    """``change``: how many offsets a reader goes on, or back if negative; None of one that had no position."""
    return {
        "partition": log.partition,
        "before": None if before is None else before.offset,
        "offset": target,
        "change": None if before is None else target - before.offset,
        "start_offset": log.log_start_offset,
        "end_offset": log.high_watermark,
        "lag": max(0, log.high_watermark - target),
    }
