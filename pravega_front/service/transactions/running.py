"""Registry of open transactions and running merges, for the code that looks up segments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pravega_front.names import TRANSACTION, segment_of
from pravega_front.wire.controller import TxnState

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog
    from pravega_front.service.segment import Segment
    from pravega_front.service.transactions.transaction import Transaction


class OpenTransactions:
    """Transactions that have not ended, indexed by id, by hidden topic and by stream."""

    __slots__ = ("_by_hex", "_by_hidden", "_by_topic", "_catalog")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_hex: dict[str, Transaction] = {}
        self._by_hidden: dict[str, Transaction] = {}
        self._by_topic: dict[str, dict[tuple[int, int], Transaction]] = {}

    def __len__(self) -> int:
        return len(self._by_hex)

    def __iter__(self) -> Iterator[Transaction]:
        """Iterate over a copy: transactions may begin and end meanwhile."""
        return iter(list(self._by_hex.values()))

    def add(self, transaction: Transaction) -> None:
        """Add a transaction that has begun."""
        self._by_hex[transaction.hex_id] = self._by_hidden[transaction.hidden] = transaction
        self._by_topic.setdefault(transaction.topic, {})[transaction.high, transaction.low] = transaction

    def forget(self, transaction: Transaction) -> None:
        """Remove a transaction from the index by stream."""
        known = self._by_topic.get(transaction.topic, {})
        known.pop((transaction.high, transaction.low), None)
        if not known:
            self._by_topic.pop(transaction.topic, None)

    def remove(self, transaction: Transaction) -> None:
        """Remove a transaction that has ended."""
        self.forget(transaction)
        self._by_hex.pop(transaction.hex_id, None)
        self._by_hidden.pop(transaction.hidden, None)

    def get(self, topic: str, high: int, low: int) -> Transaction | None:
        """Return a stream's transaction by its id."""
        return self._by_topic.get(topic, {}).get((high, low))

    def by_id(self, hex_id: str) -> Transaction | None:
        """Return the transaction whose segments have that id in their names."""
        return self._by_hex.get(hex_id)

    def in_topic(self, topic: str) -> list[Transaction]:
        """Return the transactions of a stream."""
        return list(self._by_topic.get(topic, {}).values())

    def hidden(self) -> set[str]:
        """Return the hidden topics with transactions' segments."""
        return set(self._by_hidden)

    def in_hidden(self, hidden: str) -> Transaction | None:
        """Return the transaction with segments in a hidden topic."""
        return self._by_hidden.get(hidden)

    # --- their segments --------------------------------------------------------------------------------------------

    def place(self, name: str) -> tuple[str, int] | None:
        """Return (hidden topic, partition) of a transaction's segment, while the transaction is open or being
        committed."""
        parent, _, hex_id = name.partition(TRANSACTION)
        found = self._by_hex.get(hex_id)
        if found is None or found.state not in (TxnState.OPEN, TxnState.COMMITTING):
            return None
        for place, number in enumerate(found.parents):
            if self.parent_name(found, number) == parent:
                return found.hidden, place
        return None

    def at(self, hidden: str, partition: int) -> str | None:
        """Return the name of the segment in a partition of a hidden topic."""
        found = self._by_hidden.get(hidden)
        if found is None or not partition < len(found.parents):
            return None
        return self.name(found, found.parents[partition])

    def name(self, transaction: Transaction, number: int) -> str:
        """Return the name of a transaction's segment for the stream's partition ``number``."""
        return f"{self.parent_name(transaction, number)}{TRANSACTION}{transaction.hex_id}"

    def parent_name(self, transaction: Transaction, number: int) -> str | None:
        """Return the name of the stream's segment for partition ``number``; None if the stream was deleted."""
        topic = self._catalog.topics.get(transaction.topic)
        return None if topic is None else str(segment_of(topic, topic.partitions[number]))


class RunningMerges:
    """Merges under way, by the names of their sources."""

    __slots__ = ("_deleting", "_running")

    def __init__(self) -> None:
        self._running: dict[str, tuple[Segment, asyncio.Task[int]]] = {}
        self._deleting: set[str] = set()

    def begin(self, name: str, target: Segment, task: asyncio.Task[int]) -> tuple[Segment, asyncio.Task[int]]:
        """Register a merge of the segment ``name`` into ``target``, until ``task`` ends."""
        running = self._running[name] = target, task
        task.add_done_callback(lambda task: self._ended(name, task))
        return running

    def _ended(self, name: str, task: asyncio.Task[int]) -> None:
        del self._running[name]
        self._deleting.discard(name)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: there may be no waiter left

    def get(self, name: str) -> tuple[Segment, asyncio.Task[int]] | None:
        """Return the target of a segment's merge and the task that runs it."""
        return self._running.get(name)

    def with_targets(self) -> list[tuple[Segment, asyncio.Task[int]]]:
        """Return all merges under way, as (target, task)."""
        return list(self._running.values())

    def tasks(self) -> list[asyncio.Task[int]]:
        """Return the tasks of all merges under way."""
        return [task for _, task in self._running.values()]

    def deletes(self, name: str) -> None:
        """Let the merge delete its source: its bytes are part of the target."""
        self._deleting.add(name)

    def keeps(self, name: str) -> bool:
        """Return whether a segment must not be deleted because it is being merged."""
        return name in self._running and name not in self._deleting

    async def ended_with(self, topic: str) -> None:
        """Wait until all merges into segments of a topic have ended that have begun before."""
        tasks = [task for target, task in self._running.values() if target.topic == topic]
        if tasks:
            await asyncio.wait(tasks)
