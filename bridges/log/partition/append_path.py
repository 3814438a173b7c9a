"""A batch's way into the log: ledger check, offset, hand-over to the backend, and the answer when it is durable.

The owner is a single writer. Ledger check, offset assignment and hand-over happen in one synchronous step, so they are
atomic; acknowledgements arrive in offset order once the backend made the batch durable (docs/design.md, "Writing").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import Turns, step_through
from bridges.errors import (
    AppendConditionFailed,
    BatchInvalid,
    BatchTooLarge,
    LogDeleted,
    LogError,
    LogUnavailable,
    PartitionSealed,
    ProducerFenced,
    StorageFull,
    TooManyTransactions,
)
from bridges.formats import APPEND_TIME, FORMAT_MASK, FormatId, format_of
from bridges.formats.producer import LedgerKind, ProducerStamp
from bridges.formats.records import StoredBatch
from bridges.log.byte_positions.tail import ByteTail
from bridges.log.interfaces import NOT_APPENDED, Appended, Phase
from bridges.log.ledger.rules import Repeated, Skip, Unproven
from bridges.log.partition.upkeep import rebuild_cost
from sbp_back.errors import NoSpace, SbpError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridges.formats.producer import InTransaction, Stamp
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.ledger.ledger import Durable
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.partition.upkeep import Upkeep
    from bridges.log.partition.waiters import Waiters
    from bridges.log.streams import Writer
    from sbp_back.wire.model import Entry

_KAFKA = int(FormatId.KAFKA)
_new = tuple.__new__
"""Makes a named tuple in half the time of its class; for tuples that are made with every batch."""


class Hold:
    """The exclusive right to append to a log: other appends wait, and follow after its release.

    It ends when the log fails or is closed: appends through it are refused from then on.
    """

    __slots__ = ("_path", "writer")

    def __init__(self, path: AppendPath, writer: Writer) -> None:
        self._path = path
        self.writer = writer

    def append(self, batch: Batch, done: AppendDone) -> None:
        """Append like :meth:`AppendPath.append`, but never wait for the log to be open."""
        self._path.append_held(self, batch, done)

    def release(self) -> None:
        """Let other appends continue. Idempotent."""
        self._path.unhold(self)


class AppendPath:
    """The single writer of one partition."""

    __slots__ = (
        "_admission",
        "_barrier",
        "_bytes",
        "_duplicates",
        "_held",
        "_log",
        "_logs",
        "_on_stored",
        "_owed",
        "_pending",
        "_queued",
        "_refused",
        "_upkeep",
        "_waiters",
        "_writer",
        "taken",
    )

    def __init__(self, log: PartitionLog, logs: Logs, upkeep: Upkeep, waiters: Waiters) -> None:
        self._log = log
        self._logs = logs
        self._barrier = logs.barrier
        self._admission = logs.admission
        self._upkeep = upkeep
        self._waiters = waiters
        #: The writer of the present opening; appends go to it directly once the queue is handed over.
        self.taken: Writer | None = None
        self._writer: Writer | None = None
        # The present hold. Then there is no ``_writer``, and other appends are queued.
        self._held: Hold | None = None
        # Bound to the writer: a late answer of an earlier writer concerns nothing in flight now.
        self._on_stored: Callable[[SbpError | None], None] = _ignore
        # Appends in flight, in offset order: (base, batch, done, time of the append in ms, replaced row of the ledger).
        self._pending: deque[tuple[int, Batch, AppendDone, int, bytes | None]] = deque()
        # Callbacks of batches that follow a failed one: the backend still reports each of them.
        self._refused: deque[list[AppendDone]] = deque()
        # Callbacks of repetitions of a batch that is still in flight, by its base offset.
        self._duplicates: dict[int, list[AppendDone]] = {}
        self._bytes = ByteTail(log, logs)
        # Callbacks of appends that are not stored, with the error.
        self._owed: deque[tuple[AppendDone, LogError]] = deque()
        # Appends that wait until the log is open, or a hold ends; the requests' budget counts their bytes.
        self._queued: deque[tuple[Batch, AppendDone]] = deque()

    @property
    def has_queued(self) -> bool:
        """Return whether appends wait for the log to be open."""
        return bool(self._queued)

    def durable_rows(self) -> Durable:
        """Return, for each writer with batches in flight, its row of the ledger before these."""
        rows: dict[tuple[int, bytes], bytes | None] = {}
        for _, batch, _, _, replaced in self._pending:
            if batch.producer is not None:
                rows.setdefault((batch.producer.kind, batch.producer.key), replaced)
        return rows

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def take(self, writer: Writer) -> None:
        """Append to ``writer``, that of a new opening, from now on; queued appends come first."""
        assert not self._pending, "a log is opened with nothing in flight"
        self._bytes.restart(writer.next_offset)
        self._on_stored = partial(self._stored, writer)
        self.taken = writer
        self._hand_over_queued(writer)

    def release(self) -> Writer | None:
        writer, self.taken, self._writer = self.taken, None, None
        self._held = None  # the caller answers queued appends
        self._on_stored = _ignore
        return writer

    # --- appending alone ----------------------------------------------------------------------------------------

    @property
    def may_hold(self) -> bool:
        """Return whether :meth:`hold` would succeed."""
        return self._writer is not None and self._log.phase is Phase.OPEN

    def hold(self) -> Hold | None:
        """Take the exclusive right to append; None while the log is not open, or is held."""
        if self._writer is None or not self.may_hold:
            return None
        self._held, self._writer = Hold(self, self._writer), None
        return self._held

    def append_held(self, hold: Hold, batch: Batch, done: AppendDone) -> None:
        """Append for the holder of the log; see :class:`Hold`."""
        log = self._log
        if not batch.admitted and not self._admission.admits(log, batch, done, partial(self.append_held, hold)):
            return
        if hold is not self._held:
            done(NOT_APPENDED, LogUnavailable(f"{log.topic}-{log.partition} failed while it was appended to alone"))
            return
        self._hand_over(hold.writer, batch, done)

    def unhold(self, hold: Hold) -> None:
        """Let other appends continue, in the order in which they came."""
        if hold is self._held:
            self._held = None
            self._hand_over_queued(hold.writer)

    # --- appending ----------------------------------------------------------------------------------------------

    def _hand_over_queued(self, writer: Writer) -> None:
        """Append what was queued during the opening: a bounded number in one turn, because clients choose how many
        there are.

        The log gets its writer only when the queue is empty. So appends that arrive meanwhile, even from answered
        clients, are queued behind.
        """
        log = self._log
        if self._owed:
            # A client must learn of its lost batch before it learns of later ones.
            self._logs.schedule(partial(self._hand_over_queued, writer))
            return
        turns = Turns()
        while self._queued and writer is self.taken:
            self._barrier.call("append answer", self._hand_over, writer, *self._queued.popleft())
            if turns.is_over:
                break
        if writer is not self.taken:
            self._logs.opener.let_go(writer)  # the log has failed meanwhile, or was deleted
            # Appending the rest of the queue would reorder it: it comes behind appends that were just refused.
            self.refuse_queued(LogUnavailable(f"{log.topic}-{log.partition} failed while it was opened"))
            log.reopen_if_wanted()
            return
        if self._queued:
            self._logs.schedule(partial(self._hand_over_queued, writer))
            return
        self._writer = writer
        log.settle_open(None)
        self._waiters.moved(log)
        if self._upkeep.since_snapshot >= self._upkeep.snapshot_at:
            self._barrier.call("snapshot", self._upkeep.ask_for_snapshot)

    def refuse_queued(self, error: LogError) -> None:
        queued, self._queued = self._queued, deque()
        self.refuse([done for _, done in queued], error)

    def append(self, batch: Batch, done: AppendDone) -> None:
        """Append one batch; ``done`` is called when it is durable.

        Errors given to ``done``: StorageFull, LogUnavailable, LogDeleted, PartitionSealed, BatchTooLarge, BatchInvalid,
        TopicImporting, ImportFenced, TopicInternal, KeyMissing, TimeOutOfBounds, those of the writer's rule
        (OutOfOrderSequence, ProducerFenced, EventNumberConflict), AppendConditionFailed, and TooManyTransactions. A
        repetition is not stored again: it is answered when the original is durable, even if the partition is sealed,
        and whatever its guard says.
        """
        log = self._log
        if not batch.admitted and not self._admission.admits(log, batch, done, self.append):
            return
        writer = self._writer
        if writer is None or log.phase is not Phase.OPEN:
            if log.phase is Phase.DELETED:
                done(NOT_APPENDED, LogDeleted(f"{log.topic}-{log.partition} was deleted"))
                return
            self._queued.append((batch, done))
            log.ensure_opening()
            return
        self._hand_over(writer, batch, done)

    def _hand_over(self, writer: Writer, batch: Batch, done: AppendDone) -> None:
        log = self._log
        if batch.import_epoch != log.import_epoch:
            done(NOT_APPENDED, log.not_importing(batch.import_epoch))
            return
        stamp = batch.producer
        if stamp is not None:
            ledger = log.state.ledger
            known_table = ledger.tables.get(stamp.kind)
            table = ledger.table(stamp.kind) if known_table is None else known_table
            key = stamp.key
            known: Repeated | Skip | None = None
            if batch.import_epoch < 0:  # the original cluster checked imported batches
                try:
                    found = table.check(key, stamp)
                    if found is not Unproven.WRITER:
                        known = found
                    else:
                        assert isinstance(stamp, ProducerStamp), stamp
                        written = writer.next_offset > 0
                        self._logs.refusals.require_first(log.topic, log.partition, stamp, written=written)
                except LogError as error:
                    done(NOT_APPENDED, _answered(error))
                    return
            if known is not None:
                if isinstance(known, Skip):
                    self._hand_over_rest(writer, batch, known.records, done)
                elif known.base_offset < log.high_watermark:
                    done(Appended(*known, duplicate=True), None)
                else:
                    self._duplicates.setdefault(known.base_offset, []).append(done)
                return
        if log.successors is not None and not log.awaits(batch):
            done(NOT_APPENDED, PartitionSealed(f"{log.topic}-{log.partition}", log.successors))
            return
        base = writer.next_offset
        guard = batch.guard
        if guard is not None:
            if guard.end_offset >= 0 and guard.end_offset != base:
                message = f"{log.topic}-{log.partition} ends at {base}, not at {guard.end_offset}"
                done(NOT_APPENDED, AppendConditionFailed(message, base))
                return
            if guard.end_position >= 0 and not self._bytes.admits(batch, guard.end_position, done):
                return
        if batch.transaction is not None:
            refusal = self._refused_by_transactions(batch.transaction, stamp)
            if refusal is not None:
                done(NOT_APPENDED, refusal)
                return
        now = now_ms()
        try:
            format_of(batch.flags).stamp(batch.payload, base, log.epoch)
            given = writer.append(batch.payload, batch.count, batch.flags, now, self._on_stored)
        except SbpError as error:
            done(NOT_APPENDED, BatchTooLarge(str(error)))
            return
        except LogError as error:
            done(NOT_APPENDED, _answered(error))
            return
        except Exception as error:  # noqa: BLE001 - logged, counted and answered; no offset is used up
            self._barrier.caught("append", error, topic=log.topic, partition=log.partition)
            done(NOT_APPENDED, LogError(f"appending to {log.topic}-{log.partition} failed unexpectedly"))
            return
        replaced = None if stamp is None else table.record(key, stamp, base, now)
        self._pending.append((base, batch, done, now, replaced))
        column = log.state.index.column
        if column is not None:
            self._bytes.handed_over(column, base, batch)
        if given != base:
            self._logs.opener.let_go(writer)
            log.fail(LogUnavailable(f"the backend gave offset {given} where it had announced {base}"))

    def _refused_by_transactions(self, part: InTransaction, stamp: Stamp | None) -> LogError | None:
        """Return why a batch of a transaction may not be appended; None if it may."""
        log = self._log
        if not log.state.transactions.has_room(part):
            message = f"{log.topic}-{log.partition} has as many open transactions as it may: no other can begin"
            return TooManyTransactions(message)
        if (stamp is None or stamp.kind != LedgerKind.KAFKA) and log.import_epoch < 0:
            try:
                log.state.ledger.check_epoch(part)
            except ProducerFenced as error:
                return _answered(error)
        return None

    def _hand_over_rest(self, writer: Writer, batch: Batch, skipped: int, done: AppendDone) -> None:
        """Append a batch without its first records, which are repetitions."""

        def answer(appended: Appended, error: LogError | None) -> None:
            done(appended if error is not None else appended._replace(skipped=skipped), error)

        try:
            if batch.rest is None:
                raise BatchInvalid(f"the first {skipped} records are in the log already, and cannot be left out")
            rest = batch.rest(skipped)
        except LogError as error:
            done(NOT_APPENDED, _answered(error))
            return
        except Exception as error:  # noqa: BLE001 - logged, counted and answered; no offset is used up
            self._barrier.caught("append", error, topic=self._log.topic, partition=self._log.partition)
            done(NOT_APPENDED, LogError("a batch could not be cut"))
            return
        self._hand_over(writer, rest, answer)

    def _stored(self, writer: Writer, error: SbpError | None) -> None:
        """Process the backend's answer for the oldest batch in flight."""
        log = self._log
        if writer is not self.taken:
            return  # it was answered when the log failed
        if self._refused:
            self._answer(self._refused.popleft(), NOT_APPENDED, self._refusal(error))
            return
        if not self._pending:
            return
        if error is not None:
            self._append_failed(writer, error)
            return
        base, batch, done, appended_ms, _ = self._pending.popleft()
        end = base + batch.count
        payload = batch.payload
        size = len(payload)
        log.high_watermark = end
        timestamp = batch.max_timestamp
        state = log.state
        state.last = (base, size, appended_ms)
        if batch.transaction is not None:
            state.transactions.observe(batch.transaction, base)
            if state.transactions.full:
                self._logs.aborted.want(log)
        try:
            number = batch.flags & FORMAT_MASK
            state.formats |= 1 << number
            counted = timestamp
            if number != _KAFKA:
                counted = -1
                if batch.flags & APPEND_TIME:
                    timestamp = appended_ms
            state.index.add(base, size, timestamp, counted, appended_ms)
            if state.index.column is not None:
                self._bytes.stored(state.index.column, base, batch)
            if not state.epochs or state.epochs[-1][0] < log.epoch:
                state.enter_epoch(log.epoch, base)
            if batch.import_epoch < 0:
                log.tail.append(_new(StoredBatch, (base, end, batch.flags, payload, appended_ms)))
            else:  # there are no readers before the hand-over, and these batches would evict others
                log.tail.clear()
        except Exception as failure:  # noqa: BLE001 - logged and counted; the batch is durable, and is answered so
            self._barrier.caught("stored batch", failure, topic=log.topic, partition=log.partition)
            log.tail.clear()  # the tail cache must have no gap
        try:
            done(_new(Appended, (base, end, 0, False)), None)
        except Exception as failure:  # noqa: BLE001 - logged and counted
            self._barrier.caught("append answer", failure, topic=log.topic, partition=log.partition)
        if self._duplicates:
            self._answer(self._duplicates.pop(base, ()), Appended(base, end, duplicate=True), None)
        upkeep = self._upkeep
        upkeep.since_snapshot += rebuild_cost(size)
        if upkeep.since_snapshot >= upkeep.snapshot_at:
            self._barrier.call("snapshot", upkeep.ask_for_snapshot)
        if self._waiters.waiting:
            self._waiters.moved(log)

    def _answer(self, waiting: Iterable[AppendDone], appended: Appended, error: LogError | None) -> None:
        log = self._log
        for done in waiting:
            self._barrier.call("append answer", done, appended, error, topic=log.topic, partition=log.partition)

    def _refusal(self, error: SbpError | None) -> LogError:
        if isinstance(error, NoSpace):
            return StorageFull(str(error))
        return LogUnavailable(f"{self._log.topic}-{self._log.partition}: {error}")

    def _append_failed(self, writer: Writer, error: SbpError) -> None:
        log = self._log
        if writer.failed is not None:
            log.fail(self._refusal(error))
            return
        # Neither this batch nor any later one is stored, or will be: take all of them back, the latest first, and at
        # once, because clients may append more when they are answered, at the same offsets. The log stays open.
        pending, self._pending = self._pending, deque()
        self._bytes.restart(log.high_watermark)
        for _, batch, _, _, replaced in reversed(pending):
            if batch.producer is not None:
                log.state.ledger.take_back(batch.producer, replaced)
        self._waiters.moved(log)  # a seal may wait until nothing is in flight
        self._refused.extend([done, *self._duplicates.pop(base, ())] for base, _, done, _, _ in pending)
        self._answer(self._refused.popleft(), NOT_APPENDED, self._refusal(error))

    def overtaken(self, entries: list[Entry]) -> None:
        """Move everything in flight up, because another writer has appended ``entries`` behind the high watermark.

        Only a backend without epochs lets that happen (docs/sbp.md).
        """
        log = self._log
        if log.phase is not Phase.OPEN or not entries or log.final_offset is not None:
            return
        moved = entries[-1].end_offset - log.high_watermark
        ledger = log.state.ledger
        for _, batch, _, _, replaced in reversed(self._pending):
            if batch.producer is not None:
                ledger.take_back(batch.producer, replaced)
        for entry in entries:
            log.state.observe(entry.base_offset, entry.payload, entry.flags, entry.timestamp)
        now = now_ms()
        pending = self._pending
        self._pending = deque()
        for base, batch, done, appended, _ in pending:
            base += moved
            format_of(batch.flags).stamp(batch.payload, base, log.epoch)
            replaced = None if batch.producer is None else ledger.record(batch.producer, base, now)
            self._pending.append((base, batch, done, appended, replaced))
        self._bytes.restart(log.next_offset)
        self._duplicates = {base + moved: waiting for base, waiting in self._duplicates.items()}
        log.tail.clear()
        log.high_watermark += moved
        self._waiters.moved(log)

    def fail(self, error: LogError) -> None:
        """Answer everything in flight with ``error``, and ignore later answers of the backend."""
        self.taken = self._writer = None
        pending, self._pending = self._pending, deque()
        duplicates, self._duplicates = self._duplicates, {}
        refused, self._refused = self._refused, deque()
        waiting = [done for _, _, done, _, _ in pending]
        self.refuse(chain(*refused, waiting, *duplicates.values()), error)
        self._bytes.refuse_waiting(error)
        if self._held is not None:
            self._held = None
            self.refuse_queued(error)  # they were meant for the log before the failure

    def refuse(self, waiting: Iterable[AppendDone], error: LogError) -> None:
        """Answer with ``error``, in turns, because clients choose how many there are."""
        idle = not self._owed
        self._owed.extend((done, error) for done in waiting)
        if idle:
            step_through(self._refuse_owed(), self._logs.schedule)

    def _refuse_owed(self) -> Iterator[None]:
        log, owed = self._log, self._owed
        while owed:
            done, error = owed[0]
            self._barrier.call("append answer", done, NOT_APPENDED, error, topic=log.topic, partition=log.partition)
            owed.popleft()  # only now: the callback may make the log fail again
            yield


def _ignore(error: SbpError | None) -> None:
    pass


def _answered(error: LogError) -> LogError:
    """Return the error without its traceback: a stored error would keep frames alive, and one of them refers to the
    store."""
    return error.with_traceback(None)
