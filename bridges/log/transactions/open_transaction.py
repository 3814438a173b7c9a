"""A transaction of the log as whoever coordinates it knows it: where it writes, and what of it is under way.

Coordinators (the data pipeline's sinks, Kafka's transactions) keep durably where a transaction writes before its first
batch is in a log there, and how it ends before the first marker is. What they have in common while it lives is here;
how it is ended is in :mod:`bridges.log.transactions.ends`. Belongs to the event loop.
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
    """A partition's log, here or at another node."""

    def append(self, batch: Batch, done: AppendDone) -> None: ...


class TooManyPlaces(LogError):
    """Open transactions write to as many partitions, counted once for each, as they may."""

    retriable = True


class OpenTransaction(Struct, eq=False, kw_only=True):
    """``places`` are the partitions it writes to, by topic, as they are in the database; ``in_flight`` what of it is on
    its way into a log or the database, and must be there before its end is. ``ended``: it is open nowhere any more;
    ``given_up``: or another node coordinates it, and this one does nothing more about it."""

    places: dict[str, set[int]] = field(default_factory=dict)
    in_flight: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: bool = False
    fences: ClassVar[bool] = False
    """Whether batches of it may come that no owner of a partition has let in: an abort then marks every partition."""

    def __post_init__(self) -> None:
        self.quiet.set()

    @property
    def producer_id(self) -> int:
        """The producer whose batches it has."""
        raise NotImplementedError

    @property
    def marker_epoch(self) -> int:
        """The epoch that its markers tell: the logs refuse what its producer wrote in earlier ones."""
        raise NotImplementedError

    @property
    def commits(self) -> bool:
        """Whether it was decided that it is committed."""
        raise NotImplementedError

    @property
    def about(self) -> dict[str, object]:
        """What the log of the node calls it by."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Whether anything of it is on its way."""
        return not self.quiet.is_set()

    async def settled(self) -> None:
        """Return when nothing of it is on its way."""
        await self.quiet.wait()

    def entered(self) -> None:
        """Something of it is on its way until :meth:`left` is called."""
        self.in_flight += 1
        self.quiet.clear()

    def left(self) -> None:
        """See :meth:`entered`."""
        self.in_flight -= 1
        if not self.in_flight:
            self.quiet.set()

    def append(self, to: Takes, batch: Batch, done: AppendDone) -> None:
        """Append a batch of it, which counts as on its way until ``done`` is called."""
        self.entered()

        def settle(appended: Appended, error: LogError | None) -> None:
            self.left()
            done(appended, error)

        to.append(batch, settle)

    def appended(self, to: Takes, batch: Batch) -> asyncio.Future[Appended]:
        """Awaitable form of :meth:`append`."""

        def hand_over(settle: Settle[Appended]) -> None:
            self.append(to, batch, settle)

        return awaited(hand_over)

    def writes_to(self, place: Place) -> bool:
        """Whether the database knows that it does."""
        return place[1] in self.places.get(place[0], ())

    def places_in_order(self) -> list[Place]:
        """All of them as they are now."""
        return [(topic, number) for topic in sorted(self.places) for number in sorted(self.places[topic])]

    @property
    def place_count(self) -> int:
        """How many there are."""
        return sum(map(len, self.places.values()))


T = TypeVar("T", bound=OpenTransaction)


class OpenPlaces(Generic[T]):
    """Where open transactions write, found by topic. At most ``most`` partitions, counted once for each transaction, so
    that what is held for them has a bound."""

    def __init__(self, most: int) -> None:
        self._of_topic: dict[str, set[T]] = {}
        self._most = most
        self._count = self._promised = 0

    def __len__(self) -> int:
        """Partitions, counted once for each transaction."""
        return self._count

    @contextmanager
    def promised(self, count: int) -> Iterator[None]:
        """There is room for ``count`` places more until the end of the block. Raises TooManyPlaces."""
        self.promise(count)
        try:
            yield
        finally:
            self.release(count)

    def promise(self, count: int) -> None:
        """Keep room for ``count`` places more until :meth:`release`. Raises TooManyPlaces."""
        if self._count + self._promised + count > self._most:
            raise TooManyPlaces(f"open transactions write to {self._count} partitions, counted once for each")
        self.hold(count)

    def hold(self, count: int) -> None:
        """As :meth:`promise`, for what is there already, whatever the bound."""
        self._promised += count

    def release(self, count: int) -> None:
        """See :meth:`promise`."""
        self._promised -= count

    def write_to(self, transaction: T, places: Iterable[Place]) -> None:
        """The database knows that the transaction writes there."""
        for topic, number in places:
            numbers = transaction.places.get(topic)
            if numbers is None:
                numbers = transaction.places[topic] = set()
                self._of_topic.setdefault(topic, set()).add(transaction)
            if number not in numbers:
                numbers.add(number)
                self._count += 1

    def writing_to(self, topic: str) -> list[T]:
        """The open transactions that write to a topic, as they are now."""
        return list(self._of_topic.get(topic, ()))

    def topic_deleted(self, topic: str) -> None:
        """What was written to it goes with it: there is nothing to be ended there."""
        for transaction in self.writing_to(topic):
            self._leave(transaction, topic)

    def forget(self, transaction: T) -> None:
        """It has ended everywhere."""
        for topic in list(transaction.places):
            self._leave(transaction, topic)

    def _leave(self, transaction: T, topic: str) -> None:
        self._count -= len(transaction.places.pop(topic))
        transactions = self._of_topic[topic]
        transactions.discard(transaction)
        if not transactions:
            del self._of_topic[topic]
