"""Clients that show a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import ANONYMOUS, Principal

if TYPE_CHECKING:
    import asyncio


def certified(transport: asyncio.BaseTransport) -> Principal:
    """Whom a client's certificate names: the common name of its subject, the last one if there are several.

    Nobody without a certificate, or with one that has no such name.
    """
    tls = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None  # only what the listener's authority has signed
    names = [value for part in (certificate or {}).get("subject", ()) for kind, value in part if kind == "commonName"]
    return Principal(ANONYMOUS.kind, names[-1]) if names else ANONYMOUS
