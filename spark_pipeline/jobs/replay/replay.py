"""The replay job: records of an archive, or of any endpoint, back into topics, at their offsets and with their times.

It creates the topics in the state that migrations use, too (*importing*: nobody else writes to them), and hands them
over when all records are there. By default the topics keep their records for ever: an archive does not know its topics'
retention, and old records would be trimmed at once. An offset without a record in the archive becomes a gap; the
topic's log start is the first replayed record. A killed run is resumed at the topic's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_pipeline.core.encoding.kafka import Records, encode, sizes, starts_of
from spark_pipeline.core.encoding.sink_rows import Codec
from spark_pipeline.core.errors import Conflict, OptionError, PipelineError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns, joined
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.base import endpoint, may_cut
from spark_pipeline.endpoints.importer import Importer, ImportState, origin_of
from spark_pipeline.jobs.engine import Engine
from spark_pipeline.jobs.topics import matching

BATCH_BYTES = 512 * 1024
"""Most bytes of a stored batch, uncompressed, unless a single record is larger."""
BATCH_RECORDS = 10_000
REQUEST_BYTES = 4 * 1024 * 1024
"""About how many bytes of batches one request has."""
HELD_BYTES = 64 * 1024 * 1024
"""About how many bytes of records are held at most until their batches are made."""
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Default configuration of a created topic."""
_COLUMNS = Columns(("key", "value", "offset", "timestamp", "headers"))


@dataclass(frozen=True, slots=True)
class Piece:
    """One partition to be replayed, from ``range.start``, the end of the target's log or the first offset.

    Only records with timestamps in ``[since_us, until_us)`` are replayed; ``epoch`` is the run's; ``bytes_per_second``
    is this piece's share.
    """

    source: str
    source_options: Mapping[str, str]
    target: str
    target_options: Mapping[str, str]
    name: str
    epoch: int
    range: OffsetRange
    to: TopicPartition
    since_us: int | None
    until_us: int | None
    codec: int
    fresh: bool
    bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a piece; the log of ``to`` ends at ``end`` now."""

    to: TopicPartition
    records: int
    size: int
    end: int


def play(piece: Piece) -> Played:
    """Write a partition's records. Raises PipelineError: Fenced, Conflict, and the errors of reading."""
    throttle = Throttle(piece.bytes_per_second)
    records = size = 0
    waiting: list[bytes] = []
    held = 0
    fresh = piece.fresh
    with (
        closing(endpoint(piece.source, piece.source_options)) as source,
        closing(Importer(piece.target, piece.target_options, piece.name)) as target,
    ):
        for batch in choose(source.read(piece.range, _COLUMNS), piece):
            if fresh:  # the log starts at the first record, without a gap before it
                target.bounds(piece.to, piece.epoch, start=batch.column("offset")[0].as_py())
                fresh = False
            records += batch.num_rows
            for one in batches(batch, piece.codec):
                waiting.append(one)
                held += len(one)
                if held >= REQUEST_BYTES:
                    throttle.take(held)
                    target.append(piece.to, piece.epoch, waiting)
                    size, held, waiting = size + held, 0, []
        if waiting:
            target.append(piece.to, piece.epoch, waiting)
            size += held
        end = target.bounds(piece.to, piece.epoch, end=piece.range.end).high_watermark
        return Played(piece.to, records, size, end)


