"""The source: batch and streaming reads of the pipeline's endpoints for PySpark's Python data sources.

docs/protocols/spark.md, "Where code runs", says where the methods run, and in which order: a stream reader's state
lives in one process of the driver, while ``read`` runs in workers, on a copy made elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from anabranch_kit.run.clock import now_ms
from spark_pipeline.core.errors import OffsetsGone, OptionError, PipelineError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, Patience, TopicPartition, admit, between, split, total
from spark_pipeline.core.rows import TYPES, Columns
from spark_pipeline.endpoints.base import may_cut
from spark_pipeline.spark.pool import POOL
from spark_pipeline.spark.positions import Finder, Identities, Offsets, from_json, to_json
from spark_pipeline.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_pipeline.endpoints.base import Endpoint, Positions

_log = logging.getLogger("anabranch.spark")


_FRESH_S = 5.0
"""Seconds for which the positions of a planned micro-batch are used without reading them again."""


@dataclass
class Piece(InputPartition):
    """The range that one task reads."""

    range: OffsetRange


class DataLost(PipelineError):
    """Offsets that a query was to read do not exist (any more), and failOnDataLoss is true."""


def columns_of(schema: StructType) -> Columns:
    """Return the columns of a schema. Raises OptionError for a column that the source does not have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    for name, kind in zip(wanted.names, wanted.types, strict=True):
        if name not in TYPES:
            raise OptionError(f"there is no column {name!r}: there are {', '.join(TYPES)}")
        if kind != TYPES[name]:
            raise OptionError(f"column {name} is of type {TYPES[name]}, not {kind}")
    try:
        columns = Columns(tuple(wanted.names))
    except ValueError as error:
        raise OptionError(str(error)) from None
    if wanted != columns.schema:
        raise OptionError("columns of the source may be null: a schema must not say otherwise")
    return columns


