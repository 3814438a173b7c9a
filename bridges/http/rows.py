"""Answers with lists as long as there are topics, partitions or groups: made and sent row by row.

A whole list is never in memory, and the event loop serves others between the rows. The source of the rows yields None
when it has worked for a while without a row.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Iterable, Mapping

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import in_turns
from bridges.http.memory import memory_of

STEP = 500
"""Partitions or positions that a source examines before it yields a None."""
_PIECE = 32 * 1024
_HELD = 64 * 1024
"""Memory of an answer being sent, in the process and in its socket."""
_Row = Mapping[str, object]


async def answer(
    request: web.Request,
    key: str,
    rows: Iterable[_Row | None] | AsyncIterable[_Row | None],
    *,
    head: _Row | None = None,
    tail: Callable[[], _Row] | None = None,
    status: int = 200,
) -> web.StreamResponse:
    """Send an object whose ``key`` is the list of ``rows``; ``tail`` is called after the last row."""
    memory_of(request).take(Kind.RESPONSES, _HELD)
    headers = {"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store"}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    pieces = [f"{json.dumps(head or {})[:-1]}{', ' if head else ''}{json.dumps(key)}: ["]
    size, separator = 0, ""
    async for row in rows if isinstance(rows, AsyncIterable) else in_turns(rows):
        if row is not None:
            pieces.append(separator + json.dumps(row))
            separator, size = ", ", size + len(pieces[-1])
        if size > _PIECE:
            await response.write("".join(pieces).encode())
            pieces, size = [], 0
    last = tail() if tail is not None else {}
    pieces.append("]" + (f", {json.dumps(last)[1:]}" if last else "}"))
    await response.write("".join(pieces).encode())
    await response.write_eof()
    return response
