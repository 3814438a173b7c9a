"""Work on very many items that is done on the event loop, in turns with everything else.

The time for one item varies by a factor of a thousand, so a turn is a time and not a number. All such work shares the
beginning of a turn of the loop, so that several pieces of it make the turn little longer than one does. Long work on a
single item goes off the loop (:mod:`anabranch_kit.run.sliced`); the work of a listener's connections in one turn of the
loop is counted in bytes (:mod:`anabranch_kit.net.turn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
)
from functools import partial
from heapq import merge
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar, overload

from anabranch_kit.run.cycle import cycle_of

T = TypeVar("T")
D = TypeVar("D")
N = TypeVar("N", bound=Hashable)
S = TypeVar("S", str, tuple[str, str], tuple[str, int], tuple[float, str, str], tuple[int, tuple[str, str]])

TURN_SECONDS = 0.003
"""Seconds from the beginning of a turn of the loop that all works of this kind share."""
LEAST_SECONDS = 0.001
"""Least seconds for each of them, however late its turn comes."""
PORTION = 50
_PARTS = 256
_RUN = 500
_AT_ONCE = 100
"""Coroutines that run at the same time: enough to share flushes of the database."""


class Parts(Generic[N, T]):
    """A mapping of very many in many small ones: a single large dict stalls the loop each time that it grows."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: list[dict[N, T]] = [{} for _ in range(_PARTS)]

    def part(self, key: N) -> dict[N, T]:
        """Return the part that contains ``key``, or will."""
        return self.all[hash(key) % _PARTS]


class Many(MutableMapping[N, T]):
    """A mapping of very many. No step of it is long, neither as it grows nor while it is iterated, and it may change
    meanwhile: an iteration may or may not meet entries that come or go.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: Parts[N, T] = Parts()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: N) -> T:
        return self._parts.part(key)[key]

    def __setitem__(self, key: N, value: T) -> None:
        part = self._parts.part(key)
        self._count -= len(part)
        part[key] = value
        self._count += len(part)

    def __delitem__(self, key: N) -> None:
        del self._parts.part(key)[key]
        self._count -= 1

    def __contains__(self, key: object) -> bool:
        return key in self._parts.all[hash(key) % _PARTS]

    def __iter__(self) -> Iterator[N]:
        for part in self._parts.all:
            yield from list(part)

    @overload
    def get(self, key: N, default: None = None, /) -> T | None: ...
    @overload
    def get(self, key: N, default: T | D, /) -> T | D: ...
    def get(self, key: N, default: Any = None, /) -> Any:
        return self._parts.part(key).get(key, default)


class Turns:
    """The turns of one request, or of one pass of a chore."""

    __slots__ = ("_cycle", "_until")

    def __init__(self) -> None:
        self._cycle = cycle_of(asyncio.get_running_loop())
        self._begin()

    def _begin(self) -> None:
        self._until = max(monotonic() + LEAST_SECONDS, self._cycle.began + TURN_SECONDS)

    @property
    def is_over(self) -> bool:
        """Return whether this turn's time is used up."""
        return monotonic() >= self._until

    async def rest(self) -> None:
        """Let other work run, if this turn is over."""
        if monotonic() >= self._until:
            await self.end()

    async def end(self) -> None:
        """Let other work run."""
        await asyncio.sleep(0)
        self._begin()


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield ``items`` one after the other, in turns. Their source may change meanwhile, so give a list or a view of
    one.
    """
    turns = Turns()
    for item in items:
        if turns.is_over:
            await turns.end()
        yield item


async def worked_off(steps: Generator[object, None, T]) -> T:
    """Run the generator ``steps`` to its end, in turns, and return its result."""
    turns = Turns()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await turns.rest()


def step_through(steps: Iterator[object], schedule: Callable[[Callable[[], None]], object]) -> None:
    """Run ``steps`` to their end in a callback, a few at a time; ``schedule`` continues them when a turn is over."""
    turns = Turns()
    while sum(1 for _ in islice(steps, PORTION)) == PORTION:
        if turns.is_over:
            schedule(partial(step_through, steps, schedule))
            return


async def portions(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield ``items`` in order, a few at a time: for work so small that :func:`in_turns` would cost more."""
    turns = Turns()
    rest = iter(items)
    while some := list(islice(rest, PORTION)):
        yield some
        await turns.rest()


async def collected(items: Iterable[T], wanted: Callable[[T], bool] | None = None) -> list[T]:
    """Return the ``items`` for which ``wanted`` is true, in turns; all without it."""
    found: list[T] = []
    async for some in portions(items):
        found += some if wanted is None else filter(wanted, some)
    return found


async def let_go(*held: list[Any] | dict[Any, Any] | set[Any]) -> None:
    """Empty collections that are no longer needed, in turns: to free very many objects takes its time, too."""
    turns = Turns()
    for one in held:
        while one:
            if isinstance(one, list):
                del one[-PORTION:]
            else:
                for _ in range(min(PORTION, len(one))):
                    _drop(one)
            await turns.rest()


def _drop(one: dict[Any, Any] | set[Any]) -> None:
    if isinstance(one, dict):
        one.popitem()
    else:
        one.pop()


async def gathered(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all awaitables in their order, running a bounded number of them at the same time.

    ``work`` is best a generator expression: a coroutine is then not made before it can start.
    """
    results: list[T] = []
    waiting: list[Awaitable[T]] = []
    async for one in in_turns(work):
        waiting.append(one)
        if len(waiting) == _AT_ONCE:
            results += await asyncio.gather(*waiting)
            waiting.clear()
    if waiting:
        results += await asyncio.gather(*waiting)
    return results


async def by_name(things: Iterable[T], name: Callable[[T], N]) -> tuple[dict[N, T], set[N]]:
    """Map ``things`` by ``name``, keeping the first of each name; return also the names that occur more than once, for
    requests that may name a thing only once.
    """
    first: dict[N, T] = {}
    twice: set[N] = set()
    async for some in portions(things):
        for thing in some:
            key = name(thing)
            if key in first:
                twice.add(key)
            else:
                first[key] = thing
    return first, twice


def sorting(items: Sequence[S]) -> Iterator[S | None]:
    """Sort ``items``: yield a None for each step of the work, then the items in ascending order."""
    runs = []
    for start in range(0, len(items), _RUN):
        runs.append(sorted(items[start : start + _RUN]))
        yield None
    yield from merge(*map(_drain, runs))


def _drain(run: list[S]) -> Iterator[S]:
    """Yield the items of ``run`` and remove them from it."""
    run.reverse()
    while run:
        yield run.pop()


async def in_order(names: Sequence[str]) -> AsyncIterator[str]:
    """Yield ``names`` in ascending order, in turns."""
    async for name in in_turns(sorting(names)):
        if name is not None:
            yield name
