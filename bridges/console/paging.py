"""Pages of long lists: searched, sorted and cut on the node, none larger than :data:`MOST_BYTES`.

A request with ``limit`` gets a page. A request without it gets the whole list, row by row
(:mod:`bridges.http.rows`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from sys import maxsize
from typing import Annotated, Literal, TypeVar

from aiohttp import web
from msgspec import Meta, Struct

from anabranch_kit.run.turns import Turns
from bridges.console.page import Page, chosen
from bridges.http import rows

MOST_BYTES = 240 * 1024
"""Bytes of rows in a page; with its other fields an answer stays below 256 KiB."""
MOST_ROWS = 500
_SEARCHED = 249
"""Longest text to search for: the longest name of a topic."""
_ROWS = f"A page of so many rows, at most {MOST_ROWS}; without it, the whole list."
T = TypeVar("T")
Row = Mapping[str, object]


class SortedQuery(Struct, frozen=True, kw_only=True):
    """The query of a list; a subclass says by what it may be sorted."""

    limit: Annotated[int, Meta(ge=1, description=_ROWS)] | None = None
    skip: Annotated[int, Meta(ge=0, description="Rows before the page; see next of the answer.")] = 0
    search: Annotated[str, Meta(max_length=_SEARCHED, description="A part of the name, in any case.")] = ""
    descending: bool = False
    sort: str = "name"

    @property
    def page(self) -> Page:
        """The page, or the whole list without a limit."""
        if self.limit is None:
            return Page(maxsize, sort="name", whole=True)
        return Page(min(self.limit, MOST_ROWS), self.skip, self.search.lower(), self.sort, self.descending)


class ListQuery(SortedQuery, frozen=True, kw_only=True):
    """The query of a list that is sorted by name."""

    sort: Literal["name"] = "name"


WHOLE = ListQuery().page
"""The whole list instead of a page."""


async def send(
    request: web.Request,
    page: Page,
    key: str,
    items: Iterable[T],
    row: Callable[[T], Iterator[Row | None]],
    total: int,
    head: Row | None = None,
) -> web.StreamResponse:
    """Answer with the rows that ``row`` makes of ``items``, which are those on the page or of the whole list."""
    if page.whole:
        return await rows.answer(request, key, chain.from_iterable(map(row, items)), head=head)
    return await answer(key, items, row, page, total, head)


async def answer(
    key: str,
    items: Iterable[T],
    row: Callable[[T], Iterator[Row | None]],
    page: Page,
    total: int,
    head: Row | None = None,
    room: int | None = None,
) -> web.Response:
    """Return a page: ``head``, the rows that ``row`` makes of ``items``, ``total``, and ``next``.

    ``row`` may yield None between rows. ``next`` is the ``skip`` of the next page, null on the last. Rows that would
    make the page too large are left to the next page.
    """
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
    page: Page,
    key: str,
    found: Sequence[T],
    name: Callable[[T], str],
    row: Callable[[T], Row],
    *,
    head: Row | None = None,
    as_they_are: bool = False,
) -> web.StreamResponse:
    """Answer with the page of ``found``: searched and sorted by ``name``, or in order with
    ``as_they_are``.
    """

    def places() -> Iterator[tuple[str, int] | None]:
        for place, one in enumerate(found):
            text = name(one)
            yield ("" if as_they_are else text, place) if page.finds(text) else None

    on_page, total = await chosen(places(), page, descending=page.descending)
    return await send(request, page, key, on_page, lambda one: iter([row(found[one[1]])]), total, head)
