"""Handlers of requests: each method says beside itself which request it answers, and who may send it.

:func:`route` is that entry. From it come the route of the application, the check of the client's rights, the parsed
query and body that the method gets, and the description of the request (:mod:`bridges.console.openapi`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from aiohttp import web
from msgspec import Struct

from bridges.auth import Operation
from bridges.console.host import Host
from bridges.http.access import Access
from bridges.http.bodies import read_body, read_query

Handler = Callable[..., Awaitable[web.StreamResponse]]
H = TypeVar("H", bound=Handler)


class Route(Struct, frozen=True):
    """One kind of request. ``lines``: the body, or the answer, has one record per line."""

    method: str
    path: str
    summary: str
    needs: tuple[Operation, ...]
    queries: tuple[type[Struct], ...]
    body: type[Struct] | None
    status: int
    lines: bool
    content: str


def route(
    request: str,
    summary: str,
    *needs: Operation,
    query: type[Struct] | Sequence[type[Struct]] = (),
    body: type[Struct] | None = None,
    status: int = 200,
    lines: bool = False,
    content: str = "application/json",
) -> Callable[[H], H]:
    """Have a method answer a kind of ``request`` (METHOD PATH).

    The client must be allowed all operations in ``needs``, on the topic, group or transactional id that the path names,
    otherwise on the node. The method gets the request, each struct of ``query``, and the struct ``body``.
    """
    method, path = request.split()
    queries = (query,) if isinstance(query, type) else tuple(query)

    def mark(handler: H) -> H:
        handler.__dict__["route"] = Route(method, path, summary, needs, queries, body, status, lines, content)
        return handler

    return mark


class Handlers:
    """Handlers of requests about a node."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def stop(self) -> None:
        """End answers that do not end by themselves."""

    def close(self) -> None:
        """Release all resources, once no request is in progress."""

    @classmethod
    def routes(cls) -> Iterator[tuple[Route, Handler]]:
        """Yield the requests that the class answers, each with its method."""
        for method in vars(cls).values():
            found = getattr(method, "route", None)
            if isinstance(found, Route):
                yield found, method

    def add_to(self, app: web.Application) -> None:
        for found, method in self.routes():
            handler = partial(self._handle, found, partial(method, self))
            add = app.router.add_get if found.method == "GET" else partial(app.router.add_route, found.method)
            add(found.path, handler)

    async def _handle(self, found: Route, method: Handler, request: web.Request) -> web.StreamResponse:
        named = request.match_info
        for operation in found.needs:
            if "topic" in named:
                self._access.require_topic(request, operation, named["topic"])
            elif "group" in named:
                self._access.require_group(request, operation, named["group"])
            elif "transaction" in named:
                self._access.require_transaction(request, operation, named["transaction"])
            else:
                self._access.require_node(request, operation)
        given: list[Struct] = [read_query(request, query) for query in found.queries]
        if found.body is not None:
            given.append(await read_body(request, found.body))
        return await method(request, *given)
