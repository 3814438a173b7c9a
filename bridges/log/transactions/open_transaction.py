"""An open transaction as its coordinator knows it: the partitions it writes to, and what is in flight.

A coordinator (the data pipeline's sinks, Kafka's transactions) stores durably where a transaction writes before its
first batch is in a log there, and how it ends before the first marker is. The common part of its life is here;
:mod:`bridges.log.transactions.ends` ends it. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct, field

from anabranch_kit.run.awaited import Settle, awaited
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.log.interfaces import AppendDone, Appended, Batch

Place = tuple[str, int]
"""Topic and number of a partition."""


class Takes(Protocol):
    """A partition's log, on this node or another."""

    def append(self, batch: Batch, done: AppendDone) -> None: ...


class TooManyPlaces(LogError):
    """Open transactions write to as many partitions, counted once for each, as they may."""

    retriable = True


class OpenTransaction(Struct, eq=False, kw_only=True):
    """An open transaction. ``places`` are the partitions it writes to, by topic, as the database has them.
    ``in_flight`` counts what is on its way into a log or the database, which must arrive before the end. ``ended``: the
    transaction is open nowhere any more. ``given_up``: the same, or another node coordinates it, and this one does
    nothing more about it."""

    places: dict[str, set[int]] = field(default_factory=dict)
    in_flight: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: bool = False
    fences: ClassVar[bool] = False
    """Whether batches may come that no owner of a partition has admitted: an abort then marks every partition."""

    def __post_init__(self) -> None:
        self.quiet.set()

    @property
    def producer_id(self) -> int:
        """Return the producer of the transaction's batches."""
        raise NotImplementedError

    @property
    def marker_epoch(self) -> int:
        """Return the epoch of its markers: the logs refuse the producer's batches of earlier epochs."""
        raise NotImplementedError

    @property
    def commits(self) -> bool:
        raise NotImplementedError

    @property
    def about(self) -> dict[str, object]:
        """Return the fields that identify the transaction in log lines."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Return whether anything is in flight."""
        return not self.quiet.is_set()

    async def await_quiet(self) -> None:
        """Return when nothing is in flight."""
        await self.quiet.wait()

    def append(self, to: Takes, batch: Batch, done: AppendDone) -> None:
        """Append a batch, which counts as in flight until ``done`` is called."""
        self.in_flight += 1
        self.quiet.clear()

        def settle(appended: Appended, error: LogError | None) -> None:
            self.in_flight -= 1
            if not self.in_flight:
                self.quiet.set()
            done(appended, error)

        to.append(batch, settle)

    def appended(self, to: Takes, batch: Batch) -> asyncio.Future[Appended]:
        """Await :meth:`append`."""

        def hand_over(settle: Settle[Appended]) -> None:
            self.append(to, batch, settle)

        return awaited(hand_over)

    def writes_to(self, place: Place) -> bool:
        """Return whether the transaction writes to this partition, by the database."""
        return place[1] in self.places.get(place[0], ())

    def places_in_order(self) -> list[Place]:
        """Return the present partitions, sorted."""
        return [(topic, number) for topic in sorted(self.places) for number in sorted(self.places[topic])]

    @property
    def place_count(self) -> int:
        return sum(map(len, self.places.values()))


T = TypeVar("T", bound=OpenTransaction)


class OpenPlaces(Generic[T]):
    """The partitions that open transactions write to, found by topic. They are at most ``most``, counted once for each
    transaction, which limits their memory."""

    def __init__(self, most: int) -> None:
        self._of_topic: dict[str, set[T]] = {}
        self._most = most
        self._count = self._promised = 0

    def __len__(self) -> int:
        """Return the number of partitions, counted once for each transaction."""
        return self._count

    @contextmanager
    def promised(self, count: int) -> Iterator[None]:
        """Reserve room for ``count`` more places until the end of the block. Raises TooManyPlaces."""
        self.promise(count)
        try:
            yield
        finally:
            self.release(count)

    def promise(self, count: int) -> None:
        """Reserve room for ``count`` more places until :meth:`release`. Raises TooManyPlaces."""
        if self._count + self._promised + count > self._most:
            raise TooManyPlaces(f"open transactions write to {self._count} partitions, counted once for each")
        self.hold(count)

    def hold(self, count: int) -> None:
        """Reserve room like :meth:`promise`, whatever the limit, for places that exist already."""
        self._promised += count

    def release(self, count: int) -> None:
        """Release room; see :meth:`promise`."""
        self._promised -= count

    def write_to(self, transaction: T, places: Iterable[Place]) -> None:
        """Note that the transaction writes to ``places``, which the database has by now."""
        for topic, number in places:
            numbers = transaction.places.get(topic)
            if numbers is None:
                numbers = transaction.places[topic] = set()
                self._of_topic.setdefault(topic, set()).add(transaction)
            if number not in numbers:
                numbers.add(number)
                self._count += 1

    def writing_to(self, topic: str) -> list[T]:
        """Return the open transactions that write to a topic now."""
        return list(self._of_topic.get(topic, ()))

    def topic_deleted(self, topic: str) -> None:
        """Forget a deleted topic: there is nothing to end in it."""
        for transaction in self.writing_to(topic):
            self._leave(transaction, topic)

    def forget(self, transaction: T) -> None:
        """Forget a transaction that has ended everywhere."""
        for topic in list(transaction.places):
            self._leave(transaction, topic)

    def _leave(self, transaction: T, topic: str) -> None:
        self._count -= len(transaction.places.pop(topic))
        transactions = self._of_topic[topic]
        transactions.discard(transaction)
        if not transactions:
            del self._of_topic[topic]
