"""One partition: append, read, wait, trim (docs/design.md, "Writing" and "Reading").

This is the partition's interface and life cycle; its append path, reading, waiters and upkeep do the work. A log is
opened on its first use. After the backend failed it, it is opened again in a newer epoch: batches in flight are
answered with an error, and the state is rebuilt from what is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakSet

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import step_through
from bridges.errors import (
    AbortedNotAtHand,
    ImportFenced,
    LogDeleted,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    TopicImporting,
    TopicInternal,
    TransactionsOpen,
)
from bridges.formats import FormatId
from bridges.formats.kafka import marker
from bridges.formats.producer import InTransaction, fence
from bridges.log.damage.skips import Span, merged
from bridges.log.interfaces import (
    NOT_APPENDED,
    AppendDone,
    Appended,
    Batch,
    Guard,
    Phase,
    Place,
    Promised,
    ReadDone,
    Rebuilt,
    Replacing,
    Waiter,
)
from bridges.log.partition.append_path import AppendPath, Hold
from bridges.log.partition.reading import Reading, read_error
from bridges.log.partition.tail_cache import Tail
from bridges.log.partition.upkeep import Upkeep, rebuild_cost
from bridges.log.partition.waiters import Waiters, until
from bridges.log.state.partition_state import PartitionState
from bridges.log.transactions.partition_transactions import NEVER, Aborted, without_aborted
from sbp_back.errors import SbpError

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.byte_positions.column import BytePlace
    from bridges.log.ledger.ledger import Durable
    from bridges.log.ledger.rules import Last
    from bridges.log.logs import Logs
    from bridges.log.streams import Writer
    from sbp_back.wire.model import Entry

__all__ = [
    "NOT_APPENDED",
    "AppendDone",
    "Appended",
    "Batch",
    "Guard",
    "Hold",
    "PartitionLog",
    "Phase",
    "Place",
    "ReadDone",
    "Rebuilt",
    "Waiter",
    "read_error",
    "rebuild_cost",
]


class PartitionLog:
    """The single writer and the readers' view of one partition."""

    __slots__ = (
        "_appends",
        "_barrier",
        "_logs",
        "_open_callbacks",
        "append",
        "at_hand",
        "available",
        "epoch",
        "final_offset",
        "high_watermark",
        "import_epoch",
        "locate",
        "log_start_offset",
        "measure",
        "partition",
        "phase",
        "promised",
        "read",
        "reading",
        "replacements",
        "replacing",
        "skipped",
        "state",
        "stream_id",
        "successors",
        "tail",
        "topic",
        "upkeep",
        "waiters",
        "within",
    )

    def __init__(self, topic: str, partition: int, stream_id: int, logs: Logs) -> None:
        self.topic = topic
        self.partition = partition
        self.stream_id = stream_id
        self.phase = Phase.CLOSED
        self.epoch = -1
        self.log_start_offset = 0
        self.high_watermark = 0
        self.state = PartitionState()
        self.skipped: tuple[Span, ...] = ()
        """Spans that an operator declared lost: readers find a gap there."""
        self.successors: tuple[int, ...] | None = None
        """The partitions that replace a sealed one; None while this one takes appends itself."""
        self.final_offset: int | None = None
        """The final end of a sealed partition; None until it is certain. A reader at this offset has read
        everything."""
        self.import_epoch = -1
        """While a migration fills the partition: the run that may write; other writers are refused."""
        self.replacing: Replacing | None = None
        """The replacement by compaction that is in flight."""
        self.promised: WeakSet[Promised] = WeakSet()
        """Answers that contain batches of certain offsets and sizes: these bytes must stay until the answers have read
        them."""
        self.replacements = 0
        """Number of replacements by compaction since this object was made."""
        self.tail = Tail(logs.cache)
        self._logs = logs
        self._barrier = logs.barrier
        self._open_callbacks: list[Callable[[LogError | None], None]] = []
        self.waiters = Waiters(logs)
        upkeep = Upkeep(self, logs)
        self._use(upkeep, AppendPath(self, logs, upkeep, self.waiters), Reading(self, logs))

    def _use(self, upkeep: Upkeep, appends: AppendPath, reading: Reading) -> None:
        self.upkeep = upkeep
        self._appends = appends
        self.reading = reading
        # Calls for every batch go straight to the part that handles them.
        self.append = appends.append
        self.read = reading.read
        self.at_hand = reading.at_hand
        self.within = reading.within
        self.locate = reading.locate
        self.measure = reading.measure
        self.available = reading.available

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic}-{self.partition}, {self.phase.value}, high_watermark={self.high_watermark})"

    @property
    def next_offset(self) -> int:
        """Return the offset that the next record gets."""
        taken = self._appends.taken
        return taken.next_offset if taken is not None else self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Return the first offset that a reader of committed data must not see yet: the beginning of the first open
        transaction."""
        first = self.state.transactions.first_open
        return self.high_watermark if first >= self.high_watermark else max(first, self.log_start_offset)

    @property
    def last_append_ms(self) -> int:
        """Return when the last batch was appended, ms since the epoch; below 0: unknown."""
        return self.state.last[2]

    def bytes_since(self, since_ms: int) -> int:
        """Return the bytes that were appended since ``since_ms`` (ms since the epoch)."""
        return self.state.index.bytes_since(since_ms)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of payload kept, to within one interval of the offset index."""
        return self.state.index.size_bytes

    @property
    def leader_epoch(self) -> int:
        """Return the epoch that clients get: at least that of the log."""
        return max(self.epoch, self._logs.leader_epoch(self.topic, self.partition))

    # --- opening ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.phase is Phase.OPEN

    is_current = is_open

    @property
    def is_deleted(self) -> bool:
        """Return whether the topic was deleted."""
        return self.phase is Phase.DELETED

    def when_open(self, callback: Callable[[LogError | None], None]) -> None:
        """Call back once the log can be used (at once if it can), or with the error that prevents it. Its state is then
        no older than this call, even if this node was cut off and another node may have taken over."""
        if self.phase is Phase.OPEN:
            if self._logs.is_sure:
                callback(None)
            else:
                self._logs.when_sure(callback)
        elif self.phase is Phase.DELETED:
            callback(LogDeleted(f"{self.topic}-{self.partition} was deleted"))
        else:
            self._open_callbacks.append(callback)
            self.ensure_opening()

    def ensure_opening(self) -> None:
        """Open the log, unless it is open or deleted."""
        if self.phase is Phase.CLOSED:
            self.phase = Phase.OPENING
            self._logs.opener.want(self)

    def reopen_if_wanted(self) -> None:
        """Open a log that failed during its opening again, for requests that arrived since."""
        if self._appends.has_queued or self._open_callbacks:
            self.ensure_opening()

    def opened(self, writer: Writer, found: Rebuilt) -> None:
        """Begin to serve: the owner has taken the partition in ``writer.epoch`` and has rebuilt its state,
        ``found``."""
        assert self.phase is Phase.OPENING, self
        self.state = found.state
        self.skipped = found.skipped
        self.epoch = writer.epoch
        self.log_start_offset = writer.start_offset
        self.high_watermark = writer.confirm_offset
        if self.final_offset is not None:
            # Behind it may lie batches of a writer that the backend does not fence (docs/sbp.md).
            self.high_watermark = min(self.high_watermark, self.final_offset)
        self.upkeep.opened(found)
        self.phase = Phase.OPEN
        self._appends.take(writer)

    def open_failed(self, error: LogError) -> None:
        """Answer waiters with the error of a failed opening; the next use tries again."""
        self.fail(error)
        if self.phase is Phase.OPENING:
            self.phase = Phase.CLOSED
        self._appends.refuse_queued(error)
        self.settle_open(error)

    def settle_open(self, error: LogError | None) -> None:
        """Answer the waiters for an open log, in turns: clients choose how many there are."""
        callbacks, self._open_callbacks = self._open_callbacks, []
        answers = (self._barrier.call("opening answer", callback, error) for callback in callbacks)
        step_through(answers, self._logs.schedule)

    def ready(self) -> Awaitable[None]:
        """Await :meth:`when_open`; raises its error."""
        return awaited(lambda settle: self.when_open(lambda error: settle(None, error)))

    def refresh(self) -> Awaitable[None]:
        """Return like :meth:`ready`. A log of another node also fetches its present state
        (:class:`bridges.log.remote.log_elsewhere.LogElsewhere`)."""
        return self.ready()

    def fail(self, error: LogError) -> None:
        """Answer everything in flight with ``error``, because the backend failed the log; the next use opens it
        again."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.CLOSED
        self.tail.clear()
        self._appends.fail(error)
        self.moved()

    async def close(self) -> None:
        """Close the writer; nothing may be in flight any more."""
        writer = self._appends.release()
        if self.phase is Phase.OPEN:
            self.phase = Phase.CLOSED
        self.tail.clear()
        self._appends.refuse_queued(LogUnavailable(f"{self.topic}-{self.partition} is closed"))
        if writer is not None:
            await writer.close()

    async def come_to_rest(self) -> None:
        """Finish what is in flight, save a snapshot, and end the stream for this log's epoch; appends that arrive
        meanwhile are queued. The caller gives the log up next. Raises LogError."""
        hold = await self.hold()
        await self.until(lambda: not self._appends.in_flight or not self.is_open)
        if self.is_open and self.has_moved:
            error = await self._logs.snapshotter.take(self)
            if error is not None:
                raise error
        try:
            await self._logs.client.seal(self.stream_id, self.epoch)
        except SbpError as error:
            raise LogUnavailable(f"{self.topic}-{self.partition} cannot be ended: {error}") from error
        assert hold is not None

    def give_up(self, error: LogError) -> None:
        """Refuse all waiters with ``error`` and forget the state, because another node owns the partition."""
        writer = self._appends.release()
        self.fail(error)
        self._appends.refuse_queued(error)
        if self.phase is not Phase.OPENING:
            self.state = PartitionState()
        if writer is not None:
            self._logs.opener.let_go(writer)

    def delete(self) -> None:
        """Refuse all waiters, for good, because the topic was deleted."""
        self.phase = Phase.DELETED
        writer = self._appends.release()
        if writer is not None:
            self._logs.opener.let_go(writer)
        gone = LogDeleted(f"{self.topic}-{self.partition} was deleted")
        self._appends.refuse_queued(gone)
        self.settle_open(gone)
        self.fail(gone)
        # The parts refer back to this log. Give it those that all deleted logs share, so that reference counting frees
        # it: the collector looks through everything only once in many hours, and logs of transactions come and go.
        shared = self._logs.deleted
        if shared is not self:
            self._use(shared.upkeep, shared._appends, shared.reading)

    # --- append -------------------------------------------------------------------------------------------------

    def last(self, kind: int, key: bytes) -> Last | None:
        """Return a writer's last number, even if its batch is not durable yet; None if the open log does not know the
        writer."""
        return self.state.ledger.last(kind, key)

    async def hold(self) -> Hold:
        """Take the exclusive right to append until it is released; other appends wait, and follow. For data that must
        lie together and does not fit into one batch. Raises LogError."""
        while True:
            await self.ready()
            hold = self._appends.hold()
            if hold is not None:
                return hold
            await self.until(lambda: self._appends.may_hold or not self.is_open)

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        commit: bool,
        done: AppendDone,
        *,
        coordinator_epoch: int = 0,
        hold: Hold | None = None,
    ) -> None:
        """Append the marker that ends a producer's open transaction: all of it is then committed, or aborted.

        It takes an offset, even when nothing is open. ``hold``: append through this hold. Batches of the producer's
        earlier epochs are refused from then on (KIP-890; not for an epoch of -1). The coordinator repeats the marker
        until it is durable. Errors are those of :meth:`append`: PartitionSealed means that nothing of the producer is
        open there, ProducerFenced that it has a later epoch.
        """
        part = InTransaction(producer_id, epoch, commit)
        payload = marker(part, now_ms(), coordinator_epoch)
        append = self.append if hold is None else hold.append
        append(Batch(payload, 1, int(FormatId.KAFKA), producer=fence(part), transaction=part, own=True), done)

    def refuse(self, waiting: Iterable[AppendDone], error: LogError) -> None:
        """Answer appends with ``error``, a bounded number in one turn."""
        self._appends.refuse(waiting, error)

    def durable_rows(self) -> Durable:
        """Return, for each writer with batches in flight, its row of the ledger before these."""
        return self._appends.durable_rows()

    def overtaken(self, entries: list[Entry]) -> None:
        """Move everything in flight up, because another writer has appended ``entries`` behind the high watermark.

        Only a backend without epochs lets that happen (docs/sbp.md).
        """
        self._appends.overtaken(entries)

    def sealed(self, successors: tuple[int, ...], final_offset: int | None = None) -> None:
        """Refuse appends with PartitionSealed from now on, because the catalog has sealed the partition durably."""
        self.successors = successors
        self.final_offset = final_offset

    def not_importing(self, import_epoch: int) -> LogError:
        """Return why a client with this ``import_epoch`` (-1: no migration) may not change the partition."""
        place = f"{self.topic}-{self.partition}"
        if import_epoch < 0:
            return TopicImporting(f"{place} is being imported: nobody else may change it before it is handed over")
        if self.import_epoch < 0:
            return ImportFenced(
                f"{place} is not being imported, or was handed over: this migration may not write to it"
            )
        return ImportFenced(f"{place} is imported by run {self.import_epoch}: run {import_epoch} may not write to it")

    def awaits(self, batch: Batch) -> bool:
        """Return whether a sealed partition still takes ``batch``: one that was decided before its end is final, or the
        marker of a transaction that is open there."""
        part = batch.transaction
        ends = part is not None and part.commit is not None and part.producer_id in self.state.transactions.open
        return (ends or batch.decided) and self.final_offset is None

    async def seal(self) -> int:
        """Make the end of a partition final, after the catalog has sealed it; return that end.

        Batches in flight are decided first, and answered. Then no append is possible any more, and the waiters are
        called. Durable when this returns, and repeatable. Raises TransactionsOpen, another LogUnavailable, LogDeleted,
        StorageFull.
        """
        assert self.successors is not None, self
        if self.final_offset is not None:
            return self.final_offset
        await self.ready()
        await self.until(lambda: not self._appends.in_flight)
        opened = self.state.transactions.open
        if opened:
            raise TransactionsOpen(
                f"{self.topic}-{self.partition} cannot be sealed yet: {len(opened)} transactions are open"
            )
        try:
            end = await self._logs.client.seal(self.stream_id, self.epoch)
        except SbpError as error:
            raise LogUnavailable(f"{self.topic}-{self.partition} cannot be sealed: {error}") from error
        if not self.is_open or end != self.high_watermark:
            # A batch that was answered as failed may be stored after all: the log must be read first.
            reason = LogUnavailable(f"{self.topic}-{self.partition} has to be opened anew before it can be sealed")
            self.fail(reason)
            raise reason
        self.final_offset = end
        self.moved()
        return end

    # --- read ---------------------------------------------------------------------------------------------------

    def committed_limit(self, offset: int) -> int:
        """Return how far a reader of committed data at ``offset`` may read in one go: at most to the last stable
        offset."""
        transactions, limit = self.state.transactions, self.last_stable_offset
        if offset >= limit or offset > transactions.persisted:
            return transactions.reach(offset, limit)
        window = self._logs.aborted.window(self.stream_id, offset)
        if window is None:
            self._logs.aborted.want_window(self, offset)  # the waiters are called then
            return offset
        return min(limit, window.end)

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """Return the aborted transactions with a part in ``[start, end)``. This range must lie below the last stable
        offset and not below the log's start, and reach no further than :meth:`committed_limit` of ``start``.

        Raises AbortedNotAtHand if they must be loaded first (:meth:`know_aborted`), and when the log is not open.
        """
        transactions = self.state.transactions
        if self.phase is not Phase.OPEN:
            raise AbortedNotAtHand(f"{self.topic}-{self.partition} is not open")
        of_memory = transactions.aborted(start, end)
        if start >= end or start > transactions.persisted:
            return of_memory
        window = self._logs.aborted.window(self.stream_id, start)
        if window is None or window.end < min(end, transactions.persisted + 1):
            raise AbortedNotAtHand(f"aborted transactions of {self.topic}-{self.partition} have to be loaded first")
        return window.aborted(start, end) + of_memory

    async def know_aborted(self, offset: int) -> None:
        """Load the transactions that were aborted from ``offset`` on. Raises LogError."""
        blocks = self._logs.aborted
        while offset <= self.state.transactions.persisted and blocks.window(self.stream_id, offset) is None:
            error = await blocks.load(self, offset)
            if error is not None:
                raise error

    async def all_aborted(self, start: int, end: int) -> list[Aborted]:
        """Return the same as :meth:`aborted`, for a range that may reach further. Raises LogError."""
        found: dict[int, Aborted] = {}
        while start < end and start <= self.state.transactions.persisted:
            await self.know_aborted(start)
            window = self._logs.aborted.window(self.stream_id, start)
            if window is not None:
                found.update((one.last_offset, one) for one in window.aborted(start, min(end, window.end)))
                start = window.end
        if start < end:
            found.update((one.last_offset, one) for one in self.state.transactions.aborted(start, end))
        return [found[last] for last in sorted(found)]

    async def find_aborted(self, start: int, end: int) -> tuple[int, list[Aborted]]:
        """Return ``reached``, and the aborted transactions with a part in the offsets [start, reached). ``reached`` is
        ``end``, or less where there are many, or where later transactions are not decided yet. Raises LogError."""
        await self.ready()
        if start < self.log_start_offset:
            place = f"{self.topic}-{self.partition}"
            raise OffsetOutOfRange(f"{place} starts at offset {self.log_start_offset}, above {start}")
        await self.know_aborted(start)
        reached = max(start, min(end, self.committed_limit(start)))
        return reached, self.aborted(start, reached) if reached > start else []

    def skip(self, span: Span) -> None:
        """Let readers skip ``span`` from now on; the caller has made that durable."""
        self.skipped = merged([*self.skipped, span])
        self.tail.clear()  # from now on it holds only later batches
        self.moved()

    def replaced(self, span: Replacing, taken: int | None = None) -> None:
        """Drop what memory has of ``span``, because compaction has replaced it, or tried to.

        ``taken``: the number of bytes by which its events became less, None if unknown.
        """
        self.replacements += 1
        if self.tail.reaches(span.start, span.end):
            self.tail.clear()
        if self.state.index.column is not None:
            self.state.index.column.moved(span.start, span.end, taken)

    def add_waiter(self, waiter: Waiter) -> None:
        """Call ``waiter`` whenever the log moves, until it is removed."""
        self.waiters.waiting[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        """Stop calling ``waiter``; unknown ones are ignored."""
        self.waiters.waiting.pop(waiter, None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds. It is checked now and whenever the log moves: the high watermark, the last
        stable offset or the log start moved, the log was sealed, or became unusable.

        Raises LogDeleted, and the errors of ``condition``. The caller need not wait for an open log: a failed log is
        opened again by its next use.
        """
        await until(self, condition)

    async def ended(self) -> int:
        """Return the end of a sealed partition once it is final. Raises LogDeleted."""
        await self.until(lambda: self.final_offset is not None)
        assert self.final_offset is not None
        return self.final_offset

    def moved(self) -> None:
        """Call the waiters soon, because readers see something new."""
        self.waiters.moved(self)

    def epoch_of(self, offset: int) -> int:
        """Return the epoch in which the record at ``offset`` was, or the next one would be, written."""
        if offset >= self.high_watermark:
            return self.epoch
        return max((epoch for epoch, start in self.state.epochs if start <= offset), default=self.epoch)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """Return (largest epoch not above ``epoch``, offset after its last record); None when there is no such
        epoch."""
        if epoch == self.epoch:
            return epoch, self.high_watermark
        return self.state.epoch_end(epoch, self.high_watermark) if epoch < self.epoch else None

    async def find_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record, in offset order, not older than ``timestamp``; None if none
        is.

        Reads batches (docs/protocols/kafka.md, rule 48). Raises DataCorrupt, LogUnavailable, LogDeleted.
        """
        await self.ready()
        return await self._logs.search.first(self, timestamp)

    async def find_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the earliest record with the highest timestamp kept; None if no record has
        one."""
        await self.ready()
        return await self._logs.search.highest(self)

    # Positions as Pravega counts bytes (bridges/log/byte_positions/search.py, also for the errors).

    @property
    def byte_length(self) -> int | None:
        """Return the position after everything durable; None if it is not known without waiting (:meth:`byte_end`).

        Once a client has asked, it is always known for a log whose batches' headers give their bytes: even to the
        callback of an append, where it is the position after that append.
        """
        return self._logs.positions.length(self)

    async def byte_end(self) -> BytePlace:
        """Return the place of the next event."""
        return await self._logs.positions.end(self)

    async def byte_start(self) -> int:
        """Return the position of the first byte that readers get, which may lie inside a record."""
        return await self._logs.positions.start(self)

    async def byte_position(self, offset: int) -> int:
        """Return the position of the record at ``offset``."""
        return await self._logs.positions.position_of(self, offset)

    async def find_byte(self, position: int) -> BytePlace:
        """Return the record that contains the byte at ``position``, and where it begins."""
        return await self._logs.positions.find(self, position)

    async def find_byte_batch(self, position: int) -> BytePlace:
        """Return the base offset of the batch that contains the byte at ``position``, and where that batch begins.

        Inside the batch's events, the byte is at ``position`` minus the batch's position. If records at its beginning
        are trimmed, the batch begins before :meth:`byte_start`, maybe below 0.
        """
        return await self._logs.positions.find_batch(self, position)

    def is_readable_byte(self, position: int) -> bool:
        """Return whether ``position``, which does not lie beyond the end, certainly lies above :meth:`byte_start`."""
        return self._logs.positions.is_readable(self, position)

    def is_same(self, replacements: int) -> bool:
        """Return whether compaction has certainly replaced nothing since :attr:`replacements` had this value."""
        return self.replacing is None and self.replacements == replacements

    def keeps_bytes(self, offset: int) -> bool:
        """Return whether compaction leaves the positions from ``offset`` on unchanged."""
        column = self.state.index.column
        return column is None or offset >= column.firm

    def reads_bytes(self, offset: int) -> None:
        """Note a reader of the bytes from ``offset`` on: compaction waits for it a while."""
        self._logs.positions.reads(self, offset)

    async def trim_bytes(self, position: int) -> int:
        """Make the bytes below ``position`` unreadable, durably; return the position of the first byte kept."""
        if self.import_epoch >= 0:
            raise self.not_importing(-1)
        return await self._logs.positions.trim(self, position)

    async def read_committed(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Return the batches of :meth:`read_batches` below the last stable offset, with gaps in the place of aborted
        batches.

        Raises the errors of :meth:`read`.
        """
        while True:
            await self.ready()
            await self.know_aborted(offset)
            limit = self.committed_limit(offset)
            batches = await self.read_batches(offset, max_bytes, limit)
            if offset < self.log_start_offset:
                # The log was trimmed meanwhile, and no longer knows which batches were aborted there.
                raise OffsetOutOfRange(f"{self.topic}-{self.partition} starts at {self.log_start_offset} now")
            if not batches:
                return batches
            try:
                return without_aborted(batches, self.aborted(offset, min(limit, batches[-1].end_offset)))
            except AbortedNotAtHand:
                await asyncio.sleep(0)  # it was evicted meanwhile

    def read_batches(self, offset: int, max_bytes: int, limit: int = NEVER) -> Awaitable[list[StoredBatch]]:
        """Await :meth:`read`; raises its errors."""
        return awaited(lambda settle: self.read(offset, max_bytes, settle, limit))

    # --- upkeep -------------------------------------------------------------------------------------------------

    async def trim(self, offset: int, import_epoch: int = -1, *, own: bool = False) -> int:
        """Make everything below ``offset`` unreadable, durably, and release its space; return the log start.

        ``own``: called by retention, or by the protocol that a topic is internal to. Raises OffsetOutOfRange (above the
        high watermark), LogUnavailable, LogDeleted, TopicImporting, ImportFenced, TopicInternal.
        """
        if not own and self._logs.admission.rules(self.topic).internal:
            raise TopicInternal(f"{self.topic} is internal to a protocol, and only that takes away what is in it")
        if import_epoch != self.import_epoch:
            raise self.not_importing(import_epoch)
        return await self.upkeep.trim(offset)

    async def trimmed(self) -> None:
        """Return when no data is being removed: neither a trim nor a replacement by compaction is in flight."""
        await self.upkeep.trimmed()
        while self.replacing is not None:
            await asyncio.wait({self.replacing.ended})
            await self.upkeep.trimmed()

    @property
    def has_moved(self) -> bool:
        """Return whether batches were appended, or read at the opening, since the last snapshot."""
        return self.upkeep.since_snapshot > 0
