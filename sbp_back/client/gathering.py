"""Several fetches in one read, from the store of a range server in this process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from anabranch_kit.errors import StoreError
from sbp_back.wire.model import Entry, RangeInfo

_START = attrgetter("start")


class Ranged(Protocol):
    """A range of either dialect."""

    start: int


def place_of(ranges: Sequence[Ranged], offset: int) -> int:
    """Return the index in ``ranges`` (of one stream, in order) of the range to read ``offset`` from; -1 below all of
    them.

    An empty range and the one after it start at the same offset: the later one is the one to read.
    """
    return bisect_right(ranges, offset, key=_START) - 1


Gathered = Sequence[list[Entry] | Exception]
"""The entries of each fetch, at least one each. After an error the fetch has to be made by itself."""


class Plan(Protocol):
    """A read of several ranges, in preparation (see :class:`sbp_back.range_server.store.gather.Gather`)."""

    def add(self, stream_id: int, index: int, offset: int, limit: int, most: int, first: int) -> int: ...


class LocalStore(Protocol):
    """The store of a range server in this process, past the server (:class:`sbp_back.range_server.store.store.Store`,
    which documents the functions).
    """

    @property
    def cannot_replace(self) -> str: ...

    def locate(
        self, stream_id: int, index: int, offset: int, limit: int, max_bytes: int
    ) -> tuple[int, int, int, int] | None: ...

    def gathering(self) -> Plan: ...

    def gather(self, plan: Any, done: Callable[[Gathered], None]) -> None: ...

    def replace(
        self, epoch: int, old: Sequence[Entry], new: Sequence[Entry], done: Callable[[StoreError | None], None]
    ) -> None: ...

    def bytes_between(self, stream_id: int, offsets: Sequence[int]) -> list[int]: ...


class Gathering:
    """A set of fetches that are added first and read together by :meth:`run`."""

    __slots__ = ("_plan", "_ranges", "_store")

    def __init__(self, ranges: Mapping[int, list[RangeInfo]], store: LocalStore) -> None:
        self._ranges = ranges
        self._store = store
        self._plan = store.gathering()

    def add(self, stream_id: int, offset: int, limit: int, most: int, first: int) -> int:
        """Add the entries of a stream from the one that contains ``offset`` on that begin below ``limit``, which must
        not lie above what is confirmed: ``most`` bytes in the range that has the offset, but one entry at least if it
        is not longer than ``first`` (-1: however long it is).

        Return their bytes; 0 when there is no room for the first; -1 when it has to be fetched by itself.
        """
        ranges = self._ranges.get(stream_id)
        position = place_of(ranges, offset) if ranges else -1
        if ranges is None or position < 0:
            return -1
        found = ranges[position]
        if found.end >= 0:
            limit = min(limit, found.end)
        return self._plan.add(stream_id, found.index, offset, limit, most, first)

    def run(self, done: Callable[[Gathered], None]) -> None:
        """Read everything that was added; ``done`` is called once, maybe before this returns."""
        self._store.gather(self._plan, done)
