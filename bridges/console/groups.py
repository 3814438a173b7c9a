"""Consumer groups over HTTP: the live groups of all fronts together with the committed positions all fronts share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web

from bridges.auth import Operation
from bridges.catalog.group_view import (
    CONSUMERS,
    GroupMemberView,
    GroupName,
    GroupSummary,
    GroupView,
    live_groups,
    records_behind,
)
from bridges.console import rows
from bridges.console.access import Access
from bridges.console.errors import RequestError
from bridges.console.host import Host
from bridges.errors import LogError
from bridges.turns import sorting

if TYPE_CHECKING:
    from bridges.catalog.group_view import Place
    from bridges.log.partition_log import PartitionLog

_OPEN_WAIT_S = 3.0
"""How long details wait for partitions that nobody used yet; the ends of those that take longer are left out."""
_NOBODY = "Empty"
"""State of a group that has nothing but committed positions."""


class GroupHandlers:
    """``/api/groups`` and ``/api/groups/{group}``."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/groups", self.list)
        app.router.add_get("/api/groups/{group}", self.describe)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """All groups by name. Lag covers partitions in use, ``unknown_lags`` counts the others."""
        return await rows.answer(request, "groups", self._summaries(request))

    def _summaries(self, request: web.Request) -> Iterator[dict[str, object] | None]:
        node = self._node
        live: dict[GroupName, dict[str, GroupSummary]] = {}
        names: list[tuple[str, str]] = []
        for name, front, summary in live_groups(node.group_directories):
            if name not in live:
                names.append((name[1], name[0]))
            live.setdefault(name, {})[front] = summary
            yield None
        # A group whose positions go, or come, between the two is told once all the same.
        for name in node.progress.names():
            if name not in live:
                names.append((name[1], name[0]))
            yield None
        for one in sorting(names):
            if one is None or not self._access.group(request, Operation.DESCRIBE, one[0]):
                yield None
            else:
                yield from self._line(request, (one[1], one[0]), live.get((one[1], one[0]), {}))

    def _line(
        self, request: web.Request, name: GroupName, fronts: Mapping[str, GroupSummary]
    ) -> Iterator[dict[str, object] | None]:
        node = self._node
        topics: set[str] = set()
        total = _Total()
        partitions = 0
        for number, (place, committed) in enumerate([*node.progress.of_group(name).items()]):
            if self._access.topic(request, Operation.DESCRIBE, place[0]):
                log = _open_log(node, place)
                total.add(None if log is None else _behind(log, committed.offset))
                topics.add(place[0])
                partitions += 1
            if number % rows.STEP == rows.STEP - 1:
                yield None
        yield {
            "group": name[1],
            "space": name[0],
            **_summary(fronts),
            "members": sum(summary.members for summary in fronts.values()),
            "topics": sorted(topics),
            "partitions": partitions,
            **total.told,
        }

    async def describe(self, request: web.Request) -> web.StreamResponse:
        """One group: its members and, for each partition they read or the group has read, how far it is.

        Query: ``space``, for a protocol whose groups have names of their own.
        """
        node, name = self._node, (request.query.get("space", CONSUMERS), request.match_info["group"])
        self._access.require_group(request, Operation.DESCRIBE, name[1])
        committed = node.progress.of_group(name)
        assigned = _readers(_views(node, name))
        # What a member says it reads need not exist; what was committed is shown in any case.
        read = {place for place in assigned if node.logs.get(*place) is not None}
        await _open(log for place in read.union(committed) if (log := node.logs.get(*place)))
        # All of it again, so that positions, ends and members are of the same moment.
        views, committed = _views(node, name), node.progress.of_group(name)
        if not views and not committed:
            raise RequestError(f"there is no group {name[1]!r}", 404)
        readers = _readers(views)
        total = _Total()

        def positions() -> Iterator[dict[str, Any] | None]:
            for place in sorting([*(read & {*readers} | {*committed})]):
                if place is None or not self._access.topic(request, Operation.DESCRIBE, place[0]):
                    yield None
                    continue
                row = self._position(name, place, readers.get(place))
                if row["offset"] is not None:
                    total.add(row["lag"])
                yield row

        summaries = {front: view.summary for front, view in views.items()}
        main = _main(summaries)
        shown = None if main is None else views[main]
        head: dict[str, object] = {
            "group": name[1],
            "space": name[0],
            **_summary(summaries),
            "protocol": "" if shown is None else shown.protocol,
            "generation": None if shown is None else shown.generation,
            "leader": None if shown is None else shown.leader,
            "members": [
                {"front": front, **_member(member)} for front, view in views.items() for member in view.members
            ],
        }
        return await rows.answer(request, "positions", positions(), head=head, tail=lambda: total.told)

    def _position(self, group: GroupName, place: Place, member_id: str | None) -> dict[str, Any]:
        node = self._node
        committed = node.progress.committed(group, *place)
        log = _open_log(node, place)
        return {
            "topic": place[0],
            "partition": place[1],
            "exists": node.catalog.stream_of(*place) is not None,
            "offset": None if committed is None else committed.offset,
            "start_offset": None if log is None else log.log_start_offset,
            "end_offset": None if log is None else log.high_watermark,
            "lag": None if log is None or committed is None else _behind(log, committed.offset),
            "member_id": member_id,
            "metadata": "" if committed is None else committed.metadata,
            "commit_ms": None if committed is None else committed.commit_ms,
        }


