"""All partition logs of one node: found by topic and partition, opened on first use, closed in order.

Opening a log takes ownership (a newer epoch fences the earlier writer), restores the latest snapshot and reads the
headers of later batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import structlog
from msgspec import Struct, field

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.cycle import cycle_of
from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner, TransactionsOpen
from bridges.formats import COMPACTED
from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.producer import LedgerKind
from bridges.log.byte_positions.search import ByteSearch
from bridges.log.byte_positions.starts import ByteStarts
from bridges.log.compaction.cleaned_logs import CleanedLogs
from bridges.log.damage.skips import Skips, Span, before, next_after, past
from bridges.log.ledger.ledger import KindLimits, LedgerOptions
from bridges.log.ledger.rules import RULES, Rule
from bridges.log.partition.admission import Admission
from bridges.log.partition.partition_log import PartitionLog, Rebuilt, rebuild_cost
from bridges.log.partition.refusals import Refusals
from bridges.log.partition.tail_cache import Tail, TailCache
from bridges.log.partition.time_search import TimeSearch
from bridges.log.partition.waiters import once
from bridges.log.remote.nowhere import Nowhere
from bridges.log.state.log_starts import LogStarts, Trims, first_readable
from bridges.log.state.partition_state import PartitionState
from bridges.log.state.snapshotter import SnapshotStore, Snapshotter
from bridges.log.state.stream_rows import KnownRows
from bridges.log.transactions.aborted_blocks import AbortedBlocks
from bridges.log.transactions.partition_transactions import Transactions
from sbp_back.errors import DecodeError, ErrorCode, FencedError, Lost, Reclaimed, SbpError

if TYPE_CHECKING:
    from bridges.catalog.topic_rules import TopicRules
    from bridges.cluster.ownership import Ownership
    from bridges.log.remote.readable import ReadableElsewhere, ReadableLog
    from bridges.log.streams import Streams, Writer
    from sbp_back.wire.model import Entry

_log = structlog.get_logger("anabranch.logs")


class LogOptions(Struct):
    """Limits of the partition logs of one node; see docs/operations.md."""

    tail_cache_bytes: int = 32 * 1024 * 1024
    snapshot_bytes: int = 64 * 1024 * 1024
    max_producers_per_partition: int = 20_000
    max_producers: int = 2_000_000
    producer_idle_ms: int = 86_400_000
    event_writers_per_partition: int = 100_000
    event_writer_idle_ms: int = 16 * 86_400_000
    seq_no_producers_per_partition: int = 100_000
    seq_no_producer_idle_ms: int = 16 * 86_400_000
    positions_idle_ms: int = 3_600_000
    transactions_per_partition: int = 100_000
    open_concurrency: int = 64
    open_attempts: int = 5
    rebuild_read_bytes: int = 1024 * 1024
    retention_openings: int = 2_000
    retention_patience_s: float = 1.0
    inflated_bytes: int = DEFAULT_LIMIT
    rules: Mapping[int, Rule] = field(default_factory=lambda: RULES)
    """The rules of the ledger, by kind of writer."""

    def ledger(self) -> LedgerOptions:
        """Return the rules of the ledger, with limits for each kind of writer."""
        return LedgerOptions(
            self.rules,
            {
                LedgerKind.KAFKA: KindLimits(self.max_producers_per_partition, self.producer_idle_ms),
                LedgerKind.EVENT_NUMBER: KindLimits(self.event_writers_per_partition, self.event_writer_idle_ms),
                LedgerKind.SEQ_NO: KindLimits(self.seq_no_producers_per_partition, self.seq_no_producer_idle_ms),
            },
        )


FindStream = Callable[[str, int], int | None]
SealedAs = Callable[[str, int], tuple[tuple[int, ...], int | None] | None]

_BATCHES_AT_ONCE = 500
"""Batches observed in one turn of the event loop, when a partition is rebuilt."""
_SLOW_S = 0.25
"""Seconds after which an opening that waits for its server gives its place to the next: a failed server holds up only
its own partitions."""
_SLOW_MOST = 2_000
"""Most openings that wait like that."""
_RETAINED_AT_ONCE = 8
_RETRY_FIRST_S = 0.5
_RETRY_LAST_S = 10.0
_ROWS_AT_ONCE = 64
_LOGS_AT_ONCE = 200
"""Logs handled in one turn of the event loop by chores over all logs."""
_OPENED_S = 1.0
"""Seconds that openings in flight may take when their slot is handed over."""
_GIVEN_UP_S = 5.0
"""Seconds that work in flight may take for a log that moves to another node."""
_REBUILT_SNAPSHOTS = 4
"""A long rebuild saves a snapshot every so many snapshot intervals, so that it need not start over."""


class Logs:
    """The node's partition logs. ``owners`` knows which partitions this node owns; ``elsewhere`` makes the access to
    other nodes' logs.

    ``streams`` returns the SBP stream of a (topic, partition), or None when there is no such partition; ``sealed_as``
    the (children, final end if it is known) of a partition that the catalog has sealed, or None while it takes appends;
    ``import_epochs`` the run of a migration that may write to a partition (-1: every client may); ``rules`` a topic's
    rules for appends; ``before_opening`` is awaited with the end of a log before any append to it.
    """

    def __init__(
        self,
        client: Streams,
        streams: FindStream,
        snapshots: SnapshotStore,
        owners: Ownership,
        options: LogOptions | None = None,
        barrier: Barrier | None = None,
        starts: LogStarts | None = None,
        works: SlicedWorks | None = None,
        skips: Skips | None = None,
        sealed_as: SealedAs | None = None,
        hidden_streams: FindStream | None = None,
        byte_starts: ByteStarts | None = None,
        import_epochs: Callable[[str, int], int] | None = None,
        rules: Callable[[str], TopicRules] | None = None,
        cleaned: CleanedLogs | None = None,
        aborted: AbortedBlocks | None = None,
        elsewhere: Callable[[Logs], ReadableElsewhere] | None = None,
        before_opening: Callable[[PartitionLog, int], Awaitable[None]] | None = None,
    ) -> None:
        self.options = options or LogOptions()
        self._ledger = self.options.ledger()
        self.barrier = barrier or Barrier()
        """Logs and counts exceptions of requests' callbacks, and unexpected ones of openings."""
        self.skips = skips or Skips()
        self._client = client
        self._streams = streams
        self._sealed_as = sealed_as or _nothing
        self._hidden_streams = hidden_streams or _nothing
        self._import_epochs = import_epochs
        self._hidden: dict[tuple[str, int], PartitionLog] = {}
        self._snapshots = snapshots
        self._snapshotter = Snapshotter(snapshots, self.barrier)
        self._starts = starts or LogStarts()
        self._trims = Trims(client, self._starts)
        self._before_opening = before_opening
        self.on_decided: list[Callable[[int], None]] = []
        """Called with the stream of a partition that could not be sealed, once no transaction is open there."""
        # Logs whose seal waits for the end of open transactions.
        self._undecided: set[PartitionLog] = set()
        self._searches: dict[PartitionLog, asyncio.Task[LogError | None]] = {}
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._by_stream: dict[int, PartitionLog] = {}
        self._owners = owners
        # Opened logs, by slot: ownership is lost by slots.
        self._by_slot: dict[int, set[PartitionLog]] = {}
        # By slot: the epochs of streams that this node has opened for writing and not sealed since.
        self._taken: dict[int, dict[int, int]] = {}
        # The slots of the streams in these two.
        self._slots: dict[int, int] = {}
        self._being_opened: dict[PartitionLog, asyncio.Future[None]] = {}
        owners.on_lost.append(self._lose)
        owners.on_gone.append(self._try_again)
        self._cache = TailCache(self.options.tail_cache_bytes)
        self._tasks = TaskSet()
        self.finishing = TaskSet()
        """Work on a log that is completed even if its caller is cancelled."""
        self._unopened: deque[PartitionLog] = deque()
        self._openers = 0  # without slow openings
        self._slow = 0
        # By the set of servers that are read: a hanging server takes no places from partitions on other servers.
        self._rebuilds: WeakValueDictionary[frozenset[int], asyncio.Semaphore] = WeakValueDictionary()
        # By stream that failed to open: the number of failures in a row, and the monotonic time of the next attempt.
        self._failing: dict[int, tuple[int, float]] = {}
        self._put_off: dict[PartitionLog, asyncio.TimerHandle] = {}
        self._retention: Rounds[tuple[str, int]] = Rounds(
            self.barrier, "retention", at_once=_RETAINED_AT_ONCE, patience=self.options.retention_patience_s
        )
        # Openings for retention wait for their places and servers, not for anything of this node's.
        self._retained_unopened: Rounds[tuple[str, int]] = Rounds(
            self.barrier,
            "retention",
            at_once=self.options.open_concurrency,
            patience=min(_SLOW_S, self.options.retention_patience_s),
            left=_SLOW_MOST,
        )
        self._retained_last: tuple[str, int] | None = None  # the last partition that retention has opened
        works = works or SlicedWorks()
        self.refusals = Refusals()
        """Batches that fronts have reported to their clients as refused."""
        self.admission = Admission(rules, works, self.barrier, self.options.inflated_bytes)
        self.aborted = aborted or AbortedBlocks()
        self.search = TimeSearch(works, self.barrier, self.options.inflated_bytes)
        self._byte_starts = byte_starts or ByteStarts()
        self._cleaned = cleaned or CleanedLogs()
        self._known: tuple[KnownRows[Any], ...] = (self.skips, self._starts, self._byte_starts, self._cleaned)
        self.positions = ByteSearch(
            works,
            self.barrier,
            self.snapshot,
            self._byte_starts,
            self.options.inflated_bytes,
            self.options.positions_idle_ms / 1000,
        )
        self._loop = asyncio.get_running_loop()
        self._cycle = cycle_of(self._loop)
        self._closing = False
        self._shared: set[int] = set()
        self.elsewhere: ReadableElsewhere = Nowhere() if elsewhere is None else elsewhere(self)
        """The logs of other nodes, for readers."""

    # --- finding ------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition, whether or not it is open yet; None when there is no such partition."""
        log = self._logs.get((topic, partition))
        return self._made(topic, partition, self._logs, self._streams) if log is None else log

    def to_read(self, topic: str, partition: int) -> ReadableLog | None:
        """Return the log of a partition for readers, whichever node owns it; None when there is no such partition."""
        return self.find_elsewhere(topic, partition) or self.get(topic, partition)

    def find_elsewhere(self, topic: str, partition: int) -> ReadableLog | None:
        """Return the log of a partition that another node owns; None if this node owns it, or there is no such
        partition."""
        if self.owns(topic, partition):
            return None
        stream_id = self._streams(topic, partition)
        return None if stream_id is None else self.elsewhere.get(topic, partition, stream_id)

    def in_use(self, topic: str, partition: int) -> ReadableLog | None:
        """Return the log of a partition, whichever node owns it, if it is open here or its owner has reported its
        state."""
        log = self.find_elsewhere(topic, partition) or self.known(topic, partition)
        return log if log is not None and log.is_open else None

    def hidden(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a hidden topic's partition, like :meth:`get` (see
        :attr:`bridges.catalog.topics.Catalog.hidden`)."""
        log = self._hidden.get((topic, partition))
        return self._made(topic, partition, self._hidden, self._hidden_streams) if log is None else log

    def _made(
        self, topic: str, partition: int, logs: dict[tuple[str, int], PartitionLog], streams: FindStream
    ) -> PartitionLog | None:
        stream_id = streams(topic, partition)
        if stream_id is None or self._closing:
            return None
        log = PartitionLog(topic, partition, stream_id, self, Tail(self._cache), self.options.snapshot_bytes)
        life = self._sealed_as(topic, partition)
        if life is not None:
            log.sealed(*life)
        if self._import_epochs is not None and logs is self._logs:
            log.import_epoch = self._import_epochs(topic, partition)
        logs[topic, partition] = self._by_stream[stream_id] = log
        return log

    def known(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition that was used since the node started, or None."""
        return self._logs.get((topic, partition))

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch in which the partition is, or would be, written."""
        # All nodes report the same epoch. It rises when the slot moves to another node, or a log in it is opened again.
        # A single node has one epoch for all logs until a log is opened again.
        epoch = self._owners.epoch(self._owners.slot_of(topic, partition))
        log = self._logs.get((topic, partition))
        return epoch if log is None else max(epoch, log.epoch)

    @property
    def is_sure(self) -> bool:
        """Return whether this node certainly owns its open logs
        (:attr:`bridges.cluster.ownership.Ownership.is_sure`)."""
        return self._owners.is_sure

    def when_sure(self, callback: Callable[[LogError | None], None]) -> None:
        """See :class:`bridges.log.interfaces.Owner`."""
        self._tasks.spawn(self._ascertain(callback))

    async def _ascertain(self, callback: Callable[[LogError | None], None]) -> None:
        error: LogError | None = None
        try:
            await self._owners.sure()
        except LogError as found:
            error = found
        self.barrier.call("opening answer", callback, error)

    def __iter__(self) -> Iterator[PartitionLog]:
        """Return every log used so far."""
        return iter([*self._logs.values(), *self._hidden.values()])

    @property
    def cached_bytes(self) -> int:
        return self._cache.total

    def topic_deleted(self, topic: str, partitions: Iterable[int]) -> None:
        """Drop the logs of a deleted topic."""
        for partition in partitions:
            log = self._logs.pop((topic, partition), None) or self._hidden.pop((topic, partition), None)
            if log is not None:
                self._by_stream.pop(log.stream_id, None)
                self._failing.pop(log.stream_id, None)
                slot = self._slots.pop(log.stream_id, None)
                if slot is not None:  # the slot follows from the topic's id, which is gone
                    self._by_slot.get(slot, set()).discard(log)
                    self._taken.get(slot, {}).pop(log.stream_id, None)
                put_off = self._put_off.pop(log, None)
                if put_off is not None:
                    put_off.cancel()
                log.delete()
                for known in self._known:
                    known.deleted(log.stream_id)
                self.aborted.drop(log.stream_id)

    def sealed(self, topic: str, partition: int, children: tuple[int, ...]) -> None:
        """Refuse appends to a partition from now on, because the catalog has sealed it."""
        log = self._logs.get((topic, partition))
        if log is not None and log.successors is None:
            log.sealed(children)

    def ended(self, topic: str, partition: int, end: int) -> None:
        """Set the final end of a sealed partition, reported by another node or by its log here."""
        log = self._logs.get((topic, partition))
        if log is not None and log.successors is not None and log.final_offset is None:
            log.sealed(log.successors, end)
            log.moved()

    def importing(self, topic: str, partitions: Iterable[int], import_epoch: int) -> None:
        """Set the import epoch of a topic's partitions, which the catalog has changed, or ended (-1)."""
        for partition in partitions:
            log = self._logs.get((topic, partition))
            if log is not None:
                log.import_epoch = import_epoch

    async def seal(self, topic: str, partition: int) -> int:
        """Make the end of a partition final, after the catalog has sealed it (see :meth:`PartitionLog.seal`)."""
        log = self.get(topic, partition)
        if log is None:
            raise LogDeleted(f"{topic}-{partition} is not served any more")
        try:
            return await log.seal()
        except TransactionsOpen:
            if log not in self._undecided:
                self._undecided.add(log)
                # A failed log is opened again by the next seal.
                once(log, lambda: not (log.is_open and log.state.transactions.open), partial(self._decided, log))
            raise

    def _decided(self, log: PartitionLog) -> None:
        self._undecided.discard(log)
        for told in self.on_decided:
            told(log.stream_id)

    # --- what other nodes own -----------------------------------------------------------------------------------

    async def _lose(self, slots: Collection[int], in_order: bool) -> None:
        """Give up the logs of these slots. With ``in_order``, return when everything in flight is decided and answered,
        and no range of theirs takes appends here. Then the next owner need not ask a node that may be gone by then."""
        gone = frozenset(slots)
        opening = [done for log, done in self._being_opened.items() if self._slot(log) in gone]
        if in_order and opening:
            # These openings notice that the slot is lost. A hanging one seals its stream itself, if it ever continues.
            await asyncio.wait(opening, timeout=_OPENED_S)
        logs = [log for slot in slots for log in self._by_slot.pop(slot, ())]
        for start in range(0, len(logs), _LOGS_AT_ONCE):
            await asyncio.gather(*(self._give_up(log, in_order) for log in logs[start : start + _LOGS_AT_ONCE]))
        taken = [one for slot in slots for one in self._taken.pop(slot, {}).items()]
        if in_order:
            # Streams of logs that could not be opened, or have failed since.
            for start in range(0, len(taken), _LOGS_AT_ONCE):
                await asyncio.gather(*(self._seal_taken(*one) for one in taken[start : start + _LOGS_AT_ONCE]))

    def to_close(self, slot: int) -> int:
        """Return how many logs of a slot are open."""
        return len(self._by_slot.get(slot, ()))

    def _try_again(self) -> None:
        """Retry failed openings, because a member is gone for good: their streams may have another server now."""
        self._failing.clear()
        for log, timer in list(self._put_off.items()):
            timer.cancel()
            self._want_open(log)

    async def _seal_taken(self, stream_id: int, epoch: int) -> None:
        """Seal a stream that this node has opened and will not write to. If that fails, the next owner has to seal
        it."""
        try:
            async with asyncio.timeout(_GIVEN_UP_S):
                await self._client.seal(stream_id, epoch)
        except (TimeoutError, SbpError) as error:
            if isinstance(error, SbpError) and error.code == ErrorCode.NOT_FOUND:
                return  # the stream was deleted meanwhile, as those of transactions are
            _log.warning("a range of a lost partition is left open", stream_id=stream_id, error=str(error))

    async def _give_up(self, log: PartitionLog, in_order: bool) -> None:
        try:
            if in_order and log.is_open:
                async with asyncio.timeout(_GIVEN_UP_S):
                    await log.come_to_rest()
                self._taken.get(self._slot(log), {}).pop(log.stream_id, None)
        except (TimeoutError, LogError) as error:
            # The fate of undecided batches is unknown to their writers, who ask the next owner.
            _log.warning("given up in the middle", topic=log.topic, partition=log.partition, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged and counted; the others are given up nevertheless
            self.barrier.caught("giving up a log", error, topic=log.topic, partition=log.partition)
        if not log.is_deleted:
            log.give_up(self._not_mine(log))

    def _slot(self, log: PartitionLog) -> int:
        return self._owners.slot_of(log.topic, log.partition)

    def _not_mine(self, log: PartitionLog) -> NotOwner:
        slot, owners = self._slot(log), self._owners
        owner = None if owners.is_mine(slot) else owners.owner(slot)
        return NotOwner(f"{log.topic}-{log.partition}", -1 if owner is None else owner.node_id)

    # --- what partition logs ask of their owner -----------------------------------------------------------------

    @property
    def client(self) -> Streams:
        return self._client

    def overtaken(self, stream_id: int, entries: list[Entry]) -> None:
        """Note that another writer has appended ``entries`` to the stream of a partition."""
        log = self._by_stream.get(stream_id)
        if log is None:
            return
        # Warn once: it may happen with every batch from now on.
        tell = _log.debug if stream_id in self._shared else _log.warning
        self._shared.add(stream_id)
        tell(
            "another writer appends to this partition: it is not fenced in this dialect",
            topic=log.topic,
            partition=log.partition,
            offset=entries[0].base_offset,
        )
        log.overtaken(entries)

    def schedule(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def schedule_answer(self, callback: Callable[[], None]) -> None:
        self._cycle.answer(callback)

    def opening(self, log: PartitionLog) -> None:
        _, not_before = self._failing.get(log.stream_id, (0, 0.0))
        wait = not_before - self._loop.time()
        if wait > 0:
            self._put_off[log] = self._loop.call_later(wait, self._want_open, log)
        else:
            self._want_open(log)

    def _want_open(self, log: PartitionLog) -> None:
        self._put_off.pop(log, None)
        self._unopened.append(log)
        self._more_openers()

    def _more_openers(self) -> None:
        if self._unopened and self._openers < self.options.open_concurrency:
            self._openers += 1
            self._tasks.spawn(self._open_waiting())

    def let_go(self, writer: Writer) -> None:
        self._tasks.spawn(self._close_writer(writer))

    async def _close_writer(self, writer: Writer) -> None:
        try:
            await writer.close()
        except Exception as error:  # noqa: BLE001 - logged and counted; the next opening of the stream fences it
            self.barrier.caught("closing a writer", error)

    def want_snapshot(self, log: PartitionLog) -> None:
        self._snapshotter.want(log)

    async def snapshot(self, log: PartitionLog) -> LogError | None:
        return await self._snapshotter.take(log)

    async def trim(self, stream_id: int, offset: int) -> None:
        await self._trims.trim(stream_id, offset)

    def reclaimed(self, log: PartitionLog, offset: int) -> asyncio.Task[LogError | None]:
        return self._looked_into(log, lambda: self._raise_start(log, offset))

    def lost(self, log: PartitionLog, span: Span) -> asyncio.Task[LogError | None]:
        return self._looked_into(log, lambda: self._pass_over(log, span))

    def _looked_into(self, log: PartitionLog, look: Callable[[], Awaitable[None]]) -> asyncio.Task[LogError | None]:
        """Return the task that handles a place where the backend has no data: one at a time for each log, shared by all
        readers that meet such a place meanwhile."""
        task = self._searches.get(log)
        if task is None:
            task = self._searches[log] = asyncio.ensure_future(self._look_into(log, look))
            task.add_done_callback(lambda _: self._searches.pop(log, None))
        return task

    async def _look_into(self, log: PartitionLog, look: Callable[[], Awaitable[None]]) -> LogError | None:
        try:
            await look()
        except SbpError as error:
            return LogUnavailable(f"{log.topic}-{log.partition}: {error}")
        except LogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self.barrier.caught("look at a place without data", error, topic=log.topic, partition=log.partition)
            return LogUnavailable(f"{log.topic}-{log.partition}: unexpectedly, {type(error).__name__}")
        return None

    async def _raise_start(self, log: PartitionLog, offset: int) -> None:
        # A trim by this node determines the log start itself; no search finds a start inside a batch.
        await log.trimmed()
        if log.log_start_offset > offset:
            return
        start, end = log.log_start_offset, log.high_watermark
        first = await first_readable(self._client, log.stream_id, max(offset, start), end)
        if first > start and log.is_open:
            await self._give_up_below(log, start, first)
            log.start_raised(first)
            self._snapshotter.want(log)  # the log no longer has the producers of the lost data

    async def _pass_over(self, log: PartitionLog, span: Span) -> None:
        """Declare ``span`` lost, because no server has it any more: readers find a gap there from now on, and an error
        is logged."""
        await self.positions.keep_around(log, span)
        await self.skips.add(log.stream_id, span, "its range server has lost it")
        if log.is_open:
            log.skip(span)
        _log.error(
            "acknowledged records are lost: the backend has none where its ranges say so; readers pass over them",
            topic=log.topic,
            partition=log.partition,
            first=span[0],
            end=span[1],
        )

    async def _open_waiting(self) -> None:
        """Open one log after the other: for a consumer of ten thousand, a task for each would cost more than the
        opening."""
        try:
            while self._unopened and self._openers <= self.options.open_concurrency:
                log = self._unopened.popleft()
                try:
                    await self._open_noted(log)
                except Exception as error:  # noqa: BLE001 - logged and counted; others wait behind it
                    self.barrier.caught("opening", error, topic=log.topic, partition=log.partition)
        finally:
            self._openers -= 1

    async def _open_noted(self, log: PartitionLog) -> None:
        done = self._being_opened[log] = self._loop.create_future()
        try:
            await self._open(log)
        finally:
            del self._being_opened[log]
            done.set_result(None)

    async def _open(self, log: PartitionLog) -> None:
        writer: Writer | None = None
        try:
            self._require_mine(log)
            with self._giving_place():
                writer = await self._take(log)
                slot = self._slots[log.stream_id] = self._slot(log)
                self._taken.setdefault(slot, {})[log.stream_id] = writer.epoch
                # No other node can append any more, so no other node changes the stream's rows in the database either.
                await asyncio.gather(*(known.reload([log.stream_id]) for known in self._known if known.shared))
                async with self._rebuilds_from(writer.servers):
                    rebuilt = await self._rebuild_what_is_left(log, writer)
                    if self._before_opening is not None:
                        await self._before_opening(log, writer.next_offset)
            self._failing.pop(log.stream_id, None)
            self._require_mine(log)  # the slot may have been lost meanwhile
            if self._is_current(log):
                self._by_slot.setdefault(self._slot(log), set()).add(log)
                log.opened(writer, rebuilt)
                return
            failure: LogError = LogDeleted(f"{log.topic}-{log.partition} was deleted")  # while it was opened
        except NotOwner as error:
            failure = error
            if writer is not None:
                self._taken.get(self._slot(log), {}).pop(log.stream_id, None)
                await self._seal_taken(log.stream_id, writer.epoch)
        except (SbpError, LogError) as error:
            failure = self._failed_to_open(log, str(error))
            _log.error("partition not opened", topic=log.topic, partition=log.partition, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged, counted and answered: the log must not remain in OPENING
            failure = self._failed_to_open(log, f"unexpectedly, {type(error).__name__}")
            self.barrier.caught("opening", error, topic=log.topic, partition=log.partition)
        if writer is not None:
            await self._close_writer(writer)
        # Answer last: a refused caller opens the log again at once, and no log is opened twice at the same time.
        if self._is_current(log):
            log.open_failed(failure)

    def _is_mine(self, log: PartitionLog) -> bool:
        return self.owns(log.topic, log.partition)

    def owns(self, topic: str, partition: int) -> bool:
        """Return whether this node owns a partition. Chores over all partitions ask this before they make a log."""
        return self._owners.is_mine(self._owners.slot_of(topic, partition))

    def _require_mine(self, log: PartitionLog) -> None:
        if not self._is_mine(log):
            raise self._not_mine(log)

    def _failed_to_open(self, log: PartitionLog, reason: str) -> LogUnavailable:
        if self._is_current(log):
            times, _ = self._failing.get(log.stream_id, (0, 0.0))
            # One failure may be a coincidence, so retry at once. Later attempts back off: a failed server must not be
            # asked as fast as clients retry.
            wait = 0.0 if not times else min(_RETRY_FIRST_S * 2 ** min(times - 1, 10), _RETRY_LAST_S)
            self._failing[log.stream_id] = times + 1, self._loop.time() + wait
        return LogUnavailable(f"{log.topic}-{log.partition} cannot be opened: {reason}")

    def _rebuilds_from(self, servers: frozenset[int]) -> asyncio.Semaphore:
        """Return a semaphore that limits the rebuilds from these servers, which hold memory."""
        places = self._rebuilds.get(servers)
        if places is None:
            places = self._rebuilds[servers] = asyncio.Semaphore(self.options.open_concurrency)
        return places

    @contextmanager
    def _giving_place(self) -> Iterator[None]:
        """Let another log be opened meanwhile if the block takes long."""
        slow = False

        def give_place() -> None:
            nonlocal slow
            if self._slow < _SLOW_MOST:
                slow = True
                self._slow += 1
                self._openers -= 1
                self._more_openers()

        timer = self._loop.call_later(_SLOW_S, give_place)
        try:
            yield
        finally:
            timer.cancel()
            if slow:
                self._slow -= 1
                self._openers += 1

    def _is_current(self, log: PartitionLog) -> bool:
        return self._by_stream.get(log.stream_id) is log

    async def _take(self, log: PartitionLog) -> Writer:
        # A first opening uses the run's own epoch; only an opening after a failure needs a new one.
        epoch = await self._first_epoch(log)
        attempts = self.options.open_attempts
        while True:
            try:
                return await self._client.open(log.stream_id, epoch)
            except FencedError:
                attempts -= 1
                if not attempts:
                    raise
                epoch = await self._higher_epoch(log)

    async def _first_epoch(self, log: PartitionLog) -> int:
        epoch = self._owners.epoch(self._slot(log))
        return epoch if epoch > log.epoch else await self._higher_epoch(log)

    async def _higher_epoch(self, log: PartitionLog) -> int:
        # Only the owner gets one: a node that has lost the partition cannot take it back.
        return await self._owners.raise_epoch(self._slot(log))

    async def _rebuild_what_is_left(self, log: PartitionLog, writer: Writer) -> Rebuilt:
        """Rebuild like :meth:`_rebuild`, from the first offset that the backend still has."""
        remembered = self._starts.of(log.stream_id)
        if remembered > writer.next_offset:
            await self._starts.lost(log.stream_id, writer.next_offset)
            remembered = writer.next_offset
        writer.start_offset = max(writer.start_offset, remembered)
        while True:
            try:
                return await self._rebuild(log, writer)
            except Reclaimed as error:
                start = max(writer.start_offset, error.offset)
                first = await first_readable(self._client, log.stream_id, start, writer.next_offset)
                if first == start:
                    raise  # it is readable after all: the next opening finds out
                await self._give_up_below(log, writer.start_offset, first)
                writer.start_offset = first

    async def _give_up_below(self, log: PartitionLog, start: int, first: int) -> None:
        await self._starts.save(log.stream_id, first)
        _log.warning(
            "the beginning of a partition is gone from the backend: its log starts later now",
            topic=log.topic,
            partition=log.partition,
            log_start=first,
            records_gone=first - start,
        )

    async def _rebuild(self, log: PartitionLog, writer: Writer) -> Rebuilt:
        await self._snapshotter.settled(log)
        state, snapshot_offset = await self._restored(log, writer)
        start, end = writer.start_offset, writer.next_offset
        skipped = await self.skips.within(log.stream_id, start, end)
        position = past(skipped, max(start, snapshot_offset))
        cost = taken_in = 0
        save_at = step = self.options.snapshot_bytes * _REBUILT_SNAPSHOTS
        while position < end:
            try:
                entries: list[Entry] = await self._client.fetch_entries(
                    log.stream_id, position, self.options.rebuild_read_bytes, limit=next_after(skipped, position, end)
                )
            except Lost as error:
                await self._pass_over(log, (max(error.offset, start), min(error.end, end)))
                skipped = await self.skips.within(log.stream_id, start, end)
                position = past(skipped, position)
                continue
            if not entries:
                raise LogUnavailable(f"the backend has nothing at offset {position}, below its own end {end}")
            for entry in entries:
                if entry.end_offset > position:
                    # Compaction may have replaced several batches around the snapshot's offset by one.
                    first = max(entry.base_offset, snapshot_offset) if entry.flags & COMPACTED else entry.base_offset
                    state.observe(first, entry.payload, entry.flags, entry.timestamp)
                    position = entry.end_offset
                    cost += rebuild_cost(len(entry.payload))
                    taken_in += 1
                    if taken_in % _BATCHES_AT_ONCE == 0:
                        await asyncio.sleep(0)  # a long rebuild must not hold up other partitions
            position = past(skipped, position)
            await asyncio.sleep(0)
            await self._keep_aborted(log, writer, state)
            if cost >= save_at and position < end and state.unread < 0:
                try:
                    await self._snapshotter.save(log.stream_id, state.capture(position))
                    snapshot_offset, cost = position, 0
                except LogError as error:
                    _log.warning("snapshot not saved", topic=log.topic, partition=log.partition, error=str(error))
                save_at = cost + step
        state.drop_before(start)
        await self._keep_aborted(log, writer, state)
        if state.unread >= 0:
            _log.warning(
                "a front that is not installed wrote to a partition: it is opened without snapshots from there on",
                topic=log.topic,
                partition=log.partition,
                first_unread=state.unread,
                read_from=max(start, snapshot_offset),
            )
        state.index.not_after(time.time_ns() // 1_000_000)
        if self._cleaned.of(log.stream_id) is not None:
            await self._measure(log.stream_id, state, lambda: end)
        return Rebuilt(state, snapshot_offset, cost, skipped)

    async def _keep_aborted(self, log: PartitionLog, writer: Writer, state: PartitionState) -> None:
        """Write the aborted ranges of a rebuild that exceed memory's share."""
        if state.transactions.full:
            try:
                await self.aborted.keep(log.stream_id, writer.epoch, state.transactions, writer.start_offset)
            except LogError as error:
                state.transactions.put_off()
                _log.warning("aborted ranges not saved", topic=log.topic, partition=log.partition, error=str(error))

    async def _restored(self, log: PartitionLog, writer: Writer) -> tuple[PartitionState, int]:
        """Return the state of the partition's snapshot and its offset; an empty state and -1 without a valid
        snapshot."""
        self.aborted.drop(log.stream_id)
        saved = await self._snapshots.load(log.stream_id)
        if saved is None:
            return self._new_state(), -1
        offset, data = saved
        state = self._new_state()
        try:
            if offset > writer.next_offset:
                raise DecodeError(f"it is ahead of the log, which ends at {writer.next_offset}")
            for _ in state.restoring(data, stale=offset < writer.start_offset):
                await asyncio.sleep(0)
            if not await self._is_of(log, writer, offset, state):
                raise DecodeError("it is of another history of the log")
            if not await self.aborted.hold(log.stream_id, state.transactions, writer.start_offset):
                raise DecodeError("blocks of aborted transactions are missing that it tells of")
        except DecodeError as error:
            _log.warning("snapshot not used", topic=log.topic, partition=log.partition, offset=offset, error=str(error))
            # Delete it before anything is appended: it must not be used once the log has grown past its offset.
            await self._snapshots.forget(log.stream_id)
            return self._new_state(), -1
        return state, offset

    def _new_state(self) -> PartitionState:
        return PartitionState(self._ledger, Transactions(self.options.transactions_per_partition))

    async def _is_of(self, log: PartitionLog, writer: Writer, offset: int, state: PartitionState) -> bool:
        """Return whether the log has, just below ``offset``, the batch that ``state`` saw there."""
        if await self._ends_at(log, writer, offset, state):
            return True
        # Batches that were declared lost before the node read them were not seen by the state.
        below = before(self.skips.of(log.stream_id), offset)
        return below < offset and await self._ends_at(log, writer, below, state)

    async def _ends_at(self, log: PartitionLog, writer: Writer, offset: int, state: PartitionState) -> bool:
        if offset <= writer.start_offset:
            return True  # it was trimmed, and nothing is left to compare: an older history was forgotten above
        try:
            entries = await self._client.fetch_entries(log.stream_id, offset - 1, 1, limit=writer.next_offset)
        except SbpError as error:
            if error.code == ErrorCode.RS_DATA_CORRUPTED:
                return True  # a damaged batch does not invalidate the snapshot
            raise
        for entry in entries:
            if entry.base_offset < offset <= entry.end_offset:
                if entry.flags & COMPACTED:
                    return True  # it belongs to the snapshot's history: another one would have been detected before
                found = (entry.base_offset, len(entry.payload), entry.timestamp)
                return entry.end_offset == offset and found == state.last
        return False

    # --- upkeep -------------------------------------------------------------------------------------------------

    async def measure(self, log: PartitionLog) -> None:
        """Correct the index of a compacted log to the bytes that are left: it counts those that were appended."""
        if log.is_open:
            await self._measure(log.stream_id, log.state, lambda: log.high_watermark)

    async def _measure(self, stream_id: int, state: PartitionState, end: Callable[[], int]) -> None:
        starts = state.index.starts
        sizes: list[int] = []
        for first in range(0, len(starts) - 1, _ROWS_AT_ONCE):
            sizes += self._client.bytes_between(stream_id, starts[first : first + _ROWS_AT_ONCE + 1]) or ()
            await asyncio.sleep(0)
        if not starts or len(sizes) < len(starts) - 1 or state.index.starts[: len(starts)] != starts:
            return
        if state.index.rows == len(starts):
            sizes += self._client.bytes_between(stream_id, (starts[-1], end())) or ()
        state.index.resize(sizes)

    async def fresh_snapshot(self, log: PartitionLog) -> LogError | None:
        """Take a snapshot that begins now, not an earlier one in progress; return its error, or None."""
        await self._snapshotter.settled(log)
        return await self._snapshotter.take(log)

    async def enforce_retention(
        self,
        partitions: Iterable[tuple[str, int]],
        limits: Callable[[str], tuple[int, int]],
        now_ms: int,
        needed: Callable[[PartitionLog, int], Awaitable[int | None]] | None = None,
    ) -> int:
        """Trim what exceeds the age or size limits of ``partitions``; return how many were trimmed.

        ``limits(topic)`` returns (milliseconds to keep, bytes to keep), -1 for no limit; ``needed(log, now_ms)`` the
        first offset that must stay all the same, or None. Partitions not used since the node started are opened for it,
        a bounded number in each call, in turns; one that failed to open a moment ago waits for a later call. A
        partition that takes long continues in the background, and is not counted.
        """
        trimmed = 0

        async def look(place: tuple[str, int]) -> None:
            nonlocal trimmed
            trimmed += await self._retain(place, limits, now_ms, needed)

        opened, unopened = await self._due(partitions, limits)
        await self._retention.each(opened, look)
        await self._retained_unopened.each(unopened, look)
        return trimmed

    async def _due(
        self, partitions: Iterable[tuple[str, int]], limits: Callable[[str], tuple[int, int]]
    ) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Return the partitions that retention handles now: the open ones, and some of the others, in turns."""
        most, last = self.options.retention_openings, self._retained_last
        due: list[tuple[str, int]] = []
        behind: list[tuple[str, int]] = []
        before: list[tuple[str, int]] = []
        unopened = before
        for number, place in enumerate(partitions):
            if number % _LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                # Make no log only for this check: each node would have all partitions of a cluster in memory.
                stream_id = self._streams(*place)
                if stream_id is None or self._closing or max(limits(place[0])) < 0 or not self.owns(*place):
                    continue
                log = self.known(*place)
                if log is not None and log.is_open:
                    due.append(place)
                elif stream_id not in self._failing and len(unopened) < most:
                    unopened.append(place)
            except Exception as error:  # noqa: BLE001 - logged and counted; the next partition is another matter
                self.barrier.caught("retention", error, topic=place[0], partition=place[1])
            if place == last:
                unopened = behind
        opened = (behind + before)[:most]
        if opened:
            self._retained_last = opened[-1]
        return due, opened

    async def _retain(
        self,
        place: tuple[str, int],
        limits: Callable[[str], tuple[int, int]],
        now_ms: int,
        needed: Callable[[PartitionLog, int], Awaitable[int | None]] | None,
    ) -> bool:
        """Apply retention to one partition; return whether it was trimmed."""
        topic, partition = place
        try:
            keep_ms, keep_bytes = limits(topic)
            log = self.get(topic, partition)
            if log is None:
                return False
            await log.ready()
            if keep_ms >= 0:
                log.state.index.keep_for(keep_ms)
                await self.search.settle_ages(log, now_ms - keep_ms, now_ms)
            offset = log.retention_offset(keep_ms, keep_bytes, now_ms)
            if offset is not None and offset > log.log_start_offset and needed is not None:
                first = await needed(log, now_ms)
                offset = offset if first is None else min(offset, first)
            if offset is not None and offset > log.log_start_offset:
                await log.trim(offset, own=True)
                return True
        except LogError as error:
            _log.warning("retention not applied", topic=topic, partition=partition, error=str(error))
        return False

    async def expire_producers(self, now_ms: int) -> int:
        """Forget producers that were idle for too long; return how many. Reads only these, a bounded number in one
        turn."""
        expired = known = 0
        for number, log in enumerate(self):
            if number % _LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                while log.is_open and (gone := log.state.ledger.expire(now_ms)):
                    expired += gone
                    await asyncio.sleep(0)
                known += len(log.state.ledger)
            except Exception as error:  # noqa: BLE001 - logged and counted; the next partition is another matter
                self.barrier.caught("producer expiry", error, topic=log.topic, partition=log.partition)
        if known > self.options.max_producers:
            expired += await self._make_room_for_producers(known)
        return expired

    async def _make_room_for_producers(self, known: int) -> int:
        """Forget the longest idle producers of the partitions with most, until a sixteenth of the limit is free."""
        ledgers = sorted((table for log in self for table in log.state.ledger.tables.values()), key=len)
        room = self.options.max_producers * 15 // 16
        level = 0
        for number, ledger in enumerate(ledgers):
            level = room // (len(ledgers) - number)
            if len(ledger) > level:
                break
            room -= len(ledger)
        _log.warning(
            "more producers than the node remembers: the longest idle of the partitions with most are forgotten",
            producers=known,
            limit=self.options.max_producers,
            kept_per_partition=level,
        )
        forgotten = 0
        for ledger in ledgers:
            try:
                if len(ledger) > level:
                    forgotten += ledger.shrink(level)
                    await asyncio.sleep(0)
            except Exception as error:  # noqa: BLE001 - logged and counted; the next one is another matter
                self.barrier.caught("forgetting of producers", error)
        return forgotten

    async def close(self) -> None:
        """Save snapshots of all logs that moved, and close the writers. Fronts must have stopped before."""
        self._closing = True
        await self.admission.close()
        await self._retention.close()
        await self._retained_unopened.close()
        for log, timer in list(self._put_off.items()):
            timer.cancel()
            log.open_failed(LogUnavailable(f"{log.topic}-{log.partition}: the node is stopping"))
        self._put_off.clear()
        await self.finishing.drain()
        await self.search.close()
        await self.positions.close()
        while self._tasks or self._searches:
            await self._tasks.drain()
            if self._searches:
                await asyncio.wait(self._searches.values())
        await self._snapshotter.drain()  # a snapshot in progress may be older than the last append
        async for log in in_turns(self):  # in turns: a stopping node must still show that it is alive
            if log.is_open and log.has_moved:
                self._snapshotter.want(log)
        await self._snapshotter.drain()
        await self.aborted.drain()
        async for log in in_turns(self):
            try:
                await log.close()
            except Exception as error:  # noqa: BLE001 - logged and counted; the other logs are closed nevertheless
                self.barrier.caught("closing a writer", error, topic=log.topic, partition=log.partition)


def _nothing(topic: str, partition: int) -> None:
    return None
