"""What is left of things that have ended and only the cyclic collector can free, and clients that leave none of it."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from tests.kit.waiting import until

if TYPE_CHECKING:
    from bridges.net.server import Server

TIMES = 5


class Link:
    """A connection by hand. Those of asyncio's streams would be found among what is left."""

    def __init__(self, bare: socket.socket, address: tuple[str, int]) -> None:
        self._bare = bare
        self.address = address
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._bare, data)

    async def some(self, most: int = 1 << 16) -> bytes:
        """What has come; nothing when the server has closed the connection."""
        try:
            return await self._loop.sock_recv(self._bare, most)
        except ConnectionError:
            return b""

    async def exactly(self, size: int) -> bytes:
        """So many bytes; fewer when the server has closed the connection."""
        data = b""
        while len(data) < size and (more := await self.some(size - len(data))):
            data += more
        return data

    async def frame(self, length: struct.Struct) -> bytes:
        """A frame's bytes behind the number that says how many they are."""
        (size,) = length.unpack(await self.exactly(length.size))
        return await self.exactly(size)

    async def closed(self) -> None:
        """Wait for the server to close the connection."""
        while await self.some():
            pass

    def finish(self) -> None:
        """Send nothing more."""
        self._bare.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Go without a farewell."""
        self._bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._bare.close()

    def close(self) -> None:
        self._bare.close()


@asynccontextmanager
async def linked(address: tuple[str, int]) -> AsyncIterator[Link]:
    """A connection, which is closed in the end unless it is already."""
    bare = socket.socket()
    bare.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(bare, address)
        yield Link(bare, address)
    finally:
        bare.close()


End = Callable[[Link], Awaitable[None]]
"""What a client does with its connection, which ends then."""


def on_link(address: tuple[str, int], end: End) -> Callable[[], Awaitable[None]]:
    """Does ``end`` with a connection of its own."""

    async def carried_out() -> None:
        async with linked(address) as link:
            await end(link)

    return carried_out


async def left_behind(
    ends: dict[str, Callable[[], Awaitable[None]]], over: Callable[[], Awaitable[None]]
) -> dict[str, dict[str, int]]:
    """Objects that each of ``ends`` leaves to the collector every time, by their types; nothing of those that leave
    none. ``over`` waits for a server to be done with what has ended."""
    found: dict[str, dict[str, int]] = {}
    gc.collect()
    gc.freeze()  # what is there already is looked at no more, which takes most of a collection's time
    gc.disable()
    try:
        for name, end in ends.items():
            await end()  # what is made once
            await over()
            gc.collect()
            for _ in range(TIMES):
                await end()
            await over()
            left = _garbage()
            if left:
                found[name] = left
    finally:
        gc.enable()
        gc.unfreeze()
    return found


async def left_of_connections(
    server: Server, address: tuple[str, int], ends: dict[str, End]
) -> dict[str, dict[str, int]]:
    """The same of connections to a server that nobody else is connected to."""
    made = server.next_id

    def counted(end: End) -> End:
        async def carried_out(link: Link) -> None:
            nonlocal made
            made += 1
            await end(link)

        return carried_out

    async def over() -> None:
        await until(lambda: server.next_id >= made and not server.connections and not server.tasks)

    return await left_behind({name: on_link(address, counted(end)) for name, end in ends.items()}, over)


def _garbage() -> dict[str, int]:
    """What there is of each type for every time, at least."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        counts = Counter(map(_kind, gc.garbage))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return {kind: count // TIMES for kind, count in sorted(counts.items()) if count >= TIMES}


def _kind(thing: Any) -> str:
    if isinstance(thing, FrameType):
        return f"frame of {thing.f_code.co_qualname}"
    if isinstance(thing, FunctionType | MethodType):
        return f"{thing.__module__}.{thing.__qualname__}"
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
