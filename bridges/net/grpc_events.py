"""A faster reader of the events of gRPC's C library.

A thread of gRPC's Python layer passes events on, and wakes the event loop with a byte per event. The loop's side reads
one byte per turn, although it takes all events that there are. So bytes are left over, each of which costs a turn for
nothing. When a few hundred are left over, which happens when the loop is busiest, the thread blocks until there is room
for another. From then on the loop gets one event per turn, of the five that a call takes, and clients wait for minutes.
This module reads all bytes at once.
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
    """The reader callback for gRPC's wake-up bytes: has ``handle`` read one and the events, and reads the others."""

    __slots__ = ("_count", "_handle", "_link")

    def __init__(self, link: socket.socket, handle: Callable[[], object]) -> None:
        self._link = link
        self._handle = handle
        self._count = bytearray(_COUNT.size)

    def __call__(self) -> None:
        fcntl.ioctl(self._link, termios.FIONREAD, self._count)
        (count,) = _COUNT.unpack(self._count)
        # It stops at an event that raises, such as one of a loop that is closed. Then the other bytes have to stay, or
        # nothing would wake this loop for the events behind that one.
        self._handle()
        if count > 1:
            # The events of these bytes were handed over before the bytes.
            self._link.recv(count - 1)


def take_all_wakenings(loop: asyncio.AbstractEventLoop) -> bool:
    """Have ``loop`` read all of gRPC's wake-up bytes; call once there is a server or a channel. Harmless when repeated.

    Return False, and change nothing, if the internals of gRPC or asyncio are not as expected.
    """
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
    """Return the object whose method ``callback`` calls, through any partials."""
    while isinstance(callback, partial):
        callback = callback.func
    return getattr(callback, "__self__", None)
