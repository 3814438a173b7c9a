"""Compares what a migration has brought with the source: ranges, batches byte by byte, records by digests.

Level 0 compares where partitions begin and end. Level 1 reads all batches of both sides, checks their checksums and
compares their bytes; where the source gives other batches each time, those of the target alone are looked at. Level 2
compares digests of the records of committed data, block by block, and finds the first record that differs; of YDB also
who wrote each record, under which number. Each level includes those below it. Nothing that is said by receipts is
believed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bridges.formats import FormatId
from spark_pipeline.core.bisect import FEW, first_bad, narrow, range_digest
from spark_pipeline.core.digest import ALL_FIELDS, BLOCK, BlockDigest, Digester, hashes
from spark_pipeline.core.digest import differences as block_differences
from spark_pipeline.core.kafka_batches import heads, is_whole, same
from spark_pipeline.core.lockstep import first_unlike
from spark_pipeline.core.plan import Plan, PlannedPartition
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns, empty
from spark_pipeline.endpoints.base import Endpoint, Positions, RawBatch, endpoint, may_cut
from spark_pipeline.endpoints.migration import MigrationSource, migration_source
from spark_pipeline.jobs.audit_pieces import damage
from spark_pipeline.jobs.migrate_copy import Route

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_pipeline.jobs.progress import Progress

MOST_LEVEL = 2
_COLUMNS = Columns(("offset", "timestamp", "key", "value", "headers"))
_WINDOW = BLOCK
"""Offsets of a compacted partition that are compared at once."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something is not the same on both sides: at ``offset`` (-1: not about one), and what."""

    topic: str
    partition: int
    level: int
    offset: int
    reason: str
    source: Any = None
    target: Any = None


@dataclass(slots=True)
class Compared:
    """What was looked at of one partition."""

    part: TopicPartition
    start: int = 0
    end: int = 0
    lag: int = 0
    batches: int = 0
    bytes: int = 0
    records: int = 0
    taken_by_compaction: int = 0
    difference: Difference | None = None


