"""The service of transactions: it gives the coordinator time, the database and the logs, and ends transactions in the
logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.deadlines import Alarm
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import LogError
from bridges.log.transactions.ends import TransactionEnds
from kafka_front.service.transactions import tables
from kafka_front.service.transactions.coordinator import (
    CONCURRENT,
    NOT_AVAILABLE,
    Coordinator,
    Limits,
    Now,
    Producer,
    Save,
)
from kafka_front.service.transactions.owned import OwnedTransactions
from kafka_front.service.transactions.transaction import DECIDED, Row, Transaction, TxnState, rebuild
from kafka_front.wire.errors import KafkaError

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.catalog.topics.topic import Change
    from bridges.log.transactions.open_transaction import Place
    from bridges.node.front import NodeServices
    from kafka_front.settings import KafkaSettings

T = TypeVar("T")

_log = structlog.get_logger("anabranch.kafka.transactions")

_PATIENCE_S = 2.0
"""How long a request waits for an end in progress, before its client has to retry."""
_ROWS_PER_TRANSACTION = 1000
_SHOWN = 10_000
"""Most resting ids shown to people, the last used ones."""
_COUNTED_MS = 60_000
"""Interval at which the ids in the database are counted."""
_ABORTS = 100
"""How often an operator's abort waits for a row of the same transactional id in flight to the database."""


