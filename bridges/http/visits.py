"""HTTP clients among a node's clients. A request is a visit: HTTP has no lasting connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from anabranch_kit.net.connection import address_of
from bridges.clients import Client, Clients, Description
from bridges.http.access import principal_of


@contextmanager
def visit(clients: Clients, front: str, request: web.Request, name: str = "") -> Iterator[Client]:
    """Count what a request writes or reads as its client's while inside."""
    transport = request.transport
    principal = principal_of(request)
    user = "" if principal.is_anonymous else principal.name
    description = Description(name, request.headers.get("User-Agent", ""), user)
    address = address_of(None if transport is None else transport.get_extra_info("peername"))
    client = clients.enter(
        front, front, address, lambda: description, lambda reason: None if transport is None else transport.abort()
    )
    try:
        yield client
    finally:
        clients.leave(client)
