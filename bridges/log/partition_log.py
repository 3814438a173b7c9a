"""One partition: append, read, wait, trim (design, sections 4 and 6).

The owner is a single writer. Ledger check, offset assignment and hand-over to the backend happen in one synchronous
step, so they are atomic; acknowledgements arrive in offset order once the backend made the batch durable. A log is
opened on its first use, and opened anew, in a newer epoch, after the backend failed it: what was in flight is answered
with an error and the state is rebuilt from what is durable.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridges.errors import (
    BatchTooLarge,
    DataCorrupt,
    LogDeleted,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    StorageFull,
)
from bridges.formats import format_of
from bridges.formats.producer import ProducerStamp
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.partition_state import PartitionState, StateCapture
from bridges.log.skips import Span, merged, next_after, past
from bridges.log.streams import stored_batches, unwrapped
from bridges.log.tail_cache import Tail
from sbp_back.errors import ErrorCode, NoSpace, Reclaimed, SbpError

if TYPE_CHECKING:
    from bridges.barrier import Barrier
    from bridges.log.streams import Streams, Writer
    from bridges.log.time_search import TimeSearch
    from sbp_back.wire.model import Entry

AppendDone = Callable[[int, LogError | None], None]
"""Called with (base offset, None) or (-1, error), exactly once."""
ReadDone = Callable[[list[StoredBatch], LogError | None], None]


@dataclass(slots=True)
class Batch:
    """A batch to append. ``payload`` must be writable if its format stamps it; ``max_timestamp`` in ms, -1 if none."""

    payload: Buffer
    count: int
    flags: int
    max_timestamp: int = -1
    producer: ProducerStamp | None = None


@dataclass(slots=True)
class Rebuilt:
    """What a partition's log holds when it is opened: ``state`` describes everything durable.

    It was made from a snapshot at ``snapshot_offset`` (-1: from none) and what was read behind that, which counts
    ``cost`` (:func:`rebuild_cost`).
    """

    state: PartitionState
    snapshot_offset: int = -1
    cost: int = 0
    skipped: tuple[Span, ...] = ()


_MAX_DISTRUSTED = 100
_SNAPSHOT_BATCH_COST = 2048
"""Bytes a batch counts on top of its size when deciding on a snapshot: rebuilding costs per batch, too."""

_NEVER = 1 << 62
_HANDED_OVER_AT_ONCE = 500
"""Appends that waited for an opening, handed over in one turn of the event loop."""
_WOKEN_AT_ONCE = 256
"""Waiters called in one turn of the event loop: how many wait is for clients to choose."""


class Place(NamedTuple):
    """``batches`` whole batches from offset ``start`` to ``end``, ``size`` bytes of payload."""

    start: int
    end: int
    size: int
    batches: int


class Waiter(Protocol):
    """Something that waits for a partition to move; called on the event loop and free to remove itself."""

    def log_moved(self, log: PartitionLog) -> None:
        """The high watermark or the log start moved, or the log became unusable."""


class Owner(Protocol):
    """What a partition log needs of the node that owns it."""

    @property
    def client(self) -> Streams: ...

    @property
    def barrier(self) -> Barrier: ...

    @property
    def search(self) -> TimeSearch: ...

    def opening(self, log: PartitionLog) -> None:
        """Take ownership: find an epoch, rebuild the state, then call ``opened`` or ``open_failed`` on the log."""

    async def trim(self, stream_id: int, offset: int) -> None:
        """Give up a stream's data below ``offset``. Raises ``SbpError``, or an error of the database."""

    def reclaimed(self, log: PartitionLog, offset: int) -> asyncio.Task[LogError | None]:
        """The backend says that it has given up ``offset``: find out where the log starts, and raise its start. The
        task's result is what prevented that."""

    def let_go(self, writer: Writer) -> None:
        """Close a writer the log has no more use for."""

    def snapshot(self, log: PartitionLog) -> Awaitable[LogError | None]:
        """Have ``log.save_snapshot`` called soon; gives what went wrong, if anything did."""

    def schedule(self, callback: Callable[[], None]) -> None: ...


