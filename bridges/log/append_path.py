"""A batch's way into the log: ledger check, offset, hand-over to the backend, and the answer when it is durable.

The owner is a single writer. Ledger check, offset assignment and hand-over happen in one synchronous step, so they are
atomic; acknowledgements arrive in offset order once the backend made the batch durable (design, sections 4 and 6).
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from bridges.errors import BatchTooLarge, LogDeleted, LogError, LogUnavailable, PartitionSealed, StorageFull
from bridges.formats import format_of
from bridges.formats.records import StoredBatch
from bridges.log.interfaces import Phase
from bridges.log.streams import unwrapped
from bridges.log.upkeep import rebuild_cost
from sbp_back.errors import NoSpace, SbpError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridges.log.interfaces import AppendDone, Batch, Owner
    from bridges.log.partition_log import PartitionLog
    from bridges.log.streams import Writer
    from bridges.log.upkeep import Upkeep
    from bridges.log.waiters import Waiters
    from sbp_back.wire.model import Entry

_HANDED_OVER_AT_ONCE = 500
"""Appends that waited for an opening, handed over in one turn of the event loop."""


class AppendPath:
    """The single writer of one partition."""

    __slots__ = (
        "_barrier",
        "_duplicates",
        "_log",
        "_on_stored",
        "_owner",
        "_pending",
        "_queued",
        "_refused",
        "_upkeep",
        "_waiters",
        "_writer",
        "taken",
    )

    def __init__(self, log: PartitionLog, owner: Owner, upkeep: Upkeep, waiters: Waiters) -> None:
        self._log = log
        self._owner = owner
        self._barrier = owner.barrier
        self._upkeep = upkeep
        self._waiters = waiters
        #: The writer of the present opening; appends go to it at once when what was queued is handed over.
        self.taken: Writer | None = None
        self._writer: Writer | None = None
        # Bound to the writer: what an earlier one still has to say concerns nothing that is in flight now.
        self._on_stored: Callable[[SbpError | None], None] = _ignore
        # (base, batch, done, time of the append in ms) of appends handed to the backend, in offset order.
        self._pending: deque[tuple[int, Batch, AppendDone, int]] = deque()
        # Whom to answer when the backend has said of a batch before theirs that none from there on is stored.
        self._refused: deque[list[AppendDone]] = deque()
        # Producers that repeated a batch which is still in flight, by its base offset.
        self._duplicates: dict[int, list[AppendDone]] = {}
        # Appends that wait for the log to be open; their bytes are counted where the requests are.
        self._queued: deque[tuple[Batch, AppendDone]] = deque()

    @property
    def has_queued(self) -> bool:
        """Whether appends wait for the log to be open."""
        return bool(self._queued)

    def producers_in_flight(self) -> set[int]:
        """Ids of producers with batches that are not durable yet."""
        return {batch.producer.producer_id for _, batch, _, _ in self._pending if batch.producer is not None}

    @property
    def in_flight(self) -> int:
        """Batches handed to the backend whose fate is not decided."""
        return len(self._pending)

    def take(self, writer: Writer) -> None:
        """The log was opened: append to ``writer`` from now on, and what was queued first."""
        assert not self._pending, "a log is opened with nothing in flight"
        self._on_stored = partial(self._stored, writer)
        self.taken = writer
        self._hand_over_queued(writer)

    def release(self) -> Writer | None:
        """Append to nothing any more; gives the writer there was."""
        writer, self.taken, self._writer = self.taken, None, None
        return writer

    def _hand_over_queued(self, writer: Writer) -> None:
        """Append what waited for the opening: a bounded number in one turn, since clients choose how many there are.

        The log has its writer only when all of it is handed over: what comes meanwhile, also from somebody who is
        answered, comes behind it.
        """
        log = self._log
        for _ in range(_HANDED_OVER_AT_ONCE):
            if not self._queued or writer is not self.taken:
                break
            self._barrier.call("append answer", self._hand_over, writer, *self._queued.popleft())
        if writer is not self.taken:
            self._owner.let_go(writer)  # the log has failed meanwhile, or was deleted
            # What is still queued comes behind what was just refused: taking it would turn their order round.
            self.refuse_queued(LogUnavailable(f"{log.topic}-{log.partition} failed while it was opened"))
            log.reopen_if_wanted()
            return
        if self._queued:
            self._owner.schedule(partial(self._hand_over_queued, writer))
            return
        self._writer = writer
        log.settle_open(None)
        self._waiters.moved()
        if self._upkeep.since_snapshot >= self._upkeep.snapshot_at:
            self._barrier.call("snapshot", self._upkeep.ask_for_snapshot)

    def refuse_queued(self, error: LogError) -> None:
        """Answer those who wait for the log to be open with ``error``."""
        queued, self._queued = self._queued, deque()
        for _, done in queued:
            self._barrier.call("append answer", done, -1, error)

    def append(self, batch: Batch, done: AppendDone) -> None:
        """Append one batch; ``done`` is called when it is durable.

        Errors given to ``done``: OutOfOrderSequence, ProducerFenced, StorageFull, LogUnavailable, LogDeleted,
        BatchTooLarge, BatchInvalid, PartitionSealed. A batch that repeats one of its producer's last five is not stored
        again and gets the original base offset, also when the partition is sealed.
        """
        log = self._log
        writer = self._writer
        if writer is None or log.phase is not Phase.OPEN:
            if log.phase is Phase.DELETED:
                done(-1, LogDeleted(f"{log.topic}-{log.partition} was deleted"))
                return
            self._queued.append((batch, done))
            log.ensure_opening()
            return
        self._hand_over(writer, batch, done)

    def _hand_over(self, writer: Writer, batch: Batch, done: AppendDone) -> None:
        log = self._log
        stamp = batch.producer
        if stamp is not None:
            try:
                original = log.state.ledger.check(stamp)
            except LogError as error:
                done(-1, error)
                return
            if original is not None:
                if original < log.high_watermark:
                    done(original, None)
                else:
                    self._duplicates.setdefault(original, []).append(done)
                return
        if log.successors is not None:
            done(-1, PartitionSealed(f"{log.topic}-{log.partition}", log.successors))
            return
        base = writer.next_offset
        now = time.time_ns() // 1_000_000
        try:
            format_of(batch.flags).stamp(batch.payload, base, log.epoch)
            given = writer.append(batch.payload, batch.count, batch.flags, now, self._on_stored)
        except SbpError as error:
            done(-1, BatchTooLarge(str(error)))
            return
        except LogError as error:
            done(-1, error)
            return
        except Exception as error:  # noqa: BLE001 - logged, counted and answered; no offset is used up
            self._barrier.caught("append", error, topic=log.topic, partition=log.partition)
            done(-1, LogError(f"appending to {log.topic}-{log.partition} failed unexpectedly"))
            return
        if stamp is not None:
            log.state.ledger.record(stamp, base, now)
        self._pending.append((base, batch, done, now))
        if given != base:
            self._owner.let_go(writer)
            log.fail(LogUnavailable(f"the backend gave offset {given} where it had announced {base}"))

    def _stored(self, writer: Writer, error: SbpError | None) -> None:
        """The backend's answer for the oldest batch in flight."""
        log = self._log
        if writer is not self.taken:
            return  # its fate was settled when the log failed
        if self._refused:
            self._answer(self._refused.popleft(), -1, self._refusal(error))
            return
        if not self._pending:
            return
        if error is not None:
            self._append_failed(writer, error)
            return
        base, batch, done, appended_ms = self._pending.popleft()
        end = base + batch.count
        payload = batch.payload
        size = len(payload)
        log.high_watermark = end
        timestamp = batch.max_timestamp
        state = log.state
        state.last = (base, size, appended_ms)
        try:
            state.index.add(base, size, timestamp, appended_ms)
            state.enter_epoch(log.epoch, base)
            log.tail.append(StoredBatch(base, end, batch.flags, payload, appended_ms))
        except Exception as failure:  # noqa: BLE001 - logged and counted; the batch is durable, and is answered so
            self._barrier.caught("stored batch", failure, topic=log.topic, partition=log.partition)
            log.tail.clear()  # it must have no gap
        try:
            done(base, None)
        except Exception as failure:  # noqa: BLE001 - logged and counted
            self._barrier.caught("append answer", failure, topic=log.topic, partition=log.partition)
        if self._duplicates:
            self._answer(self._duplicates.pop(base, ()), base, None)
        upkeep = self._upkeep
        upkeep.since_snapshot += rebuild_cost(size)
        if upkeep.since_snapshot >= upkeep.snapshot_at:
            self._barrier.call("snapshot", upkeep.ask_for_snapshot)
        if self._waiters.waiting:
            self._waiters.moved()

    def _answer(self, waiting: Iterable[AppendDone], base: int, error: LogError | None) -> None:
        log = self._log
        for done in waiting:
            self._barrier.call("append answer", done, base, error, topic=log.topic, partition=log.partition)

    def _refusal(self, error: SbpError | None) -> LogError:
        if isinstance(error, NoSpace):
            return StorageFull(str(error))
        return LogUnavailable(f"{self._log.topic}-{self._log.partition}: {error}")

    def _append_failed(self, writer: Writer, error: SbpError) -> None:
        log = self._log
        if writer.failed is not None:
            log.fail(self._refusal(error))
            return
        # Neither this batch nor any that was handed over after it is stored, nor will be: take all of it back, the
        # latest first, and at once, for whoever is answered may append more, at the same offsets. The log stays open.
        pending, self._pending = self._pending, deque()
        for base, batch, _, _ in reversed(pending):
            if batch.producer is not None:
                log.state.ledger.forget(batch.producer, base)
        self._waiters.moved()  # a seal may wait until nothing is in flight
        self._refused.extend([done, *self._duplicates.pop(base, ())] for base, _, done, _ in pending)
        self._answer(self._refused.popleft(), -1, self._refusal(error))

    def overtaken(self, entries: list[Entry]) -> None:
        """Another writer has appended ``entries`` behind the high watermark: everything in flight has moved up.

        Only a backend without epochs lets that happen (docs/sbp.md).
        """
        log = self._log
        if log.phase is not Phase.OPEN or not entries or log.final_offset is not None:
            return
        moved = entries[-1].end_offset - log.high_watermark
        ledger = log.state.ledger
        for base, batch, _, _ in reversed(self._pending):
            if batch.producer is not None:
                ledger.forget(batch.producer, base)
        for entry in unwrapped(entries):
            log.state.observe(entry.base_offset, entry.payload, entry.flags, entry.timestamp)
        now = time.time_ns() // 1_000_000
        pending = [(base + moved, batch, done, appended) for base, batch, done, appended in self._pending]
        for base, batch, _, _ in pending:
            format_of(batch.flags).stamp(batch.payload, base, log.epoch)
            if batch.producer is not None:
                ledger.record(batch.producer, base, now)
        self._pending = deque(pending)
        self._duplicates = {base + moved: waiting for base, waiting in self._duplicates.items()}
        log.tail.clear()
        log.high_watermark += moved
        self._waiters.moved()

    def fail(self, error: LogError) -> None:
        """Answer everything in flight with ``error``; what the backend still says of it is ignored."""
        self.taken = self._writer = None
        pending, self._pending = self._pending, deque()
        duplicates, self._duplicates = self._duplicates, {}
        refused, self._refused = self._refused, deque()
        for waiting in (*refused, [done for _, _, done, _ in pending], *duplicates.values()):
            self._answer(waiting, -1, error)


def _ignore(error: SbpError | None) -> None:
    pass
