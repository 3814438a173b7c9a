"""JSON bodies of requests: read within bounds, counted in the memory budget, and parsed in a thread if they are
long.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from anabranch_kit.memory.budget import Kind
from bridges.http.errors import RequestError
from bridges.http.memory import memory_of

JSON_BYTES = 1024 * 1024
"""Longest body, in bytes, of a request that carries no records."""
PARSED = 8
"""Approximate memory of a parsed byte of JSON: short lists of small numbers take most."""
_OFF_LOOP = 32 * 1024
"""Bodies with more bytes are parsed in a thread."""
_TRUE = frozenset({"true", "1", "yes", ""})
"""Values of a query's flag that set it, in any case."""

T = TypeVar("T", bound=msgspec.Struct)


async def read_body(request: web.Request, kind: type[T]) -> T:
    """Return the request's body, a JSON object, as a ``kind``. Raises RequestError."""
    memory = memory_of(request)
    length = request.content_length
    # The size of a compressed body is unknown before it is read.
    size = JSON_BYTES if length is None or "Content-Encoding" in request.headers else length
    if size > JSON_BYTES:
        raise RequestError(f"a body of {size} bytes is longer than the {JSON_BYTES} that are taken", 413)
    await memory.admit(Kind.REQUESTS, size)
    data = bytearray()
    while piece := await request.content.readany():
        data += piece
        if len(data) > JSON_BYTES:
            raise RequestError(f"the body is longer than the {JSON_BYTES} bytes that are taken", 413)
    memory.take(Kind.REQUESTS, PARSED * len(data))
    return _as(kind, object_of(await parse_json(data), set(kind.__struct_encode_fields__)), "body")


def read_query(request: web.Request, kind: type[T]) -> T:
    """Return the request's query as a ``kind``; names that it does not have are left out. Raises RequestError."""
    query, flags = request.query, _flags(kind)
    known = [name for name in kind.__struct_encode_fields__ if name in query]
    given = {name: query[name].lower() in _TRUE if name in flags else query[name] for name in known}
    return _as(kind, given, "query", strict=False)


@cache
def _flags(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of the fields that are true or false. Evaluating annotations leaves garbage: it is done once."""
    types = {one.encode_name: one.type for one in msgspec.structs.fields(kind)}
    return frozenset(name for name, kind in types.items() if getattr(kind, "__origin__", kind) is bool)


def _as(kind: type[T], given: object, what: str, *, strict: bool = True) -> T:
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise RequestError(f"the {what} is wrong: {error}".replace("`", "").replace("$.", "")) from None


async def parse_json(data: bytes | bytearray | memoryview) -> Any:
    """Parse JSON, in a thread if it is long. Raises RequestError."""
    text = bytes(data)
    try:
        return json.loads(text) if len(text) <= _OFF_LOOP else await asyncio.to_thread(json.loads, text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def object_of(value: Any, known: set[str]) -> dict[str, Any]:
    """Return ``value`` if it is an object with only ``known`` keys. Raises RequestError."""
    if not isinstance(value, dict):
        raise RequestError("the body is not a JSON object")
    if unknown := sorted(value.keys() - known):
        raise RequestError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return value
