"""The waiters of a fetch session's partitions.

A consumer of ten thousand partitions asks twice a second whether any of them has news. Partitions without news for the
consumer *rest*: each has a place, a waiter of its log that stays from one request to the next. A request looks at a
resting partition again only when the log moves or the consumer asks for another position, so it costs as much as there
is news. For a partition that is awake, every request finds the log and checks the client's access anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from anabranch_kit.run.turns import portions, step_through

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog

Key = tuple[str | bytes, int]
"""Topic name or id, and partition."""


class Sleeper(Protocol):
    """A request that waits until partitions move."""

    def stirred(self, key: Key) -> None: ...


class _Place:
    """The waiter of a resting partition; see :class:`bridges.log.partition.partition_log.Waiter`."""

    __slots__ = ("_places", "key", "log")

    def __init__(self, places: Places, key: Key, log: PartitionLog) -> None:
        self._places = places
        self.key = key
        self.log = log

    def log_moved(self, log: PartitionLog) -> None:
        self._places.moved(self)


class Places:
    """The partitions of one session, each resting or awake."""

    __slots__ = ("_resting", "awake", "reader", "request")

    def __init__(self, keys: Iterable[Key]) -> None:
        self._resting: dict[Key, _Place] = {}
        self.awake: dict[Key, None] = dict.fromkeys(keys)
        """Partitions that the next request looks at, in the order in which they are served."""
        self.request: Sleeper | None = None
        """The session's request in progress: at most one, whatever clients do."""
        self.reader: object = None
        """The principal and isolation level that the resting partitions are up to date for. See :meth:`belong`."""

    def __len__(self) -> int:
        """Return the number of resting partitions."""
        return len(self._resting)

    def belong(self, reader: object) -> None:
        """Set the reader for whom the resting partitions are up to date. Another reader than before wakes them all."""
        if self.reader != reader:
            self.reader = reader
            for key in list(self._resting):
                self.wake(key)

    async def belong_in_turns(self, reader: object) -> None:
        """Set the reader like :meth:`belong`, in turns with other work, when many partitions rest."""
        async for some in portions(list(self._resting)):
            for key in some:
                self.wake(key)
        self.reader = reader

    def rest(self, key: Key, log: PartitionLog) -> None:
        """Let a partition rest: the reader knows the present state of its log."""
        place = self._resting[key] = _Place(self, key, log)
        del self.awake[key]
        log.add_waiter(place)

    def moved(self, place: _Place) -> None:
        """Wake a resting partition whose log has moved."""
        self.wake(place.key)
        if self.request is not None:
            self.request.stirred(place.key)

    def wake(self, key: Key) -> None:
        """Wake a partition that may have news, or add a new one."""
        place = self._resting.pop(key, None)
        if place is not None:
            place.log.remove_waiter(place)
        self.awake.setdefault(key)

    def served(self, key: Key) -> None:
        """Move an awake partition behind all others."""
        if key in self.awake:
            del self.awake[key]
            self.awake[key] = None

    def forget(self, key: Key) -> None:
        """Remove a partition that the consumer reads no more."""
        self.wake(key)
        del self.awake[key]

    def close(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Give up all places when the session ends, those that one turn of the loop has no time for ``later``."""
        self.awake.clear()
        step_through(self._give_up(), later)

    def _give_up(self) -> Iterator[None]:
        while self._resting:
            _, place = self._resting.popitem()
            place.log.remove_waiter(place)
            yield
