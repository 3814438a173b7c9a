"""What the requests of an HTTP application hold of the node's memory: each has an account, from its head to the last
byte of its answer."""

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
"""An answer of so many bytes is the socket's in one go."""

_PIECE = 256 * 1024
"""Bytes of an answer that are written at once."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Counted:
    """``middleware`` gives each request an account of ``budget`` for as long as it is in progress."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The answer counts until the client has taken it."""
        with RequestMemory(self._budget) as memory:
            request[_MEMORY] = memory
            response = await handler(request)
            if (
                isinstance(response, web.Response)
                and isinstance(response.body, bytes)
                and len(response.body) > _SMALL
                and not response.prepared
            ):
                return await sent(request, [response.body], response.headers["Content-Type"], response.status)
            return response


def memory_of(request: web.Request) -> RequestMemory:
    """The account of a request in progress."""
    return request[_MEMORY]


async def sent(
    request: web.Request, parts: Sequence[bytes | bytearray | memoryview], kind: str, status: int = 200
) -> web.StreamResponse:
    """An answer of ``parts`` that was sent, and counted until the client had taken it."""
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
    """The bytes of ``parts`` in pieces of a bounded size, many small ones joined."""
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
