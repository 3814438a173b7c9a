"""Consumer groups over HTTP: the live groups of all fronts, joined with the positions that all fronts share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import structlog
from aiohttp import web
from msgspec import Struct

from anabranch_kit.run.turns import in_turns, sorting
from bridges.auth import Operation
from bridges.catalog.views.groups import (
    CONSUMERS,
    GroupMemberView,
    GroupName,
    GroupSummary,
    GroupView,
    SharedPlace,
    records_behind,
)
from bridges.console import paging
from bridges.console.groups.causes import Causes
from bridges.console.handlers import Handlers, route
from bridges.console.history.rings import Span
from bridges.console.history.sampling import RECORDS, refresh_for_a_while, trend_of
from bridges.console.host import Host
from bridges.console.paging import ListQuery, Page, SortedQuery
from bridges.http import rows
from bridges.http.access import principal_of
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.catalog.progress import Committed
    from bridges.catalog.views.groups import Place
    from bridges.log.remote.readable import ReadableLog

_log = structlog.get_logger("anabranch.console")

_TOPICS = 20
"""Most topics per group in a page of groups."""
_MEMBERS_BYTES = 96 * 1024
"""Bytes of members in an answer with a page of a group's positions."""
_POSITIONS_BYTES = paging.MOST_BYTES - _MEMBERS_BYTES
_NOBODY = "Empty"
"""State of a group that has committed positions and no members."""


class GroupsQuery(SortedQuery, frozen=True, kw_only=True):
    """The query of a list of groups."""

    sort: Literal["name", "members", "lag", "seconds"] = "name"


class ReadersQuery(SortedQuery, frozen=True, kw_only=True):
    """The query of a list of a topic's groups."""

    sort: Literal["name", "lag", "seconds"] = "name"


class SpaceQuery(Struct, frozen=True, kw_only=True):
    """The ``space`` of a group: for a protocol whose groups have a namespace of their own."""

    space: str = CONSUMERS


class GroupQuery(ListQuery, frozen=True, kw_only=True):
    """The query of one group, or of a page of its positions; ``space`` as in :class:`SpaceQuery`."""

    space: str = CONSUMERS


