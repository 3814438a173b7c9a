"""The listener of the console address. The application is imported and made when the first client connects."""

from __future__ import annotations

import asyncio
import ssl
from importlib import import_module
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.http.own_names import OwnNames
from bridges.http.site import HEALTH, HttpSite

if TYPE_CHECKING:
    from aiohttp import web

    from bridges.console.api import Console
    from bridges.console.host import Host


class ConsoleDoor:
    """The HTTP listener of a node."""

    def __init__(
        self, node: Host, names: OwnNames, most_connections: int, request_seconds: float, *, open_health: bool
    ) -> None:
        """Create the listener. ``names``: its host names. ``open_health``: health and metrics need no login."""
        self._node = node
        self._open_health = open_health
        self._console: Console | None = None
        self._names = names
        self.site = HttpSite(
            most_connections=most_connections,
            request_seconds=request_seconds,
            observer=node.metrics.front("http"),
            kept=HEALTH,
        )

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> Address:
        """Listen, with TLS if there is a context, and return the bound address. Raises OSError."""
        self.site.serve(self._application, handler_cancellation=True)
        return await self.site.listen("console", address, self._names, tls)

    async def _application(self) -> web.Application:
        api = await asyncio.to_thread(import_module, "bridges.console.api")
        console: Console = api.Console(self._node, open_health=self._open_health)
        self._console = console
        return console.application()

    async def stop(self) -> None:
        """End streams, finish requests, and close connections."""
        if self._console is not None:
            self._console.end_streams()
        await self.site.stop()
        if self._console is not None:
            self._console.close()
