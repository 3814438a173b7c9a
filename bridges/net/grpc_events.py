"""gRPC's events, all that there are whenever the loop looks.

gRPC's own thread writes a byte into a socket for everything that has happened: a message that has come, one that was
sent. Its handler on the loop reads one byte and deals with all that has happened by then. So behind the first of many
come as many turns of the loop in which there is a byte and nothing else, and each of them asks the kernel and does what
is done at the end of a turn. Here the other bytes are taken away first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

_HANDLER = "PollerCompletionQueue._handle_events"
_BYTES = 4096


def take_together(loop: asyncio.AbstractEventLoop) -> bool:
    """Have what gRPC tells ``loop`` dealt with together from now on; whether that was found where it is looked for.

    Call it when a server has started: the socket is there as long as anything of gRPC's is open.
    """
    selector: Any = getattr(loop, "_selector", None)
    found = False
    for key in list(selector.get_map().values()) if selector is not None else ():
        reader, _ = key.data
        handler = getattr(reader, "_callback", None)
        if isinstance(handler, partial) and getattr(handler.func, "__qualname__", "") == _HANDLER:
            loop.add_reader(key.fileobj, _together, key.fileobj, handler)
            found = True
    return found


def _together(source: socket.socket, handler: Callable[[], object]) -> None:
    try:
        waiting = len(source.recv(_BYTES, socket.MSG_PEEK))
    except BlockingIOError:
        return
    # What happens after this writes a byte of its own, so nothing is missed.
    if waiting > 1:
        source.recv(waiting - 1)
    handler()
