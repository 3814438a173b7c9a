"""Pages of long lists: searched, sorted and cut on the node, none of them larger than :data:`MOST_BYTES`.

A request that says ``limit`` gets a page; one that does not gets all of it, row by row (:mod:`bridges.console.rows`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import TypeVar

from aiohttp import web
from msgspec import Struct

from anabranch_kit.run.turns import S, Turns, in_turns, let_go
from bridges.console import rows
from bridges.console.errors import RequestError

MOST_BYTES = 240 * 1024
"""Of rows; with what stands around them an answer stays below 256 KiB."""
MOST_ROWS = 500
_RUN = 500
FIELDS = frozenset({"limit", "skip", "search", "sort", "descending"})
"""What of a query says which page."""
_SEARCHED = 249
"""Longest text to search for: that of a topic's name."""
T = TypeVar("T")
Row = Mapping[str, object]


class Page(Struct, frozen=True):
    """What of a list is wanted: ``limit`` rows behind the first ``skip`` of those whose name has ``search`` in it."""

    limit: int
    skip: int = 0
    search: str = ""
    sort: str = ""
    descending: bool = False

    def finds(self, name: str) -> bool:
        """Whether ``name`` has what is searched for in it, whatever its case."""
        return not self.search or self.search in name.lower()

    def keyed(self, value: float) -> float:
        """What rows are sorted by in ascending order, so that names are in that order where values are the same."""
        return -value if self.descending else value


def page_of(request: web.Request, sorts: Collection[str]) -> Page | None:
    """The page that a request asks for, None for all of the list. Raises RequestError."""
    query = request.query
    if "limit" not in query:
        return None
    sort = query.get("sort", "name")
    if sort not in sorts:
        raise RequestError(f"sort = {sort!r} is none of {', '.join(sorted(sorts))}")
    search = query.get("search", "").lower()
    if len(search) > _SEARCHED:
        raise RequestError(f"search is longer than {_SEARCHED} characters")
    return Page(
        min(whole(query["limit"], "limit", 1), MOST_ROWS),
        whole(query.get("skip", "0"), "skip", 0),
        search,
        sort,
        flag(request, "descending"),
    )


def whole(text: str, what: str, low: int) -> int:
    """A whole number of a query. Raises RequestError."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) < low:
        raise RequestError(f"{what} = {text!r} is not a whole number from {low} on")
    return int(text)


def flag(request: web.Request, name: str) -> bool:
    """Whether a query says that something is so."""
    return request.query.get(name, "false").lower() in ("true", "1", "yes", "")


async def chosen(items: Iterable[S | None], page: Page, *, descending: bool = False) -> tuple[list[S], int]:
    """Those of ``items`` that are on the page, and how many there are of all pages; None is passed over."""
    runs: list[list[S]] = [[]]
    async for one in in_turns(items):
        if one is not None:
            runs[-1].append(one)
            if len(runs[-1]) == _RUN:
                runs[-1].sort(reverse=descending)
                runs.append([])
    runs[-1].sort(reverse=descending)
    total = sum(map(len, runs))
    found: list[S] = []
    async for place, one in in_turns(enumerate(merge(*runs, reverse=descending))):
        if place >= page.skip + page.limit:
            break
        if place >= page.skip:
            found.append(one)
    await let_go(*runs)
    return found, total


async def answer(
    key: str,
    items: Iterable[T],
    row: Callable[[T], Iterator[Row | None]],
    page: Page,
    total: int,
    head: Row | None = None,
    room: int | None = None,
) -> web.Response:
    """An object with ``head``, the rows that ``row`` makes of ``items`` (None now and then), ``total``, and ``next``:
    what to skip for the next page, null where there is none. What would be too large is left to that, too."""
    pieces: list[str] = []
    size = 0
    taken = 0
    turns = Turns()
    for item in items:
        told: list[str] = []
        for one in row(item):
            await turns.rest()
            if one is not None:
                told.append(json.dumps(one))
        more = sum(map(len, told)) + 2 * len(told)
        if pieces and size + more > (MOST_BYTES if room is None else room):
            break
        pieces += told
        size += more
        taken += 1
    reached = page.skip + taken
    tail = {"total": total, "next": reached if reached < total and taken else None}
    start = json.dumps(head)[:-1] + ", " if head else "{"
    body = f"{start}{json.dumps(key)}: [{', '.join(pieces)}], {json.dumps(tail)[1:]}"
    return web.Response(text=body, content_type="application/json", headers={"Cache-Control": "no-store"})


async def listed(
    request: web.Request,
    key: str,
    found: Sequence[T],
    name: Callable[[T], str],
    row: Callable[[T], Row],
    *,
    head: Row | None = None,
    as_they_are: bool = False,
) -> web.StreamResponse:
    """All of ``found``, or the page that is asked for: searched and sorted by ``name``, or ``as_they_are``."""
    asked = page_of(request, {"name"})
    page = Page(len(found)) if asked is None else asked

    def places() -> Iterator[tuple[str, int] | None]:
        for place, one in enumerate(found):
            text = name(one)
            yield ("" if as_they_are else text, place) if page.finds(text) else None

    on_page, total = await chosen(places(), page, descending=page.descending)
    if asked is None:
        return await rows.answer(request, key, (row(found[place]) for _, place in on_page), head=head)
    return await answer(key, on_page, lambda one: iter([row(found[one[1]])]), page, total, head)