class Verifier:
    """Compares the partitions of a plan, several at the same time; each thread has connections of its own."""

    def __init__(self, plan: Plan, route: Route, level: int, threads: int, progress: Progress | None = None) -> None:
        self._plan = plan
        self._route = route
        self._level = level
        self._threads = threads
        self._progress = progress
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[Endpoint] = []

    def run(self) -> list[Compared]:
        """All partitions, in the order of the plan."""
        try:
            source, target = self._sides()
            parts = self._plan.partitions
            there, here = source.positions(parts), target.positions(parts)
            planned = {
                TopicPartition(topic.name, one.partition): one
                for topic in self._plan.topics
                for one in topic.partitions
            }
            if self._progress is not None:
                for part in parts:
                    self._progress.aim(part, here[part].start, here[part].start, here[part].high_watermark)
            with ThreadPoolExecutor(self._threads) as pool:
                return list(pool.map(lambda part: self._one(part, planned[part], there[part], here[part]), parts))
        finally:
            for one in self._open:
                one.close()

    def _sides(self) -> tuple[MigrationSource, Endpoint]:
        sides: tuple[MigrationSource, Endpoint] | None = getattr(self._local, "sides", None)
        if sides is None:
            route = self._route
            sides = (migration_source(route.source, route.source_options), endpoint(route.target, route.target_options))
            self._local.sides = sides
            with self._lock:
                self._open += sides
        return sides

    def _one(self, part: TopicPartition, planned: PlannedPartition, there: Positions, here: Positions) -> Compared:
        done = Compared(part, max(there.start, here.start), min(there.high_watermark, here.high_watermark))
        done.lag = max(0, there.high_watermark - here.high_watermark)
        done.difference = self._ranges(part, planned, there, here)
        if done.difference is None and self._level >= 1 and done.end > done.start:
            verbatim = self._sides()[0].verbatim
            done.difference = self._batches(part, done) if verbatim else self._sound(part, done)
        if done.difference is None and self._level >= 2 and done.end > done.start:
            done.difference = self._records(part, done, min(there.stable, here.stable, done.end))
        if self._progress is not None:
            self._progress.copied(part, here.high_watermark, 0)
        return done

    # --- level 0 ----------------------------------------------------------------------------------------------------

    def _ranges(
        self, part: TopicPartition, planned: PlannedPartition, there: Positions, here: Positions
    ) -> Difference | None:
        def found(offset: int, reason: str) -> Difference:
            return Difference(part.topic, part.partition, 0, offset, reason, asdict(there), asdict(here))

        if here.start > there.start:
            return found(there.start, "the target begins later than the source")
        if here.high_watermark > there.high_watermark:
            return found(there.high_watermark, "the target has more than the source")
        if here.high_watermark < planned.end:
            return found(here.high_watermark, f"the target ends before {planned.end}, which the plan has")
        return None

    # --- level 1 ----------------------------------------------------------------------------------------------------

    def _batches(self, part: TopicPartition, done: Compared) -> Difference | None:
        source, target = self._sides()
        wanted = OffsetRange(part.topic, part.partition, done.start, done.end)
        compacted = self._plan.topic(part.topic).is_compacted
        ours = _Ahead(self._counted(target.read_raw(wanted), done))
        for theirs in source.read_raw(wanted):
            mine = ours.at(theirs.base_offset, wanted.start)
            reason = _why_different(theirs, mine)
            if reason is not None and not (compacted and mine is not None and reason == _OTHER):
                return self._in_detail(part, theirs, mine, done, reason)
            if reason is None and ours.between and not compacted:
                extra = ours.between[0]
                return Difference(
                    part.topic,
                    part.partition,
                    1,
                    extra.base_offset,
                    "the source has no batch there, the target has one",
                )
        rest = ours.rest()
        if rest is not None and not compacted:
            return Difference(
                part.topic, part.partition, 1, rest.base_offset, "the source has no batch there, the target has one"
            )
        return self._subset(part, done) if compacted else None

    def _sound(self, part: TopicPartition, done: Compared) -> Difference | None:
        """The first batch of the target that is damaged."""
        wanted = OffsetRange(part.topic, part.partition, done.start, done.end)
        for batch in self._counted(self._sides()[1].read_raw(wanted), done):
            reason = damage(batch)
            if reason is not None:
                reason = f"the batch at the target is damaged: {reason}"
                return Difference(part.topic, part.partition, 1, batch.base_offset, reason)
        return None

    def _counted(self, batches: Iterator[RawBatch], done: Compared) -> Iterator[RawBatch]:
        for batch in batches:
            done.batches += 1
            done.bytes += len(batch.payload)
            if self._progress is not None:
                self._progress.copied(done.part, batch.end_offset, len(batch.payload))
            yield batch

    def _in_detail(
        self, part: TopicPartition, theirs: RawBatch, mine: RawBatch | None, done: Compared, reason: str
    ) -> Difference:
        """The record of two batches that differs first, if it is a record that does."""
        start = max(theirs.base_offset, done.start)
        end = min(theirs.end_offset, done.end)
        plain = Difference(part.topic, part.partition, 1, theirs.base_offset, reason)
        if mine is None or reason != _OTHER or end - start > FEW:
            return plain
        source, target = self._sides()
        wanted = OffsetRange(part.topic, part.partition, start, end)
        bad = first_bad(_table(source, wanted), _table(target, wanted))
        if bad is None:
            return plain
        return Difference(part.topic, part.partition, 1, bad.offset, bad.reason, bad.left, bad.right)

    # --- level 2 ----------------------------------------------------------------------------------------------------

    def _records(self, part: TopicPartition, done: Compared, end: int) -> Difference | None:
        if self._plan.topic(part.topic).is_compacted:
            return None  # compared record by record at level 1
        source, target = self._sides()
        wanted = OffsetRange(part.topic, part.partition, done.start, end)
        views = (_RECORDS, _WRITERS) if source.form == FormatId.YDB else (_RECORDS,)
        left, right = _digests(source, wanted, views), _digests(target, wanted, views)
        done.records = sum(one.count for one in right[0].values())
        for view, theirs, mine in zip(views, left, right, strict=True):
            for unlike in block_differences(theirs, mine):
                if not may_cut(self._route.source):
                    return self._side_by_side(wanted)
                block = OffsetRange(
                    part.topic, part.partition, max(unlike.start, done.start), min(unlike.start + BLOCK, end)
                )
                few = narrow(_digester(source, block, view), _digester(target, block, view), block.start, block.end)
                if few is None:
                    return Difference(part.topic, part.partition, 2, block.start, view.reason or unlike.reason)
                small = OffsetRange(part.topic, part.partition, *few)
                bad = first_bad(_table(source, small, view), _table(target, small, view), view.fields)
                if bad is None:
                    return Difference(part.topic, part.partition, 2, few[0], view.reason or unlike.reason)
                reason = view.reason or bad.reason
                return Difference(part.topic, part.partition, 2, bad.offset, reason, bad.left, bad.right)
        return None

    def _side_by_side(self, wanted: OffsetRange) -> Difference | None:
        """Of a source whose ranges cannot be cut: the first record that differs."""
        source, target = self._sides()
        bad = first_unlike(source.read(wanted, _COLUMNS), target.read(wanted, _COLUMNS))
        return None if bad is None else Difference(wanted.topic, wanted.partition, 2, *bad)

    def _subset(self, part: TopicPartition, done: Compared) -> Difference | None:
        """Of a compacted partition: what the source still has must be at the target; the target may have more."""
        source, target = self._sides()
        stable = min(source.positions([part])[part].stable, target.positions([part])[part].stable, done.end)
        for start in range(done.start, stable, _WINDOW):
            window = OffsetRange(part.topic, part.partition, start, min(start + _WINDOW, stable))
            left, right = _table(source, window), _table(target, window)
            here = np.asarray(right.column("offset"))
            there = np.asarray(left.column("offset"))
            done.records += len(here)
            missing = np.flatnonzero(~np.isin(there, here))
            if len(missing):
                return Difference(part.topic, part.partition, 1, int(there[missing[0]]), "missing at the target")
            kept = right.filter(_mask(np.isin(here, there)))
            done.taken_by_compaction += len(here) - len(there)
            unlike = np.flatnonzero(hashes(left) != hashes(kept))
            if len(unlike):
                bad = first_bad(left, kept)
                offset = int(there[unlike[0]])
                return Difference(
                    part.topic,
                    part.partition,
                    1,
                    offset,
                    "contents differ" if bad is None else bad.reason,
                    None if bad is None else bad.left,
                    None if bad is None else bad.right,
                )
        return None


