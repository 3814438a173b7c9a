"""The names of all groups that a node knows, in order: a page of them costs what it shows, however many there are.

Progress adds the groups with positions, and each front the groups that clients join.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from bridges.catalog.views.groups import GroupName

BLOCK = 500
"""Names in half of a full block: none of the steps on a block is long."""


def _order(name: GroupName) -> tuple[str, str]:
    space, group = name
    return group, space


def _first(block: Sequence[GroupName]) -> tuple[str, str]:
    return _order(block[0])


class GroupNames:
    """Names in the order of group and space, each once, in blocks of a bounded size."""

    __slots__ = ("_blocks", "_count")

    def __init__(self, names: Sequence[GroupName] = ()) -> None:
        """Start with ``names``, which are in any order and each once."""
        ordered = sorted(names, key=_order)
        self._blocks = [ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK)]
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def _find(self, name: GroupName) -> tuple[int, int, bool]:
        """Return the block where a name is or belongs, its place there, and whether it is there."""
        key = _order(name)
        number = max(bisect_right(self._blocks, key, key=_first) - 1, 0)
        block = self._blocks[number] if self._blocks else []
        place = bisect_left(block, key, key=_order)
        return number, place, place < len(block) and block[place] == name

    def add(self, name: GroupName) -> None:
        """Add a name, if it is not there."""
        number, _, is_there = self._find(name)
        if is_there:
            return
        self._count += 1
        if not self._blocks:
            self._blocks.append([name])
            return
        block = self._blocks[number]
        insort(block, name, key=_order)
        if len(block) > 2 * BLOCK:
            self._blocks[number : number + 1] = block[:BLOCK], block[BLOCK:]

    def discard(self, name: GroupName) -> None:
        """Remove a name, if it is there."""
        number, place, is_there = self._find(name)
        if not is_there:
            return
        self._count -= 1
        block = self._blocks[number]
        del block[place]
        if not block:
            del self._blocks[number]

    def walk(self, after: GroupName | None = None, *, descending: bool = False) -> Iterator[GroupName]:
        """Yield all names in order, or those behind ``after``; they may come and go meanwhile."""
        while some := self._following(after, -1 if descending else 1):
            yield from some
            after = some[-1]

    def _following(self, after: GroupName | None, step: int) -> list[GroupName]:
        """Return the names next to one, as far as its block or the next one goes."""
        if not self._blocks:
            return []
        if after is None:
            return self._blocks[0 if step > 0 else -1][::step]
        number, place, is_there = self._find(after)
        block = self._blocks[number]
        rest = block[place + is_there :] if step > 0 else block[:place]
        if not rest and 0 <= number + step < len(self._blocks):
            rest = self._blocks[number + step]
        return rest[::step]

    def page(self, skip: int, limit: int, *, descending: bool = False) -> list[GroupName]:
        """Return ``limit`` names after the first ``skip``."""
        first, end = skip, min(skip + limit, self._count)
        if descending:
            first, end = max(self._count - skip - limit, 0), self._count - skip
        found: list[GroupName] = []
        begin = 0
        for block in self._blocks:
            if begin >= end:
                break
            if begin + len(block) > first:
                found += block[max(first - begin, 0) : end - begin]
            begin += len(block)
        return found[::-1] if descending else found
