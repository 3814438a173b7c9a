"""Transactions: their segments, their leases, and their commits and aborts (docs/protocols/pravega.md,
"Transactions").

A transaction writes to the partitions of a hidden topic, one per segment of the stream. A commit is first decided in
the database and then carried out, with retries: each segment is appended to its parent, as one batch if it fits into
one, else as a transaction of the log that ends with a marker. The parent's ledger shows how far that has come, so an
interrupted commit continues where it stopped. An abort deletes the topic.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from anabranch_kit.run import clock
from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.following import rows_named
from bridges.catalog.database.sql import Connection, DatabaseError
from bridges.catalog.topics.rules import demands
from bridges.catalog.topics.topic import (
    FOLLOWED,
    Beside,
    ChangeKind,
    TopicEnded,
    TopicKind,
    TopicNotFound,
    partition_of,
)
from bridges.cluster import versions
from bridges.errors import LogError, LogUnavailable, PartitionSealed
from pravega_front.service.segments import KEEP
from pravega_front.service.transactions.carrying_out import carry_out, fail_as_log_error
from pravega_front.service.transactions.outcomes import keep, outcome, outcomes
from pravega_front.service.transactions.transaction import ENDED, Transaction, append_to_parent
from pravega_front.wire.controller import TxnState

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Change, Topic
    from bridges.node.front import NodeServices
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments
    from pravega_front.settings import PravegaSettings

log = structlog.get_logger(__name__)

_HIDDEN = "_pravega.transaction-"
_MOVED = 1000
"""Most rows handled in one transaction of the database."""
_TRIES = 20
_LOOKS = 0.25
"""Fraction of a lease after which the database is asked whether a transaction was pinged at another node."""
_ONE = "WHERE topic = ? AND high = ? AND low = ?"
_AGAIN = (LogUnavailable, DatabaseError)
_AT_ONCE = 4
"""Most concurrent commits: each holds a piece in memory."""


class TooManyOpen(LogError):
    """The limit of open transactions is reached, or the stream's segments are being changed."""

    retriable = True


class LeaseRefused(LogError):
    """The requested lease is too short or too long."""


class _Row(NamedTuple):
    """A transaction's row in the database."""

    topic: str
    high: int
    low: int
    state: int
    lease_ms: int
    created_ms: int
    hidden: str
    parents: str
    decided: int
    merged: str
    pings: int
    targets: str


class _Decision(NamedTuple):
    """Decision about a transaction: its ``number`` in their order, and the segments to which a commit appends."""

    state: TxnState
    number: int
    targets: list[int]


class _Moved(LogError):
    """The stream has other segments than when the transaction began to be created, or it was decided meanwhile."""


