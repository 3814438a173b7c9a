"""Handlers of connections and of a topic's clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import structlog
from aiohttp import web
from msgspec import Meta

from bridges.auth import Operation
from bridges.console import paging
from bridges.console.clients.everywhere import Choice, ClientView, FlowView, Found
from bridges.console.handlers import Handlers, route
from bridges.console.page import Page, chosen
from bridges.console.paging import ListQuery
from bridges.http.access import principal_of
from bridges.http.errors import RequestError

_log = structlog.get_logger("anabranch.console")

T = TypeVar("T")
_ENDED = "an operator has ended the connection"


class ClientsQuery(ListQuery, frozen=True, kw_only=True):
    """The query of a list of clients. ``search`` looks into name, software, user, address and protocol."""

    user: str = ""
    protocol: Annotated[str, Meta(description="kafka, pravega, ydb, http, pipeline, or another front's name")] = ""
    address: Annotated[str, Meta(description="A part of the client's address and port.")] = ""


class TopicClientsQuery(ClientsQuery, frozen=True, kw_only=True):
    """The query of a topic's clients."""

    direction: Literal["writes", "reads", ""] = ""


class ConnectionsQuery(ClientsQuery, frozen=True, kw_only=True):
    """The query of a list of connections."""

    topic: Annotated[str, Meta(description="Only those that write to this topic or read it.")] = ""


class ClientHandlers(Handlers):
    """Handlers of ``/api/connections``, and of the clients of a topic."""

    @route(
        "GET /api/topics/{topic}/clients",
        "Who writes to a topic and who reads it",
        Operation.DESCRIBE,
        query=TopicClientsQuery,
    )
    async def of_topic(self, request: web.Request, query: TopicClientsQuery) -> web.StreamResponse:
        """List the clients of all nodes that write to a topic or read it, or did in the last ten minutes.

        All, or a page of them (:mod:`bridges.console.paging`), the busiest first. A client that writes and reads has
        two rows. ``more``: clients that are not in the list for lack of room.
        """
        topic = self._node.catalog.topic(request.match_info["topic"]).name
        # Without a direction a client may have two rows: then no node knows which clients are on the page.
        most = _reached(query.page) if query.direction else 0
        search = query.search.lower()
        choice = Choice(topic, query.user, query.protocol, query.address, search, True, query.direction, most)
        found = await self._node.clients_everywhere.find(choice)
        wanted = {"writes": (True,), "reads": (False,), "": (True, False)}[query.direction]
        rows = [(one, flow) for one in found.clients for flow in one.flows if flow.writes in wanted]
        total = found.total if most else len(rows)
        return await _answer(
            request, query.page, "clients", rows, total, found, lambda one: _describe(one[0]) | _flow(one[1])
        )

    @route("GET /api/connections", "Open connections at all nodes", Operation.DESCRIBE, query=ConnectionsQuery)
    async def list(self, request: web.Request, query: ConnectionsQuery) -> web.StreamResponse:
        """List the open connections and streams of all nodes, or a page of them, the busiest first.

        Each has the topics that it writes to and reads, of those that the asking client may describe: at most 20 that
        were used last.
        """
        if query.topic:
            self._access.require_topic(request, Operation.DESCRIBE, query.topic)
        asked = (query.topic, query.user, query.protocol, query.address, query.search.lower())
        choice = Choice(*asked, most=_reached(query.page))
        found = await self._node.clients_everywhere.find(choice)
        allowed: dict[str, bool] = {}

        def may_see(topic: str) -> bool:
            if topic not in allowed:
                allowed[topic] = self._access.topic(request, Operation.DESCRIBE, topic)
            return allowed[topic]

        def row(one: ClientView) -> dict[str, object]:
            shown = [flow for flow in one.flows if may_see(flow.topic)]
            return _describe(one) | {
                "bytes_in_per_s": round(one.bytes_in_per_s, 1),
                "bytes_out_per_s": round(one.bytes_out_per_s, 1),
                "last_ms": max((flow.last_ms for flow in one.flows), default=None),
                "topics": one.topics,
                "writes": [flow.topic for flow in shown if flow.writes],
                "reads": [flow.topic for flow in shown if not flow.writes],
            }

        rows = [(one, None) for one in found.clients]
        return await _answer(request, query.page, "connections", rows, found.total, found, lambda each: row(each[0]))

    @route("DELETE /api/connections/{connection}", "End a connection", Operation.ALTER)
    async def end(self, request: web.Request) -> web.Response:
        """End one connection or stream, once: its client may connect again at once, and usually does.

        To keep a client out, take away its user's rights or password.
        """
        name = request.match_info["connection"]
        node, dash, number = name.partition("-")
        view = None
        if dash and node.isdecimal() and number.isdecimal():
            user = principal_of(request)
            view = await self._node.clients_everywhere.end(int(node), int(number), f"{_ENDED} ({user})")
        if view is None:
            raise RequestError(f"there is no connection {name!r}: it may have ended by itself", 404)
        _log.warning(
            "a connection was ended by an operator",
            connection=name,
            protocol=view.front,
            client=view.name,
            peer=view.address,
            user=str(principal_of(request)),
        )
        return web.json_response({"ended": name})


def _reached(page: Page) -> int:
    """Return how many rows there are up to the end of the page; 0 for all."""
    return 0 if page.whole else page.skip + page.limit


async def _answer(
    request: web.Request,
    page: Page,
    key: str,
    rows: Sequence[tuple[ClientView, T]],
    total: int,
    found: Found,
    describe: Callable[[tuple[ClientView, T]], dict[str, object]],
) -> web.StreamResponse:
    """Send the rows, or the page of them, the busiest clients first. The nodes have searched already."""
    keys = ((one[0].order, "", f"{place:09}") for place, one in enumerate(rows))
    on_page, _ = await chosen(keys, page)
    head = found.as_json()
    return await paging.send(request, page, key, on_page, lambda one: iter([describe(rows[int(one[2])])]), total, head)


def _describe(one: ClientView) -> dict[str, object]:
    return {
        "id": None if one.number is None else f"{one.node_id}-{one.number}",
        "node": one.node_id,
        "protocol": one.front,
        "listener": one.listener,
        "client": one.name,
        "software": one.software,
        "user": one.user,
        "address": one.address,
        "since_ms": one.since_ms,
    }


def _flow(flow: FlowView) -> dict[str, object]:
    return {
        "direction": "writes" if flow.writes else "reads",
        "partitions": flow.partitions,
        "partition_count": flow.partition_count,
        "records": flow.records,
        "bytes": flow.bytes,
        "records_per_s": flow.records_per_s,
        "bytes_per_s": flow.bytes_per_s,
        "last_ms": flow.last_ms,
    }
