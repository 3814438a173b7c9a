"""Transactions: their segments, their leases, and how they end (reference/pravega.md, section 4.7).

What a transaction writes lies in the partitions of a hidden topic, one for each segment of the stream. Its commit is
decided in the database and then carried out, as often as it takes: each of its segments is appended to its parent, as
one batch where it fits into one, else as a transaction of the log that ends with a marker. The ledger of the parent
knows how far that has come, so a commit that was interrupted goes on where it stopped. An abort deletes the topic.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from bridges.catalog.topic import ChangeKind, TopicKind, TopicNotFound
from bridges.errors import LogError
from pravega_front.names import TRANSACTION, SegmentName
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
_KEPT = 1000
"""Transactions of a stream that have ended and whose fate can still be asked for."""
_AGAIN_S = 1.0
_AT_ONCE = 4
"""Commits that are carried out at the same time: each holds a piece in memory."""
_SWEEP_S = 60.0


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
        #: By topic, then by id.
        self._known: dict[str, dict[tuple[int, int], Transaction]] = {}
        self._open_by_hex: dict[str, Transaction] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing: dict[str, int] = {}
        self._beginning: dict[str, set[asyncio.Event]] = {}
        #: Numbers of the decisions, in the order of which they are carried out, also by the next start.
        self._decisions = 0
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._account = node.budget.account(lambda: None)
        self._swept = time.monotonic()
        segments.of_transaction = self._place
        segments.in_transaction = self._at
        segments.has_transactions = lambda topic: any(one.topic == topic for one in self._open_by_hex.values())

    async def load(self) -> None:
        """Know all transactions, and carry out what was decided. Those that are open get a whole lease."""
        query = (
            "SELECT topic, high, low, state, lease_ms, created_ms, hidden, parents, decided "
            "FROM front_pravega_transactions ORDER BY decided, low"
        )
        rows = await self._node.db.run(lambda connection: connection.execute(query).fetchall())
        self._node.catalog.before_sealing.append(self.settled)
        self._node.catalog.on_change.append(self._changed)
        now = time.monotonic()
        for topic, high, low, state, lease_ms, created_ms, hidden, parents, decided in rows:
            self._decisions = max(self._decisions, decided)
            found = Transaction(topic, high, low, TxnState(state), lease_ms, created_ms, hidden, json.loads(parents))
            found.deadline = now + lease_ms / 1000
            self._know(found)
            if found.state is TxnState.COMMITTING:
                for segment in self._own_segments(found):
                    segment.loose_sealed = True
            if found.state not in (TxnState.OPEN, *ENDED):
                self._spawn(found)
        # A creation that a crash cut short has left a topic of nobody.
        used = {one.hidden for one in self._open_by_hex.values()}
        for name in list(self._node.catalog.hidden):
            if name.startswith(_HIDDEN) and name not in used:
                await self._node.catalog.delete_topic(name)

    async def close(self) -> None:
        """Carry on with nothing; the next start does."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._account.close()

    def _know(self, found: Transaction) -> None:
        self._known.setdefault(found.topic, {})[found.high, found.low] = found
        if found.state in ENDED:
            found.ended.set()
        else:
            self._open_by_hex[found.hex_id] = found

    def _place(self, name: str) -> tuple[str, int] | None:
        parent, _, hex_id = name.partition(TRANSACTION)
        found = self._open_by_hex.get(hex_id)
        if found is None or found.state not in (TxnState.OPEN, TxnState.COMMITTING):
            return None
        for place, number in enumerate(found.parents):
            if self._name_of(found, number) == parent:
                return found.hidden, place
        return None

    def _at(self, topic: str, partition: int) -> str | None:
        for found in self._open_by_hex.values():
            if found.hidden == topic and partition < len(found.parents):
                return f"{self._name_of(found, found.parents[partition])}{TRANSACTION}{found.hex_id}"
        return None

    def _name_of(self, transaction: Transaction, number: int) -> str | None:
        topic = self._node.catalog.topics.get(transaction.topic)
        if topic is None:
            return None
        scope, _, stream = topic.names["pravega"].partition("/")
        return str(SegmentName(scope, stream, number, topic.partitions[number].made_epoch))

    # --- for callers -----------------------------------------------------------------------------------------------

    def get(self, topic: str, high: int, low: int) -> Transaction | None:
        """A transaction of a stream; None if there never was one, or it ended long ago."""
        return self._known.get(topic, {}).get((high, low))

    def of(self, topic: str) -> list[Transaction]:
        """All that is known of a stream's transactions."""
        return list(self._known.get(topic, {}).values())

    def check_lease(self, lease_ms: int) -> None:
        """Raise LeaseRefused unless a transaction may have such a lease."""
        low, high = self._settings.transaction_min_lease_ms, self._settings.transaction_max_lease_ms
        if not low <= lease_ms <= high:
            raise LeaseRefused(f"a lease is of {low} to {high} ms, not of {lease_ms}")

    async def begin(self, topic: Topic, lease_ms: int) -> Transaction:
        """Begin a transaction, whose segments can be written to when this returns. Raises LeaseRefused, TooManyOpen,
        LogError."""
        self.check_lease(lease_ms)
        if len(self._open_by_hex) >= self._settings.transactions:
            raise TooManyOpen(f"there are {self._settings.transactions} open transactions")
        if topic.name in self._changing:
            raise TooManyOpen(f"the segments of {topic.name} are being changed")
        begun = asyncio.Event()
        beginning = self._beginning.setdefault(topic.name, set())
        beginning.add(begun)
        try:
            found = await self._begin(topic, lease_ms)
        finally:
            begun.set()
            beginning.discard(begun)
            if not beginning and self._beginning.get(topic.name) is beginning:
                del self._beginning[topic.name]
        if self._node.catalog.topics.get(topic.name) is not topic:
            self._stream_gone(found)
            raise TopicNotFound(f"stream {topic.name} was deleted")
        return found

    async def _begin(self, topic: Topic, lease_ms: int) -> Transaction:
        catalog = self._node.catalog
        low = await catalog.allocate_producer_ids(1)
        parents = [one.index for one in topic.active]
        now_ms = time.time_ns() // 1_000_000
        found = Transaction(
            topic.name, topic.epoch << 32, low, TxnState.OPEN, lease_ms, now_ms, f"{_HIDDEN}{uuid.uuid4().hex}", parents
        )
        row = (*_key(found), int(found.state), lease_ms, now_ms, found.hidden, json.dumps(parents))

        def also(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO front_pravega_transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)", row)

        await catalog.create_topic(found.hidden, len(parents), KEEP, kind=TopicKind.TRANSIENT, also=also)
        found.deadline = time.monotonic() + lease_ms / 1000
        self._know(found)
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
        await self._segments.merged(transaction.hidden)
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
            for one in self.of(topic):
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
            for one in self.of(change.topic.name):
                self._stream_gone(one)

    def _stream_gone(self, transaction: Transaction) -> None:
        self._forget_ids([_key(transaction)])
        carried_out = transaction.state is not TxnState.OPEN
        if transaction.state not in ENDED:
            transaction.state = TxnState.ABORTING
            transaction.ended.set()  # what is left to do concerns nobody
            if not carried_out:
                self._spawn(transaction)

    async def abort_all(self, topic: str) -> None:
        """Abort the open transactions of a stream, and return when all have ended."""
        for one in self.of(topic):
            await self.abort(one)
            await one.ended.wait()

    async def expire(self, now_ms: int) -> None:
        """A chore: abort what was not pinged in time, and forget what ended long ago."""
        now = time.monotonic()
        for one in list(self._open_by_hex.values()):
            # One whose end is being decided may take long, and others wait behind it here.
            if one.state is TxnState.OPEN and one.deciding is None and (one.deadline < now or self.is_overdue(one)):
                log.info("a transaction is aborted: its lease has ended", topic=one.topic, id=one.hex_id)
                await self.abort(one)
        if now < self._swept + _SWEEP_S:
            return
        self._swept = now
        ended: dict[str, list[Transaction]] = {}
        for topic in list(self._known):
            ended[topic] = [one for one in self.of(topic) if one.state in ENDED]
            await asyncio.sleep(0)  # there may be many streams
        for topic, found in ended.items():
            gone = found if topic not in self._node.catalog.topics else found[:-_KEPT]
            if gone:
                await self._forget(gone)

    async def _forget(self, gone: list[Transaction]) -> None:
        query = "DELETE FROM front_pravega_transactions WHERE topic = ? AND high = ? AND low = ?"
        keys = [_key(one) for one in gone]
        await self._node.db.run(lambda connection: connection.executemany(query, keys))
        self._forget_ids(keys)

    def _forget_ids(self, keys: list[tuple[str, int, int]]) -> None:
        for topic, high, low in keys:
            known = self._known.get(topic, {})
            known.pop((high, low), None)
            if not known:
                self._known.pop(topic, None)
                self._locks.pop(topic, None)

    # --- carrying out ----------------------------------------------------------------------------------------------

    async def _store_decision(self, transaction: Transaction, state: TxnState) -> None:
        self._decisions += 1
        query = "UPDATE front_pravega_transactions SET state = ?, decided = ? WHERE topic = ? AND high = ? AND low = ?"
        row = (int(state), self._decisions, *_key(transaction))
        await self._node.db.run(lambda connection: connection.execute(query, row))

    async def _store_state(self, transaction: Transaction, state: TxnState) -> None:
        query = "UPDATE front_pravega_transactions SET state = ? WHERE topic = ? AND high = ? AND low = ?"
        await self._node.db.run(lambda connection: connection.execute(query, (int(state), *_key(transaction))))

    def _spawn(self, transaction: Transaction) -> None:
        task = asyncio.create_task(self._carry_out(transaction))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, transaction: Transaction) -> None:
        """End a transaction as it was decided, again until it is done."""
        delay = _AGAIN_S
        lock = self._locks.setdefault(transaction.topic, asyncio.Lock())
        async with lock:
            while transaction.state not in ENDED:
                try:
                    async with self._few:
                        await self._try(transaction)
                except LogError as error:
                    log.warning("a transaction is ended later", topic=transaction.topic, reason=str(error))
                except Exception as error:  # noqa: BLE001 - logged, counted and tried again
                    self._node.barrier.caught("end of a transaction", error, topic=transaction.topic)
                else:
                    break
                await asyncio.sleep(delay)
                delay = min(2 * delay, 30.0)

    async def _try(self, transaction: Transaction) -> None:
        if transaction.topic not in self._node.catalog.topics:
            transaction.state = TxnState.ABORTING  # its stream is gone, and what it would be part of
        if transaction.state is TxnState.COMMITTING:
            for segment, parent in zip(
                self._own_segments(transaction), self._parent_segments(transaction), strict=True
            ):
                await append_to_parent(transaction, segment, parent, self._account)
        state = TxnState.COMMITTED if transaction.state is TxnState.COMMITTING else TxnState.ABORTED
        await self._store_state(transaction, state)
        transaction.state = state
        self._open_by_hex.pop(transaction.hex_id, None)
        transaction.ended.set()
        try:
            await self._node.catalog.delete_topic(transaction.hidden)
        except TopicNotFound:
            return

    def _own_segment(self, transaction: Transaction, number: int) -> Segment | None:
        return self._segments.find(f"{self._name_of(transaction, number)}{TRANSACTION}{transaction.hex_id}")

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
            segment = self._segments.find(self._name_of(transaction, number) or "")
            if segment is None:
                raise LogError(f"a segment of {transaction.topic} cannot be found")
            found.append(segment)
        return found


def _key(transaction: Transaction) -> tuple[str, int, int]:
    return transaction.topic, transaction.high, transaction.low
