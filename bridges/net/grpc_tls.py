"""TLS of gRPC listeners, which want PEM text where asyncio wants a context."""

from __future__ import annotations

import ssl
from typing import Any

import grpc

from anabranch_kit.net.tls import ListenerTls, Pem


def credentials(tls: ssl.SSLContext) -> Any:
    """What ``add_secure_port`` is given: every new connection gets what the node read last.

    gRPC either demands certificates of clients or asks for none: ``client=optional`` asks for none.
    """
    if not isinstance(tls, ListenerTls):
        raise TypeError("a gRPC listener's TLS is made by the node")
    given: list[Pem] = [tls.pem]

    def latest() -> Any:
        # Called by gRPC, in a thread of its own, when a connection begins; None: what it has is good.
        if tls.pem is given[0]:
            return None
        given[0] = tls.pem
        return _configuration(given[0])

    return grpc.dynamic_ssl_server_credentials(_configuration(tls.pem), latest, tls.pem.client_required)


def _configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)
