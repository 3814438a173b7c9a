"""The comparison of a migration's target with its source: ranges, batches byte by byte, records by digests.

Level 0 compares the starts and ends of partitions. Level 1 reads all batches of both sides, checks their checksums and
compares their bytes; if the source makes other batches each time, only the target's batches are checked. Level 2
compares digests of the committed records, block by block, and finds the first record that differs; for YDB also the
records' producers and sequences. Each level includes those below it. Receipts are not trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.formats import FormatId
from bridges.formats.kafka import parse_header
from bridges.formats.records import StoredBatch
from spark_pipeline.core.bisect import FEW, BadOffset, first_bad, first_bad_in
from spark_pipeline.core.digest import ALL_FIELDS, BLOCK, WRITERS, digest, hashes
from spark_pipeline.core.digest import differences as block_differences
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.kafka_batches import heads, is_whole, same
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns, empty, joined
from spark_pipeline.endpoints.base import Endpoint, Positions, endpoint, may_cut
from spark_pipeline.endpoints.migration import MigrationSource, migration_source
from spark_pipeline.jobs.audit.pieces import damage
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.jobs.migrate.copying import Route
from spark_pipeline.jobs.migrate.plan import Plan, PlannedPartition
from spark_pipeline.jobs.migrate.terms import Unlike, settings_unlike, terms_of

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Meter

T = TypeVar("T")

_WINDOW = BLOCK
"""Most offsets of a compacted partition that are compared at once."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the sides: at ``offset`` (-1: not about one offset), and what it is."""

    topic: str
    partition: int
    level: int
    offset: int
    reason: str
    source: Any = None
    target: Any = None


@dataclass(slots=True)
class Compared:
    """The result for one partition."""

    part: TopicPartition
    start: int = 0
    end: int = 0
    lag: int = 0
    batches: int = 0
    bytes: int = 0
    records: int = 0
    taken_by_compaction: int = 0
    damaged: list[Difference] = field(default_factory=list)
    """Ranges that one side could not read; the offsets around them were compared."""
    difference: Difference | None = None


