"""A partition's log on a backend that does what the test says, when the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.sliced import SlicedWorks
from bridges.catalog.database.sql import Database
from bridges.catalog.topics.catalog import Catalog
from bridges.catalog.topics.rules import UNBOUNDED, TopicRules
from bridges.cluster.alone import Alone
from bridges.cluster.ownership import Ownership
from bridges.errors import LogError
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.producer import LedgerKind, ProducerStamp
from bridges.formats.records import Record
from bridges.log.byte_positions.starts import ByteStarts
from bridges.log.compaction.cleaned_logs import CleanedLogs
from bridges.log.damage.skips import Skips
from bridges.log.ledger.ledger import Ledger
from bridges.log.ledger.rules import ProducerState, kafka_producer
from bridges.log.logs import LogOptions, Logs
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from bridges.log.remote.nowhere import Nowhere
from bridges.log.retention import Retention
from bridges.log.state.log_starts import LogStarts
from bridges.log.state.snapshots import Snapshots
from bridges.log.stores import Stores
from bridges.log.transactions.aborted_blocks import AbortedBlocks
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry

Done = Callable[[SbpError | None], None]


class Writer:
    """A stream writer whose acknowledgements the test gives by hand."""

    def __init__(self, backend: Backend, epoch: int) -> None:
        self.backend = backend
        self.epoch = epoch
        self.start_offset = backend.start
        self.next_offset = self.confirm_offset = backend.end
        self.flying: list[tuple[Entry, Done]] = []
        self.closed = False
        self.failed: SbpError | None = None
        self.largest = 1 << 30
        self.servers: frozenset[int] = frozenset()

    def append(self, payload: Any, count: int, flags: int, timestamp: int, done: Done) -> int:
        if len(payload) > self.largest:
            raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, "too large")
        base = self.next_offset
        self.next_offset += count
        self.flying.append((pack_entry(1, 0, flags, base, count, timestamp, payload), done))
        return base

    def acknowledge(self, batches: int) -> None:
        for _ in range(batches):
            entry, done = self.flying.pop(0)
            self.backend.entries.append(entry)
            self.backend.end = self.confirm_offset = entry.end_offset
            done(None)

    def overtake(self, *entries: Entry) -> None:
        """Another writer's entries lie before what is in flight: its batches get later offsets."""
        moved = sum(entry.count for entry in entries)
        self.backend.entries += entries
        self.confirm_offset += moved
        self.next_offset += moved
        self.flying = [
            (pack_entry(1, 0, e.flags, e.base_offset + moved, e.count, e.timestamp, e.payload), done)
            for e, done in self.flying
        ]
        self.backend.overtaken(1, list(entries))

    def refuse(self, error: SbpError) -> None:
        """Fail everything in flight; what comes next is written where it would have been."""
        flying, self.flying = self.flying, []
        self.next_offset = self.confirm_offset
        for _, done in flying:
            done(error)

    def fail(self, error: SbpError) -> None:
        """Fail everything in flight and be of no further use."""
        self.failed = error
        self.refuse(error)

    async def close(self) -> None:
        self.closed = True


class Backend:
    """One stream."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.start = self.end = 0
        self.epochs: list[int] = []
        self.writers: list[Writer] = []
        self.refusals: list[SbpError] = []
        self.reads = 0
        self.rebuilt = 0
        """Batches read when logs were opened."""
        self.seals: list[int] = []
        self.cannot_replace = ""
        self.broken_at: int | None = None
        """Offset from which on nothing can be read when a log is opened."""
        self.damaged: set[int] = set()
        """Base offsets of batches that are damaged."""
        self.overtaken: Callable[[int, list[Entry]], None] = lambda stream_id, entries: None

    async def open(self, stream_id: int, epoch: int) -> Writer:
        self.epochs.append(epoch)
        if self.refusals:
            raise self.refusals.pop(0)
        self.writers.append(Writer(self, epoch))
        return self.writers[-1]

    async def seal(self, stream_id: int, epoch: int) -> int:
        self.seals.append(epoch)
        return self.end

    def find(self, offset: int, max_bytes: int, limit: int) -> list[Entry]:
        """Batches from the one that contains ``offset`` up to a damaged one, which is an error if it is the first."""
        end = limit if limit >= 0 else self.end
        found = [e for e in self.entries if e.end_offset > offset and e.base_offset < end]
        whole = list(takewhile(lambda entry: entry.base_offset not in self.damaged, found))
        if found and not whole:
            raise SbpError(ErrorCode.RS_DATA_CORRUPTED, f"the batch at {found[0].base_offset} is damaged")
        return whole[:1] if max_bytes <= 1 else whole

    def fetch(self, stream_id: int, offset: int, max_bytes: int, done: Callable[[Any], None], *, limit: int) -> None:
        self.reads += 1
        try:
            found = self.find(offset, max_bytes, limit)
        except SbpError as error:
            done(error)
        else:
            done(found)

    def locate(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        return None

    def gathering(self) -> None:
        return None

    async def fetch_entries(self, stream_id: int, offset: int, max_bytes: int, *, limit: int = -1) -> list[Entry]:
        if self.broken_at is not None and offset >= self.broken_at:
            raise SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "cannot be read")
        found = self.find(offset, max_bytes, limit)[:3]
        self.rebuilt += len(found)
        return found

    async def trim(self, stream_id: int, offset: int) -> int:
        self.start = offset
        return offset


class NoSnapshots(Snapshots):
    """Remembers snapshots in memory."""

    def __init__(self) -> None:
        self.saved: dict[int, tuple[int, bytes]] = {}

    async def load(self, stream_id: int) -> tuple[int, bytes] | None:
        return self.saved.get(stream_id)

    async def save(self, stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        self.saved[stream_id] = (offset, b"".join(pieces))

    async def forget(self, stream_id: int) -> None:
        self.saved.pop(stream_id, None)


class Partitions(Catalog):
    """What the catalog says of the partitions of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sealed_again: list[int | None] = []

    def stream_of(self, topic: str, partition: int) -> int | None:
        return self._world.streams.get((topic, partition))

    def hidden_stream_of(self, topic: str, partition: int) -> int | None:
        return None

    def sealed_as(self, topic: str, partition: int) -> tuple[tuple[int, ...], int | None] | None:
        return self._world.lineage.get(partition)

    def import_epoch(self, topic: str, partition: int) -> int:
        return -1

    def seal_again(self, stream_id: int | None = None) -> None:
        self.sealed_again.append(stream_id)


