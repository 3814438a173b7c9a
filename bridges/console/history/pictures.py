"""The recent traffic over HTTP: of the node, of a topic, and of a group and its partitions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

from aiohttp import web
from msgspec import Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import in_turns, worked_off
from bridges.auth import Operation
from bridges.catalog.views.groups import CONSUMERS
from bridges.console.handlers import Handlers, route
from bridges.console.history.rings import Span
from bridges.console.history.sampling import GROUPS, NODE, PLACES, RECORDS, SECONDS, TOPICS, WAYS
from bridges.console.page import Page, chosen

_PLACES = 12
"""Most partitions of a group in an answer: those furthest behind."""
_GROUPS = 7
"""Most groups in the answer for a topic."""
_LOOKED_AT = 1_000
"""Most partitions of a topic whose lag is summed for a group."""
Points = list[float | None]


class Recent(Struct, frozen=True, kw_only=True):
    """The query of a history: how far back it goes."""

    span: Span = Span.HOUR


class RecentLag(Recent, frozen=True, kw_only=True):
    """The query of a group's history."""

    space: str = CONSUMERS


class PictureHandlers(Handlers):
    """Handlers of ``/api/history``, and of the histories of topics and groups."""

    @route("GET /api/history", "The recent traffic of the node", Operation.DESCRIBE, query=Recent)
    async def node(self, request: web.Request, query: Recent) -> web.Response:
        """Return the node's history.

        ``cpu`` (of one core), ``memory`` and ``held`` (bytes), ``late`` (seconds per second that the event loop ran
        late), and connections and traffic of each front.
        """
        span = query.span
        names = list(self._node.metrics.fronts)
        fronts = {
            name: {
                "connections": self._points(NODE, ("connections", name), span),
                **{way: self._points(NODE, (name, way), span) for way in WAYS},
            }
            for name in names
        }
        own = {name: self._points(NODE, name, span) for name in ("cpu", "memory", "held", "late")}
        return self._answer(span, {**own, "fronts": fronts})

    @route(
        "GET /api/topics/{topic}/history",
        "Its traffic through each protocol, and the groups that fell behind",
        Operation.DESCRIBE,
        query=Recent,
    )
    async def topic(self, request: web.Request, query: Recent) -> web.Response:
        """Return the traffic of a topic through each front, in and out, in records and bytes per second.

        Also the lag, in ``records`` and ``seconds``, of the groups that are furthest behind in it.
        """
        name = request.match_info["topic"]
        self._node.catalog.topic(name)
        span = query.span
        fronts: dict[str, dict[str, Points | None]] = {}
        for front in self._node.metrics.fronts:
            told = {way: self._points(TOPICS, (name, front, way), span) for way in WAYS}
            if any(points is not None for points in told.values()):
                fronts[front] = told
        groups = [one async for one in self._behind(request, name, span)]
        return self._answer(span, {"fronts": fronts, "groups": groups})

    async def _behind(self, request: web.Request, topic: str, span: Span) -> AsyncIterator[dict[str, object]]:
        node, lags = self._node, self._node.recorder.lags
        places = [(topic, info.index) for info in node.catalog.topic(topic).partitions[:_LOOKED_AT]]
        page = Page(_GROUPS, descending=True)
        readers = (
            (page.keyed(lags.get((space, group), (0,))[0]), group, space)
            if self._access.group(request, Operation.DESCRIBE, group)
            else None
            for space, group in node.progress.readers_of(topic)
        )
        for _, group, space in (await chosen(readers, page))[0]:
            told = {
                what: rounded(await worked_off(node.recorder.lag_in((space, group), places, what, span)))
                for what in (RECORDS, SECONDS)
            }
            if told[RECORDS] is not None:
                yield {"group": group, "space": space, **told}

    @route("GET /api/groups/{group}/history", "Its recent lag", Operation.DESCRIBE, query=RecentLag)
    async def group(self, request: web.Request, query: RecentLag) -> web.Response:
        """Return the lag of a group in ``records`` and ``seconds``, its ``trend``, and the lag in its most delayed
        partitions.
        """
        name = (query.space, request.match_info["group"])
        span, recorder = query.span, self._node.recorder
        told: list[tuple[float, str, int, Points, Points | None]] = []
        async for topic, partition in in_turns([*self._node.progress.of_group(name)]):
            if len(told) >= 10 * _PLACES or not self._access.topic(request, Operation.DESCRIBE, topic):
                continue
            records = self._points(PLACES, (*name, RECORDS, topic, partition), span)
            if records is not None:
                seconds = self._points(PLACES, (*name, SECONDS, topic, partition), span)
                told.append((-(records[-1] or 0.0), topic, partition, records, seconds))
        told.sort(key=lambda one: one[:3])
        trend = recorder.trend(name)
        return self._answer(
            span,
            {
                "records": self._points(GROUPS, (*name, RECORDS), span),
                "seconds": self._points(GROUPS, (*name, SECONDS), span),
                "trend": None if trend is None else round(trend, 3),
                "places": [
                    {"topic": topic, "partition": partition, "records": records, "seconds": seconds}
                    for _, topic, partition, records, seconds in told[:_PLACES]
                ],
            },
        )

    def _points(self, family: str, key: Hashable, span: Span) -> Points | None:
        return rounded(self._node.recorder.history.points(family, key, span, time.monotonic()))

    def _answer(self, span: Span, body: dict[str, Any]) -> web.Response:
        # End of the last complete step.
        end_ms = now_ms() - int(time.monotonic() % span.step_s * 1000)
        head = {"span": span.value, "step_s": span.step_s, "end_ms": end_ms}
        left_out = self._node.recorder.history.left_out
        headers = {"Cache-Control": "no-store"}
        return web.json_response({**head, **body, "left_out": left_out}, headers=headers)


def rounded(points: Sequence[float | None] | None) -> Points | None:
    """Return the points with as many digits as a chart shows."""
    if points is None:
        return None
    return [None if one is None else int(one) if one >= 1000 or one == int(one) else round(one, 3) for one in points]
