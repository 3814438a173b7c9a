"""The memory of HTTP requests: each request has an account of the budget, from its head to its answer's last byte."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from anabranch_kit.memory.request_memory import RequestMemory

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget

_MEMORY = web.RequestKey("memory", RequestMemory)
_SMALL = 16 * 1024
"""An answer up to this size goes to the socket at once."""

_PIECE = 256 * 1024
"""Bytes of an answer that are written at once."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Counted:
    """The middleware that gives each request an account of ``budget`` while it is in progress."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Run the handler with an account. A large answer counts until the client has read it."""
        with RequestMemory(self._budget) as memory:
            request[_MEMORY] = memory
            response = await handler(request)
            if (
                isinstance(response, web.Response)
                and isinstance(response.body, bytes)
                and len(response.body) > _SMALL
                and not response.prepared
            ):
                return await send_parts(request, [response.body], response.headers["Content-Type"], response.status)
            return response


def memory_of(request: web.Request) -> RequestMemory:
    """Return the account of a request in progress."""
    return request[_MEMORY]


async def send_parts(
    request: web.Request, parts: Sequence[bytes | bytearray | memoryview], kind: str, status: int = 200
) -> web.StreamResponse:
    """Send ``parts`` as the answer, counted until the client has read it, and return the response."""
    size = sum(map(len, parts))
    request[_MEMORY].take(Kind.RESPONSES, size)
    response = web.StreamResponse(status=status, headers={"Content-Type": kind, "Cache-Control": "no-store"})
    response.content_length = size
    await response.prepare(request)
    for piece in _together(parts):
        await response.write(piece)
    await response.write_eof()
    return response


def _together(parts: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytes | bytearray | memoryview]:
    """Yield the bytes of ``parts`` in pieces of bounded size; small parts are joined."""
    small: list[bytes | bytearray | memoryview] = []
    size = 0
    for part in parts:
        if len(part) > _PIECE:
            if small:
                yield b"".join(small)
                small, size = [], 0
            view = memoryview(part)
            yield from (view[at : at + _PIECE] for at in range(0, len(part), _PIECE))
            continue
        if size + len(part) > _PIECE:
            yield b"".join(small)
            small, size = [], 0
        small.append(part)
        size += len(part)
    if size:
        yield b"".join(small)
