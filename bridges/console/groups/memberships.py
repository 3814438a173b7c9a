"""Members of groups over HTTP: they join with a request that stays open, and commit with requests of their own."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from aiohttp import web
from msgspec import Meta, Struct

from anabranch_kit.run.turns import gathered
from bridges.auth import Operation
from bridges.catalog.views.groups import CONSUMERS, GroupMemberView
from bridges.console.groups.members import Join, NewCommit
from bridges.console.handlers import Handlers, route
from bridges.errors import GroupHeld
from bridges.http.access import principal_of
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.console.host import Host

_ALIVE_S = 1.0
"""Interval of empty lines, by which a client that has gone is noticed."""
_Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class MemberQuery(Struct, frozen=True, kw_only=True):
    """The query of a member that joins."""

    topics: Annotated[str, Meta(description="the topics to read, with commas between them")]
    client_id: str = "anabranch"


class Commit(Struct, frozen=True, kw_only=True):
    """Positions of a member: topic, partition, offset of the next record. With ``leave`` it leaves the group then."""

    member_id: str
    positions: list[tuple[str, _Whole, _Whole]]
    leave: bool = False


class MemberHandlers(Handlers):
    """Handlers of ``/api/groups/{group}/member`` and ``/api/groups/{group}/commit``."""

    def __init__(self, node: Host) -> None:
        super().__init__(node)
        self._joined: set[asyncio.Task[object]] = set()

    def stop(self) -> None:
        for task in self._joined:
            task.cancel()

    @route(
        "GET /api/groups/{group}/member",
        "Join a group for as long as the request lasts",
        Operation.READ,
        query=MemberQuery,
        lines=True,
        content="application/x-ndjson",
    )
    async def join(self, request: web.Request, query: MemberQuery) -> web.StreamResponse:
        """Join a group, which must have no members; the member has all partitions of the topics.

        The first line has the ``member_id``, and ``positions``: topic, partition, the group's offset or null, and the
        end of the partition. Empty lines follow. The answer ends when the group goes to another node.
        """
        node, group = self._node, request.match_info["group"]
        topics = dict.fromkeys(query.topics.split(","))
        for topic in topics:
            self._access.require_topic(request, Operation.READ, topic)
        places = [(topic, info.index) for topic in topics for info in node.catalog.topic(topic).partitions]
        logs = [log for place in places if (log := node.logs.to_read(*place)) is not None]
        await gathered(log.refresh() for log in logs)
        member = GroupMemberView(
            f"http-{uuid.uuid4()}",
            None,
            query.client_id,
            request.remote or "",
            tuple(places),
            user=str(principal_of(request)),
        )
        task = asyncio.current_task()
        assert task is not None
        try:
            self._joined.add(task)
            async with node.group_members.joined(Join(group, member)) as ended:
                known = (await node.group_states.find((CONSUMERS, group))).positions
                rows = [
                    (log.topic, log.partition, None if one is None else one.offset, log.high_watermark)
                    for log in logs
                    for one in (known.get((log.topic, log.partition)),)
                ]
                headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
                response = web.StreamResponse(headers=headers)
                await response.prepare(request)
                await response.write(json.dumps({"member_id": member.member_id, "positions": rows}).encode() + b"\n")
                while not ended.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_ALIVE_S):
                            await ended.wait()
                    await response.write(b"\n")
        except GroupHeld as held:
            raise RequestError(str(held), 409) from held
        finally:
            self._joined.discard(task)
            del task  # a cancelled task's exception keeps this frame
        await response.write_eof()
        return response

    @route("POST /api/groups/{group}/commit", "Commit positions of a member", Operation.READ, body=Commit)
    async def commit(self, request: web.Request, body: Commit) -> web.Response:
        """Commit positions of a member that has joined with ``/member``. 409 if it is no member any more."""
        for topic in {topic for topic, *_ in body.positions}:
            self._access.require_topic(request, Operation.READ, topic)
        asked = NewCommit(request.match_info["group"], body.member_id, body.positions, body.leave)
        if reason := (await self._node.group_members.commit(asked)).reason:
            raise RequestError(reason, 409)
        return web.json_response({"committed": len(body.positions)})