class Transactions:
    """Transactions of all streams. Call :meth:`load` first.

    In a cluster each node knows all open transactions, and any node may decide how one ends. The owners of a
    transaction's segments carry out its commit, each for its own segments, in the order of the decisions; the last one
    to finish marks it as ended. The owner of its first segment ends its lease, and aborts.
    """

    def __init__(self, node: NodeServices, settings: PravegaSettings, segments: Segments) -> None:
        self._node = node
        self._settings = settings
        self._segments = segments
        self.open = segments.transactions
        self.timed_out = 0
        """Number of transactions aborted because their lease had ended."""
        self._owners = segments.owners
        self._tasks = TaskSet()
        # By stream: the task that carries out decisions, and the streams with decisions it has not seen.
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._more: set[str] = set()
        self._beginnings = TaskSet()
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._account = node.budget.account(lambda: None)
        self._rounds: Rounds[Transaction] = node.rounds("end of a transaction's lease")
        self._closing = False

    async def load(self) -> None:
        """Read all transactions and carry out the decided ones. Open ones get a whole lease again."""
        await self._move_ended()
        self._node.db.changes.mirror(FOLLOWED, _read, self._follow)
        rows = await self._node.db.run(lambda connection: _read(connection, None))
        if self._node.db.engine.shared:
            self._node.catalog.before_sealing.append(_require_level)
        self._node.catalog.on_change.append(self._changed)
        self._node.owners.on_gained.append(self._gained)
        self._follow(rows, None)
        # A creation interrupted by a crash has left a topic without a transaction.
        for name in list(self._node.catalog.hidden):
            if name.startswith(_HIDDEN) and self.open.in_hidden(name) is None:
                try:
                    await self._node.catalog.delete_topic(name)
                except LogError as error:
                    log.warning(
                        "could not delete a transaction's segments; the next start does",
                        topic=name,
                        reason=str(error),
                    )

    async def _move_ended(self) -> None:
        """Migrate ended transactions, which earlier versions kept together with the open ones, to the table of
        outcomes."""
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
        """Stop; the next start continues."""
        self._closing = True
        await self._beginnings.drain()
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(self._tasks.close(), *workers, return_exceptions=True)
        self._account.close()

    # --- what other nodes do ---------------------------------------------------------------------------------------

    def _follow(self, found: dict[str, _Row], names: Collection[str] | None) -> None:
        """Update memory with other nodes' changes."""
        for hidden in (self.open.hidden() if names is None else set(names)) - found.keys():
            one = self.open.in_hidden(hidden)
            if one is not None:
                self._ended(one, TxnState.ABORTED if one.state is TxnState.ABORTING else TxnState.COMMITTED)
        for row in sorted(found.values(), key=lambda row: (row.decided, row.low)):
            self._learn(row)

    def _learn(self, row: _Row) -> None:
        one = self.open.in_hidden(row.hidden)
        if one is None:
            one = Transaction(
                row.topic, row.high, row.low, TxnState.OPEN, row.lease_ms, row.created_ms, row.hidden,
                json.loads(row.parents), pings=row.pings,
            )  # fmt: skip
            self._renew(one)
            self.open.add(one)
        one.merged.update(json.loads(row.merged))
        if one.state is TxnState.OPEN and row.state != TxnState.OPEN:
            self._take_decision(one, TxnState(row.state), row.decided, json.loads(row.targets or "[]"))

    def _gained(self, slots: Collection[int]) -> None:
        """Take over the work of slots that this node has gained."""
        gained = set(slots)
        for one in self.open:
            if self._owners.slot_of(one.hidden, 0) in gained:
                self._renew(one)  # as after a restart
            if one.state is not TxnState.OPEN:
                self._wake(one.topic)

    def _renew(self, transaction: Transaction) -> None:
        now, lease = time.monotonic(), transaction.lease_ms / 1000
        transaction.deadline, transaction.look_at = now + lease, now + lease * _LOOKS

    def ends(self, transaction: Transaction) -> bool:
        """Return whether this node is the one that ends the transaction's lease, and aborts it."""
        return self._owners.is_mine(transaction.hidden, 0)

    # --- for callers -----------------------------------------------------------------------------------------------

    async def get(self, topic: Topic, high: int, low: int) -> Transaction | None:
        """Return a stream's transaction; an ended one has only its state. None if it never existed, or too many have
        ended since."""
        found = self.open.get(topic.name, high, low)
        if found is not None:
            return found
        state = await self._node.db.run(partial(outcome, topic_id=topic.topic_id, high=high, low=low))
        return None if state is None else Transaction(topic.name, high, low, state, 0, 0, "", [])

    async def ended(self, topic: Topic) -> list[tuple[int, int, TxnState]]:
        """Return a stream's ended transactions as (high, low, state), at most the last thousand."""
        return await self._node.db.run(partial(outcomes, topic_id=topic.topic_id))

    def check_lease(self, lease_ms: int) -> None:
        """Raise LeaseRefused unless a transaction may have this lease."""
        low, high = self._settings.transaction_min_lease_ms, self._settings.transaction_max_lease_ms
        if not low <= lease_ms <= high:
            raise LeaseRefused(f"a lease is of {low} to {high} ms, not of {lease_ms}")

    async def begin(self, topic: Topic, lease_ms: int) -> Transaction:
        """Begin a transaction, whose segments exist when this returns. Raises LeaseRefused, TooManyOpen, LogError."""
        self.check_lease(lease_ms)
        if len(self.open) >= self._settings.transactions:
            raise TooManyOpen(f"there are {self._settings.transactions} open transactions")
        return await self._beginnings.finish(self._begin(topic, lease_ms))

    async def _begin(self, topic: Topic, lease_ms: int) -> Transaction:
        found = await self._make(topic, lease_ms)
        if self._node.catalog.topics.get(topic.name) is not topic:
            self._stream_gone(found)
            raise TopicNotFound(f"stream {topic.name} was deleted")
        return found

    async def _make(self, topic: Topic, lease_ms: int) -> Transaction:
        for _ in range(_TRIES):
            try:
                return await self._try_make(topic, lease_ms)
            except _Moved:
                await self._node.db.changes.catch_up()
        raise TooManyOpen(f"the segments of {topic.name} are being changed")

    async def _try_make(self, topic: Topic, lease_ms: int) -> Transaction:
        catalog = self._node.catalog
        low = await catalog.counters.allocate_producer_ids(1)
        parents, epoch = [one.index for one in topic.active], topic.epoch
        if not parents:
            raise PartitionSealed(topic.name, ())
        now_ms = clock.now_ms()
        hidden = f"{_HIDDEN}{uuid.uuid4().hex}"
        found = Transaction(topic.name, epoch << 32, low, TxnState.OPEN, lease_ms, now_ms, hidden, parents)
        row = (*_key(found), int(found.state), lease_ms, now_ms, found.hidden, json.dumps(parents))

        def also(connection: Connection) -> None:
            there = connection.execute("SELECT epoch FROM topics WHERE name = ?", (topic.name,)).fetchone()
            if there != (epoch,):
                raise _Moved(f"{topic.name} has changed")  # changed by another node, or deleted
            connection.execute(
                "INSERT INTO front_pravega_transactions "
                "(topic, high, low, state, lease_ms, created_ms, hidden, parents) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )

        def begun() -> None:
            self._renew(found)
            self.open.add(found)

        # The hidden topic has the stream's demands, so events are checked when written, and a commit is never refused.
        config = {**demands(topic.config), **KEEP}
        beside = Beside(topic.topic_id.bytes, tuple(topic.place(parent)[1] for parent in parents))
        await catalog.create_topic(
            found.hidden, len(parents), config, kind=TopicKind.TRANSIENT, also=also, then=begun, beside=beside
        )
        return found

    async def ping(self, transaction: Transaction, lease_ms: int) -> None:
        """Renew the transaction's lease with ``lease_ms``. Raises an error of the database."""
        transaction.lease_ms = lease_ms
        self._renew(transaction)
        if not self.ends(transaction):
            change = (
                "UPDATE front_pravega_transactions SET pings = pings + 1, lease_ms = ? "
                "WHERE topic = ? AND high = ? AND low = ?"
            )
            row = (lease_ms, *_key(transaction))
            await self._node.db.run(lambda connection: connection.execute(change, row))

    def is_overdue(self, transaction: Transaction) -> bool:
        """Return whether the transaction has been open for longer than ``transaction_max_execution_ms``."""
        return transaction.created_ms + self._settings.transaction_max_execution_ms < clock.now_ms()

    async def commit(self, transaction: Transaction) -> bool:
        """Decide durably to commit, unless an abort was decided before; return whether it is committed. The commit
        is carried out in the background, one after the other per stream, in the order of the decisions. Raises
        LogError."""
        await self._decided(transaction, TxnState.COMMITTING)
        return transaction.state in (TxnState.COMMITTING, TxnState.COMMITTED)

    async def abort(self, transaction: Transaction) -> bool:
        """Decide durably to abort, like :meth:`commit`; return whether it is aborted."""
        await self._decided(transaction, TxnState.ABORTING)
        return transaction.state in (TxnState.ABORTING, TxnState.ABORTED)

    async def _decided(self, transaction: Transaction, wanted: TxnState) -> None:
        """Wait until it is durable how the transaction ends: as ``wanted``, or as was decided before."""
        if transaction.state is TxnState.OPEN and transaction.deciding is None:
            # A task of its own, because cancelling the caller must not interrupt the decision.
            transaction.deciding = self._tasks.spawn(self._decide(transaction, wanted))
        if transaction.deciding is not None:
            await asyncio.shield(transaction.deciding)

    async def _decide(self, transaction: Transaction, wanted: TxnState) -> None:
        topic = self._node.catalog.topics.get(transaction.topic)
        note = self._node.db.changes.note(FOLLOWED, [transaction.hidden])
        key = _key(transaction)
        roots = [] if topic is None else [topic.place(parent)[1] for parent in transaction.parents]

        def decide(connection: Connection, repeated: Mapping[int, int] | None = None) -> _Decision | None:
            query = f"SELECT state, decided, targets FROM front_pravega_transactions {_ONE}"
            row = connection.execute(query, key).fetchone()
            if row is None:  # another node has decided and carried it out, or the stream is gone
                found = (
                    None if topic is None else outcome(connection, topic.topic_id, transaction.high, transaction.low)
                )
                return _Decision(found or TxnState.ABORTED, 0, [])
            if row[0] != TxnState.OPEN:
                return _Decision(TxnState(row[0]), row[1], json.loads(row[2] or "[]"))
            targets: list[int] = []
            if wanted is TxnState.COMMITTING and topic is not None:
                active = {**_active(connection, topic.name), **(repeated or {})}
                if not active.keys() >= set(roots):
                    return None
                targets = [active[root] for root in roots]
            query = "SELECT COALESCE(MAX(decided), 0) + 1 FROM front_pravega_transactions WHERE topic = ?"
            (number,) = connection.execute(query, (transaction.topic,)).fetchone()
            change = f"UPDATE front_pravega_transactions SET state = ?, decided = ?, targets = ? {_ONE}"
            stored = json.dumps(targets) if targets else ""
            connection.execute(change, (int(wanted), number, stored, *key))
            note(connection)
            return _Decision(wanted, number, targets)

        def repeat(connection: Connection, repeated: Mapping[int, int]) -> None:
            row = connection.execute(f"SELECT state FROM front_pravega_transactions {_ONE}", key).fetchone()
            if row != (TxnState.OPEN,):
                raise _Moved(f"transaction {transaction.hex_id} was decided meanwhile")
            if self._node.db.engine.shared:
                _require_level(connection, transaction.topic)
            decide(connection, repeated)

        def decided(found: _Decision | None) -> None:
            if found is None or transaction.state is not TxnState.OPEN:
                return  # the stream was deleted meanwhile, or another node's decision came first
            if found.state in ENDED:
                self._ended(transaction, found.state)
            else:
                self._take_decision(transaction, *found)

        try:
            while await self._node.db.run(decide, then=decided) is None:
                # Segments were split or merged since it began: it is decided with the change that repeats them.
                try:
                    await self._node.db.changes.catch_up()
                    with suppress(_Moved):
                        await self._node.catalog.repeat_partitions(transaction.topic, transaction.parents, repeat)
                except (TopicEnded, TopicNotFound):
                    wanted = TxnState.ABORTING
        finally:
            transaction.deciding = None

    def _take_decision(self, transaction: Transaction, state: TxnState, number: int, targets: list[int]) -> None:
        """Apply a durable decision in memory, and have it carried out."""
        transaction.state, transaction.decided, transaction.targets = state, number, targets
        if state is TxnState.COMMITTING:
            for place in self._own_places(transaction):
                segment = self._own_segment(transaction, place)
                if segment is not None:
                    segment.loose_sealed = True  # everything acknowledged until now is committed
        self._wake(transaction.topic)

    def _ended(self, transaction: Transaction, state: TxnState) -> None:
        transaction.state = state
        self.open.remove(transaction)
        transaction.ended.set()

    def _changed(self, change: Change) -> None:
        """Drop a deleted stream's transactions: a recreated stream does not have them."""
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            for one in self.open.in_topic(change.topic.name):
                self._stream_gone(one)

    def _stream_gone(self, transaction: Transaction) -> None:
        self.open.forget(transaction)
        if transaction.state not in ENDED:
            transaction.state = TxnState.ABORTING
            transaction.ended.set()  # releases the waiters: only clean-up is left
        if self.ends(transaction):
            self._tasks.spawn(self._clear(transaction))
        else:
            self.open.remove(transaction)

    async def abort_all(self, topic: str) -> None:
        """Abort the open transactions of a stream, and wait until all have ended."""
        for one in self.open.in_topic(topic):
            await self.abort(one)
            await one.ended.wait()

    async def expire(self, now_ms: int) -> None:
        """Abort the transactions whose lease has ended, or that are overdue. A chore."""
        now = time.monotonic()
        mine = [one for one in self.open if one.state is TxnState.OPEN and one.deciding is None and self.ends(one)]
        await self._look_for_pings([one for one in mine if min(one.look_at, one.deadline) < now])
        await self._rounds.each([one for one in mine if one.deadline < now or self.is_overdue(one)], self._expire)

    async def _look_for_pings(self, transactions: list[Transaction]) -> None:
        """Read from the database which transactions were pinged at other nodes."""
        for first in range(0, len(transactions), _MOVED):
            some = transactions[first : first + _MOVED]
            keys = [_key(one) for one in some]

            def read(connection: Connection, keys: list[tuple[str, int, int]] = keys) -> list[tuple[int, int] | None]:
                query = f"SELECT pings, lease_ms FROM front_pravega_transactions {_ONE}"
                return [connection.execute(query, key).fetchone() for key in keys]

            for one, row in zip(some, await self._node.db.run(read), strict=True):
                if row is not None and row[0] != one.pings:
                    one.pings, one.lease_ms = row
                    self._renew(one)
                else:
                    one.look_at = time.monotonic() + one.lease_ms / 1000 * _LOOKS

    async def _expire(self, transaction: Transaction) -> None:
        log.info("a transaction is aborted: its lease has ended", topic=transaction.topic, id=transaction.hex_id)
        try:
            self.timed_out += await self.abort(transaction)
        except LogError as error:
            log.warning("a transaction is aborted later", topic=transaction.topic, reason=str(error))

    # --- carrying out ----------------------------------------------------------------------------------------------

    def _wake(self, topic: str) -> None:
        """Start the task that carries out a stream's decisions in their order, or have it look again."""
        if topic in self._workers:
            self._more.add(topic)
        elif not self._closing:
            self._workers[topic] = asyncio.create_task(self._work(topic), name=f"ends of transactions of {topic}")

    async def _work(self, topic: str) -> None:
        try:
            while True:
                self._more.discard(topic)
                decided = [one for one in self.open.in_topic(topic) if one.state is not TxnState.OPEN]
                for one in sorted(decided, key=lambda one: one.decided):
                    work = partial(self._end, one)
                    end = partial(fail_as_log_error, work, self._node.barrier, "end of a transaction", topic=topic)
                    await carry_out(end, self._few, LogError, "end of a transaction", topic=topic)
                if topic not in self._more:
                    return
        finally:
            del self._workers[topic]

    async def _end(self, transaction: Transaction) -> None:
        """Do this node's part of a decided commit or abort."""
        if transaction.topic not in self._node.catalog.topics:
            return  # the stream was deleted
        if transaction.state is TxnState.COMMITTING:
            places = self._own_places(transaction)
            for place in places:
                await self._merge(transaction, place)
            if not places:
                return
            ended = await self._store_merged(transaction, places)
            for place in places:
                self._seal_again(transaction.topic, transaction.target(place))
            if ended:
                self._ended(transaction, TxnState.COMMITTED)
                await self._clear(transaction)
        elif transaction.state is TxnState.ABORTING and self.ends(transaction):
            await self._store_end(transaction, TxnState.ABORTED)
            self._ended(transaction, TxnState.ABORTED)
            await self._clear(transaction)

    async def _merge(self, transaction: Transaction, place: int) -> None:
        """Append one segment of the transaction to its target."""
        segment = self._own_segment(transaction, place)
        parent = self._segments.find(self.open.parent_name(transaction, transaction.target(place)) or "")
        if segment is None or parent is None:
            raise LogError(f"a segment of transaction {transaction.hex_id} cannot be found")
        segment.loose_sealed = True
        await self._segments.merges.ended_with(transaction.hidden)
        await segment.quiet()  # everything acknowledged is committed
        await append_to_parent(transaction, segment, parent, self._account)

    def _seal_again(self, topic: str, number: int) -> None:
        """Have the end of a sealed segment made final, which the commit of a transaction has put off."""
        partition = partition_of(self._node.catalog.topics.get(topic), number)
        if partition is not None and not partition.is_active:
            self._node.catalog.seal_again(partition.stream_id)

    async def _store_merged(self, transaction: Transaction, places: Sequence[int]) -> bool:
        """Store which segments are appended; return whether these were the last."""
        topic = self._node.catalog.topics.get(transaction.topic)
        note = self._node.db.changes.note(FOLLOWED, [transaction.hidden])
        key = _key(transaction)

        def store(connection: Connection) -> bool:
            row = connection.execute(f"SELECT merged FROM front_pravega_transactions {_ONE}", key).fetchone()
            if row is None:
                return True  # the stream was deleted, or an earlier call did it and was cut off
            merged = {*json.loads(row[0]), *places}
            if len(merged) < len(transaction.parents):
                change = f"UPDATE front_pravega_transactions SET merged = ? {_ONE}"
                connection.execute(change, (json.dumps(sorted(merged)), *key))
                return False
            _store_end(connection, transaction, topic, TxnState.COMMITTED)
            note(connection)
            return True

        done = await self._node.db.run(store)
        transaction.merged.update(places)
        return done

    async def _store_end(self, transaction: Transaction, state: TxnState) -> None:
        topic = self._node.catalog.topics.get(transaction.topic)
        note = self._node.db.changes.note(FOLLOWED, [transaction.hidden])

        def store(connection: Connection) -> None:
            _store_end(connection, transaction, topic, state)
            note(connection)

        await self._node.db.run(store)

    async def _clear(self, transaction: Transaction) -> None:
        """Delete the transaction's hidden topic."""
        self.open.remove(transaction)
        work = partial(self._node.catalog.delete_topic, transaction.hidden)
        with suppress(TopicNotFound):
            await carry_out(work, asyncio.Semaphore(1), _AGAIN, "deletion of a transaction", topic=transaction.topic)

    def _own_places(self, transaction: Transaction) -> list[int]:
        """Return the places of the segments that this node has yet to append."""
        is_mine = self._owners.is_mine
        count = len(transaction.parents)
        return [at for at in range(count) if at not in transaction.merged and is_mine(transaction.hidden, at)]

    def _own_segment(self, transaction: Transaction, place: int) -> Segment | None:
        return self._segments.find(self.open.name(transaction, transaction.parents[place]))


def _read(connection: Connection, hidden: Collection[str] | None) -> dict[str, _Row]:
    """Return the transactions that have not ended, by hidden topic; only those in ``hidden``, unless that is None."""
    query = f"SELECT {', '.join(_Row._fields)} FROM front_pravega_transactions"
    rows = (_Row(*row) for row in rows_named(connection, query, "hidden", hidden))
    return {row.hidden: row for row in rows if row.state not in ENDED}


def _store_end(connection: Connection, transaction: Transaction, topic: Topic | None, state: TxnState) -> None:
    # No outcome is kept for a deleted stream.
    deleted = connection.execute(f"DELETE FROM front_pravega_transactions {_ONE}", _key(transaction)).rowcount
    if deleted and topic is not None:
        keep(connection, topic.topic_id, transaction.high, transaction.low, state)


def _active(connection: Connection, topic: str) -> dict[int, int]:
    """Return the numbers of a stream's active segments, by their roots."""
    query = "SELECT idx, beside FROM partitions WHERE topic = ? AND sealed_epoch IS NULL"
    return {number if root < 0 else root: number for number, root in connection.execute(query, (topic,))}


def _require_level(connection: Connection, topic: str) -> None:
    """Raise LogUnavailable if a stream has transactions while the cluster has nodes of the release before, which could
    commit none to sealed segments."""
    query = "SELECT 1 FROM front_pravega_transactions WHERE topic = ? LIMIT 1"
    is_behind = versions.level(connection).stores < versions.REPEATED_PARTITIONS
    if is_behind and connection.execute(query, (topic,)).fetchone() is not None:
        raise LogUnavailable(f"{topic} has open transactions: it is scaled when every node has this release")


def _key(transaction: Transaction) -> tuple[str, int, int]:
    return transaction.topic, transaction.high, transaction.low
