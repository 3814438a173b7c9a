"""The base of all routes of the pipeline's front: the node, access checks, bounded request bodies and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from bridges.errors import LogError
from bridges.http.access import Access
from bridges.http.bodies import JSON_BYTES, PARSED, object_of, parse_json
from bridges.http.errors import RequestError, error_response, status_of
from bridges.http.memory import memory_of, send_parts
from spark_pipeline.node.jobs import Jobs
from spark_pipeline.node.sinks.writes import Writes

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.remote.readable import ReadableLog
    from bridges.node.front import NodeServices
    from spark_pipeline.node.settings import PipelineSettings

L = TypeVar("L")

_LENGTH = 4
"""Bytes of the length field in front of a head."""
_AGAIN, _REFUSED = 503, 409


class PipelineCore:
    """The shared objects and helpers that every module of routes gets (``register(app, core)``)."""

    def __init__(
        self, node: NodeServices, settings: PipelineSettings, listener_of: Callable[[web.Request], str]
    ) -> None:
        self.node = node
        self.settings = settings
        self.listener_of = listener_of
        """Returns the name of the listener that a request came by."""
        self.access = Access(node.authorizer)
        self.writes = Writes(node, settings)
        self.jobs = Jobs(node)

    @web.middleware
    async def final(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer 409 instead of 503 to errors that a client must not retry."""
        try:
            response: web.StreamResponse = await handler(request)
        except LogError as error:
            if error.retriable or status_of(error) != _AGAIN:
                raise
            return error_response(error, _REFUSED)
        return response

    # --- in ---------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _receive(self, request: web.Request, most: int) -> AsyncIterator[tuple[Pieces, int]]:
        """Yield a body, whose memory stays counted until the request ends, and its size. Raises RequestError."""
        size = length_of(request, most)
        try:
            async with asyncio.timeout(self.settings.request_ms / 1000):
                await memory_of(request).admit(Kind.REQUESTS, size)
                yield Pieces(request), size
        except TimeoutError:
            raise RequestError("the body did not arrive within pipeline.request_ms", 408) from None

    async def framed(
        self, request: web.Request, most: int, head_bytes: int, sizes_of: Callable[[Any], list[int]]
    ) -> tuple[Any, list[memoryview]]:
        """Read a body of a four-byte length, a JSON head of that length, and parts whose sizes the head contains.

        Each part is a buffer of its own, so that keeping one part does not keep the others in memory. Raises
        RequestError.
        """
        async with self._receive(request, most) as (pieces, size):
            length = int.from_bytes(await pieces.read(_LENGTH)) if size >= _LENGTH else 0
            if not 0 < length <= min(head_bytes, size - _LENGTH):
                raise RequestError("the body does not begin with the length of its head")
            memory_of(request).take(Kind.REQUESTS, PARSED * length)
            head = await parse_json(await pieces.read(length))
            sizes = sizes_of(head)
            if _LENGTH + length + sum(sizes) != size:
                raise RequestError(f"the body has {size} bytes, and its head describes {_LENGTH + length + sum(sizes)}")
            return head, [memoryview(await pieces.read(one)) for one in sizes]

    async def json(self, request: web.Request, known: set[str]) -> dict[str, Any]:
        """Return the body, a JSON object with ``known`` keys only. Raises RequestError."""
        async with self._receive(request, JSON_BYTES) as (pieces, size):
            data = await pieces.read(size)
        memory_of(request).take(Kind.REQUESTS, PARSED * size)
        return object_of(await parse_json(data), known)

    # --- out --------------------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request, content: object, status: int = 200) -> web.StreamResponse:
        """Send small ``content`` as JSON; its memory is counted until the client has taken it."""
        return await self.send(request, [json.dumps(content).encode()], "application/json", status)

    async def send(
        self, request: web.Request, parts: Sequence[bytes | bytearray | memoryview], kind: str, status: int = 200
    ) -> web.StreamResponse:
        """Send bytes; their memory is counted until the client has taken them.

        Raises ConnectionAbortedError if the client takes longer than ``pipeline.request_ms``.
        """
        try:
            async with asyncio.timeout(self.settings.request_ms / 1000):
                return await send_parts(request, parts, kind, status)
        except TimeoutError:
            raise ConnectionAbortedError("the client has not read its answer within pipeline.request_ms") from None

    # --- words ------------------------------------------------------------------------------------------------------

    def lead(self, request: web.Request, owner: Member | None, what: str) -> None:
        """Raise RequestError, with the owner's address, if another node owns ``what``."""
        if owner is None:
            return
        at = owner.address(self.listener_of(request), request.url.host or "")
        if at is None:
            raise RequestError(
                f"{what} is node {owner.node_id}'s, which has no listener like this one: open it there, too", 409
            )
        raise RequestError(f"{what} is node {owner.node_id}'s", 421, at=str(at))

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a listed topic's partition. Raises RequestError."""
        return self._there(self.node.logs.get(topic, partition), topic, partition)

    def log_to_read(self, topic: str, partition: int) -> ReadableLog:
        """Return the log for readers, also of a partition that another node owns. Raises RequestError."""
        return self._there(self.node.logs.to_read(topic, partition), topic, partition)

    def _there(self, log: L | None, topic: str, partition: int) -> L:
        if log is None:
            raise RequestError(f"there is no partition {partition} of a topic {topic!r}", 404)
        return log


class Pieces:
    """A request's body, read in pieces of the sizes that the caller chooses."""

    __slots__ = ("_content", "_rest")

    def __init__(self, request: web.Request) -> None:
        self._content = request.content
        self._rest = memoryview(b"")

    async def read(self, size: int) -> bytearray:
        """Return the next ``size`` bytes. Raises ConnectionResetError if the body is shorter."""
        data = bytearray(size)
        await self.fill(data, 0)
        return data

    async def fill(self, data: bytearray, at: int) -> None:
        """Fill ``data`` from ``at`` on. Raises ConnectionResetError if the body is shorter."""
        while at < len(data):
            if not self._rest:
                self._rest = memoryview(await self._content.readany())
                if not self._rest:
                    raise ConnectionResetError("the client went away in the middle of its request")
            taken = self._rest[: len(data) - at]
            data[at : at + len(taken)] = taken
            at += len(taken)
            self._rest = self._rest[len(taken) :]


def length_of(request: web.Request, most: int) -> int:
    """Return the body's length on the wire, from its header. Raises RequestError."""
    size = request.content_length
    if size is None:
        raise RequestError("the request has no Content-Length: send one", 411)
    if size > most:
        raise RequestError(f"the body has {size} bytes, above the limit of {most}", 413)
    if "Content-Encoding" in request.headers:
        # Decoding would change the length, and the decoded bytes would not be counted.
        raise RequestError("the body has a Content-Encoding: send it without one", 415)
    return size


def whole(value: Any, what: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return ``value``, a whole number from ``least`` to ``most``. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{what} is not a whole number from {least} to {most}")
    return value


def text(value: Any, what: str, most: int = 1000) -> str:
    """Return ``value``, a text of 1 to ``most`` characters. Raises RequestError."""
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise RequestError(f"{what} is not a text of 1 to {most} characters")
    return value


def rows(value: Any, what: str, most: int) -> list[Any]:
    """Return ``value``, a list of at most ``most`` items. Raises RequestError."""
    if not isinstance(value, list):
        raise RequestError(f"{what} is not a list")
    if len(value) > most:
        raise RequestError(f"{what} has {len(value)} items, above the limit of {most}: ask in several requests")
    return value