class _Loss:
    """The reaction to lost data, by ``failOnDataLoss``. A sentence is logged once, not with each micro-batch."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self._logged = ""

    def __call__(self, sentence: str) -> None:
        if self._fails:
            raise DataLost(f"{sentence}; failOnDataLoss = false goes on with what is there")
        if sentence != self._logged:
            self._logged = sentence
            _log.warning("data lost: %s", sentence)


class _Reading:
    """The base of batch and stream readers; it is pickled, and used in workers."""

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._loss = _Loss(options.fail_on_data_loss)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece, in a worker."""
        options = self._options
        POOL.begin_task(freeze=options.freeze)
        if not isinstance(partition, Piece):
            return  # a batch query without pieces is given None to read
        with POOL.use(options.url, options.endpoint) as source:
            if options.fail_on_data_loss:
                yield from source.read(partition.range, self._columns, options.batch_bytes)
            else:
                yield from self._read_what_is_left(source, partition.range)

    def _read_what_is_left(self, source: Endpoint, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Read on behind offsets that were trimmed meanwhile; never go back, and never begin elsewhere."""
        columns = self._columns
        told = columns if "offset" in columns else Columns((*columns.names, "offset"))
        at = wanted.start
        while at < wanted.end:
            try:
                for batch in source.read(wanted.within(at, wanted.end), told, self._options.batch_bytes):
                    at = batch.column("offset")[-1].as_py() + 1
                    yield batch if told is columns else batch.select(list(columns.names))
                return
            except UnknownTopic as error:
                self._loss(str(error))
                return
            except OffsetsGone as error:
                if error.start <= at:
                    raise  # it was not trimmed, so a retry would never end
                self._loss(str(error))
                at = error.start

    def pieces(self, start: Offsets, end: Offsets, positions: dict[TopicPartition, Positions]) -> list[Piece]:
        """Return the pieces from ``start`` to ``end``, without offsets that are lost already."""
        ranges = []
        for one in between(start, end):
            told = positions[one.part]
            low, high = one.start, one.end
            if low < told.start:
                self._loss(f"offsets from {low} to {min(high, told.start) - 1} of {one.part} are gone")
                low = told.start
            if high > told.stable:
                self._loss(f"{one.part} was to be read up to offset {high}, but ends at {told.stable}")
                high = told.stable
            ranges.append(one.within(low, high))
        options = self._options
        bounds = (options.min_partitions, options.max_records_per_partition) if may_cut(options.url) else ()
        return [Piece(one) for one in split(ranges, *bounds)]


class BatchReader(_Reading, DataSourceReader):
    """The reader of a batch query."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the pieces of the whole query, as of now. It is a list, since Spark accepts nothing else."""
        options = self._options
        with POOL.use(options.url, options.endpoint) as source:
            finder = Finder(source, options)
            parts = finder.partitions()
            start, end = finder.starting(parts, self._loss), finder.ending(parts)
            return self.pieces(start, end, finder.positions(parts))


@dataclass(frozen=True, slots=True)
class _Planned:
    """The last planned micro-batch: its end, its positions, and when they were read (monotonic, s)."""

    end: Offsets
    told: dict[TopicPartition, Positions]
    at: float


def _made_anew(known: Identities, now: Identities) -> set[str]:
    """Return the topics whose identity has changed."""
    return {name for name, identity in known.items() if now.get(name, identity) != identity}


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query.

    Its offsets are those of Spark's connector for Kafka, topic -> partition -> offset, with the identities of the
    topics: a topic that was deleted and made anew has other records at the same offsets.
    """

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._initial: dict[str, Any] | None = None
        self._last: tuple[Offsets, Identities] | None = None
        self._newest: Offsets = {}
        self._planned: _Planned | None = None
        self._patience = None if options.min_offsets is None else Patience(options.min_offsets, options.max_delay_ms)

    # --- in the driver's process of this stream ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint.

        Spark asks twice: ``latest`` must be the same both times, else the records between the two are never read.
        """
        if self._initial is None:
            with self._finder() as finder:
                self._initial = to_json(finder.starting(finder.partitions(), self._loss), finder.identities)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the tightest of our limits, for Spark to show; :meth:`latestOffset` applies all of them."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: it reads only the records that are there now."""
        with self._finder() as finder:
            there = finder.all_positions(self._may_be_gone(self._options.topics.given_names))
            self._last = {part: one.stable for part, one in there.items()}, finder.identities

    def latestOffset(self, start: dict[str, Any] | None, limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if it is to wait."""
        begun, known = from_json(start)
        self._planned = None
        with self._finder() as finder:
            told = {}
            if self._last is None:
                told = finder.all_positions(self._may_be_gone(part.topic for part in begun))
                newest, identities = {part: one.stable for part, one in told.items()}, finder.identities
            else:
                newest, identities = self._last
            self._newest = newest
            begun = self._of_same(begun, known, identities)
            identities = {**known, **identities}
            gone = [part for part in begun if part not in newest]
            if gone:
                self._loss(f"partitions {', '.join(map(str, gone))} are no longer there")
            new = {part for part in newest if part not in begun}
            since = {**begun, **self._first({part: told[part] for part in new} if told else finder.positions(new))}
            for part in newest:
                if newest[part] < since[part]:
                    self._loss(f"{part} was read up to offset {since[part]}, but ends at {newest[part]}")
            # Missing partitions keep their offset, and go on if they come back.
            end = {part: max(since[part], offset) for part, offset in newest.items()}
            end.update({part: begun[part] for part in gone})
            if not isinstance(limit, ReadAllAvailable) and may_cut(self._options.url):
                end = self._admitted(finder, since, end, limit)
        patience = None if self._last is not None or not begun else self._patience
        if patience is not None and patience.waits(total(since, end), now_ms()):
            assert start is not None, "otherwise nothing has begun"
            return start
        if told and not gone:
            self._planned = _Planned(end, told, time.monotonic())
        return to_json(end, identities)

    def _of_same(self, begun: Offsets, known: Identities, now: Identities) -> Offsets:
        """Return the offsets of topics whose identity is unchanged; topics that were made anew begin at their start."""
        anew = _made_anew(known, now)
        for name in sorted(anew & {part.topic for part in begun}):
            self._loss(f"topic {name} was deleted and made anew: what was not read of the former one is gone")
        return {part: offset for part, offset in begun.items() if part.topic not in anew}

    def _admitted(self, finder: Finder, since: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        most = self._options.max_offsets
        if isinstance(limit, ReadMaxRows) and (most is None or limit.max_rows < most):
            most = limit.max_rows
        if self._options.max_bytes is not None:
            offsets = self._offsets_in(self._options.max_bytes, finder, since, end)
            most = offsets if most is None else min(most, offsets)
        return end if most is None else admit(since, end, most)

    def _offsets_in(self, size: int, finder: Finder, since: Offsets, end: Offsets) -> int:
        """Return about how many offsets take ``size`` bytes, by the average of the partitions with new records."""
        waiting = [part for part in end if end[part] > since[part]]
        kept = offsets = 0
        for told in finder.positions(waiting).values():
            if told.size >= 0:
                kept += told.size
                offsets += told.high_watermark - told.start
        if not offsets or not kept:
            return total(since, end)
        return max(1, size * offsets // kept)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the sources' newest offsets for the query's progress; its lag is the distance to them."""
        return to_json(self._newest, {}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the pieces of a micro-batch. A partition that did not exist at ``start`` is read from its start."""
        (begun, before), (until, wanted_of) = from_json(start), from_json(end)
        # The loss was reported when this micro-batch was planned.
        anew = _made_anew(before, wanted_of)
        begun = {part: offset for part, offset in begun.items() if part.topic not in anew}
        planned = self._planned
        if planned is not None and planned.end == until and time.monotonic() < planned.at + _FRESH_S:
            # Spark asks for the pieces of the end just returned; readers detect offsets that were trimmed since.
            begun.update(self._first({part: planned.told[part] for part in until.keys() - begun.keys()}))
            return self.pieces(begun, until, planned.told)
        with self._finder() as finder:
            there = set(finder.partitions(self._may_be_gone(part.topic for part in until)))
            until = self._of_same(until, wanted_of, finder.identities)
            wanted = {part: offset for part, offset in until.items() if part in there}
            for part in sorted(until.keys() - there):
                if until[part] > begun.get(part, 0):
                    self._loss(f"partition {part} is no longer there")
            begun.update(self._first(finder.positions(wanted.keys() - begun.keys())))
            return self.pieces(begun, wanted, finder.positions([one.part for one in between(begun, wanted)]))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint has the offsets.

        Spark calls this a micro-batch late, and for the last one at the next start, so it must neither release data nor
        report lag.
        """

    def stop(self) -> None:
        POOL.close()

    @contextmanager
    def _finder(self) -> Iterator[Finder]:
        with POOL.use(self._options.url, self._options.endpoint) as source:
            yield Finder(source, self._options)

    def _may_be_gone(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that the query has read, if it may go on without them; else none."""
        return set() if self._options.fail_on_data_loss else set(topics)

    def _first(self, new: Mapping[TopicPartition, Positions]) -> Offsets:
        """Return the starts of partitions that were created while the query ran."""
        found = {part: told.start for part, told in new.items()}
        for part, offset in found.items():
            if offset:
                self._loss(f"partition {part} is new and begins at offset {offset}, not at 0")
        return found
