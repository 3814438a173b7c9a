"""Transactions: their segments, their leases, and how they end (reference/pravega.md, section 4.7).

What a transaction writes lies in the partitions of a hidden topic, one for each segment of the stream. Its commit is
decided in the database and then carried out, as often as it takes: each of its segments is appended to its parent, as
one batch where it fits into one, else as a transaction of the log that ends with a marker. The ledger of the parent
knows how far that has come, so a commit that was interrupted goes on where it stopped. An abort deletes the topic.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from bridges.catalog.sql import Connection
from bridges.catalog.topic import ChangeKind, TopicKind, TopicNotFound
from bridges.catalog.topic_rules import demands
from bridges.errors import LogError
from bridges.finishing import Finishing
from bridges.rounds import Rounds
from pravega_front.service.carrying_out import carry_out
from pravega_front.service.outcomes import keep, outcome, outcomes
from pravega_front.service.segments import KEEP
from pravega_front.service.transaction import ENDED, Transaction, append_to_parent
from pravega_front.wire.controller import TxnState

if TYPE_CHECKING:
    from bridges.catalog.topic import Change, Topic
    from bridges.node.front import NodeServices
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments
    from pravega_front.settings import PravegaSettings

log = structlog.get_logger(__name__)

_HIDDEN = "_pravega.transaction-"
_MOVED = 1000
"""What is moved in one transaction of the database of what earlier versions kept."""
_AT_ONCE = 4
"""Commits that are carried out at the same time: each holds a piece in memory."""


class TooManyOpen(LogError):
    """There are as many open transactions as there may be."""

    retriable = True


class LeaseRefused(LogError):
    """A lease is too short or too long."""


class Transactions:
    """The transactions of a node. Call :meth:`load` first."""

    def __init__(self, node: NodeServices, settings: PravegaSettings, segments: Segments) -> None:
        self._node = node
        self._settings = settings
        self._segments = segments
        self._open = segments.transactions
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing: dict[str, int] = {}
        self._beginning: dict[str, set[asyncio.Event]] = {}
        self._beginnings = Finishing()
        #: Numbers of the decisions, in the order of which they are carried out, also by the next start.
        self._decisions = 0
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._account = node.budget.account(lambda: None)
        self._rounds: Rounds[Transaction] = node.rounds("end of a transaction's lease")

    async def load(self) -> None:
        """Know all transactions, and carry out what was decided. Those that are open get a whole lease."""
        query = (
            "SELECT topic, high, low, state, lease_ms, created_ms, hidden, parents, decided "
            "FROM front_pravega_transactions ORDER BY decided, low"
        )
        await self._move_ended()
        rows = await self._node.db.run(lambda connection: connection.execute(query).fetchall())
        self._node.catalog.before_sealing.append(self.settled)
        self._node.catalog.on_change.append(self._changed)
        now = time.monotonic()
        for topic, high, low, state, lease_ms, created_ms, hidden, parents, decided in rows:
            self._decisions = max(self._decisions, decided)
            found = Transaction(topic, high, low, TxnState(state), lease_ms, created_ms, hidden, json.loads(parents))
            found.deadline = now + lease_ms / 1000
            self._open.add(found)
            if found.state is TxnState.COMMITTING:
                for number in found.parents:
                    segment = self._own_segment(found, number)
                    if segment is not None:
                        segment.loose_sealed = True
            if found.state is not TxnState.OPEN:
                self._spawn(found)
        # A creation that a crash cut short has left a topic of nobody.
        for name in list(self._node.catalog.hidden):
            if name.startswith(_HIDDEN) and not self._open.holds(name):
                try:
                    await self._node.catalog.delete_topic(name)
                except LogError as error:
                    log.warning("what a transaction left is deleted by the next start", topic=name, reason=str(error))

    async def _move_ended(self) -> None:
        """Earlier versions kept those that have ended with the others, a number of each stream."""
        topics = self._node.catalog.topics

        def move(connection: Connection) -> bool:
            query = "SELECT topic, high, low, state FROM front_pravega_transactions WHERE state IN (?, ?) "
            rows = connection.execute(f"{query} ORDER BY decided, low LIMIT ?", (*map(int, ENDED), _MOVED)).fetchall()
            for topic, high, low, state in rows:
                found = topics.get(topic)
                delete = "DELETE FROM front_pravega_transactions WHERE topic = ? AND high = ? AND low = ?"
                connection.execute(delete, (topic, high, low))
                if found is not None:
                    keep(connection, found.topic_id, high, low, TxnState(state))
            return len(rows) == _MOVED

        while await self._node.db.run(move):
            pass

    async def close(self) -> None:
        """Carry on with nothing; the next start does."""
        await self._beginnings.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._account.close()

    # --- for callers -----------------------------------------------------------------------------------------------

    async def get(self, topic: Topic, high: int, low: int) -> Transaction | None:
        """A transaction of a stream; of one that has ended only how. None if there never was one, or too many have
        ended since."""
        found = self._open.get(topic.name, high, low)
        if found is not None:
            return found
        state = await self._node.db.run(partial(outcome, topic_id=topic.topic_id, high=high, low=low))
        return None if state is None else Transaction(topic.name, high, low, state, 0, 0, "", [])

    async def ended(self, topic: Topic) -> list[tuple[int, int, TxnState]]:
        """Those of a stream that have ended, as (high, low, how): the last thousand that are known."""
        return await self._node.db.run(partial(outcomes, topic_id=topic.topic_id))

    def check_lease(self, lease_ms: int) -> None:
        """Raise LeaseRefused unless a transaction may have such a lease."""
        low, high = self._settings.transaction_min_lease_ms, self._settings.transaction_max_lease_ms
        if not low <= lease_ms <= high:
            raise LeaseRefused(f"a lease is of {low} to {high} ms, not of {lease_ms}")

    async def begin(self, topic: Topic, lease_ms: int) -> Transaction:
        """Begin a transaction, whose segments can be written to when this returns. Raises LeaseRefused, TooManyOpen,
        LogError."""
        self.check_lease(lease_ms)
        if len(self._open) >= self._settings.transactions:
            raise TooManyOpen(f"there are {self._settings.transactions} open transactions")
        if topic.name in self._changing:
            raise TooManyOpen(f"the segments of {topic.name} are being changed")
        begun = asyncio.Event()
        beginning = self._beginning.setdefault(topic.name, set())
        beginning.add(begun)
        return await self._beginnings.run(self._begin(topic, lease_ms, begun))

    async def _begin(self, topic: Topic, lease_ms: int, begun: asyncio.Event) -> Transaction:
        beginning = self._beginning[topic.name]
        try:
            found = await self._make(topic, lease_ms)
        finally:
            begun.set()
            beginning.discard(begun)
            if not beginning and self._beginning.get(topic.name) is beginning:
                del self._beginning[topic.name]
        if self._node.catalog.topics.get(topic.name) is not topic:
            self._stream_gone(found)
            raise TopicNotFound(f"stream {topic.name} was deleted")
        return found

    async def _make(self, topic: Topic, lease_ms: int) -> Transaction:
        catalog = self._node.catalog
        low = await catalog.allocate_producer_ids(1)
        parents = [one.index for one in topic.active]
        now_ms = time.time_ns() // 1_000_000
        found = Transaction(
            topic.name, topic.epoch << 32, low, TxnState.OPEN, lease_ms, now_ms, f"{_HIDDEN}{uuid.uuid4().hex}", parents
        )
        row = (*_key(found), int(found.state), lease_ms, now_ms, found.hidden, json.dumps(parents))

        def also(connection: Connection) -> None:
            connection.execute("INSERT INTO front_pravega_transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)", row)

        # What its stream demands is looked at when the events are written: what is committed is refused no more.
        config = {**demands(topic.config), **KEEP}
        await catalog.create_topic(found.hidden, len(parents), config, kind=TopicKind.TRANSIENT, also=also)
        found.deadline = time.monotonic() + lease_ms / 1000
        self._open.add(found)
        return found

    def ping(self, transaction: Transaction, lease_ms: int) -> None:
        """The transaction is wanted for ``lease_ms`` more."""
        transaction.deadline = time.monotonic() + lease_ms / 1000

    def is_overdue(self, transaction: Transaction) -> bool:
        """Whether it has been open for longer than any may."""
        return transaction.created_ms + self._settings.transaction_max_execution_ms < time.time_ns() // 1_000_000

    async def commit(self, transaction: Transaction) -> bool:
        """Decide that it is committed, durably, unless it was decided otherwise; whether it is. It is carried out in
        the background, those of a stream one after the other, in the order of the decisions. Raises LogError."""
        await self._decided(transaction, TxnState.COMMITTING)
        return transaction.state in (TxnState.COMMITTING, TxnState.COMMITTED)

    async def abort(self, transaction: Transaction) -> bool:
        """Decide that nothing of it is ever seen, as :meth:`commit` does."""
        await self._decided(transaction, TxnState.ABORTING)
        return transaction.state in (TxnState.ABORTING, TxnState.ABORTED)

    async def _decided(self, transaction: Transaction, wanted: TxnState) -> None:
        """Return when it is durable how a transaction ends: as wanted, or as others wanted before."""
        if transaction.state is TxnState.OPEN and transaction.deciding is None:
            # A task of its own: a caller who goes away must not leave half a decision.
            transaction.deciding = asyncio.create_task(self._decide(transaction, wanted))
            self._tasks.add(transaction.deciding)
            transaction.deciding.add_done_callback(self._tasks.discard)
        if transaction.deciding is not None:
            await asyncio.shield(transaction.deciding)

    async def _decide(self, transaction: Transaction, wanted: TxnState) -> None:
        try:
            if wanted is TxnState.COMMITTING:
                await self._stop_writers(transaction)
            await self._store_decision(transaction, wanted)
        except BaseException:
            for number in transaction.parents:
                segment = self._own_segment(transaction, number)
                if segment is not None:
                    segment.loose_sealed = False  # it is open still
            raise
        finally:
            transaction.deciding = None
        if transaction.state is TxnState.OPEN:  # else its stream was deleted meanwhile
            transaction.state = wanted
            self._spawn(transaction)

    async def _stop_writers(self, transaction: Transaction) -> None:
        """Take no more appends: what is acknowledged from now on would not be part of it."""
        for segment in self._own_segments(transaction):
            segment.loose_sealed = True
        await self._segments.merges.ended_with(transaction.hidden)
        for segment in self._own_segments(transaction):
            await segment.quiet()

    @asynccontextmanager
    async def settled(self, topic: str) -> AsyncIterator[None]:
        """No transaction of a stream is open in here: they are waited for, then aborted, and meanwhile none begins.

        A transaction is appended to the segments that there were when it began, so whoever seals one, through whichever
        protocol, does it in here; a commit that was accepted has always been carried out before.
        """
        self._changing[topic] = self._changing.get(topic, 0) + 1
        try:
            loop = asyncio.get_running_loop()
            end = loop.time() + self._settings.scale_wait_ms / 1000
            for begun in list(self._beginning.get(topic, ())):
                await begun.wait()
            for one in self._open.of(topic):
                if one.state not in ENDED:
                    try:
                        async with asyncio.timeout_at(end):
                            await one.ended.wait()
                    except TimeoutError:
                        await self.abort(one)
                        await one.ended.wait()
            yield
        finally:
            self._changing[topic] -= 1
            if not self._changing[topic]:
                del self._changing[topic]

    def _changed(self, change: Change) -> None:
        """A stream's transactions go with it: another of its name has nothing to do with them."""
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            for one in self._open.of(change.topic.name):
                self._stream_gone(one)

    def _stream_gone(self, transaction: Transaction) -> None:
        self._open.forget(transaction)
        self._locks.pop(transaction.topic, None)
        carried_out = transaction.state is not TxnState.OPEN
        if transaction.state not in ENDED:
            transaction.state = TxnState.ABORTING
            transaction.ended.set()  # what is left to do concerns nobody
            if not carried_out:
                self._spawn(transaction)

    async def abort_all(self, topic: str) -> None:
        """Abort the open transactions of a stream, and return when all have ended."""
        for one in self._open.of(topic):
            await self.abort(one)
            await one.ended.wait()

    async def expire(self, now_ms: int) -> None:
        """A chore: abort what was not pinged in time."""
        now = time.monotonic()
        overdue = [
            one
            for one in self._open
            if one.state is TxnState.OPEN and one.deciding is None and (one.deadline < now or self.is_overdue(one))
        ]
        await self._rounds.each(overdue, self._expire)

    async def _expire(self, transaction: Transaction) -> None:
        log.info("a transaction is aborted: its lease has ended", topic=transaction.topic, id=transaction.hex_id)
        try:
            await self.abort(transaction)
        except LogError as error:
            log.warning("a transaction is aborted later", topic=transaction.topic, reason=str(error))

    # --- carrying out ----------------------------------------------------------------------------------------------

    async def _store_decision(self, transaction: Transaction, state: TxnState) -> None:
        self._decisions += 1
        query = "UPDATE front_pravega_transactions SET state = ?, decided = ? WHERE topic = ? AND high = ? AND low = ?"
        row = (int(state), self._decisions, *_key(transaction))
        await self._node.db.run(lambda connection: connection.execute(query, row))

    async def _store_end(self, transaction: Transaction, state: TxnState) -> None:
        topic = self._node.catalog.topics.get(transaction.topic)

        def store(connection: Connection) -> None:
            query = "DELETE FROM front_pravega_transactions WHERE topic = ? AND high = ? AND low = ?"
            # Of a stream that is deleted nothing is left to tell of.
            if connection.execute(query, _key(transaction)).rowcount and topic is not None:
                keep(connection, topic.topic_id, transaction.high, transaction.low, state)

        await self._node.db.run(store)

    def _spawn(self, transaction: Transaction) -> None:
        task = asyncio.create_task(self._carry_out(transaction))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, transaction: Transaction) -> None:
        """End a transaction as it was decided, again until it is done."""
        lock = self._locks.setdefault(transaction.topic, asyncio.Lock())
        async with lock:
            await carry_out(
                lambda: self._try(transaction), self._few, LogError, "end of a transaction", topic=transaction.topic
            )

    async def _try(self, transaction: Transaction) -> None:
        try:
            await self._end(transaction)
        except LogError:
            raise
        except Exception as error:
            self._node.barrier.caught("end of a transaction", error, topic=transaction.topic)
            raise LogError("the end of a transaction failed unexpectedly") from error

    async def _end(self, transaction: Transaction) -> None:
        if transaction.state not in ENDED:
            await self._end_for_all(transaction)
        try:
            await self._node.catalog.delete_topic(transaction.hidden)
        except TopicNotFound:
            return

    async def _end_for_all(self, transaction: Transaction) -> None:
        if transaction.topic not in self._node.catalog.topics:
            transaction.state = TxnState.ABORTING  # its stream is gone, and what it would be part of
        if transaction.state is TxnState.COMMITTING:
            for segment, parent in zip(
                self._own_segments(transaction), self._parent_segments(transaction), strict=True
            ):
                await append_to_parent(transaction, segment, parent, self._account)
        state = TxnState.COMMITTED if transaction.state is TxnState.COMMITTING else TxnState.ABORTED
        await self._store_end(transaction, state)
        transaction.state = state
        self._open.remove(transaction)
        if not self._open.of(transaction.topic):
            self._locks.pop(transaction.topic, None)
        transaction.ended.set()

    def _own_segment(self, transaction: Transaction, number: int) -> Segment | None:
        return self._segments.find(self._open.name(transaction, number))

    def _own_segments(self, transaction: Transaction) -> list[Segment]:
        found = []
        for number in transaction.parents:
            segment = self._own_segment(transaction, number)
            if segment is None:
                raise LogError(f"a segment of transaction {transaction.hex_id} cannot be found")
            found.append(segment)
        return found

    def _parent_segments(self, transaction: Transaction) -> list[Segment]:
        found = []
        for number in transaction.parents:
            segment = self._segments.find(self._open.parent_name(transaction, number) or "")
            if segment is None:
                raise LogError(f"a segment of {transaction.topic} cannot be found")
            found.append(segment)
        return found


def _key(transaction: Transaction) -> tuple[str, int, int]:
    return transaction.topic, transaction.high, transaction.low
