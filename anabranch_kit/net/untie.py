"""Connections that have ended go at once, with all they hold, and not when the cyclic collector finds them: a server
runs that seldom.

What refers to itself by what it has given to others is untied where it ends. Of asyncio's own it is the transport,
which keeps the method of its own that it calls when there is something to read.
"""

from __future__ import annotations

import asyncio
from typing import Any


def socket_transport(transport: asyncio.BaseTransport) -> Any:
    """The transport of the socket below ``transport``, which is the same one without TLS; to be called when the
    connection is made: asyncio has forgotten it when it is lost."""
    return getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport


def untie(transport: Any) -> None:
    """A connection is lost: what :func:`socket_transport` gave for it holds itself no more. Does nothing where asyncio
    is not what it is in Python 3.11."""
    if hasattr(transport, "_read_ready_cb"):
        transport._read_ready_cb = None
