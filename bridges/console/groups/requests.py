"""Consumer groups over HTTP: the live groups of all fronts, joined with the positions that all fronts share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, cast

import structlog
from aiohttp import web
from msgspec import Struct

from anabranch_kit.run.turns import in_turns, sorting
from bridges.auth import Operation
from bridges.catalog.views.groups import (
    CONSUMERS,
    GroupMemberView,
    GroupView,
)
from bridges.console import paging
from bridges.console.groups.causes import Causes
from bridges.console.groups.lists import GroupLists, Row, Wanted
from bridges.console.groups.rows import GroupRows, Total, late, main_of, rounded, summary_of
from bridges.console.handlers import Handlers, route
from bridges.console.history.sampling import refresh_for_a_while
from bridges.console.host import Host
from bridges.console.page import Page
from bridges.console.paging import ListQuery, SortedQuery
from bridges.http import rows
from bridges.http.access import principal_of
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.catalog.views.groups import GroupName, Place
    from bridges.cluster.members import Member

_log = structlog.get_logger("anabranch.console")

_MEMBERS_BYTES = 96 * 1024
"""Bytes of members in an answer with a page of a group's positions."""
_POSITIONS_BYTES = paging.MOST_BYTES - _MEMBERS_BYTES


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

    def __init__(self, node: Host) -> None:
        super().__init__(node)
        self._lists, self._rows = GroupLists(node), GroupRows(node)

    @route("GET /api/groups", "Groups, by name; or a page of them", query=GroupsQuery)
    async def list(self, request: web.Request, query: GroupsQuery) -> web.StreamResponse:
        """List the groups of all nodes by name, or a page of them (:mod:`bridges.console.paging`).

        Lag covers partitions in use; ``unknown_lags`` counts the others. Lag in seconds, and lag as a sort key, are as
        last sampled. ``unanswered``: nodes whose groups are missing, because they do not answer.
        """
        return await self._answer(request, query.page)

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
        self._node.catalog.topic(topic)
        return await self._answer(request, query.page, topic)

    async def _answer(self, request: web.Request, page: Page, topic: str = "") -> web.StreamResponse:
        """Answer with a page of a list of groups, or all of it."""
        wanted = Wanted(principal_of(request), page, topic)
        unanswered: set[int] = set()

        def missing() -> dict[str, object]:
            return {"unanswered": sorted(unanswered)} if unanswered else {}

        async with AsyncExitStack() as stack:
            total, items = await self._lists.find(wanted, stack, unanswered)
            if page.whole:
                every = (row async for _, (*_, row) in items)
                return await rows.answer(request, "groups", every, tail=missing)
            found: list[tuple[Member | None, GroupName]] = []
            number = 0
            async for member, (_, group, space, _) in items:
                if number >= page.skip:
                    found.append((member, (space, group)))
                number += 1
                if number == page.skip + page.limit:
                    break
        elsewhere = await self._lists.rows_elsewhere(wanted, found, unanswered)

        def row(one: tuple[Member | None, GroupName]) -> Iterator[Row | None]:
            member, name = one
            return self._lists.row(wanted, name) if member is None else iter([elsewhere.get(name)])

        return await paging.answer("groups", found, row, page, total, missing())

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
        total, causes = Total(), Causes()
        page = query.page

        def positions() -> Iterator[dict[str, Any] | None]:
            for place in sorting([*(read & {*readers} | {*committed} | {*shared})]):
                if place is None or not self._access.topic(request, Operation.DESCRIBE, place[0]):
                    yield None
                    continue
                row = self._rows.position(place, committed.get(place), None if shared else readers.get(place))
                if (one := shared.get(place)) is not None:
                    row |= self._rows.delivered(one)
                if row["offset"] is not None:
                    total.add(row["lag"])
                causes.add(row, shared=bool(shared))
                yield self._rows.aged(row) if page.whole else row

        summaries = {front: view.summary for front, view in views.items()}
        main = main_of(summaries)
        shown = None if main is None else views[main]
        sees = cache(partial(self._access.topic, request, Operation.DESCRIBE))
        head: dict[str, object] = {
            "group": name[1],
            "space": name[0],
            **summary_of(summaries),
            "protocol": "" if shown is None else shown.protocol,
            "dead_letter_topic": "" if shown is None else shown.dead_letter_topic,
            "generation": None if shown is None else shown.generation,
            "leader": None if shown is None else shown.leader,
            "trend": rounded(node.recorder.trend(name)),
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
        head |= {**total.as_json, **causes.as_json, **late(node, name, total)}
        return await paging.answer(
            "positions", some, lambda one: iter([self._rows.aged(one)]), page, matching, head, _POSITIONS_BYTES
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


def _readers(views: Mapping[str, GroupView]) -> dict[Place, str]:
    """Return member ids by partition. Where two members claim one, in a rebalance or in two fronts, the first wins."""
    readers: dict[Place, str] = {}
    for view in views.values():
        for member in view.members:
            for place in member.partitions or ():
                readers.setdefault(place, member.member_id)
    return readers


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
