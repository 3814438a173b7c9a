"""The short way to a front: a protocol whose clients send requests and get an answer to each (docs/fronts.md).

Listeners, TLS, the count of memory, quotas, idle connections, draining and who must log in are all here; what is left
is how frames are told apart, how a client says who it is, and what the answers are.
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
    """``node`` is what the node gives it."""

    def __init__(self, node: NodeServices) -> None:
        self.node = node
        self._server: RequestServer | None = None

    @abstractmethod
    def framing(self) -> Framing | LineFraming:
        """How frames are told apart: a length in front (:mod:`anabranch_kit.net.framing`), or lines."""

    def bounds(self) -> Limits:
        """What bounds its connections."""
        from bridges.net.server import Limits

        return Limits()

    async def greet(self, client: RequestConnection, frame: Frame) -> bytes:
        """The answer to a client that must say who it is before :meth:`answer` gets anything of it; see
        :meth:`~bridges.net.request_response.RequestConnection.log_in`. Of a protocol without logins it is closed."""
        client.close("clients of this listener must say who they are, for which the protocol has no words")
        return b""

    @abstractmethod
    async def answer(self, client: RequestConnection, frame: Frame) -> bytes:
        """The answer to one request, as it is sent; what it raises costs the connection."""

    def must_log_in(self, listener: str) -> bool:
        return self.node.authenticator.required_at(listener)

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        from bridges.net.request_response import RequestServer  # not before: settings are read by every command

        node = self.node
        server = self._server = RequestServer(
            self.name, self.bounds(), node.metrics, node.budget, node.barrier, node.quotas, self.framing(), self
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
