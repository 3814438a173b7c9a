"""The route for the committed positions of consumer groups, in pages of bounded size."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING

from aiohttp import web

from anabranch_kit.run.turns import collected, in_order
from bridges.auth import Operation
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from spark_pipeline.node.core import PipelineCore

GROUPS = 500
"""Most groups on a page."""
POSITIONS = 5_000
"""Most positions on a page; a group with more continues on the next page."""


def register(app: web.Application, core: PipelineCore) -> None:
    """Add the routes of this module."""

    async def groups(request: web.Request) -> web.StreamResponse:
        """Answer with groups behind the query's ``after``, by name, with [topic, partition, offset] of each position.

        A page may end within a group: ``next`` is [group, number of its positions already sent], to go on with as
        ``after`` and ``told``.
        """
        progress = core.node.progress
        after, told = request.query.get("after", ""), _count(request.query.get("told", ""))
        names = [name async for name in in_order(await collected(progress.groups()))]
        first = bisect_right(names, after)
        if told and first and names[first - 1] == after:
            first -= 1
        found: dict[str, list[list[object]]] = {}
        room = POSITIONS
        following: list[object] | None = None
        for at, group in enumerate(names[first : first + GROUPS + 1]):
            skipped = told if at == 0 and group == after else 0
            if at == GROUPS or room <= 0:
                following = [names[first + at - 1], 0]
                break
            if not core.access.group(request, Operation.DESCRIBE, group):
                continue
            places = await asyncio.to_thread(sorted, list(progress.of_group(group).items()), key=_place)
            some = places[skipped : skipped + room]
            found[group] = [[topic, partition, one.offset] for (topic, partition), one in some]
            room -= len(some)
            if skipped + len(some) < len(places):
                following = [group, skipped + len(some)]
                break
        return await core.answer(request, {"groups": found, "next": following})

    app.router.add_get("/v1/groups", groups)


def _place(item: tuple[tuple[str, int], object]) -> tuple[str, int]:
    return item[0]


def _count(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError("told is not a number of positions")
    return int(text or 0)
