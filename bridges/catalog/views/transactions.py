"""Transactions of producers as operators see them: the views that a front gives the console and the command line.

The log knows open transactions only by their producers' ids (bridges/log/transactions). The front that coordinates a
transaction knows its name, when it began and when it times out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from bridges.errors import LogError


class TransactionNotFound(LogError):
    """There is no transactional id with this name."""


class NothingToAbort(LogError):
    """The transactional id has no open transaction, or its commit is already decided."""


class TransactionView(Struct, frozen=True):
    """A transactional id and its transaction; ``state`` is the protocol's name for its state. Times in ms since 1970;
    ``started_ms`` is None without an open transaction. ``places`` (partitions by topic) and ``groups`` (whose positions
    are part of the transaction) are not copied: they change while it runs."""

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
        """Return for how many ms the transaction has been open; None without one."""
        return None if self.started_ms is None else max(0, now_ms - self.started_ms)


class TransactionDirectory(Protocol):
    """The transactional ids that a front coordinates. Reading it changes nothing. In a cluster, plain methods cover
    this node's ids, and coroutines reach every node's."""

    @property
    def timed_out(self) -> int:
        """Return the number of transactions that were aborted because they timed out."""
        ...

    def transactions(self) -> Iterable[TransactionView]:
        """Return all ids, in any order; ids may come and go during the iteration."""
        ...

    def view(self, transactional_id: str) -> TransactionView | None:
        """Return one id, None if there is no such id."""
        ...

    async def read_others(self) -> Sequence[TransactionView]:
        """Return the ids that other nodes coordinate, as of about a second ago. Raises LogUnavailable."""
        ...

    async def find(self, transactional_id: str) -> TransactionView | None:
        """Return one id, whichever node coordinates it, or None. Raises LogUnavailable."""
        ...

    def writing_to(self, topic: str, partition: int) -> Iterable[TransactionView | None]:
        """Yield the ids whose open transactions write to a partition, and None for each other id that was examined."""
        ...

    async def abort(self, transactional_id: str) -> TransactionView:
        """Abort the open transaction of an id, fence its producer, and wait a little. The view shows whether the
        transaction is closed everywhere. Raises TransactionNotFound, NothingToAbort, LogUnavailable."""
        ...


@runtime_checkable
class KeepsIds(Protocol):
    """A directory whose ids outlive their transactions."""

    @property
    def ids(self) -> int:
        """Return the approximate number of ids that all nodes keep, those without an open transaction included."""
        ...

    async def forget(self, wanted: Callable[[str], bool], before_ms: int) -> int:
        """Delete the ``wanted`` ids that have no open transaction and were not used since ``before_ms``, whichever node
        coordinates them; return how many. Raises LogUnavailable."""
        ...
