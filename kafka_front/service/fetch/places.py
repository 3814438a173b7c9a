"""Where the partitions of a fetch session wait.

A consumer of ten thousand partitions asks twice a second whether anything is new in any of them. Partitions of which it
has been told everything *rest*: each has its place among those that wait for its log, which it keeps from one request
to the next, and is looked at again only when the log moves or the consumer asks for another position. So a request
costs as much as there is news. What is found when a partition is awake, its log and whether its client may read it, is
asked anew with every request that looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from anabranch_kit.run.turns import portions

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog

Key = tuple[str | bytes, int]
"""Topic name or id, and partition."""

_LEFT_AT_ONCE = 1_000
"""Places that are given up in one turn of the event loop."""


class Sleeper(Protocol):
    """A request that waits until partitions move."""

    def stirred(self, key: Key) -> None: ...


class _Place:
    """One partition that rests; see :class:`bridges.log.partition.partition_log.Waiter`."""

    __slots__ = ("_places", "key", "log")

    def __init__(self, places: Places, key: Key, log: PartitionLog) -> None:
        self._places = places
        self.key = key
        self.log = log

    def log_moved(self, log: PartitionLog) -> None:
        self._places.moved(self)


class Places:
    """The partitions of one session: each rests, or is awake."""

    __slots__ = ("_resting", "awake", "reader", "request")

    def __init__(self, keys: Iterable[Key]) -> None:
        self._resting: dict[Key, _Place] = {}
        self.awake: dict[Key, None] = dict.fromkeys(keys)
        """Those that the next request looks at, in the order in which they are served."""
        self.request: Sleeper | None = None
        """The session's request in progress: there is one at a time, whatever clients do."""
        self.reader: object = None
        """Who reads, and how: for anybody else nothing rests. See :meth:`belong`."""

    def __len__(self) -> int:
        """How many rest."""
        return len(self._resting)

    def belong(self, reader: object) -> None:
        """It is ``reader`` who has been told all of what rests. If that was another, everything is looked at again."""
        if self.reader != reader:
            self.reader = reader
            for key in list(self._resting):
                self.wake(key)

    async def belong_in_turns(self, reader: object) -> None:
        """As :meth:`belong`, where many rest."""
        async for some in portions(list(self._resting)):
            for key in some:
                self.wake(key)
        self.reader = reader

    def rest(self, key: Key, log: PartitionLog) -> None:
        """All is told of a partition, as its log is now."""
        place = self._resting[key] = _Place(self, key, log)
        del self.awake[key]
        log.add_waiter(place)

    def moved(self, place: _Place) -> None:
        """The log of one that rests has moved."""
        self.wake(place.key)
        if self.request is not None:
            self.request.stirred(place.key)

    def wake(self, key: Key) -> None:
        """There may be something to tell of a partition, or it is new."""
        place = self._resting.pop(key, None)
        if place is not None:
            place.log.remove_waiter(place)
        self.awake.setdefault(key)

    def served(self, key: Key) -> None:
        """It comes after all others."""
        if key in self.awake:
            del self.awake[key]
            self.awake[key] = None

    def forget(self, key: Key) -> None:
        """The consumer reads it no more."""
        self.wake(key)
        del self.awake[key]

    def close(self, later: Callable[[Callable[[], None]], object]) -> None:
        """The session is gone: give up all places, so many now and the others ``later``."""
        self.awake.clear()
        for _ in range(min(len(self._resting), _LEFT_AT_ONCE)):
            _, place = self._resting.popitem()
            place.log.remove_waiter(place)
        if self._resting:
            later(lambda: self.close(later))
