"""Transactions of producers as people look at them: what a front tells the console and the command line of them.

The log knows open transactions by their producers' ids alone (bridges/log/transactions); a front that coordinates
transactions knows what they are called, since when they are open and when their time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from bridges.errors import LogError


class TransactionNotFound(LogError):
    """There is no transactional id of this name."""


class NothingToAbort(LogError):
    """Nothing is open of a transactional id, or it was decided that it is committed."""


class TransactionView(Struct, frozen=True):
    """A transactional id and its transaction; ``state`` is the protocol's name for it. Times in ms since 1970,
    ``started_ms`` None where nothing is open. ``places`` (partitions by topic) and ``groups`` (whose positions are part
    of it) are not copied: they change as it goes on."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int | None
    updated_ms: int
    places: Mapping[str, Collection[int]]
    groups: Collection[str]

    def open_ms(self, now_ms: int) -> int | None:
        """How long it has been open."""
        return None if self.started_ms is None else max(0, now_ms - self.started_ms)


class TransactionDirectory(Protocol):
    """The transactional ids that a front coordinates. Looking at them changes nothing. Among several nodes those are
    this node's; what is asked with a word of waiting tells of, and acts on, every node's."""

    @property
    def timed_out(self) -> int:
        """Transactions that were aborted since their time was over."""
        ...

    def transactions(self) -> Iterable[TransactionView]:
        """All ids, in any order; they may come and go while they are looked at."""
        ...

    def view(self, transactional_id: str) -> TransactionView | None:
        """One of them, None if there is no such id."""
        ...

    async def others(self) -> Sequence[TransactionView]:
        """Those that other nodes coordinate, as they were about a second ago. Raises LogUnavailable."""
        ...

    async def find(self, transactional_id: str) -> TransactionView | None:
        """One of them, whichever node coordinates it. Raises LogUnavailable."""
        ...

    def writing_to(self, topic: str, partition: int) -> Iterable[TransactionView | None]:
        """Those whose open transactions write to a partition; None for each that was looked at and does not."""
        ...

    async def abort(self, transactional_id: str) -> TransactionView:
        """Abort what is open of an id and fence its producer, and wait a little for that: it is open nowhere any more
        when the view says so. Raises TransactionNotFound, NothingToAbort, LogUnavailable."""
        ...


@runtime_checkable
class KeepsIds(Protocol):
    """A directory whose ids outlive their transactions."""

    @property
    def ids(self) -> int:
        """How many ids all nodes keep, about, those of which nothing is open included."""
        ...

    async def forget(self, wanted: Callable[[str], bool], before_ms: int) -> int:
        """Forget ids that are wanted, that have nothing open and were not used since ``before_ms``, whichever node
        coordinates them; how many. Raises LogUnavailable."""
        ...
