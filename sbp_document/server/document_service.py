"""The document's listeners over a placement driver and a range server of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from sbp_back.transport.carrier import InProcessCarrier
from sbp_back.transport.handler import Handler
from sbp_back.transport.listener import Listener
from sbp_back.transport.serving import ListenAt, advertised, listen, run_all
from sbp_back.wire.base import Dialect
from sbp_document.server.lanes import Lanes, OwnerOf, nobody
from sbp_document.server.server import DocumentServer, RangeServerSide
from sbp_document.wire.v01 import APRIL, V01

if TYPE_CHECKING:
    from sbp_back.client.client import Client
    from sbp_back.placement_driver.driver import PlacementDriver
    from sbp_back.range_server.server import RangeServer
    from sbp_back.transport.carrier import Carrier

DOCUMENT_LISTENER = "sbp-v0.1"
RANGE_SERVER_LISTENER = "sbp-v0.1-range-server"
APRIL_LISTENER = "sbp-v0.1-april"

DIALECT_OF: Mapping[str, Dialect] = {DOCUMENT_LISTENER: V01, RANGE_SERVER_LISTENER: V01, APRIL_LISTENER: APRIL}
"""Dialect of each of the document's listeners."""


class DocumentService:
    """The running listeners, made by :func:`start_document`. ``server`` serves requests inside the process, with or
    without listeners.
    """

    def __init__(
        self, lanes: Lanes, servers: list[DocumentServer], listeners: dict[str, Listener], carriers: list[Carrier]
    ) -> None:
        self.lanes = lanes
        self.server = servers[0]
        self.listeners = listeners
        self._servers = servers
        self._carriers = carriers

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        return {name: listener.address for name, listener in self.listeners.items()}

    async def drain(self) -> None:
        """Take no more clients and finish the requests in flight, for a limited time."""
        for server in self._servers:
            server.stop_waiting()
        await asyncio.gather(*(listener.drain() for listener in self.listeners.values()))

    async def close(self) -> None:
        """Drain, then stop; the servers behind it stay with their owners. Idempotent."""
        steps = [self.drain, self.lanes.close, *(server.close for server in self._servers)]
        await run_all([*steps, *(carrier.close for carrier in self._carriers)])


async def start_document(
    client: Client,
    pd: PlacementDriver,
    range_server: RangeServer,
    listeners: Mapping[str, ListenAt],
    owner_of: OwnerOf = nobody,
) -> DocumentService:
    """Serve the document's dialect at ``listeners`` (names: ``DIALECT_OF``; the dialect in them is ignored).

    ``client`` is one of the same placement driver and range server. ``owner_of`` returns a stream's writer in this
    process, if it has one. Raises ``OSError`` when an address is taken.
    """
    to_range_server = InProcessCarrier(range_server, client.barrier)
    lanes = Lanes(pd, range_server, to_range_server, client.barrier, owner_of)
    document, april = DocumentServer(lanes, client), DocumentServer(lanes, client)
    serving: dict[str, Handler] = {
        DOCUMENT_LISTENER: document,
        RANGE_SERVER_LISTENER: RangeServerSide(document),
        APRIL_LISTENER: april,
    }
    started: dict[str, Listener] = {}
    told: dict[str, str] = {}
    async with AsyncExitStack() as undo:
        for name, at in listeners.items():
            at.dialect = DIALECT_OF[name]
            started[name] = await listen(serving[name], at, client.barrier)
            undo.push_async_callback(started[name].close)
            told[name] = advertised(started[name], at.advertise)
        undo.pop_all()
    document.pd_addr = told.get(DOCUMENT_LISTENER, "")
    document.range_server_addr = told.get(RANGE_SERVER_LISTENER, document.pd_addr)
    april.pd_addr = april.range_server_addr = told.get(APRIL_LISTENER, "")
    return DocumentService(lanes, [document, april], started, [to_range_server])
