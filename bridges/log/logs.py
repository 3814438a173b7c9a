"""The registry of one node's partition logs: each is found by topic and partition, and opened on its first use.

:mod:`bridges.log.opener` opens and gives them up, :mod:`bridges.log.retention` trims them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, field

from anabranch_kit.run.cycle import cycle_of
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.errors import LogDeleted, LogError, TransactionsOpen
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.producer import LedgerKind
from bridges.log.byte_positions.search import ByteSearch
from bridges.log.damage.missing import MissingData
from bridges.log.interfaces import Phase
from bridges.log.ledger.ledger import KindLimits, LedgerOptions
from bridges.log.ledger.rules import RULES, Rule
from bridges.log.opener import Opener
from bridges.log.partition.admission import Admission
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.partition.refusals import Refusals
from bridges.log.partition.tail_cache import TailCache
from bridges.log.partition.time_search import TimeSearch
from bridges.log.partition.waiters import once
from bridges.log.state.log_starts import Trims
from bridges.log.state.snapshotter import Snapshotter

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from anabranch_kit.run.sliced import SlicedWorks
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.rules import TopicRules
    from bridges.cluster.ownership import Ownership
    from bridges.log.opener import BeforeOpening
    from bridges.log.remote.readable import ReadableElsewhere, ReadableLog
    from bridges.log.stores import Stores
    from bridges.log.streams import Streams
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


class Logs:
    """The partition logs of one node, and what they share.

    ``catalog`` knows the partitions, ``rules`` a topic's rules for appends, ``owners`` which partitions this node owns;
    ``elsewhere`` makes the access to other nodes' logs.
    """

    def __init__(
        self,
        client: Streams,
        catalog: Catalog,
        stores: Stores,
        owners: Ownership,
        options: LogOptions,
        rules: Callable[[str], TopicRules],
        works: SlicedWorks,
        barrier: Barrier,
        before_opening: BeforeOpening | None,
        elsewhere: Callable[[Logs], ReadableElsewhere],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.client = client
        self.stores = stores
        self.barrier = barrier
        """Logs and counts exceptions of requests' callbacks, and unexpected ones of openings."""
        self.schedule: Callable[[Callable[[], None]], object] = loop.call_soon
        self.schedule_answer = cycle_of(loop).answer
        """Calls back after everything that is ready in this turn of the event loop, or soon after."""
        self.finishing = TaskSet()
        """Work on logs that is completed even if its caller is cancelled."""
        self.cache = TailCache(options.tail_cache_bytes)
        self.refusals = Refusals()
        """Batches that fronts have reported to their clients as refused."""
        self.admission = Admission(rules, works, barrier, options.inflated_bytes)
        self.aborted = stores.aborted
        self.search = TimeSearch(works, barrier, options.inflated_bytes)
        self.trims = Trims(client, stores.starts)
        self.snapshotter = Snapshotter(stores.snapshots, barrier)
        self.positions = ByteSearch(
            works,
            barrier,
            self.snapshotter.take,
            stores.byte_starts,
            options.inflated_bytes,
            options.positions_idle_ms / 1000,
        )
        self.missing = MissingData(self)
        self.opener = Opener(self, owners, before_opening)
        self._catalog = catalog
        self._owners = owners
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._hidden: dict[tuple[str, int], PartitionLog] = {}
        self._by_stream: dict[int, PartitionLog] = {}
        # Logs whose seal waits for the end of open transactions.
        self._undecided: set[PartitionLog] = set()
        # Streams with another writer, which was logged.
        self._shared: set[int] = set()
        self._closing = False
        self.elsewhere = elsewhere(self)
        """The logs of other nodes, for readers."""
        self.deleted = PartitionLog("a deleted topic", 0, -1, self)
        """A log that is deleted, whose parts all deleted logs share."""
        self.deleted.phase = Phase.DELETED

    # --- finding ------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition, whether or not it is open yet; None when there is no such partition."""
        log = self._logs.get((topic, partition))
        if log is None:
            log = self._make(topic, partition, self._catalog.stream_of(topic, partition))
            if log is not None:
                log.import_epoch = self._catalog.import_epoch(topic, partition)
                self._logs[topic, partition] = log
        return log

    def hidden(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a hidden topic's partition, like :meth:`get` (see
        :attr:`bridges.catalog.topics.catalog.Catalog.hidden`)."""
        log = self._hidden.get((topic, partition))
        if log is None:
            log = self._make(topic, partition, self._catalog.hidden_stream_of(topic, partition))
            if log is not None:
                self._hidden[topic, partition] = log
        return log

    def _make(self, topic: str, partition: int, stream_id: int | None) -> PartitionLog | None:
        if stream_id is None or self._closing:
            return None
        log = self._by_stream[stream_id] = PartitionLog(topic, partition, stream_id, self)
        life = self._catalog.sealed_as(topic, partition)
        if life is not None:
            log.sealed(*life)
        return log

    def find_used(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition that was used since the node started, or None."""
        return self._logs.get((topic, partition))

    def to_read(self, topic: str, partition: int) -> ReadableLog | None:
        """Return the log of a partition for readers, whichever node owns it; None when there is no such partition."""
        return self.find_elsewhere(topic, partition) or self.get(topic, partition)

    def find_elsewhere(self, topic: str, partition: int) -> ReadableLog | None:
        """Return the log of a partition that another node owns; None if this node owns it, or there is no such
        partition."""
        if self.owns(topic, partition):
            return None
        stream_id = self._catalog.stream_of(topic, partition)
        return None if stream_id is None else self.elsewhere.get(topic, partition, stream_id)

    def in_use(self, topic: str, partition: int) -> ReadableLog | None:
        """Return the log of a partition, whichever node owns it, if it is open here or its owner has reported its
        state."""
        log = self.find_elsewhere(topic, partition) or self.find_used(topic, partition)
        return log if log is not None and log.is_open else None

    def __iter__(self) -> Iterator[PartitionLog]:
        """Return every log used so far."""
        return iter([*self._logs.values(), *self._hidden.values()])

    # --- ownership ----------------------------------------------------------------------------------------------

    def owns(self, topic: str, partition: int) -> bool:
        """Return whether this node owns a partition. Chores over all partitions ask this before they make a log."""
        return self._owners.is_mine(self._owners.slot_of(topic, partition))

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
        """Call back once ownership was confirmed after this call, or with the error that prevents it."""
        self.finishing.spawn(self._ascertain(callback))

    async def _ascertain(self, callback: Callable[[LogError | None], None]) -> None:
        error: LogError | None = None
        try:
            await self._owners.sure()
        except LogError as found:
            error = found
        self.barrier.call("opening answer", callback, error)

    # --- changes of the catalog ---------------------------------------------------------------------------------

    def topic_deleted(self, topic: str, partitions: Iterable[int]) -> None:
        for partition in partitions:
            log = self._logs.pop((topic, partition), None) or self._hidden.pop((topic, partition), None)
            if log is not None:
                self._by_stream.pop(log.stream_id, None)
                self.opener.forget(log)
                log.delete()
                self.stores.drop(log.stream_id)

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
                once(log, lambda: not (log.is_open and log.state.transactions.open), partial(self._seal_again, log))
            raise

    def _seal_again(self, log: PartitionLog) -> None:
        self._undecided.discard(log)
        self._catalog.seal_again(log.stream_id)

    # --- all logs -----------------------------------------------------------------------------------------------

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

    async def close(self) -> None:
        """Save snapshots of all logs that moved, and close the writers. Fronts must have stopped before."""
        self._closing = True
        await self.admission.close()
        self.opener.refuse_put_off()
        await self.finishing.drain()
        await self.search.close()
        await self.positions.close()
        await self.finishing.drain()
        await self.snapshotter.drain()  # a snapshot in progress may be older than the last append
        async for log in in_turns(self):  # in turns: a stopping node must still show that it is alive
            if log.is_open and log.has_moved:
                self.snapshotter.want(log)
        await self.snapshotter.drain()
        await self.aborted.drain()
        async for log in in_turns(self):
            try:
                await log.close()
            except Exception as error:  # noqa: BLE001 - logged and counted; the other logs are closed nevertheless
                self.barrier.caught("closing a writer", error, topic=log.topic, partition=log.partition)