class Transactions:
    """The transactions of a node's clients. Call :meth:`load` first, :meth:`close` at the end; belongs to the event
    loop. ``take_id`` returns a new producer id."""

    def __init__(self, node: NodeServices, settings: KafkaSettings, take_id: Callable[[], Awaitable[int]]) -> None:
        self._node = node
        self._settings = settings
        self._take_id = take_id
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop, self._advance)
        self._closed = False
        # Rows of ended transactions that are not stored yet; another save of the id replaces that.
        self._settled: dict[str, Row] = {}
        # Ids that are being read from the database.
        self._reading: dict[str, asyncio.Task[bool]] = {}
        self._tasks = TaskSet()
        self._looked_at = ""
        self._counted_ms = 0
        self._has_told = False
        self.ids = 0
        """Number of transactional ids in the database at the last count."""
        self.changed: Callable[[str], None] = lambda name: None
        """Called after each durable change of a transactional id."""
        limits = Limits(
            settings.transaction_max_timeout_ms, settings.transactional_ids, settings.transaction_partitions
        )
        self.coordinator = Coordinator(limits, self, self._begin_end, node.barrier)
        self.owned = owned = OwnedTransactions(node, self)
        self._ends: TransactionEnds[Transaction] = TransactionEnds(
            owned.markers, node.barrier, "a transaction", owned.finish, self._ended, owned.ask_to_mark
        )

    # --- life -------------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        """Return the coordinator's time."""
        return Now(int(self._loop.time() * 1000), now_ms())

    async def load(self) -> None:
        """Load the transactional ids of this node's slots, and carry out their decisions. Raises LogError."""
        self._node.catalog.on_change.append(self._changed)
        await self.owned.begin()

    def restore(self, row: Row, places: Iterable[Place], groups: Iterable[str]) -> None:
        """Coordinate an id from now on, and carry out its decision if it has one."""
        transaction = self.coordinator.restore(self.now(), row, places, groups)
        if transaction.state in DECIDED:
            self._begin_end(transaction)
        self.touched()

    async def close(self) -> None:
        """Stop all work; the next start continues it."""
        self._closed = True
        self._alarm.cancel()
        await self._tasks.close()
        await self._ends.close()
        await self.owned.close()

    def touched(self) -> None:
        """Set the timer to the coordinator's next deadline, after each use of the coordinator."""
        deadline = self.coordinator.next_deadline_ms
        if deadline is not None and not self._closed:
            self._alarm.set((deadline + 0.5) / 1000)

    def _advance(self, now: float) -> None:
        try:
            self.coordinator.advance(Now(int(now * 1000), now_ms()))
        finally:
            self.touched()

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self.coordinator.open_places.topic_deleted(change.topic.name)
            self.owned.topic_deleted(change.topic)

    # --- the journal ------------------------------------------------------------------------------------------------

    def save(self, save: Save, done: Callable[[Now, bool], None]) -> None:
        """Save a change for the coordinator; see :class:`.coordinator.Journal`."""
        self._settled.pop(save.row.transactional_id, None)
        hold = self.owned.holding(save.row.transactional_id)

        def write(connection: Connection) -> None:
            hold(connection)
            tables.save(connection, save.row, save.places, save.groups, anew=save.anew)

        try:
            written = self._node.db.submit(write)
        except LogError as error:
            self._loop.call_soon(self._refused, done, error)
            return

        def answer(future: asyncio.Future[None]) -> None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            if error is not None:
                self._refused(done, error)
            else:
                self._report(done, True)
                self.changed(save.row.transactional_id)

        written.add_done_callback(answer)

    def _refused(self, done: Callable[[Now, bool], None], error: BaseException) -> None:
        _log.warning("a transaction's state is not durable", reason=str(error))
        self._report(done, False)

    def _report(self, done: Callable[[Now, bool], None], durable: bool) -> None:
        self._node.barrier.call("a transaction's state", done, self.now(), durable)
        self.touched()

    # --- ends -------------------------------------------------------------------------------------------------------

    def _begin_end(self, transaction: Transaction) -> None:
        if not self._closed:
            self._ends.begin([transaction])

    def _ended(self, transaction: Transaction) -> None:
        self.coordinator.ended(self.now(), transaction)
        self._settled[transaction.row.transactional_id] = transaction.row

    async def settle(self, now_ms: int) -> None:
        """Store which decisions were carried out, and forget ids that have expired (a chore)."""
        while self._settled:
            names = list(self._settled)[:_ROWS_PER_TRANSACTION]
            rows = [self._settled.pop(name) for name in names]

            await self._keep(tables.settle, rows)
            for row in rows:
                self.coordinator.stored(row)
        expired = self.coordinator.expired(now_ms - self._settings.transactional_id_expiration_ms)
        gone = [row for row in expired[:_ROWS_PER_TRANSACTION] if self.coordinator.forget(row)]
        if gone:
            await self._keep(tables.forget, gone)
        await self._look_at_resting(now_ms - self._settings.transactional_id_expiration_ms)

    async def _look_at_resting(self, before_ms: int) -> None:
        """Check the next ids in the database, and forget resting ones that have expired."""
        now = self.now().ms
        if now - self._counted_ms >= _COUNTED_MS:
            self._counted_ms = now
            self.ids = await self._node.db.run(tables.count)
            self._tell_of_many()
        if not self.coordinator.rest:
            return
        rows = await self._node.db.run(partial(tables.after, name=self._looked_at, most=_ROWS_PER_TRANSACTION))
        self._looked_at = rows[-1].transactional_id if len(rows) == _ROWS_PER_TRANSACTION else ""
        known = self.coordinator.transactions
        gone = [
            row
            for row in rows
            if row.updated_ms < before_ms and row.transactional_id not in known and not Transaction(row=row).is_open
        ]
        if gone:
            await self._keep(tables.forget_unused, gone)

    async def forget(self, wanted: Callable[[str], bool], before_ms: int) -> int:
        """Forget ids for which ``wanted`` is true, without an open transaction and last used before ``before_ms`` (Unix
        time), whichever node coordinates them. Return their number. Raises LogError."""
        count, name = 0, ""
        known = self.coordinator.transactions
        while True:
            rows = await self._node.db.run(partial(tables.after, name=name, most=_ROWS_PER_TRANSACTION))
            gone = [
                row
                for row in rows
                if row.updated_ms < before_ms
                and not Transaction(row=row).is_open
                and wanted(row.transactional_id)
                and (row.transactional_id not in known or self.coordinator.forget(row))
            ]
            await self._node.db.run(partial(tables.forget_unused, rows=gone))
            self._tell(gone)
            count += len(gone)
            if len(rows) < _ROWS_PER_TRANSACTION:
                return count
            name = rows[-1].transactional_id

    def _tell_of_many(self) -> None:
        most = self._settings.transactional_ids
        if self.ids < most * tables.MANY:
            self._has_told = False
        elif not self._has_told:
            self._has_told = True
            _log.warning(
                "very many transactional ids: those of which nothing is open are in the database only; have producers"
                " use names again, or forget some with `anabranch transaction forget`",
                ids=self.ids,
                in_memory=len(self.coordinator.transactions),
                setting=f"kafka.transactional_ids ({most})",
            )

    # --- ids that rest in the database ------------------------------------------------------------------------------

    async def know(self, name: str) -> None:
        """Read an id into memory if it may rest in the database. Raises KafkaError: an unreadable id is not a missing
        one."""
        reading = self._reading.get(name)
        if reading is None:
            if not self.coordinator.rest or name in self.coordinator.transactions:
                return
            reading = self._reading[name] = self._tasks.spawn(self._read(name))
            reading.add_done_callback(lambda _: self._reading.pop(name, None))
        await asyncio.wait([reading])
        if reading.cancelled() or not reading.result():
            raise KafkaError(NOT_AVAILABLE, f"transactional id {name!r} could not be read")

    async def _read(self, name: str) -> bool:
        """Read an id into memory; return whether all is known that the database has of it."""
        try:
            found = await self._node.db.run(partial(tables.whole, name=name))
        except LogError as error:
            _log.warning("a transactional id could not be read", transactional_id=name, reason=str(error))
            return False
        if found is None or not self.owned.owns(name) or name in self.coordinator.transactions:
            return True
        if not self.coordinator.has_room():
            return False
        self.restore(*found)
        return True

    async def every(self) -> AsyncIterator[Transaction]:
        """Iterate over all ids that this node coordinates, resting ones as the database has them. Raises LogError."""
        known = self.coordinator.transactions
        async for one in in_turns(list(known.values())):
            yield one
        name = ""
        while self.coordinator.rest:
            rows = await self._node.db.run(partial(tables.after, name=name, most=_ROWS_PER_TRANSACTION))
            for row in rows:
                if row.transactional_id not in known and self.owned.owns(row.transactional_id):
                    yield Transaction(row=row)
            if len(rows) < _ROWS_PER_TRANSACTION:
                return
            name = rows[-1].transactional_id

    async def read_others(self) -> list[Transaction]:
        """Return the ids that are not in this node's memory, as the database has them. Raises LogError."""
        known = self.coordinator.transactions
        read = partial(tables.read, idle=_SHOWN, wanted=lambda name: name not in known)
        rows, places, groups = await self._node.db.run(read)
        return [
            rebuild(row, places.get(row.transactional_id, ()), groups.get(row.transactional_id, ())) for row in rows
        ]

    async def _keep(self, keep: Callable[[Connection, list[Row]], None], rows: list[Row]) -> None:
        def write(connection: Connection) -> None:
            keep(connection, [row for row in rows if self.owned.may_keep(connection, row.transactional_id)])

        await self._node.db.run(write)
        self._tell(rows)

    def _tell(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.changed(row.transactional_id)

    def forget_settled(self, gone: Callable[[str], bool]) -> None:
        """Drop the rows of ended transactions of ids that other nodes coordinate now: those nodes store them."""
        for name in [name for name in self._settled if gone(name)]:
            del self._settled[name]

    # --- for requests -----------------------------------------------------------------------------------------------

    async def init(self, name: str, timeout_ms: int, expected: tuple[int, int] | None) -> Producer:
        """Handle InitProducerId; wait a while for the end of a transaction that it aborts. Raises KafkaError,
        LogError."""
        return await self._once_ended(name, lambda: self._init(name, timeout_ms, expected))

    async def _init(self, name: str, timeout_ms: int, expected: tuple[int, int] | None) -> Producer:
        await self.know(name)
        self.owned.require(name)
        fresh = await self._take_id() if self.coordinator.wants_id(name) else None
        self.owned.require(name)  # another node may coordinate it now
        try:
            return await awaited(
                lambda reply: self.coordinator.init(self.now(), name, timeout_ms, expected, fresh, reply)
            )
        finally:
            self.touched()

    async def add(
        self, name: str, producer_id: int, epoch: int, places: list[tuple[str, int]], groups: list[str]
    ) -> None:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn; wait a while for the last transaction's end. Raises
        KafkaError."""

        async def add() -> None:
            await self.know(name)
            self.owned.require(name)
            durable: asyncio.Future[None] = awaited(
                lambda reply: self.coordinator.add(self.now(), name, producer_id, epoch, places, groups, reply)
            )
            await durable

        await self._once_ended(name, add)

    async def end(self, name: str, producer_id: int, epoch: int, *, commit: bool, bumps: bool) -> Producer:
        """Handle EndTxn. Readers see the result when this returns, unless that takes long. Raises KafkaError,
        LogError."""
        await self.know(name)
        fresh = await self._take_id() if bumps and self.coordinator.wants_id(name) else None

        async def end() -> Producer:
            self.owned.require(name)
            return await awaited(
                lambda reply: self.coordinator.end(
                    self.now(), name, producer_id, epoch, commit, bumps=bumps, fresh_id=fresh, reply=reply
                )
            )

        producer = await self._once_ended(name, end)
        await self._has_ended(name)
        return producer

    async def _once_ended(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call a second time if a transaction in progress refuses the first call, and ends within the patience of a
        request."""
        try:
            return await call()
        except KafkaError as refused:
            if refused.code != CONCURRENT or not await self._has_ended(name):
                raise
        return await call()

    async def abort(self, name: str) -> None:
        """Abort the open transaction of an id that this node coordinates. It has ended when this returns, unless that
        takes long. Raises KafkaError, LogError."""
        await self.know(name)
        for _ in range(_ABORTS):
            try:
                self.coordinator.abort(self.now(), name)
                break
            except KafkaError as refused:
                if refused.code != CONCURRENT:
                    raise
            await self._node.db.await_writes()  # waits for the row in flight
        else:
            raise KafkaError(CONCURRENT)
        self.touched()
        await self._has_ended(name)

    async def _has_ended(self, name: str) -> bool:
        """Wait for an end that is decided or in progress; return whether it came within the patience of a request."""
        transaction = self.coordinator.transactions.get(name)
        if transaction is None:
            return True
        if transaction.state is not TxnState.ONGOING and transaction.state not in DECIDED:
            return True
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await transaction.ended.wait()
        except TimeoutError:
            return False
        return True