class Verifier:
    """A comparison of a plan's partitions, several at a time; each thread has connections of its own."""

    def __init__(self, plan: Plan, route: Route, level: int, threads: int, progress: Meter | None = None) -> None:
        self._plan = plan
        self._route = route
        self._level = level
        self._threads = threads
        self._progress = progress
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[Endpoint] = []

    def run(self) -> dict[str, Any]:
        """Compare all partitions and return a report, in the order of the plan."""
        try:
            source, target = self._sides()
            parts = self._plan.partitions
            unlike = _unlike(self._plan, source, target)
            there, here = source.positions(parts), target.positions(parts)
            planned = {
                TopicPartition(topic.name, one.partition): one
                for topic in self._plan.topics
                for one in topic.partitions
            }
            if self._progress is not None:
                for part in parts:
                    self._progress.aim(part, here[part].start, here[part].start, here[part].high_watermark)
            with closing(LocalEngine(self._threads)) as engine:
                done = engine.map(lambda part: self._compare(part, planned[part], there[part], here[part]), parts)
                compared = {one.part: one for one in done}
            return _report(self._level, [compared[part] for part in parts], unlike)
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

    def _compare(self, part: TopicPartition, planned: PlannedPartition, there: Positions, here: Positions) -> Compared:
        done = Compared(part, max(there.start, here.start), min(there.high_watermark, here.high_watermark))
        done.lag = max(0, there.high_watermark - here.high_watermark)
        done.difference = self._ranges(part, planned, there, here)
        if done.difference is None and self._level >= 1:
            look = self._batches if self._sides()[0].verbatim else self._sound
            done.difference = _around(done, 1, look, done.end)
        if done.difference is None and self._level >= 2 and not self._plan.topic(part.topic).is_compacted:
            # Compacted partitions were compared record by record at level 1.
            done.difference = _around(done, 2, self._records, min(there.stable, here.stable, done.end))
        if self._progress is not None:
            self._progress.copied(part, here.high_watermark, 0)
        return done

    # --- level 0 ----------------------------------------------------------------------------------------------------

    def _ranges(
        self, part: TopicPartition, planned: PlannedPartition, there: Positions, here: Positions
    ) -> Difference | None:
        def differ(offset: int, reason: str) -> Difference:
            return Difference(part.topic, part.partition, 0, offset, reason, asdict(there), asdict(here))

        if here.start > there.start:
            return differ(there.start, "the target begins later than the source")
        if here.high_watermark > there.high_watermark:
            return differ(there.high_watermark, "the target has more than the source")
        if here.high_watermark < planned.end:
            return differ(here.high_watermark, f"the target ends before {planned.end}, which the plan has")
        return None

    # --- level 1 ----------------------------------------------------------------------------------------------------

    def _batches(self, wanted: OffsetRange, done: Compared) -> Difference | None:
        source, target = self._sides()
        part = wanted.part
        compacted = self._plan.topic(part.topic).is_compacted
        theirs = ((batch.base_offset, 0, batch) for batch in _at("the source", source.read_raw(wanted)))
        ours = (
            (batch.base_offset, 1, batch)
            for batch in _at("the target", self._count_batches(target.read_raw(wanted), done))
        )
        for _, found in groupby(merge(theirs, ours, key=itemgetter(0, 1)), key=itemgetter(0)):
            sides = {side: batch for _, side, batch in found}
            there, here = sides.get(0), sides.get(1)
            if there is not None:
                reason = _why_different(there, here)
                if reason is not None and not (compacted and here is not None and reason == _OTHER):
                    return self._in_detail(wanted, there, here, reason)
            elif (
                here is not None
                and not compacted
                and here.end_offset > wanted.start
                and parse_header(here.payload).record_count > 0
            ):
                return _differs(part, 1, here.base_offset, _EXTRA)
        return self._subset(wanted, done) if compacted else None

    def _sound(self, wanted: OffsetRange, done: Compared) -> None:
        """Check the target's batches for damage."""
        for batch in _at("the target", self._count_batches(self._sides()[1].read_raw(wanted), done)):
            reason = damage(batch)
            if reason is not None:
                reason = f"the batch at the target is damaged: {reason}"
                done.damaged.append(Difference(wanted.topic, wanted.partition, 1, batch.base_offset, reason))

    def _count_batches(self, batches: Iterator[StoredBatch], done: Compared) -> Iterator[StoredBatch]:
        for batch in batches:
            done.batches += 1
            done.bytes += len(batch.payload)
            if self._progress is not None:
                self._progress.copied(done.part, batch.end_offset, len(batch.payload))
            yield batch

    def _in_detail(self, within: OffsetRange, theirs: StoredBatch, mine: StoredBatch | None, reason: str) -> Difference:
        """Return the first record that differs between two batches, if records differ at all."""
        part = within.part
        start = max(theirs.base_offset, within.start)
        end = min(theirs.end_offset, within.end)
        bad = None
        if mine is not None and reason == _OTHER and end - start <= FEW:
            source, target = self._sides()
            wanted = part.range(start, end)
            bad = first_bad(_table(source, wanted), _table(target, wanted))
        return _differs(part, 1, theirs.base_offset, reason, bad)

    # --- level 2 ----------------------------------------------------------------------------------------------------

    def _records(self, wanted: OffsetRange, done: Compared) -> Difference | None:
        source, target = self._sides()
        part, cut = wanted.part, may_cut(self._route.source)
        fields = (*ALL_FIELDS, *WRITERS) if source.form == FormatId.YDB else ALL_FIELDS
        columns = Columns(("offset", *fields))
        left = digest(_at("the source", source.read(wanted, columns)), fields)
        right = digest(_at("the target", target.read(wanted, columns)), fields)
        done.records += sum(one.count for one in right.values())
        for unlike in block_differences(left, right):
            block = wanted.within(max(wanted.start, unlike.start), min(wanted.end, unlike.start + BLOCK))
            here, there = (partial(_records_in, side, columns, wanted, cut=cut) for side in (source, target))
            few = FEW if cut else BLOCK  # without cuts each read begins at the start of the range
            start, bad = first_bad_in(here, there, block.start, block.end, fields, few) or (block.start, None)
            return _differs(part, 2, start, unlike.reason, bad)
        return None

    def _subset(self, wanted: OffsetRange, done: Compared) -> Difference | None:
        """Compare a compacted partition: the target must have the source's remaining records, and may have more."""
        source, target = self._sides()
        part = wanted.part
        stable = min(source.positions([part])[part].stable, target.positions([part])[part].stable, wanted.end)
        for start in range(wanted.start, stable, _WINDOW):
            window = part.range(start, min(start + _WINDOW, stable))
            left, right = _table(source, window), _table(target, window)
            here = np.asarray(right.column("offset"))
            there = np.asarray(left.column("offset"))
            done.records += len(here)
            missing = np.flatnonzero(~np.isin(there, here))
            if len(missing):
                return _differs(part, 1, int(there[missing[0]]), "missing at the target")
            kept = right.filter(pa.array(np.isin(here, there)))
            done.taken_by_compaction += len(here) - len(there)
            unlike = np.flatnonzero(hashes(left) != hashes(kept))
            if len(unlike):
                return _differs(part, 1, int(there[unlike[0]]), "contents differ", first_bad(left, kept))
        return None