async def need_nothing(log: PartitionLog, now_ms: int) -> int | None:
    """The first offset that retention must leave: none."""
    return None


class World:
    """A backend, and a node's logs on it."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        rules: TopicRules = UNBOUNDED,
        db: Database | None = None,
        retention_openings: int = 2_000,
        retention_patience_s: float = 60.0,
        **options: int,
    ) -> None:
        self.db = db
        """For what is kept of aborted transactions; without, memory keeps all."""
        self.streams = {("t", n): n + 1 for n in range(partitions)}
        self.rules = rules
        self.backend = Backend()
        self.snapshots = NoSnapshots()
        self.skips = Skips()
        self.starts = LogStarts()
        self.byte_starts = ByteStarts()
        self.epoch = -1
        self.catalog = Partitions(self)
        self.limits: Callable[[str], tuple[int, int]] = lambda topic: (-1, -1)
        """What retention keeps of a topic: milliseconds, bytes."""
        self._retention_terms = retention_openings, retention_patience_s
        self.options = LogOptions(**options)  # type: ignore[arg-type]
        self.answers: list[int | LogError] = []
        self.owners: Ownership = Alone(0, self.next_epoch)
        self.lineage: dict[int, tuple[tuple[int, ...], int | None]] = {}
        """What the catalog says of sealed partitions."""

    async def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    async def boot(self, *, open_it: bool = True) -> PartitionLog:
        """A node starts; gives its log, open unless it is not to be."""
        backend: Any = self.backend
        self.logs = Logs(
            backend,
            self.catalog,
            Stores(self.snapshots, self.starts, self.byte_starts, self.skips, CleanedLogs(), AbortedBlocks(self.db)),
            self.owners,
            self.options,
            lambda topic: self.rules,
            SlicedWorks(),
            Barrier(),
            None,
            lambda logs: Nowhere(),
        )
        openings, patience_s = self._retention_terms
        self.retention = Retention(
            self.logs, lambda topic: self.limits(topic), need_nothing, openings=openings, patience_s=patience_s
        )
        if isinstance(self.owners, Alone):
            await self.owners.begin()
        self.backend.overtaken = self.logs.overtaken
        log = self.logs.get("t", 0)
        assert log is not None
        if open_it:
            await log.ready()
        return log

    async def retain(
        self, places: Iterable[tuple[str, int]], limits: Callable[[str], tuple[int, int]], now_ms: int
    ) -> int:
        """A round of retention with these limits."""
        self.limits = limits
        return await self.retention.enforce(places, now_ms)

    async def close(self) -> None:
        await self.retention.close()
        await self.logs.close()

    @property
    def writer(self) -> Writer:
        return self.backend.writers[-1]

    def done(self, appended: Appended, error: LogError | None) -> None:
        self.answers.append(appended.base if error is None else error)


def batch(count: int = 1, *, sequence: int = -1, timestamp: int = 1000, size: int = 10) -> Batch:
    producer = ProducerStamp(7, 0, sequence, count) if sequence >= 0 else None
    payload = encode(
        [Record(None, bytes(size), timestamp=timestamp) for _ in range(count)],
        producer_id=7 if producer else -1,
        producer_epoch=0 if producer else -1,
        base_sequence=sequence,
    )
    return Batch(memoryview(payload), count, int(FormatId.KAFKA), timestamp, producer)


def kafka_row(ledger: Ledger, producer_id: int) -> ProducerState | None:
    """What a ledger knows of one of Kafka's producers."""
    key = ProducerStamp(producer_id, 0, 0, 1).key
    row = ledger.table(LedgerKind.KAFKA).row(key)
    return None if row is None else kafka_producer(key, row)


def kafka_ids(ledger: Ledger) -> list[int]:
    """Kafka's producers in a ledger, the longest idle first."""
    return [int.from_bytes(key, "big", signed=True) for key in ledger.table(LedgerKind.KAFKA).writers()]


class Sleeper:
    """A waiter that counts."""

    def __init__(self) -> None:
        self.woken = 0

    def log_moved(self, log: PartitionLog) -> None:
        self.woken += 1


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
