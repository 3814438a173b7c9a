"""A base for fronts of request-response protocols: clients send requests and get an answer to each (docs/fronts.md).

It has listeners, TLS, memory accounting, quotas, idle connections, draining, and the check of who must log in. A
subclass adds the framing, the login, and the answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.node.front import Front, NodeServices

if TYPE_CHECKING:
    from anabranch_kit.net.framing import Framing
    from anabranch_kit.net.line_framing import LineFraming
    from bridges.net.request_response import Frame, RequestConnection, RequestServer
    from bridges.net.server import Limits


class RequestFront(Front):
    """A front of a request-response protocol. ``node`` has the node's services."""

    def __init__(self, node: NodeServices) -> None:
        self.node = node
        self._server: RequestServer | None = None

    @abstractmethod
    def framing(self) -> Framing | LineFraming:
        """Return how frames are delimited: by a length in front (:mod:`anabranch_kit.net.framing`), or as lines."""

    def bounds(self) -> Limits:
        from bridges.net.server import Limits

        return Limits()

    async def greet(self, client: RequestConnection, frame: Frame) -> bytes:
        """Return the answer to a client that must log in before :meth:`answer` gets its frames.

        See :meth:`~bridges.net.request_response.RequestConnection.log_in`. By default the connection is closed, for a
        protocol without logins.
        """
        client.close("clients of this listener must say who they are, for which the protocol has no words")
        return b""

    @abstractmethod
    async def answer(self, client: RequestConnection, frame: Frame) -> bytes:
        """Return the answer to a request, as sent; an exception closes the connection."""

    def must_log_in(self, listener: str) -> bool:
        return self.node.authenticator.required_at(listener)

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        from bridges.net.request_response import RequestServer  # imported late: every command reads the settings

        node = self.node
        server = self._server = RequestServer(
            self.name,
            self.bounds(),
            node.metrics,
            node.budget,
            node.barrier,
            node.quotas,
            self.framing(),
            self,
            node.clients,
        )
        bound: dict[str, Address] = {}
        for name, address in listen.items():
            told = node.advertised(name)
            at = (told.host, told.port) if told else None
            bound[name] = Address(*await server.listen(name, address.host, address.port, at, node.tls(name)))
        return bound

    async def drain(self) -> None:
        if self._server is not None:
            await self._server.drain()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
