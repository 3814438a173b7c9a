"""Resets of groups' positions over HTTP: to a partition's start or end, an offset or a time, with a dry run."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from anabranch_kit.run.turns import gathered, in_turns
from bridges.auth import Operation
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import CONSUMERS, GroupName
from bridges.console.groups.states import NewPositions, occupied
from bridges.console.handlers import Handlers
from bridges.http import rows
from bridges.http.access import principal_of
from bridges.http.bodies import json_object
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.log.remote.readable import ReadableLog

_log = structlog.get_logger("anabranch.console")

_FIELDS = {"space", "topic", "partitions", "to", "offset", "time_ms", "dry_run"}
_TOLD = 1_000
_TO = ("earliest", "latest", "offset", "time")


class ResetHandlers(Handlers):
    """Handler of ``/api/groups/{group}/reset``."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/groups/{group}/reset", self.reset)

    async def reset(self, request: web.Request) -> web.StreamResponse:
        """Set the positions of a group, or show the result.

        Body: ``topic``; ``partitions`` (a list; default: all); ``to``: ``earliest``, ``latest``, ``offset`` (with
        ``offset``, clamped to the existing records) or ``time`` (with ``time_ms``: the first record that is not older,
        else the end); ``space``; ``dry_run``: only show. The answer has the positions before and after, of the first
        :data:`_TOLD` ``partitions``.

        409 while the group has members, and if a member commits meanwhile.
        """
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
        logs = self._logs(topic, body.get("partitions"))
        state = await self._node.group_states.find(name)
        if not state.is_known:
            raise RequestError(f"there is no group {group!r}", 404)
        if state.members:
            raise RequestError(occupied(group, state.members), 409)
        await gathered(log.refresh() for log in logs)
        before = {log: state.positions.get((topic, log.partition)) for log in logs}
        targets = {log: await self._target(log, body) async for log in in_turns(logs)}
        if not dry:
            await self._commit(name, topic, before, targets)
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
        self, name: GroupName, topic: str, before: dict[ReadableLog, Committed | None], targets: dict[ReadableLog, int]
    ) -> None:
        told = [(log.partition, None if known is None else known.offset, targets[log]) for log, known in before.items()]
        wanted = NewPositions(*name, topic, told, time.time_ns() // 1_000_000)
        refusal = await self._node.group_states.set_positions(wanted)
        if refusal.reason:
            raise RequestError(refusal.reason, 409)

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
    """Return a row; ``change`` is how many offsets the group moves (negative: back), None if it had no position."""
    return {
        "partition": log.partition,
        "before": None if before is None else before.offset,
        "offset": target,
        "change": None if before is None else target - before.offset,
        "start_offset": log.log_start_offset,
        "end_offset": log.high_watermark,
        "lag": max(0, log.high_watermark - target),
    }
