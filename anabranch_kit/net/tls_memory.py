"""Memory that asyncio keeps for a connection with TLS besides the bytes in flight: bounded and reported here."""

from __future__ import annotations

import asyncio
from typing import Any

RECEIVED_AT_ONCE = 32 * 1024
"""Bytes of ciphertext: two records of TLS, where asyncio takes 256 KiB."""

_STANDING_BYTES = 32 * 1024
"""Bytes of ciphertext that are kept while the connection does not read."""

BOUNDED_BYTES = 128 * 1024
"""Measured: 58 KiB when idle, 100 KiB after requests of 600 KB, and 85 KiB while the client takes no answers."""
UNBOUNDED_BYTES = 608 * 1024
"""Measured without the bounds: 282 KiB, 528 KiB."""


def bound_tls_memory(transport: asyncio.BaseTransport) -> int:
    """Make a connection with TLS receive in small pieces; return the most bytes that it holds while it lives.

    Call it when the connection is made. asyncio receives into a buffer of 256 KiB for each connection, and OpenSSL
    keeps as much again of what came at once. There is no official way to make them smaller: where the attributes are
    not those of Python 3.11, the buffers stay, and the result counts them.
    """
    protocol: Any = getattr(transport, "_ssl_protocol", None)
    if not isinstance(getattr(protocol, "_ssl_buffer", None), bytearray) or not hasattr(protocol, "max_size"):
        return UNBOUNDED_BYTES
    if hasattr(transport, "set_read_buffer_limits"):
        transport.set_read_buffer_limits(high=_STANDING_BYTES, low=0)
    protocol.max_size = RECEIVED_AT_ONCE
    protocol._ssl_buffer = bytearray(RECEIVED_AT_ONCE)
    protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)
    return BOUNDED_BYTES
