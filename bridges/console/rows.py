"""Answers that are lists as long as there are topics, partitions or groups: made and sent row by row.

Nobody holds a whole list, and the event loop does other things between the rows: whoever makes them gives a None now
and then, where that has taken some work without a row.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import in_turns
from bridges.console.memory import memory_of

if TYPE_CHECKING:
    from bridges.log.remote.readable import ReadableLog

STEP = 500
"""Partitions or positions that are looked at before a None is given."""
_PIECE = 32 * 1024
_HELD = 64 * 1024
"""What an answer holds on its way, here and in its socket."""
_OPENED_AT_ONCE = 100
_Row = Mapping[str, object]


async def answer(
    request: web.Request,
    key: str,
    rows: Iterable[_Row | None],
    *,
    head: _Row | None = None,
    tail: Callable[[], _Row] | None = None,
    status: int = 200,
) -> web.StreamResponse:
    """Send an object whose ``key`` is the list of ``rows``; ``tail`` is asked when they are sent."""
    memory_of(request).take(Kind.RESPONSES, _HELD)
    headers = {"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store"}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    pieces = [f"{json.dumps(head or {})[:-1]}{', ' if head else ''}{json.dumps(key)}: ["]
    size, separator = 0, ""
    async for row in in_turns(rows):
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


async def opened(logs: Sequence[ReadableLog]) -> None:
    """Return when all of them are open here, or their owners have told how they are now. Raises LogError."""
    for start in range(0, len(logs), _OPENED_AT_ONCE):
        await asyncio.gather(*(log.refresh() for log in logs[start : start + _OPENED_AT_ONCE]))