class Phase(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    DELETED = "deleted"


class PartitionLog:
    """The single writer and the readers' view of one partition."""

    __slots__ = (
        "_barrier",
        "_distrusted",
        "_duplicates",
        "_moved_again",
        "_notify_scheduled",
        "_on_stored",
        "_open_callbacks",
        "_owner",
        "_pending",
        "_queued",
        "_refused",
        "_since_snapshot",
        "_snapshot_at",
        "_snapshot_bytes",
        "_snapshot_offset",
        "_taken",
        "_waiters",
        "_writer",
        "epoch",
        "high_watermark",
        "locatable",
        "log_start_offset",
        "partition",
        "phase",
        "skipped",
        "state",
        "stream_id",
        "tail",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, stream_id: int, owner: Owner, tail: Tail, snapshot_bytes: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.stream_id = stream_id
        self.phase = Phase.CLOSED
        self.epoch = -1
        self.log_start_offset = 0
        self.high_watermark = 0
        self.state = PartitionState(0)
        self.skipped: tuple[Span, ...] = ()
        """What an operator declared lost: readers find a gap there."""
        self.tail = tail
        self._owner = owner
        self._barrier = owner.barrier
        # The writer of the present opening; appends go to it at once when what was queued is handed over.
        self._taken: Writer | None = None
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
        self._open_callbacks: list[Callable[[LogError | None], None]] = []
        self._waiters: dict[Waiter, None] = {}
        self._distrusted: set[int] = set()
        #: Whether batches are as long in the log as their readers get them: no longer once other formats were seen.
        self.locatable = True
        self._notify_scheduled = False
        self._moved_again = False
        self._snapshot_bytes = snapshot_bytes
        # What was appended since the last snapshot that was saved, and how much of it asks for the next one.
        self._since_snapshot = 0
        self._snapshot_at = snapshot_bytes
        self._snapshot_offset = -1

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic}-{self.partition}, {self.phase.value}, high_watermark={self.high_watermark})"

    @property
    def next_offset(self) -> int:
        """The offset the next record gets."""
        return self._taken.next_offset if self._taken is not None else self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset a reader of committed data must not see yet."""
        return self.high_watermark

    @property
    def size_bytes(self) -> int:
        """Bytes of payload kept, to within one interval of the offset index."""
        return self.state.index.size_bytes

    # --- opening ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.phase is Phase.OPEN

    def when_open(self, callback: Callable[[LogError | None], None]) -> None:
        """Call back once the log can be used (at once if it can), or with the error that prevents it."""
        if self.phase is Phase.OPEN:
            callback(None)
        elif self.phase is Phase.DELETED:
            callback(LogDeleted(f"{self.topic}-{self.partition} was deleted"))
        else:
            self._open_callbacks.append(callback)
            self._ensure_opening()

    def _ensure_opening(self) -> None:
        if self.phase is Phase.CLOSED:
            self.phase = Phase.OPENING
            self._owner.opening(self)

    def opened(self, writer: Writer, found: Rebuilt) -> None:
        """The owner has taken the partition in ``writer.epoch`` and has ``found`` what is durable there."""
        assert self.phase is Phase.OPENING, self
        assert not self._pending, "a log is opened with nothing in flight"
        self.state = found.state
        self.skipped = found.skipped
        self.epoch = writer.epoch
        self.log_start_offset = writer.start_offset
        self.high_watermark = writer.confirm_offset
        self._on_stored = partial(self._stored, writer)
        self._snapshot_offset = found.snapshot_offset
        # What was read counts: a node that dies young again and again must not read more each time.
        self._since_snapshot = found.cost
        self._snapshot_at = self._snapshot_bytes
        self.phase = Phase.OPEN
        self._taken = writer
        self._hand_over_queued(writer)

    def _hand_over_queued(self, writer: Writer) -> None:
        """Append what waited for the opening: a bounded number in one turn, since clients choose how many there are.

        The log has its writer only when all of it is handed over: what comes meanwhile, also from somebody who is
        answered, comes behind it.
        """
        for _ in range(_HANDED_OVER_AT_ONCE):
            if not self._queued or writer is not self._taken:
                break
            self._barrier.call("append answer", self._hand_over, writer, *self._queued.popleft())
        if writer is not self._taken:
            self._owner.let_go(writer)  # the log has failed meanwhile, or was deleted
            # What is still queued comes behind what was just refused: taking it would turn their order round.
            self._refuse_queued(LogUnavailable(f"{self.topic}-{self.partition} failed while it was opened"))
            if self._queued or self._open_callbacks:
                self._ensure_opening()
            return
        if self._queued:
            self._owner.schedule(partial(self._hand_over_queued, writer))
            return
        self._writer = writer
        self._settle_open(None)
        self._moved()
        if self._since_snapshot >= self._snapshot_at:
            self._barrier.call("snapshot", self._ask_for_snapshot)

    def open_failed(self, error: LogError) -> None:
        """The owner could not take the partition; the next use tries again."""
        self.fail(error)
        if self.phase is Phase.OPENING:
            self.phase = Phase.CLOSED
        self._refuse_queued(error)
        self._settle_open(error)

    def _settle_open(self, error: LogError | None) -> None:
        callbacks, self._open_callbacks = self._open_callbacks, []
        for callback in callbacks:
            self._barrier.call("opening answer", callback, error)

    def _refuse_queued(self, error: LogError) -> None:
        queued, self._queued = self._queued, deque()
        for _, done in queued:
            self._barrier.call("append answer", done, -1, error)

    # --- append -------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, done: AppendDone) -> None:
        """Append one batch; ``done`` is called when it is durable.

        Errors given to ``done``: OutOfOrderSequence, ProducerFenced, StorageFull, LogUnavailable, LogDeleted,
        BatchTooLarge, BatchInvalid. A batch that repeats one of its producer's last five is not stored again and gets
        the original base offset.
        """
        writer = self._writer
        if writer is None or self.phase is not Phase.OPEN:
            if self.phase is Phase.DELETED:
                done(-1, LogDeleted(f"{self.topic}-{self.partition} was deleted"))
                return
            self._queued.append((batch, done))
            self._ensure_opening()
            return
        self._hand_over(writer, batch, done)

    def _hand_over(self, writer: Writer, batch: Batch, done: AppendDone) -> None:
        stamp = batch.producer
        if stamp is not None:
            try:
                original = self.state.ledger.check(stamp)
            except LogError as error:
                done(-1, error)
                return
            if original is not None:
                if original < self.high_watermark:
                    done(original, None)
                else:
                    self._duplicates.setdefault(original, []).append(done)
                return
        base = writer.next_offset
        now = time.time_ns() // 1_000_000
        try:
            format_of(batch.flags).stamp(batch.payload, base, self.epoch)
            given = writer.append(batch.payload, batch.count, batch.flags, now, self._on_stored)
        except SbpError as error:
            done(-1, BatchTooLarge(str(error)))
            return
        except LogError as error:
            done(-1, error)
            return
        except Exception as error:  # noqa: BLE001 - logged, counted and answered; no offset is used up
            self._barrier.caught("append", error, topic=self.topic, partition=self.partition)
            done(-1, LogError(f"appending to {self.topic}-{self.partition} failed unexpectedly"))
            return
        if stamp is not None:
            self.state.ledger.record(stamp, base, now)
        self._pending.append((base, batch, done, now))
        if given != base:
            self._owner.let_go(writer)
            self.fail(LogUnavailable(f"the backend gave offset {given} where it had announced {base}"))

    def _stored(self, writer: Writer, error: SbpError | None) -> None:
        """The backend's answer for the oldest batch in flight."""
        if writer is not self._taken:
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
        self.high_watermark = end
        timestamp = batch.max_timestamp
        state = self.state
        state.last = (base, size, appended_ms)
        try:
            state.index.add(base, size, timestamp, appended_ms)
            state.enter_epoch(self.epoch, base)
            self.tail.append(StoredBatch(base, end, batch.flags, payload))
        except Exception as failure:  # noqa: BLE001 - logged and counted; the batch is durable, and is answered so
            self._barrier.caught("stored batch", failure, topic=self.topic, partition=self.partition)
            self.tail.clear()  # it must have no gap
        try:
            done(base, None)
        except Exception as failure:  # noqa: BLE001 - logged and counted
            self._barrier.caught("append answer", failure, topic=self.topic, partition=self.partition)
        if self._duplicates:
            self._answer(self._duplicates.pop(base, ()), base, None)
        self._since_snapshot += rebuild_cost(size)
        if self._since_snapshot >= self._snapshot_at:
            self._barrier.call("snapshot", self._ask_for_snapshot)
        if self._waiters:
            self._moved()

    def _answer(self, waiting: Iterable[AppendDone], base: int, error: LogError | None) -> None:
        for done in waiting:
            self._barrier.call("append answer", done, base, error, topic=self.topic, partition=self.partition)

    def _refusal(self, error: SbpError | None) -> LogError:
        if isinstance(error, NoSpace):
            return StorageFull(str(error))
        return LogUnavailable(f"{self.topic}-{self.partition}: {error}")

    def _append_failed(self, writer: Writer, error: SbpError) -> None:
        if writer.failed is not None:
            self.fail(self._refusal(error))
            return
        # Neither this batch nor any that was handed over after it is stored, nor will be: take all of it back, the
        # latest first, and at once, for whoever is answered may append more, at the same offsets. The log stays open.
        pending, self._pending = self._pending, deque()
        for base, batch, _, _ in reversed(pending):
            if batch.producer is not None:
                self.state.ledger.forget(batch.producer, base)
        self._refused.extend([done, *self._duplicates.pop(base, ())] for base, _, done, _ in pending)
        self._answer(self._refused.popleft(), -1, self._refusal(error))

    def overtaken(self, entries: list[Entry]) -> None:
        """Another writer has appended ``entries`` behind the high watermark: everything in flight has moved up.

        Only a backend without epochs lets that happen (docs/sbp.md).
        """
        if self.phase is not Phase.OPEN or not entries:
            return
        moved = entries[-1].end_offset - self.high_watermark
        ledger = self.state.ledger
        for base, batch, _, _ in reversed(self._pending):
            if batch.producer is not None:
                ledger.forget(batch.producer, base)
        for entry in unwrapped(entries):
            self.state.observe(entry.base_offset, entry.payload, entry.flags, entry.timestamp)
        now = time.time_ns() // 1_000_000
        pending = [(base + moved, batch, done, appended) for base, batch, done, appended in self._pending]
        for base, batch, _, _ in pending:
            format_of(batch.flags).stamp(batch.payload, base, self.epoch)
            if batch.producer is not None:
                ledger.record(batch.producer, base, now)
        self._pending = deque(pending)
        self._duplicates = {base + moved: waiting for base, waiting in self._duplicates.items()}
        self.tail.clear()
        self.high_watermark += moved
        self._moved()

    def fail(self, error: LogError) -> None:
        """The backend lost us: answer everything in flight with ``error``; the next use opens the log anew."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.CLOSED
        self._taken = self._writer = None
        pending, self._pending = self._pending, deque()
        duplicates, self._duplicates = self._duplicates, {}
        refused, self._refused = self._refused, deque()
        self.tail.clear()
        for waiting in (*refused, [done for _, _, done, _ in pending], *duplicates.values()):
            self._answer(waiting, -1, error)
        self._moved()

    # --- read ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, done: ReadDone) -> None:
        """Whole batches from the one that contains ``offset``, at least one unless only skipped ones remain.

        From a skipped offset on it gives what comes behind that. ``done`` may be called before this returns. Errors:
        OffsetOutOfRange, DataCorrupt, LogUnavailable, LogDeleted.
        """
        if self.phase is not Phase.OPEN:
            self.when_open(lambda error: self._read_when_open(offset, max_bytes, done, error))
            return
        if offset < self.log_start_offset or offset > self.high_watermark:
            span = f"[{self.log_start_offset}, {self.high_watermark}]"
            done([], OffsetOutOfRange(f"offset {offset} of {self.topic}-{self.partition} is outside {span}"))
            return
        limit = self.high_watermark
        if self.skipped:
            offset = past(self.skipped, offset)
            limit = next_after(self.skipped, offset, limit)
        if offset >= limit:
            done([], None)
            return
        cached = self.tail.read(offset, max_bytes)
        if cached is not None:
            done(cached, None)
            return

        def fetched(answer: list[Entry] | SbpError) -> None:
            failure: LogError | None = None
            batches: list[StoredBatch] = []
            if isinstance(answer, Reclaimed) and offset >= self.log_start_offset:
                self._read_reclaimed(offset, done)
                return
            if isinstance(answer, SbpError):
                failure = read_error(answer)
            else:
                try:
                    batches = stored_batches(answer, offset, max_bytes)
                    while batches and batches[-1].base_offset >= limit:
                        batches.pop()  # a piece of what was stored as one, in the document's dialect
                except Exception as error:  # noqa: BLE001 - logged, counted and answered
                    failure = self._read_failed(error)
            # Called by the backend, which has others to answer.
            self._barrier.call("read answer", done, batches, failure, topic=self.topic, partition=self.partition)

        self._owner.client.fetch(self.stream_id, offset, max_bytes, fetched, limit=limit)

    def _read_reclaimed(self, offset: int, done: ReadDone) -> None:
        """Answers once the log starts where the backend's data does: whoever asks for its start then finds some."""

        def settled(task: asyncio.Task[LogError | None]) -> None:
            failure = None if task.cancelled() else task.result()
            if failure is None:
                failure = OffsetOutOfRange(f"offset {offset} of {self.topic}-{self.partition} is gone from the backend")
            self._barrier.call("read answer", done, [], failure, topic=self.topic, partition=self.partition)

        self._owner.reclaimed(self, offset).add_done_callback(settled)

    def _read_when_open(self, offset: int, max_bytes: int, done: ReadDone, error: LogError | None) -> None:
        if error is None:
            answered = False

            def answer(batches: list[StoredBatch], error: LogError | None) -> None:
                nonlocal answered
                answered = True
                done(batches, error)

            try:
                self.read(offset, max_bytes, answer)
                return
            except Exception as failure:
                if answered:
                    raise  # by the reader itself
                error = self._read_failed(failure)
        done([], error)

    def _read_failed(self, error: Exception) -> LogError:
        self._barrier.caught("read", error, topic=self.topic, partition=self.partition)
        return LogError(f"reading {self.topic}-{self.partition} failed unexpectedly")

    def locate(self, offset: int, max_bytes: int) -> Place | None:
        """Where the batches lie that a read would find, and their size, without reading them; at least one.

        None when that is not known without reading: what lies there may still be readable.
        """
        if self.phase is not Phase.OPEN or not self.locatable or not self.log_start_offset <= offset:
            return None
        limit = self.high_watermark
        if self.skipped:
            offset = past(self.skipped, offset)
            limit = next_after(self.skipped, offset, limit)
        if offset >= limit:
            return None
        for distrusted in self._distrusted:
            if offset < distrusted < limit:
                limit = distrusted
        place = self.tail.measure(offset, max_bytes, limit) or self._owner.client.locate(
            self.stream_id, offset, max_bytes, limit
        )
        return None if place is None or place[0] in self._distrusted else Place(*place)

    def distrust(self, offset: int) -> None:
        """The batch at ``offset`` could not be read: it is not to be located any more."""
        self._distrusted.add(offset)
        if len(self._distrusted) > _MAX_DISTRUSTED:
            self.locatable = False

    def available(self, offset: int, enough: int) -> int:
        """Bytes a read from ``offset`` would find, counted only as far as ``enough``."""
        if self.skipped:
            offset = past(self.skipped, offset)
        if offset >= self.high_watermark:
            return 0
        cached = self.tail.bytes_from(offset, enough)
        return enough if cached is None else cached

    def skip(self, span: Span) -> None:
        """From now on readers pass over ``span``; somebody else has made that durable."""
        self.skipped = merged([*self.skipped, span])
        self.tail.clear()  # from now on it holds only what comes behind
        self._moved()

    def add_waiter(self, waiter: Waiter) -> None:
        """Have ``waiter`` called whenever the log moves, until it is removed."""
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def _moved(self) -> None:
        # Once per loop tick: a group commit acknowledges many batches of a partition at once.
        if self._notify_scheduled:
            self._moved_again = True
        elif self._waiters:
            self._notify_scheduled = True
            self._owner.schedule(self._notify)

    def _notify(self) -> None:
        self._moved_again = False
        self._wake(list(self._waiters))

    def _wake(self, waiters: list[Waiter]) -> None:
        for waiter in waiters[:_WOKEN_AT_ONCE]:
            if waiter not in self._waiters:
                continue  # it has its answer
            try:
                waiter.log_moved(self)
            except Exception as error:  # noqa: BLE001 - logged and counted
                self._barrier.caught("waiter", error, topic=self.topic, partition=self.partition)
        if len(waiters) > _WOKEN_AT_ONCE:
            self._owner.schedule(partial(self._wake, waiters[_WOKEN_AT_ONCE:]))
            return
        self._notify_scheduled = False
        if self._moved_again:
            self._moved()

    def epoch_of(self, offset: int) -> int:
        """The epoch in which the record at ``offset`` was, or the next one would be, written."""
        if offset >= self.high_watermark:
            return self.epoch
        return max((epoch for epoch, start in self.state.epochs if start <= offset), default=self.epoch)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """(largest epoch not above ``epoch``, offset after its last record); None when there is no such epoch."""
        if epoch == self.epoch:
            return epoch, self.high_watermark
        return self.state.epoch_end(epoch, self.high_watermark) if epoch < self.epoch else None

    async def find_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record, in offset order, not older than ``timestamp``; None if none is.

        Looks into batches (reference/kafka.md, rule 48). Raises DataCorrupt, LogUnavailable, LogDeleted.
        """
        await self.ready()
        return await self._owner.search.first(self, timestamp)

    async def find_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the earliest record with the highest timestamp kept; None if none carries one."""
        await self.ready()
        return await self._owner.search.highest(self)

    def read_batches(self, offset: int, max_bytes: int) -> Awaitable[list[StoredBatch]]:
        """Awaitable form of :meth:`read`; raises its errors."""
        future: asyncio.Future[list[StoredBatch]] = asyncio.get_running_loop().create_future()

        def settle(batches: list[StoredBatch], error: LogError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(batches)
            else:
                future.set_exception(error)

        self.read(offset, max_bytes, settle)
        return future

    # --- upkeep -------------------------------------------------------------------------------------------------

    async def trim(self, offset: int) -> int:
        """Make everything below ``offset`` unreadable, durably, and give its space back; returns the log start.

        Raises OffsetOutOfRange (above the high watermark), LogUnavailable, LogDeleted.
        """
        await self.ready()
        if offset > self.high_watermark or offset < 0:
            raise OffsetOutOfRange(
                f"cannot trim {self.topic}-{self.partition} at {offset}: it ends at {self.next_offset}"
            )
        if offset > self.log_start_offset:
            await self._keep_knowledge_below(offset)
            try:
                await self._owner.trim(self.stream_id, offset)
            except SbpError as error:
                raise LogUnavailable(str(error)) from error
            self.start_raised(offset)
        return self.log_start_offset

    def start_raised(self, offset: int) -> None:
        """What lies below ``offset`` is not to be read any more, and somebody else has made that durable."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.state.drop_before(offset)
        if offset == self.high_watermark:
            self.state.index.clear()
        self._moved()

    async def _keep_knowledge_below(self, offset: int) -> None:
        """Have a snapshot that knows the producers of what is about to be trimmed: the log will not tell any more."""
        while self.is_open and self._snapshot_offset < offset and len(self.state.ledger):
            error = await self._owner.snapshot(self)
            if isinstance(error, StorageFull):
                return  # trimming is what gives space back
            if error is not None:
                raise LogUnavailable(f"{self.topic}-{self.partition} cannot be trimmed now: {error}") from error

    def ready(self) -> Awaitable[None]:
        """Awaitable form of :meth:`when_open`; raises its error."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: LogError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_open(settle)
        return future

    def _ask_for_snapshot(self) -> None:
        self._snapshot_at = _NEVER  # until this one is saved, or has failed
        self._owner.snapshot(self)

    @property
    def has_moved(self) -> bool:
        """Whether anything was appended, or read when the log was opened, since the last snapshot."""
        return self._since_snapshot > 0

    async def save_snapshot(self, save: Callable[[int, StateCapture], Awaitable[None]]) -> None:
        """Have ``save`` read out and store the durable state, so that the next opening reads less.

        Raises what ``save`` raises; then the next attempt is due when as much again was appended.
        """
        if not self.is_open:
            return
        state, since, offset = self.state, self._since_snapshot, self.high_watermark
        in_flight = {batch.producer.producer_id for _, batch, _, _ in self._pending if batch.producer is not None}
        saved = False
        try:
            await save(self.stream_id, state.capture(offset, in_flight))
            saved = True
        finally:
            if self.state is state:  # the log was not opened anew meanwhile
                if saved:
                    self._since_snapshot -= since
                    self._snapshot_offset = offset
                self._snapshot_at = self._snapshot_bytes + (0 if saved else self._since_snapshot)

    def retention_offset(self, keep_ms: int, keep_bytes: int, now_ms: int) -> int | None:
        """Offset below which nothing need be kept: older than ``keep_ms``, or beyond ``keep_bytes`` (-1: no limit)."""
        index = self.state.index
        offsets = []
        if keep_ms >= 0:
            oldest = now_ms - keep_ms
            offsets.append(self.high_watermark if index.blocking(oldest) is None else index.older_than(oldest))
        if keep_bytes >= 0:
            offsets.append(index.beyond(keep_bytes))
        return max((offset for offset in offsets if offset is not None), default=None)

    async def close(self) -> None:
        """Let go of the writer; nothing may be in flight any more."""
        writer, self._taken, self._writer = self._taken, None, None
        if self.phase is Phase.OPEN:
            self.phase = Phase.CLOSED
        self.tail.clear()
        if writer is not None:
            await writer.close()

    def delete(self) -> None:
        """The topic is gone: everybody who waits is told so, nothing works any more."""
        self.phase = Phase.DELETED
        writer, self._taken, self._writer = self._taken, None, None
        if writer is not None:
            self._owner.let_go(writer)
        gone = LogDeleted(f"{self.topic}-{self.partition} was deleted")
        self._refuse_queued(gone)
        self._settle_open(gone)
        self.fail(gone)


def rebuild_cost(size: int) -> int:
    """What a batch of ``size`` bytes counts when deciding on a snapshot."""
    return size + _SNAPSHOT_BATCH_COST


def _ignore(error: SbpError | None) -> None:
    pass


def read_error(error: SbpError) -> LogError:
    """A reader's word for what the backend says."""
    if error.code == ErrorCode.RS_DATA_CORRUPTED:
        return DataCorrupt(str(error))
    if error.code in (ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, ErrorCode.OFFSET_OVERFLOW):
        return OffsetOutOfRange(str(error))
    return LogUnavailable(str(error))
