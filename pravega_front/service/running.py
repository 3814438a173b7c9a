"""What goes on in segments at the moment, as those know it who are asked about segments: open transactions, merges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pravega_front.names import TRANSACTION, segment_of
from pravega_front.wire.controller import TxnState

if TYPE_CHECKING:
    from bridges.catalog.topics import Catalog
    from pravega_front.service.segment import Segment
    from pravega_front.service.transaction import Transaction


class OpenTransactions:
    """The transactions that have not ended, by what they are looked for."""

    __slots__ = ("_by_hex", "_by_hidden", "_by_topic", "_catalog")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_hex: dict[str, Transaction] = {}
        self._by_hidden: dict[str, Transaction] = {}
        self._by_topic: dict[str, dict[tuple[int, int], Transaction]] = {}

    def __len__(self) -> int:
        return len(self._by_hex)

    def __iter__(self) -> Iterator[Transaction]:
        """As there are now: they may change meanwhile."""
        return iter(list(self._by_hex.values()))

    def add(self, transaction: Transaction) -> None:
        """One that has begun."""
        self._by_hex[transaction.hex_id] = self._by_hidden[transaction.hidden] = transaction
        self._by_topic.setdefault(transaction.topic, {})[transaction.high, transaction.low] = transaction

    def forget(self, transaction: Transaction) -> None:
        """It is not asked for by its stream and its id any more."""
        known = self._by_topic.get(transaction.topic, {})
        known.pop((transaction.high, transaction.low), None)
        if not known:
            self._by_topic.pop(transaction.topic, None)

    def remove(self, transaction: Transaction) -> None:
        """It has ended."""
        self.forget(transaction)
        self._by_hex.pop(transaction.hex_id, None)
        self._by_hidden.pop(transaction.hidden, None)

    def get(self, topic: str, high: int, low: int) -> Transaction | None:
        """The one of that id of a stream."""
        return self._by_topic.get(topic, {}).get((high, low))

    def by_id(self, hex_id: str) -> Transaction | None:
        """The one whose segments have that id in their names."""
        return self._by_hex.get(hex_id)

    def of(self, topic: str) -> list[Transaction]:
        """Those of a stream."""
        return list(self._by_topic.get(topic, {}).values())

    def hidden(self) -> set[str]:
        """The hidden topics that have their segments."""
        return set(self._by_hidden)

    def in_hidden(self, hidden: str) -> Transaction | None:
        """The one that has its segments in a hidden topic."""
        return self._by_hidden.get(hidden)

    # --- their segments --------------------------------------------------------------------------------------------

    def place(self, name: str) -> tuple[str, int] | None:
        """(Hidden topic, partition) of a segment of one, which may be written to or is being committed."""
        parent, _, hex_id = name.partition(TRANSACTION)
        found = self._by_hex.get(hex_id)
        if found is None or found.state not in (TxnState.OPEN, TxnState.COMMITTING):
            return None
        for place, number in enumerate(found.parents):
            if self.parent_name(found, number) == parent:
                return found.hidden, place
        return None

    def at(self, hidden: str, partition: int) -> str | None:
        """The name of the segment in a partition of a hidden topic."""
        found = self._by_hidden.get(hidden)
        if found is None or not partition < len(found.parents):
            return None
        return self.name(found, found.parents[partition])

    def name(self, transaction: Transaction, number: int) -> str:
        """The name of its segment for the stream's partition of that number."""
        return f"{self.parent_name(transaction, number)}{TRANSACTION}{transaction.hex_id}"

    def parent_name(self, transaction: Transaction, number: int) -> str | None:
        """The name of the stream's segment of that number; None if the stream was deleted."""
        topic = self._catalog.topics.get(transaction.topic)
        return None if topic is None else str(segment_of(topic, topic.partitions[number]))


class RunningMerges:
    """The merges that have begun and not ended, by the names of their sources."""

    __slots__ = ("_deleting", "_running")

    def __init__(self) -> None:
        self._running: dict[str, tuple[Segment, asyncio.Task[int]]] = {}
        self._deleting: set[str] = set()

    def begin(self, name: str, target: Segment, task: asyncio.Task[int]) -> tuple[Segment, asyncio.Task[int]]:
        """A segment is being merged with ``target``, until the task ends."""
        running = self._running[name] = target, task
        task.add_done_callback(lambda task: self._ended(name, task))
        return running

    def _ended(self, name: str, task: asyncio.Task[int]) -> None:
        del self._running[name]
        self._deleting.discard(name)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; nobody may wait any more

    def get(self, name: str) -> tuple[Segment, asyncio.Task[int]] | None:
        """What a segment is being merged with, and the task that does it."""
        return self._running.get(name)

    def with_targets(self) -> list[tuple[Segment, asyncio.Task[int]]]:
        """All that go on, each with what it merges something with."""
        return list(self._running.values())

    def tasks(self) -> list[asyncio.Task[int]]:
        """All that go on."""
        return [task for _, task in self._running.values()]

    def deletes(self, name: str) -> None:
        """Its bytes are part of the target: it is deleted by its merge from now on."""
        self._deleting.add(name)

    def keeps(self, name: str) -> bool:
        """Whether a segment must not be deleted, as it is being merged."""
        return name in self._running and name not in self._deleting

    async def ended_with(self, topic: str) -> None:
        """Return when all merges with segments in a topic that have begun have ended."""
        tasks = [task for target, task in self._running.values() if target.topic == topic]
        if tasks:
            await asyncio.wait(tasks)
