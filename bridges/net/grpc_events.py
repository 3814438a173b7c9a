"""How gRPC's Python hears from its C library: a thread hands events over, and wakes the loop with a byte for each.

The loop's side takes one byte in each turn, though it takes all events there are. So bytes are left over, each of which
costs a turn for nothing; and when some hundred are, which is when the loop has the most to do, the thread waits until
there is room for another: from then on there is one event in each turn of the loop, of five that a call takes, and
whoever calls waits for minutes. Here all bytes are taken.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Any

_COUNT = struct.Struct("=i")
_QUEUE = "PollerCompletionQueue"


class Wakening:
    """What the loop calls when bytes have come: takes all but one, and has ``handle`` take that and the events."""

    __slots__ = ("_count", "_handle", "_link")

    def __init__(self, link: socket.socket, handle: Callable[[], object]) -> None:
        self._link = link
        self._handle = handle
        self._count = bytearray(_COUNT.size)

    def __call__(self) -> None:
        fcntl.ioctl(self._link, termios.FIONREAD, self._count)
        (count,) = _COUNT.unpack(self._count)
        if count > 1:
            # Whose bytes these are has been handed over before them.
            self._link.recv(count - 1)
        self._handle()


def take_all_wakenings(loop: asyncio.AbstractEventLoop) -> bool:
    """Have ``loop`` take all of gRPC's bytes, once there is a server or a channel; False where its insides are others,
    and everything stays as it is. Harmless when repeated."""
    selector: Any = getattr(loop, "_selector", None)
    if selector is None:
        return False
    done = False
    for key in list(selector.get_map().values()):
        reader = key.data[0] if isinstance(key.data, tuple) else None
        callback: Any = getattr(reader, "_callback", None)
        if isinstance(callback, Wakening):
            done = True
        elif type(_owner(callback)).__name__ == _QUEUE and isinstance(key.fileobj, socket.socket):
            handle = partial(callback, *getattr(reader, "_args", ()))
            loop.add_reader(key.fileobj, Wakening(key.fileobj, handle))
            done = True
    return done


def _owner(callback: Any) -> object:
    """Whose method is called, in the end."""
    while isinstance(callback, partial):
        callback = callback.func
    return getattr(callback, "__self__", None)
