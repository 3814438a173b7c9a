"""Release of ended connections at once, with all they hold, without waiting for the cyclic collector: a server runs
that seldom.

An object that refers to itself through a reference it has given away is untied where it ends. In asyncio that is the
transport, which keeps a bound method of its own as the callback for reading.
"""

from __future__ import annotations

import asyncio
from typing import Any


def socket_transport(transport: asyncio.BaseTransport) -> Any:
    """Return the transport of the socket below ``transport``, which is the same one without TLS. Call it when the
    connection is made: asyncio has forgotten it when it is lost.
    """
    return getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport


def untie(transport: Any) -> None:
    """Break the reference cycle of a transport from :func:`socket_transport` whose connection is lost. Does nothing
    where asyncio differs from Python 3.11's.
    """
    if hasattr(transport, "_read_ready_cb"):
        transport._read_ready_cb = None
