"""One connection to a placement driver: its end may mean that the range server behind it has ended.

A process that dies takes its connections along at once, long before ``alive_seconds`` of silence have passed.
"""

from __future__ import annotations

from typing import Protocol

from sbp_back.transport.handler import Handler, Reply
from sbp_back.wire.model import ClientRole, HeartbeatRequest, RangeServerInfo, ReportMetricsRequest, Request


class Driver(Handler, Protocol):
    """A session's view of the placement driver."""

    def server_joined(self, server_id: int) -> None: ...
    def server_left(self, server_id: int) -> None: ...


class PdSession:
    """Remembers which range servers have reported over the connection."""

    __slots__ = ("_driver", "_servers")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._servers: set[int] = set()

    def handle(self, request: Request, reply: Reply) -> None:
        self._driver.handle(request, reply)
        server = _reporting(request)
        if server is not None and server.server_id not in self._servers:
            self._servers.add(server.server_id)
            self._driver.server_joined(server.server_id)

    def ended(self) -> None:
        servers, self._servers = self._servers, set()
        for server_id in servers:
            self._driver.server_left(server_id)


def _reporting(request: Request) -> RangeServerInfo | None:
    """Return the range server that sends ``request``, if it is a sign of life."""
    if isinstance(request, ReportMetricsRequest):
        return request.range_server
    if isinstance(request, HeartbeatRequest) and request.role == ClientRole.RANGE_SERVER:
        return request.range_server
    return None
