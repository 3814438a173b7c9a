"""Pages of long lists: which rows are on one. Knows nothing of HTTP, which a node without a console does not import."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge

from msgspec import Struct

from anabranch_kit.run.turns import S, in_turns, let_go

_RUN = 500


class Page(Struct, frozen=True):
    """A page of a list: ``limit`` rows after the first ``skip``, of those whose name contains ``search``.

    ``whole``: not a page but the list itself, which is sent as it is made.
    """

    limit: int
    skip: int = 0
    search: str = ""
    sort: str = ""
    descending: bool = False
    whole: bool = False

    def finds(self, name: str) -> bool:
        """Return whether ``name`` contains the searched text, ignoring case."""
        return not self.search or self.search in name.lower()

    def keyed(self, value: float) -> float:
        """Return the key by which rows sort in ascending order, so that rows with equal values sort by name."""
        return -value if self.descending else value


async def chosen(items: Iterable[S | None], page: Page, *, descending: bool = False) -> tuple[list[S], int]:
    """Return the items on the page, sorted, and their number on all pages. None among ``items`` is skipped."""
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
