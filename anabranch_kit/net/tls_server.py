"""TLS of the connections to a listener, from the first byte on.

In asyncio's own implementation a failed handshake stays in memory until the cyclic collector finds it, with the
connection's protocol and 256 KiB of receive buffer: the exception refers to the frames that wait for the handshake, and
they refer to it. Any client can make handshakes fail, and they count in no bound on memory. So nothing waits here, and
the connection's protocol is made only when its handshake is done.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, cast

from anabranch_kit.net.tls import HANDSHAKE_SECONDS
from anabranch_kit.net.tls_memory import RECEIVED_AT_ONCE
from anabranch_kit.net.untie import untie

logger = logging.getLogger(__name__)

Factory = Callable[[], asyncio.BaseProtocol]


def served(factory: Factory, tls: ssl.SSLContext | None) -> Factory:
    """Return the protocol factory for ``create_server`` of the running loop: ``factory`` makes the protocols of
    connections, with TLS if there is a context. A client that does not begin TLS in time is cut.
    """
    if tls is None:
        return factory
    loop = asyncio.get_running_loop()
    return lambda: _Tls(
        loop,
        _Handshake(factory),
        tls,
        cast(Any, None),
        server_side=True,
        ssl_handshake_timeout=cast(Any, HANDSHAKE_SECONDS),
    )


class _Handshake(asyncio.Protocol):
    """Placeholder for the protocol of a connection, until its handshake is done."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._factory()
        cast(asyncio.Transport, transport).set_protocol(protocol)
        protocol.connection_made(transport)


class _Tls(SSLProtocol):
    """asyncio's own protocol, without the references that keep it in memory."""

    max_size = RECEIVED_AT_ONCE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket_transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        untie(self._socket_transport)

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        if isinstance(handshake_exc, ssl.SSLError) and not isinstance(handshake_exc, ssl.SSLEOFError):
            # asyncio logs this in debug mode only. A port scan sends nothing, and is not logged.
            known = self._socket_transport.get_extra_info
            host, port = (known("peername") or ("?", "?"))[:2]  # None if the client had already gone
            own = known("sockname")[1]
            logger.warning("the TLS handshake of %s:%s at port %s failed: %s", host, port, own, handshake_exc.reason)
        super()._on_handshake_complete(handshake_exc)
        if isinstance(handshake_exc, BaseException):  # asyncio may give a class
            handshake_exc.__traceback__ = None  # in whose frames it is