class GroupHandlers(Handlers):
    """Handlers of ``/api/groups`` and ``/api/groups/{group}``."""

    @route("GET /api/groups", "Groups, by name; or a page of them", query=GroupsQuery)
    async def list(self, request: web.Request, query: GroupsQuery) -> web.StreamResponse:
        """List all groups by name, or a page of them (:mod:`bridges.console.paging`).

        In a cluster, the list has the groups that this node coordinates, and ``coordinator`` names the node. Lag covers
        partitions in use; ``unknown_lags`` counts the others. Lag in seconds, and lag as a sort key, are as last
        sampled.
        """
        page, states, listed = query.page, self._node.group_states, self._node.progress.listed
        names = listed.walk(descending=page.sort == "name" and page.descending)
        seen = self._seen(request, page, names)
        if page.whole:
            lines = ((None,) if name is None else self._line(request, name) for name in seen)
            return await rows.answer(request, "groups", chain.from_iterable(lines), head=states.as_json())
        if page.sort != "name":
            chosen, total = await paging.chosen(self._sorted_by(page, seen), page)
            found = [(space, group) for _, group, space in chosen]
        elif states.all_are_here and not page.search and self._access.everything(request):
            found, total = listed.page(page.skip, page.limit, descending=page.descending), len(listed)
        else:
            found, total = [], 0
            async for name in in_turns(seen):
                if name is not None:
                    if page.skip <= total < page.skip + page.limit:
                        found.append(name)
                    total += 1
        return await paging.answer(
            "groups", found, lambda name: self._row(request, name), page, total, states.as_json()
        )

    def _seen(self, request: web.Request, page: Page, names: Iterable[GroupName]) -> Iterator[GroupName | None]:
        """Yield those of ``names`` that this node coordinates, the client sees and the page searches; None for the
        others."""
        is_here, sees = self._node.group_states.is_here, self._access.group
        for name in names:
            seen = page.finds(name[1]) and is_here(name) and sees(request, Operation.DESCRIBE, name[1])
            yield name if seen else None

    def _sorted_by(self, page: Page, names: Iterable[GroupName | None]) -> Iterator[tuple[float, str, str] | None]:
        lags, summaries = self._node.recorder.lags, self._node.progress.summaries
        for name in names:
            if name is None:
                yield None
                continue
            value = 0.0
            if page.sort == "members":
                value = sum(summary.members for summary in summaries(name).values())
            elif page.sort in ("lag", "seconds"):
                value = lags.get(name, (0, 0.0))[page.sort == "seconds"]
            yield page.keyed(value), name[1], name[0]

    def _row(self, request: web.Request, name: GroupName) -> Iterator[dict[str, object] | None]:
        for row in self._line(request, name):
            if row is not None:
                topics = cast("list[str]", row["topics"])
                row["topic_count"] = len(topics)
                row["topics"] = topics[:_TOPICS]
            yield row

    def _line(self, request: web.Request, name: GroupName) -> Iterator[dict[str, object] | None]:
        node = self._node
        fronts = node.progress.summaries(name)
        if not fronts and not node.progress.has_positions(name):
            yield None  # it has just gone
            return
        topics: set[str] = set()
        total = _Total()
        partitions = 0
        for number, (place, committed) in enumerate([*node.progress.of_group(name).items()]):
            if self._access.topic(request, Operation.DESCRIBE, place[0]):
                log = node.logs.in_use(*place)
                total.add(None if log is None else _behind(log, committed.offset))
                topics.add(place[0])
                partitions += 1
            if number % rows.STEP == rows.STEP - 1:
                yield None
        if (shared := node.recorder.shared.get(name)) is not None:
            seen = [one for one in shared if self._access.topic(request, Operation.DESCRIBE, one.topic)]
            for one in seen:
                total.add(self._lag_of(one))
            topics = {one.topic for one in seen}
            partitions = len(seen)
        yield {
            "group": name[1],
            "space": name[0],
            **_summary(fronts),
            "members": sum(summary.members for summary in fronts.values()),
            "topics": sorted(topics),
            "partitions": partitions,
            **total.as_json,
            **_late(node, name, total),
            "trend": _rounded(node.recorder.trend(name)),
        }

    @route(
        "GET /api/topics/{topic}/groups",
        "Groups that read it, with their lag in it",
        Operation.DESCRIBE,
        query=ReadersQuery,
    )
    async def of_topic(self, request: web.Request, query: ReadersQuery) -> web.StreamResponse:
        """List the groups with positions in a topic, with their lag in it and its trend: all, or a page of them.

        See :mod:`bridges.console.paging`. Lag as a sort key is the lag in all topics of a group.
        """
        topic = request.match_info["topic"]
        places = [(topic, info.index) for info in self._node.catalog.topic(topic).partitions]
        states = self._node.group_states
        page = query.page
        readers = self._sorted_by(page, self._seen(request, page, self._node.progress.readers_of(topic)))
        found, total = await paging.chosen(readers, page, descending=page.sort == "name" and page.descending)
        shown = [(space, group) for _, group, space in found]
        return await paging.send(
            request, page, "groups", shown, lambda name: self._line_in(name, places), total, states.as_json()
        )

    def _line_in(self, name: GroupName, places: Sequence[Place]) -> Iterator[dict[str, object] | None]:
        node, total = self._node, _Total()
        fronts = node.progress.summaries(name)
        read: list[Place] = []
        seconds, exact = 0.0, True
        for place in places:
            committed = node.progress.committed(name, *place)
            if committed is not None:
                row = self._aged(self._position(place, committed, None))
                total.add(row["lag"])
                if (row["lag_seconds"] or 0.0) > seconds:
                    seconds, exact = row["lag_seconds"], row["lag_exact"]
                read.append(place)
            yield None
        trend = trend_of((yield from node.recorder.lag_in(name, read, RECORDS, Span.HOUR)))
        yield {
            "group": name[1],
            "space": name[0],
            **_summary(fronts),
            "members": sum(summary.members for summary in fronts.values()),
            "partitions": len(read),
            **total.as_json,
            "lag_seconds": seconds,
            "lag_exact": exact,
            "trend": _rounded(trend),
        }

    @route("GET /api/groups/{group}", "One group; or a page of its positions", Operation.DESCRIBE, query=GroupQuery)
    async def describe(self, request: web.Request, query: GroupQuery) -> web.StreamResponse:
        """Describe a group: its members, and its position in each partition that it reads or has read.

        ``causes``: what these say about its lag (:class:`bridges.console.groups.causes.Causes`).
        """
        node, name = self._node, (query.space, request.match_info["group"])
        state = await node.group_states.find(name)
        committed, assigned = state.positions, _readers(state.views)
        # A partition that a member claims to read need not exist; a committed position is always shown.
        read = {place for place in assigned if node.catalog.stream_of(*place) is not None}
        read |= {(one.topic, one.partition) for one in state.shared}
        await refresh_for_a_while(log for place in read.union(committed) if (log := node.logs.to_read(*place)))
        # Ask again, so that positions, ends and members are of the same moment.
        state = await node.group_states.find(name)
        views, committed = state.views, state.positions
        shared = {(one.topic, one.partition): one for one in state.shared}
        if not state.is_known:
            raise RequestError(f"there is no group {name[1]!r}", 404)
        readers = _readers(views)
        total, causes = _Total(), Causes()
        page = query.page

        def positions() -> Iterator[dict[str, Any] | None]:
            for place in sorting([*(read & {*readers} | {*committed} | {*shared})]):
                if place is None or not self._access.topic(request, Operation.DESCRIBE, place[0]):
                    yield None
                    continue
                row = self._position(place, committed.get(place), None if shared else readers.get(place))
                if (one := shared.get(place)) is not None:
                    row |= self._delivered(one)
                if row["offset"] is not None:
                    total.add(row["lag"])
                causes.add(row, shared=bool(shared))
                yield self._aged(row) if page.whole else row

        summaries = {front: view.summary for front, view in views.items()}
        main = _main(summaries)
        shown = None if main is None else views[main]
        sees = cache(partial(self._access.topic, request, Operation.DESCRIBE))
        head: dict[str, object] = {
            "group": name[1],
            "space": name[0],
            **_summary(summaries),
            "protocol": "" if shown is None else shown.protocol,
            "dead_letter_topic": "" if shown is None else shown.dead_letter_topic,
            "generation": None if shown is None else shown.generation,
            "leader": None if shown is None else shown.leader,
            "trend": _rounded(node.recorder.trend(name)),
            "members": [
                {"front": front, **_member(member, sees)} for front, view in views.items() for member in view.members
            ],
        }
        if page.whole:
            return await rows.answer(
                request, "positions", positions(), head=head, tail=lambda: total.as_json | causes.as_json
            )
        some: list[dict[str, Any]] = []
        matching = 0
        async for row in in_turns(positions()):  # all rows, for the total lag
            if row is not None and page.finds(row["topic"]):
                if page.skip <= matching < page.skip + page.limit:
                    some.append(row)
                matching += 1
        members = cast("list[dict[str, object]]", head["members"])
        head |= {"members": _first(members, _MEMBERS_BYTES), "member_count": len(members)}
        head |= {**total.as_json, **causes.as_json, **_late(node, name, total)}
        return await paging.answer(
            "positions", some, lambda one: iter([self._aged(one)]), page, matching, head, _POSITIONS_BYTES
        )

    @route("DELETE /api/groups/{group}", "Delete a group without members", Operation.DELETE, query=SpaceQuery)
    async def delete(self, request: web.Request, query: SpaceQuery) -> web.Response:
        """Delete a group: its positions, and what each protocol keeps of it. 409 while it has members."""
        states, name = self._node.group_states, (query.space, request.match_info["group"])
        if not (await states.find(name)).is_known:
            raise RequestError(f"there is no group {name[1]!r}", 404)
        if reason := (await states.delete(name)).reason:
            raise RequestError(reason, 409)
        _log.warning("a group was deleted by an operator", group=name[1], user=str(principal_of(request)))
        return web.json_response({"deleted": name[1], "space": name[0]})

    def _aged(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row with its lag in seconds."""
        log = self._node.logs.in_use(row["topic"], row["partition"]) if row["lag"] else None
        seconds, exact = (0.0, True) if log is None else self._node.recorder.age(log, row["offset"])
        known = row["lag"] is not None
        return {**row, "lag_seconds": round(seconds, 1) if known else None, "lag_exact": exact if known else None}

    def _lag_of(self, shared: SharedPlace) -> int | None:
        """Return how many records are not finished; None while the partition is not in use here."""
        log = self._node.logs.in_use(shared.topic, shared.partition)
        return None if log is None else shared.lag(log.log_start_offset, log.high_watermark)

    def _delivered(self, shared: SharedPlace) -> dict[str, Any]:
        """Return the fields of a position for a partition of which several members share the records."""
        return {
            "offset": shared.start,
            "lag": self._lag_of(shared),
            "acquired": shared.acquired,
            "deliveries": shared.deliveries,
        }

    def _position(self, place: Place, committed: Committed | None, member_id: str | None) -> dict[str, Any]:
        node = self._node
        log = node.logs.in_use(*place)
        return {
            "topic": place[0],
            "partition": place[1],
            "exists": node.catalog.stream_of(*place) is not None,
            "offset": None if committed is None else committed.offset,
            "start_offset": None if log is None else log.log_start_offset,
            "end_offset": None if log is None else log.high_watermark,
            "last_stable_offset": None if log is None else log.last_stable_offset,
            "lag": None if log is None or committed is None else _behind(log, committed.offset),
            "member_id": member_id,
            "metadata": "" if committed is None else committed.metadata,
            "commit_ms": None if committed is None else committed.commit_ms,
        }


def _rounded(trend: float | None) -> float | None:
    return None if trend is None else round(trend, 3)


def _readers(views: Mapping[str, GroupView]) -> dict[Place, str]:
    """Return member ids by partition. Where two members claim one, in a rebalance or in two fronts, the first wins."""
    readers: dict[Place, str] = {}
    for view in views.values():
        for member in view.members:
            for place in member.partitions or ():
                readers.setdefault(place, member.member_id)
    return readers


def _main(fronts: Mapping[str, GroupSummary]) -> str | None:
    """Return the front whose state is shown for a group in several fronts: the one with the most members."""
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


def _member(member: GroupMemberView, sees: Callable[[str], bool]) -> dict[str, object]:
    """Return a member's row, with its partitions of the topics that the client may see."""
    partitions: dict[str, list[int]] | None = None
    if member.partitions is not None:
        partitions = {}
        for topic, partition in member.partitions:
            if topic in partitions or sees(topic):
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


def _first(members: Sequence[dict[str, object]], size: int) -> Sequence[dict[str, object]]:
    """Return the first members that fit into ``size`` bytes. A large member is listed without its partitions."""
    told: list[dict[str, object]] = []
    for member in members:
        some, taken = member, len(json.dumps(member))
        if taken > size // 8:
            some = {**member, "partitions": None}
            taken = len(json.dumps(some))
        size -= taken
        if size < 0:
            break
        told.append(some)
    return told


class _Total:
    """The sum of the known lags, None without any, and the number of unknown ones."""

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
    def as_json(self) -> dict[str, object]:
        return {"lag": self._sum if self._known else None, "unknown_lags": self._unknown}


def _late(node: Host, name: GroupName, total: _Total) -> dict[str, object]:
    """Return the lag in seconds as last sampled; for a group without a sample 0, or None if it has fallen
    behind since.
    """
    seen = node.recorder.lags.get(name)
    seconds, exact = (None if total.as_json["lag"] else 0.0, True) if seen is None else seen[1:]
    return {"lag_seconds": None if seconds is None else round(seconds, 1), "lag_exact": exact}


def _behind(log: ReadableLog, committed: int) -> int:
    return records_behind(committed, log.log_start_offset, log.high_watermark)