def choose(batches_: Iterator[pa.RecordBatch], piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the piece's records in batches that are cut at round offsets, not where files end."""
    rest: list[pa.RecordBatch] = []
    held = 0
    window = -1
    for batch in batches_:
        if piece.since_us is not None or piece.until_us is not None:
            times = batch.column("timestamp").cast(pa.int64())
            low = pc.greater_equal(times, piece.since_us if piece.since_us is not None else -(1 << 63))
            batch = batch.filter(
                pc.and_(low, pc.less(times, piece.until_us if piece.until_us is not None else 1 << 62))
            )
        while batch.num_rows:
            number = batch.column("offset")[0].as_py() // BATCH_RECORDS
            if rest and (number != window or held >= HELD_BYTES):
                yield joined(rest)
                rest, held = [], 0
            window = number
            end = (number + 1) * BATCH_RECORDS
            inside = max(1, int(np.searchsorted(np.asarray(batch.column("offset")), end)))
            rest.append(batch.slice(0, inside))
            held += rest[-1].nbytes
            batch = batch.slice(inside)
    if rest:
        yield joined(rest)


def batches(batch: pa.RecordBatch, codec: int) -> list[bytes]:
    """Encode the records as Kafka's record batches, each of consecutive offsets, at those offsets.

    Raises PipelineError for offsets that do not ascend.
    """
    offsets = np.asarray(batch.column("offset"))
    steps = np.diff(offsets)
    if (steps <= 0).any():
        at = int(offsets[1:][steps <= 0][0])
        raise PipelineError(f"offset {at} is there twice, or out of order: see what archive verify finds")
    times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    headers = batch.column("headers")
    records = Records(
        None if batch.column("key").null_count == batch.num_rows else batch.column("key"),
        batch.column("value"),
        np.asarray(times),
        None if headers.null_count == batch.num_rows else headers,
    )
    gaps = np.flatnonzero(np.concatenate([[True], steps != 1]))
    starts = starts_of(sizes(records), gaps, BATCH_BYTES, BATCH_RECORDS)
    made = []
    for start, one in zip(starts.tolist(), encode(records, starts, codec), strict=True):
        header = bytearray(one.header(transactional=False))
        header[:8] = int(offsets[start]).to_bytes(8, "big")  # the checksum does not cover the base offset
        made.append(bytes(header) + bytes(one.body))
    return made


@dataclass(slots=True)
class Replay:
    """One replay of topics.

    ``name`` identifies the replay: a new run with the same name resumes it. ``rename``: topic -> its name at the
    target. ``offsets``: only ``[start, end)`` of every partition. ``config``: of the created topics.
    """

    source: str
    source_options: Mapping[str, str]
    target: str
    target_options: Mapping[str, str]
    topics: Sequence[str]
    engine: Engine
    name: str
    rename: Mapping[str, str] = field(default_factory=dict)
    offsets: tuple[int | None, int | None] = (None, None)
    since_us: int | None = None
    until_us: int | None = None
    codec: str = "zstd"
    config: Mapping[str, str] = field(default_factory=dict)
    hand_over: bool = True
    bytes_per_second: float | None = None
    parallel: int = 2
    told: Callable[[int, int], None] = lambda done, total: None
    _before: list[str] = field(default_factory=list)

    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges to be replayed, by partition of the source. Raises OptionError."""
        return self._find_ranges()[0]

    def _find_ranges(self) -> tuple[dict[TopicPartition, OffsetRange], dict[str, str]]:
        """Return the ranges, and the identities of the source's topics."""
        if not may_cut(self.source):
            raise OptionError(f"{self.source} is moved by `anabranch migrate`: a replay could not go on in its middle")
        with closing(endpoint(self.source, self.source_options)) as source:
            positions = source.positions(matching(source, self.topics))
            identities = {name: one.identity for name, one in source.topics().items()}
        low, high = self.offsets
        ranges = {
            part: part.range(
                max(one.start, low or 0),
                one.stable if high is None else min(one.stable, high),
            )
            for part, one in positions.items()
        }
        return ranges, identities

    def plan(self) -> dict[str, Any]:
        """Report what a run would do."""
        ranges = self.ranges()
        return {
            "from": self.source,
            "to": self.target,
            "offsets": sum(one.count for one in ranges.values()),
            "partitions": [{"from": str(one), "to": str(self._goal(part))} for part, one in sorted(ranges.items())],
        }

    def _goal(self, part: TopicPartition) -> TopicPartition:
        return TopicPartition(self.rename.get(part.topic, part.topic), part.partition)

    def run(self) -> dict[str, Any]:
        """Replay, hand the topics over, and return a report."""
        began = time.monotonic()
        ranges, identities = self._find_ranges()
        goals = {self._goal(part) for part in ranges}
        if len(goals) != len(ranges):
            raise OptionError("two topics would become one: their partitions cannot be told apart")
        names = sorted({part.topic for part in goals})
        with closing(Importer(self.target, self.target_options, self.name)) as importer:
            pieces = self._pieces(importer, ranges, names, identities)
            total = sum(one.range.count for one in pieces)
            done = 0
            sizes_ = {piece.to: piece.range.count for piece in pieces}
            played: list[Played] = []
            for one in self.engine.map(play, pieces):
                played.append(one)
                done += sizes_[one.to]
                self.told(done, total)
            if self.hand_over:
                states = [importer.state(name) for name in names]
                ends = {
                    one.topic: [each.high_watermark for each in one.partitions]
                    for one in states
                    if one.handed_over_ms is None
                }
                if ends:
                    importer.cutover(ends)
        return {
            "from": self.source,
            "to": self.target,
            "topics": names,
            "config": {**_KEPT, **self.config},
            "records": sum(one.records for one in played),
            "bytes": sum(one.size for one in played),
            "handed_over": self.hand_over,
            "handed_over_before": sorted(set(self._before)),
            "partitions": [
                {"topic": one.to.topic, "partition": one.to.partition, "records": one.records, "end": one.end}
                for one in sorted(played, key=lambda each: each.to)
            ],
            "seconds": round(time.monotonic() - began, 3),
        }

    def _begun(self, importer: Importer, name: str, partitions: int, origin: str) -> ImportState:
        """Take the topic for this run; return it unchanged if an earlier run has handed it over.

        Raises Conflict if another replay has handed it over.
        """
        try:
            state = importer.state(name)
        except UnknownTopic:
            state = None
        if state is None or state.handed_over_ms is None:
            return importer.begin(name, partitions, {**_KEPT, **self.config}, origin)
        if state.origin not in ("", origin):
            raise Conflict(
                f"topic {name!r} was filled by {self.name!r} with something else, and handed over: with "
                f"{state.origin}, not with {origin}. Give this replay a --name, and topics of its own (--rename)"
            )
        return state

    def _origin(self, topic: str, identity: str) -> str:
        low, high = self.offsets
        return origin_of(
            self.source,
            topic,
            identity,
            from_offset=low,
            to_offset=high,
            since_us=self.since_us,
            until_us=self.until_us,
        )

    def _pieces(
        self,
        importer: Importer,
        ranges: Mapping[TopicPartition, OffsetRange],
        names: Sequence[str],
        identities: Mapping[str, str],
    ) -> list[Piece]:
        counts = {
            name: 1 + max(self._goal(part).partition for part in ranges if self._goal(part).topic == name)
            for name in names
        }
        origins = {self._goal(part).topic: self._origin(part.topic, identities[part.topic]) for part in ranges}
        states = {name: self._begun(importer, name, counts[name], origins[name]) for name in names}
        share = None if self.bytes_per_second is None else self.bytes_per_second / min(self.parallel, len(ranges) or 1)
        pieces = []
        for part, range_ in sorted(ranges.items()):
            goal = self._goal(part)
            state = states[goal.topic]
            end = state.partitions[goal.partition].high_watermark
            if state.handed_over_ms is not None:
                if end < range_.end:
                    raise Conflict(
                        f"{goal} is complete up to offset {end} and was handed over to clients, and {part} now ends at "
                        f"{range_.end}: replay into another topic (--rename, --name)"
                    )
                self._before.append(goal.topic)
                continue
            pieces.append(
                Piece(
                    self.source,
                    self.source_options,
                    self.target,
                    self.target_options,
                    self.name,
                    state.epoch,
                    part.range(max(range_.start, end), max(range_.end, end)),
                    goal,
                    self.since_us,
                    self.until_us,
                    Codec[self.codec],
                    end == 0,
                    share,
                )
            )
        return pieces
