"""Principals of clients that present a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import ANONYMOUS, Principal

if TYPE_CHECKING:
    import asyncio


def certified(transport: asyncio.BaseTransport) -> Principal:
    """Return the principal that a client's certificate names: the last common name of its subject.

    Return ANONYMOUS without a certificate, or if the subject has no common name.
    """
    tls = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None  # set only if the listener's authority has signed it
    names = [value for part in (certificate or {}).get("subject", ()) for kind, value in part if kind == "commonName"]
    return Principal(ANONYMOUS.kind, names[-1]) if names else ANONYMOUS