_OTHER = "the batches are not the same"


@dataclass(frozen=True, slots=True)
class _View:
    """What of the records is compared at once: ``of`` makes it of a batch with ``columns``; ``reason`` says what is
    different in words, where the fields do not."""

    columns: Columns
    fields: tuple[str, ...]
    of: Callable[[pa.RecordBatch], pa.RecordBatch]
    reason: str = ""


def _as_writers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Producers in the place of keys, their numbers in that of values: what digests are made of."""
    import pyarrow as pa

    numbers = batch.column("seq").cast(pa.string()).cast(pa.binary())
    arrays = [batch.column("offset"), batch.column("producer").cast(pa.binary()), numbers]
    return pa.RecordBatch.from_arrays(arrays, names=["offset", "key", "value"])


_RECORDS = _View(_COLUMNS, ALL_FIELDS, lambda batch: batch)
_WRITERS = _View(
    Columns(("offset", "producer", "seq")), ("key", "value"), _as_writers, "producers, or their numbers, differ"
)


def _why_different(theirs: RawBatch, mine: RawBatch | None) -> str | None:
    view = memoryview(theirs.payload)
    if not all(is_whole(view, head) for head in heads(view, "the source")):
        return "the batch does not match its checksum at the source"
    if mine is None:
        return "the target has no batch there"
    own = memoryview(mine.payload)
    if not all(is_whole(own, head) for head in heads(own, "the target")):
        return "the batch does not match its checksum at the target"
    return None if mine.end_offset == theirs.end_offset and same(view, own) else _OTHER


class _Ahead:
    """Batches of one side, found by their base offset as those of the other come. Batches without records are gaps."""

    def __init__(self, batches: Iterator[RawBatch]) -> None:
        self._batches = batches
        self._next = next(batches, None)
        self.between: list[RawBatch] = []
        """Batches with records that were passed over by the last look."""

    def at(self, base: int, start: int) -> RawBatch | None:
        """The batch that begins at ``base``."""
        self.between = []
        while self._next is not None and self._next.base_offset < base:
            if _has_records(self._next) and self._next.end_offset > start:
                self.between.append(self._next)
            self._next = next(self._batches, None)
        if self._next is None or self._next.base_offset != base:
            return None
        found, self._next = self._next, next(self._batches, None)
        return found

    def rest(self) -> RawBatch | None:
        """The first batch with records that was not asked for."""
        while self._next is not None:
            if _has_records(self._next):
                return self._next
            self._next = next(self._batches, None)
        return None


def _has_records(batch: RawBatch) -> bool:
    return int.from_bytes(batch.payload[57:61], "big", signed=True) > 0


def _digests(side: Endpoint, wanted: OffsetRange, views: Sequence[_View]) -> list[dict[int, BlockDigest]]:
    """Those of each view, from one reading."""
    digesters = [Digester(view.fields) for view in views]
    columns = Columns(tuple(dict.fromkeys(name for view in views for name in view.columns)))
    for batch in side.read(wanted, columns):
        for view, digester in zip(views, digesters, strict=True):
            digester.add(view.of(batch))
    return [digester.blocks for digester in digesters]


def _table(side: Endpoint, wanted: OffsetRange, view: _View | None = None) -> pa.RecordBatch:
    import pyarrow as pa

    view = view or _RECORDS
    batches = [view.of(batch) for batch in side.read(wanted, view.columns)]
    schema = view.of(empty(view.columns)).schema
    found = pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=schema)


def _digester(side: Endpoint, block: OffsetRange, view: _View) -> Callable[[int, int], BlockDigest]:
    def of(start: int, end: int) -> BlockDigest:
        wanted = OffsetRange(block.topic, block.partition, start, end)
        return range_digest([view.of(batch) for batch in side.read(wanted, view.columns)], view.fields)

    return of


def _mask(kept: Any) -> Any:
    import pyarrow as pa

    return pa.array(kept)


def report(level: int, compared: Sequence[Compared]) -> dict[str, Any]:
    """The whole of a comparison, for machines."""
    differences = [asdict(one.difference) for one in compared if one.difference is not None]
    return {
        "level": level,
        "fields": list(ALL_FIELDS),
        "partitions": len(compared),
        "batches": sum(one.batches for one in compared),
        "bytes": sum(one.bytes for one in compared),
        "records": sum(one.records for one in compared),
        "lag": sum(one.lag for one in compared),
        "taken_by_compaction": sum(one.taken_by_compaction for one in compared),
        "ranges": [
            {"topic": one.part.topic, "partition": one.part.partition, "start": one.start, "end": one.end}
            for one in compared
        ],
        "differences": differences,
    }