def _at(where: str, read: Iterable[T]) -> Iterator[T]:
    """Yield from ``read``. The UnreadableBatch that it raises names the side, ``where``."""
    try:
        yield from read
    except UnreadableBatch as error:
        reason = f"{where} says: {error.reason}"
        raise UnreadableBatch(error.topic, error.partition, error.offset, reason, error.end) from error


def _around(
    done: Compared, level: int, compare: Callable[[OffsetRange, Compared], Difference | None], end: int
) -> Difference | None:
    """Return a partition's first difference up to ``end``; damaged ranges are recorded, and left out on both sides."""
    spans = [done.part.range(done.start, end)]
    while spans:
        span = spans.pop()
        if not span.count:
            continue
        counted = replace(done)
        try:
            found = compare(span, done)
        except UnreadableBatch as error:
            # The part in front of the damage is read again, and counted then.
            done.batches, done.bytes, done.records = counted.batches, counted.bytes, counted.records
            done.taken_by_compaction = counted.taken_by_compaction
            if all(one.offset != error.offset for one in done.damaged):
                reason = f"cannot be read up to offset {error.end}; {error.reason}"
                done.damaged.append(Difference(span.topic, span.partition, level, error.offset, reason))
            spans.append(span.within(max(error.end, span.start + 1), span.end))
            spans.append(span.within(span.start, min(error.offset, span.end)))
        else:
            if found is not None:
                return found
    return None


_OTHER = "the batches are not the same"
_EXTRA = "the source has no batch there, the target has one"


def _differs(part: TopicPartition, level: int, offset: int, reason: str, bad: BadOffset | None = None) -> Difference:
    """Return a difference, by the bad record ``bad`` if it is known."""
    if bad is None:
        return Difference(part.topic, part.partition, level, offset, reason)
    return Difference(part.topic, part.partition, level, bad.offset, bad.reason, bad.left, bad.right)


def _why_different(theirs: StoredBatch, mine: StoredBatch | None) -> str | None:
    view = memoryview(theirs.payload)
    if not all(is_whole(view, head) for head in heads(view, "the source")):
        return "the batch does not match its checksum at the source"
    if mine is None:
        return "the target has no batch there"
    own = memoryview(mine.payload)
    if not all(is_whole(own, head) for head in heads(own, "the target")):
        return "the batch does not match its checksum at the target"
    return None if mine.end_offset == theirs.end_offset and same(view, own) else _OTHER


def _records_in(
    side: Endpoint, columns: Columns, whole: OffsetRange, start: int, end: int, *, cut: bool = True
) -> list[pa.RecordBatch]:
    """Return the records at ``[start, end)`` of ``whole``, at least one batch.

    Without ``cut`` the read begins at the start of ``whole``.
    """
    found = [
        batch if cut else batch.filter(pc.greater_equal(batch.column("offset"), start))
        for batch in side.read(whole.within(start if cut else whole.start, end), columns)
    ]
    return found or [empty(columns)]


def _table(side: Endpoint, wanted: OffsetRange) -> pa.RecordBatch:
    return joined(_records_in(side, Columns(("offset", *ALL_FIELDS)), wanted, wanted.start, wanted.end))


def _unlike(plan: Plan, source: Endpoint, target: Endpoint) -> list[Unlike]:
    names = [topic.name for topic in plan.topics]
    there, here = source.some_topics(names), target.some_topics(names)
    terms = terms_of(plan.source)
    return [
        one
        for name in names
        if name in there and name in here
        for one in settings_unlike(terms, there[name], here[name])
    ]


def _report(level: int, compared: Sequence[Compared], settings: Sequence[Unlike]) -> dict[str, Any]:
    """Return the report of a comparison. Unlike ``settings`` may be intended, so they are no difference."""
    found = (one for part in compared for one in (*part.damaged, part.difference))
    differences = [asdict(one) for one in found if one is not None]
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
        "settings": [asdict(one) for one in settings],
    }
