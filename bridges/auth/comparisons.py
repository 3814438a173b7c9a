"""A queue of password comparisons, and the order in which they run.

A comparison takes a good part of a second of a processor, and anybody may ask for one: a client that guesses must not
lock out the others. So a comparison is ranked by the address it comes from:

1. this very user has logged in from the address before; 2. no wrong password has come from the address lately; 3. any
other address.

A lower rank runs first, and evicts a comparison of a higher rank when the queue is full. Within a rank the addresses
take turns, and the address with the most comparisons in the queue loses its last one to an address with fewer. So
guesses from one address, however many, delay another address by a single comparison.

IPv6 addresses count by their network (/64), because each client there has as many as it likes. The addresses that a
proxy reports are only its claim, so all clients behind a proxy count as one address.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

_THREADS = 2
MOST_WAITING = 64
"""Comparisons that run or wait. The last of them waits about ten seconds."""
_MOST_REMEMBERED = 10_000
"""How many addresses with failures, and how many pairs of user and address with a login, are remembered: some 200 bytes
each.
"""


class AuthenticationBusy(Exception):
    """Too many password comparisons are waiting. The client may try again."""


class _Comparison:
    """A comparison that waits or runs. A lower ``rank`` runs sooner."""

    __slots__ = ("done", "number", "place", "rank", "work")

    def __init__(
        self, work: Callable[[], bool], done: asyncio.Future[bool], place: str, rank: int, number: int
    ) -> None:
        self.work = work
        self.done = done
        self.place = place
        self.rank = rank
        self.number = number


class Comparisons:
    """The queue of comparisons. Belongs to the event loop; the comparisons run in threads."""

    __slots__ = ("_all", "_failed", "_good", "_number", "_pool", "_running", "_turns", "_waiting")

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._all: dict[Hashable, _Comparison] = {}
        self._waiting: dict[Hashable, _Comparison] = {}
        self._running = 0
        self._number = 0
        # Per address, the comparisons begun since the queue was last empty.
        self._turns: Counter[str] = Counter()
        self._good: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._failed: OrderedDict[str, None] = OrderedDict()

    async def compare(self, key: Hashable, name: str, source: str, work: Callable[[], bool]) -> bool:
        """Return the result of ``work``, which is called once for all simultaneous callers with the same ``key``.

        ``source`` is the address of the client that claims to be ``name``. Raises AuthenticationBusy.
        """
        place = _place(source)
        rank = 0 if (name, place) in self._good else 1 + (place in self._failed)
        found = self._all.get(key)
        if found is None:
            found = self._add(key, place, rank, work)
        else:
            found.rank = min(found.rank, rank)
        # A caller that is cancelled must not cancel the comparison for the others.
        right = await asyncio.shield(found.done)
        if right:
            self._failed.pop(place, None)
            _remember(self._good, (name, place))
        else:
            _remember(self._failed, place)
        return right

    def close(self) -> None:
        """Stop comparing, and cancel the comparisons that wait."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for one in self._waiting.values():
            one.done.cancel()
        self._waiting.clear()

    def _add(self, key: Hashable, place: str, rank: int, work: Callable[[], bool]) -> _Comparison:
        if len(self._all) >= MOST_WAITING:
            self._make_room(place, rank)
        self._number += 1
        one = _Comparison(work, asyncio.get_running_loop().create_future(), place, rank, self._number)
        self._all[key] = self._waiting[key] = one
        self._go_on()
        return one

    def _make_room(self, place: str, rank: int) -> None:
        """Evict the last comparison of the queue. Raises AuthenticationBusy if the new one would come last."""
        waiting = Counter(one.place for one in self._waiting.values())
        last = max(
            self._waiting, key=lambda key: _order(self._waiting[key], waiting[self._waiting[key].place]), default=None
        )
        if last is None or _order(self._waiting[last], waiting[self._waiting[last].place])[:2] <= (
            rank,
            waiting[place] + 1,
        ):
            raise AuthenticationBusy("too many clients are logging in")
        given_up = self._waiting.pop(last)
        del self._all[last]
        if not given_up.done.done():
            given_up.done.set_exception(AuthenticationBusy("too many clients are logging in"))
            given_up.done.exception()  # mark it as retrieved: its callers may be gone

    def _go_on(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="passwords")
        while self._running < _THREADS and self._waiting:
            key = min(self._waiting, key=lambda key: _order(self._waiting[key], self._turns[self._waiting[key].place]))
            one = self._waiting.pop(key)
            self._turns[one.place] += 1
            self._running += 1
            comparing = asyncio.get_running_loop().run_in_executor(self._pool, one.work)
            comparing.add_done_callback(partial(self._compared, key, one))

    def _compared(self, key: Hashable, one: _Comparison, comparing: asyncio.Future[bool]) -> None:
        self._running -= 1
        del self._all[key]
        if not self._all or len(self._turns) > _MOST_REMEMBERED:
            self._turns.clear()
        if comparing.cancelled():
            one.done.cancel()
        elif (error := comparing.exception()) is not None:
            one.done.set_exception(error)
        else:
            one.done.set_result(comparing.result())
        if not comparing.cancelled():
            self._go_on()


def _order(one: _Comparison, others: int) -> tuple[int, int, int]:
    return one.rank, others, one.number


def _remember(known: OrderedDict[T, None], what: T) -> None:
    known[what] = None
    known.move_to_end(what)
    if len(known) > _MOST_REMEMBERED:
        known.popitem(last=False)


def _place(source: str) -> str:
    if ":" not in source:
        return source
    try:
        address = ip_address(source.strip("[]").partition("%")[0])
    except ValueError:
        return source
    if not isinstance(address, IPv6Address):
        return source
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:8].hex()
