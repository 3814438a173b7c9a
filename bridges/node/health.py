"""Health and metrics over HTTP, for a process that is no node and has no console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.http.own_names import OwnNames
from bridges.http.site import HEALTH, HttpSite

if TYPE_CHECKING:
    from aiohttp import web

    from bridges.life import Life
    from bridges.metrics import Metrics

_CONNECTIONS = 200
_REQUEST_S = 60.0


class HealthServer:
    """Serves ``/healthz``, ``/readyz`` and ``/metrics`` as a node does (docs/operations.md).

    Clients do not log in here: with ``tells``, everybody sees why the process cannot go on; without it, nobody does.
    """

    def __init__(self, process: Life, metrics: Metrics, names: OwnNames, *, tells: bool = True) -> None:
        self._process = process
        self._tells = tells
        self._metrics = metrics
        self._names = names
        self._site = HttpSite(
            most_connections=_CONNECTIONS, request_seconds=_REQUEST_S, observer=metrics.front("http"), kept=HEALTH
        )

    async def start(self, address: Address) -> Address:
        """Listen, and return the bound address. Raises OSError."""
        self._site.serve(self._application)
        return await self._site.listen("metrics", address, self._names)

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        await self._site.stop()

    async def _application(self) -> web.Application:
        from bridges.node.health_pages import application  # imported at the first request

        return application(self._process, self._metrics, tells=self._tells)