def _views(node: Host, name: GroupName) -> dict[str, GroupView]:
    space, group = name
    found = {
        front: directory.view(group) for front, directory in node.group_directories.items() if directory.space == space
    }
    return {front: view for front, view in found.items() if view is not None}


def _readers(views: Mapping[str, GroupView]) -> dict[Place, str]:
    """Member ids by what they read. Where two claim the same, in a rebalance or in two fronts, the first is told."""
    readers: dict[Place, str] = {}
    for view in views.values():
        for member in view.members:
            for place in member.partitions or ():
                readers.setdefault(place, member.member_id)
    return readers


def _main(fronts: Mapping[str, GroupSummary]) -> str | None:
    """The front whose state is told where a group lives in several: the one with the most members."""
    return min(fronts, key=lambda front: (-fronts[front].members, front), default=None)


def _summary(fronts: Mapping[str, GroupSummary]) -> dict[str, object]:
    main = _main(fronts)
    summary = None if main is None else fronts[main]
    return {
        "fronts": sorted(fronts),
        "kind": "" if summary is None else summary.kind,
        "state": _NOBODY if summary is None else summary.state,
        "protocol_type": "" if summary is None else summary.protocol_type,
    }


def _member(member: GroupMemberView) -> dict[str, object]:
    partitions: dict[str, list[int]] | None = None
    if member.partitions is not None:
        partitions = {}
        for topic, partition in member.partitions:
            partitions.setdefault(topic, []).append(partition)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "software": member.software,
        "user": member.user,
        "partitions": partitions,
    }


class _Total:
    """The sum of the known lags, None if there is none, and how many are not known."""

    __slots__ = ("_known", "_sum", "_unknown")

    def __init__(self) -> None:
        self._sum = self._known = self._unknown = 0

    def add(self, lag: int | None) -> None:
        if lag is None:
            self._unknown += 1
        else:
            self._sum += lag
            self._known += 1

    @property
    def told(self) -> dict[str, object]:
        return {"lag": self._sum if self._known else None, "unknown_lags": self._unknown}


def _behind(log: PartitionLog, committed: int) -> int:
    return records_behind(committed, log.log_start_offset, log.high_watermark)


def _open_log(node: Host, place: Place) -> PartitionLog | None:
    log = node.logs.get(*place)
    return log if log is not None and log.is_open else None


async def _open(logs: Iterable[PartitionLog]) -> None:
    """Open what is not open yet, as far as that is possible in a short time."""

    async def attempt(log: PartitionLog) -> None:
        with suppress(LogError):  # shown as unknown; the node's log says why
            await log.ready()

    opening = [asyncio.create_task(attempt(log)) for log in logs if not log.is_open]
    if opening:
        try:
            await asyncio.wait(opening, timeout=_OPEN_WAIT_S)
        finally:
            for task in opening:
                task.cancel()
