"""Resets of groups' positions over HTTP: to a partition's start or end, an offset or a time, with a dry run."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import structlog
from aiohttp import web
from msgspec import Meta, Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import gathered, in_turns
from bridges.auth import Operation
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import CONSUMERS, GroupName, occupied
from bridges.console.groups.states import NewPositions
from bridges.console.handlers import Handlers, route
from bridges.http import rows
from bridges.http.access import principal_of
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.log.remote.readable import ReadableLog

_log = structlog.get_logger("anabranch.console")

_TOLD = 1_000
_NAMED = 10
"""Most topics in the line of the log."""
_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Reset(Struct, frozen=True, kw_only=True):
    """New positions of a group in ``topics`` (default: all in which it has positions), in ``partitions`` (default:
    all).

    ``to``: to ``offset``, clamped to the existing records, or to the first record that is not older than ``time_ms``,
    else to the end. ``dry_run``: only show.
    """

    topics: list[str] | None = None
    partitions: list[int] | None = None
    to: Literal["earliest", "latest", "offset", "time"]
    offset: _Offset | None = None
    time_ms: _Offset | None = None
    space: str = CONSUMERS
    dry_run: bool = False


class ResetHandlers(Handlers):
    """Handler of ``/api/groups/{group}/reset``."""

    @route(
        "POST /api/groups/{group}/reset",
        "Set positions of a group without members, or show what that would do",
        body=Reset,
    )
    async def reset(self, request: web.Request, body: Reset) -> web.StreamResponse:
        """Set the positions of a group, or show the result.

        The answer has the positions before and after, of the first :data:`_TOLD` ``partitions``. 409 while the group
        has members, and if a member commits meanwhile. Positions are set topic by topic: in each in all partitions, or
        in none.
        """
        group, space, dry = request.match_info["group"], body.space, body.dry_run
        operation = Operation.DESCRIBE if dry else Operation.READ
        self._access.require_group(request, operation, group)
        state = await self._node.group_states.find((space, group))
        topics = body.topics
        if topics is None:
            known = self._node.catalog.topics  # a group may have positions in deleted topics
            topics = sorted({topic for topic, _ in state.positions if topic in known})
        for topic in topics:
            self._access.require_topic(request, operation, topic)
        logs = [log for topic in dict.fromkeys(topics) for log in self._logs(topic, body.partitions)]
        if not state.is_known:
            raise RequestError(f"there is no group {group!r}", 404)
        if state.members:
            raise RequestError(f"{occupied(group, state.views)}: positions are set while nobody reads", 409)
        await gathered(log.refresh() for log in logs)
        before = {log: state.positions.get((log.topic, log.partition)) for log in logs}
        targets = {log: await self._target(log, body) async for log in in_turns(logs)}
        if not dry:
            await self._commit((space, group), before, targets)
            _log.warning(
                "positions of a group were set by an operator",
                group=group,
                topics=topics[:_NAMED],
                partitions=len(logs),
                to=body.to,
                user=str(principal_of(request)),
            )
        told = (_row(log, before[log], target) for log, target in islice(targets.items(), _TOLD))
        head = {"group": group, "space": space, "dry_run": dry, "partitions": len(targets)}
        return await rows.answer(request, "positions", told, head=head)

    async def _commit(
        self, name: GroupName, before: dict[ReadableLog, Committed | None], targets: dict[ReadableLog, int]
    ) -> None:
        wanted: dict[str, list[tuple[int, int | None, int]]] = {}
        for log, known in before.items():
            row = (log.partition, None if known is None else known.offset, targets[log])
            wanted.setdefault(log.topic, []).append(row)
        at_ms = now_ms()
        for number, (topic, some) in enumerate(wanted.items()):
            refusal = await self._node.group_states.set_positions(NewPositions(*name, topic, some, at_ms))
            if refusal.reason:
                earlier = f" (in topic {topic}; positions in {number} topics before it are set)" if number else ""
                raise RequestError(refusal.reason + earlier, 409)

    def _logs(self, topic: str, partitions: list[int] | None) -> list[ReadableLog]:
        known = self._node.catalog.topic(topic)
        wanted = [info.index for info in known.partitions] if partitions is None else partitions
        logs = []
        for number in sorted(set(wanted)):
            log = self._node.logs.to_read(topic, number)
            if log is None:
                raise RequestError(f"topic {topic!r} has no partition {number}", 404)
            logs.append(log)
        return logs

    async def _target(self, log: ReadableLog, body: Reset) -> int:
        start, end = log.log_start_offset, log.last_stable_offset
        if body.to == "offset" and body.offset is not None:
            return min(max(body.offset, start), end)
        if body.to == "time" and body.time_ms is not None:
            found = await log.find_timestamp(body.time_ms)
            return end if found is None else min(found[0], end)
        if body.to in ("offset", "time"):
            raise RequestError(f"to = {body.to} needs offset or time_ms, a whole number")
        return start if body.to == "earliest" else end


def _row(log: ReadableLog, before: Committed | None, target: int) -> dict[str, object]:
    """Return a row; ``change`` is how many offsets the group moves (negative: back), None if it had no position."""
    return {
        "topic": log.topic,
        "partition": log.partition,
        "before": None if before is None else before.offset,
        "offset": target,
        "change": None if before is None else target - before.offset,
        "start_offset": log.log_start_offset,
        "end_offset": log.high_watermark,
        "lag": max(0, log.high_watermark - target),
    }
