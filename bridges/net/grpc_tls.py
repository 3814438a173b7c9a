"""TLS of gRPC listeners, which need PEM text where asyncio needs a context."""

from __future__ import annotations

import ssl
from typing import Any

import grpc

from anabranch_kit.net.tls import ListenerTls, Pem


def credentials(tls: ssl.SSLContext) -> Any:
    """Return server credentials for ``add_secure_port``: a new connection gets the files that the node has read last.

    gRPC either requires client certificates or requests none; ``client=optional`` therefore requests none. Raises
    TypeError for a context that the node did not make.
    """
    if not isinstance(tls, ListenerTls):
        raise TypeError("a gRPC listener's TLS is made by the node")
    given: list[Pem] = [tls.pem]

    def latest() -> Any:
        # gRPC calls this in its own thread when a connection begins; None means that nothing has changed.
        if tls.pem is given[0]:
            return None
        given[0] = tls.pem
        return _configuration(given[0])

    return grpc.dynamic_ssl_server_credentials(_configuration(tls.pem), latest, tls.pem.client_required)


def _configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.client_ca)
