"""Listening sockets that accept their clients over several turns of the loop.

asyncio accepts as many connections in one turn of the loop as the kernel may queue, and each of them costs a tenth of a
millisecond of that turn and the next. A thousand at once would delay everything else by as many tenths. So each turn
accepts a few, and the kernel queues the others, as many as before.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

TAKEN_AT_ONCE = 16
"""Connections that one listener accepts in a turn of the loop."""
WAITING = 1024
"""Connections that the kernel queues until they are accepted (fewer where ``net.core.somaxconn`` is lower)."""


async def listen(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Server:
    """Return a server on the running loop. Raises OSError when the address cannot be bound."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, host, port, backlog=TAKEN_AT_ONCE, reuse_address=True)
    for one in server.sockets:
        with socket.socket(fileno=os.dup(one.fileno())) as same:  # asyncio's public socket object cannot do this
            same.listen(WAITING)
    return server
