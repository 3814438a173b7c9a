"""The archive job: copies topics into an archive, step by step, each record exactly once.

A step takes the committed records that are not archived yet, up to a number of offsets. It cuts them into pieces, and
each piece writes files that no table has yet. One commit then adds all files to the table and advances the progress
that is stored in it (:mod:`spark_pipeline.lake.table`). After a crash at any moment, the next run begins at the
progress in the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from spark_pipeline.core.errors import OffsetsGone, PipelineError
from spark_pipeline.core.ranges import OffsetRange, Patience, TopicPartition, admit, between, split
from spark_pipeline.core.repeating import follow
from spark_pipeline.core.rows import Columns
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.base import Endpoint, Positions, endpoint, may_cut
from spark_pipeline.jobs.archive.upkeep import compact
from spark_pipeline.jobs.engine import Engine
from spark_pipeline.jobs.topics import matching
from spark_pipeline.lake.archive import Archive, Description
from spark_pipeline.lake.layout import FILE_BYTES, RAW, Crash, DataFile, no_crash
from spark_pipeline.lake.table import Overtaken

COLUMNS = Columns(RAW)
_COMPACTED_AFTER = 16
"""Steps of a following run between two compactions; each step writes a file per partition."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of offsets to be written into files."""

    url: str
    options: Mapping[str, str]
    place: str
    range: OffsetRange
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The result of a piece: files that are written but belong to no table yet."""

    range: OffsetRange
    files: tuple[DataFile, ...]
    rows: int
    size: int


def stage(piece: Piece) -> Staged:
    """Write the records of a piece into files. Raises PipelineError and OSError."""
    records = Archive.open(piece.place).writer(piece.range.part, piece.file_bytes)
    rows = size = 0
    with closing(endpoint(piece.url, piece.options)) as source:
        for batch in source.read(piece.range, COLUMNS):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            records.write(batch)
    return Staged(piece.range, tuple(records.finish()), rows, size)


@dataclass(slots=True)
class Told:
    """The counters of a run, for its report and its progress."""

    steps: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    seconds: float = 0.0
    before: dict[TopicPartition, int] = field(default_factory=dict)
    after: dict[TopicPartition, int] = field(default_factory=dict)
    lost: list[OffsetRange] = field(default_factory=list)
    left: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "records": self.rows,
            "bytes": self.bytes,
            "files": self.files,
            "seconds": round(self.seconds, 3),
            "left": self.left,
            "partitions": [
                {"topic": part.topic, "partition": part.partition, "from": self.before.get(part), "to": offset}
                for part, offset in sorted(self.after.items())
            ],
            "lost": [str(one) for one in self.lost],
        }


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a step: from ``start``, which follows from the table's progress (``done``), to ``ends``, the ends of
    committed data.

    A commit names ``done``: it fails if anything was archived since.
    """

    done: Mapping[TopicPartition, int]
    start: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


@dataclass(slots=True)
class ArchiveRun:
    """One run of an archiving job.

    ``topics``: names, or regular expressions that match whole names. ``begin``: the start of a partition that is not in
    the archive yet: "earliest", "latest", or milliseconds. The last two are resolved once and stored for further runs;
    with "latest", partitions that are added to a topic later begin with their first record. ``step_offsets``: about how
    many offsets one commit covers. ``piece_offsets``: the most offsets of one piece. ``bytes_per_second``: the highest
    average rate over several steps. ``allow_loss``: if the log was trimmed above the progress, go on and report the
    lost ranges. ``on_step`` is called after each step.
    """

    url: str
    options: Mapping[str, str]
    place: str
    topics: tuple[str, ...]
    description: Description
    engine: Engine
    begin: str = "earliest"
    step_offsets: int = 4_000_000
    piece_offsets: int = 1_000_000
    file_bytes: int = FILE_BYTES
    bytes_per_second: float | None = None
    allow_loss: bool = False
    stop: Event = field(default_factory=Event)
    on_step: Callable[[Told], None] = lambda told: None
    crash: Crash = no_crash
    told: Told = field(default_factory=Told)
    _throttle: Throttle = field(init=False)

    def __post_init__(self) -> None:
        self._throttle = Throttle(self.bytes_per_second, sleep=self.stop.wait)

    def available_now(self) -> Told:
        """Archive the records that are committed when this is called, and return."""
        with closing(endpoint(self.url, self.options)) as source:
            until: Mapping[TopicPartition, int] | None = None
            archive = self._archive(source)
            while not self.stop.is_set():
                bounds = self._bounds(source, archive)
                if until is None:
                    until = bounds.ends
                # A topic may be deleted while it is archived.
                ends = {part: max(start, until.get(part, start)) for part, start in bounds.start.items()}
                if not between(bounds.start, ends):
                    break
                self._step(archive, replace(bounds, ends=ends))
            return self.told

    def follow(self, patience: Patience, poll_seconds: float = 1.0) -> Told:
        """Archive new records until ``stop`` is set; a step that has begun is finished.

        A source that does not answer, for example during its restart, is retried: the archive does not depend on it.
        """
        with closing(endpoint(self.url, self.options)) as source:
            follow(lambda: self._follow_once(source, patience), self.stop.is_set, lambda: self.stop.wait(poll_seconds))
        return self.told

    def _follow_once(self, source: Endpoint, patience: Patience) -> bool:
        """Make a step if there are enough new offsets, also of added partitions; return whether it did."""
        archive = self._archive(source)
        bounds = self._bounds(source, archive)
        new = sum(one.count for one in between(bounds.start, bounds.ends))
        if not new or patience.waits(new, int(time.monotonic() * 1000)):
            return False
        self._step(archive, bounds)
        if not self.told.steps % _COMPACTED_AFTER:
            with suppress(Overtaken):  # another process is compacting the archive
                compact(archive, self.engine, self.file_bytes, fewest=_COMPACTED_AFTER)
        return True

    def plan(self) -> dict[str, Any]:
        """Report what a run would do now, without making or writing anything."""
        with closing(endpoint(self.url, self.options)) as source:
            parts = matching(source, self.topics)
            done: dict[TopicPartition, int] = {}
            begun: Mapping[str, int] = {}
            if Archive.is_there(self.place):
                archive = Archive.open(self.place)
                done, begun = archive.records.progress(parts), archive.description.begun
            bounds = self._find_bounds(source, parts, done, begun)
            ranges = between(bounds.start, bounds.ends)
            return {
                "archive": self.place,
                "offsets": sum(one.count for one in ranges),
                "pieces": len(split(ranges, max_records=self.piece_offsets)),
                "ranges": [str(one) for one in ranges],
            }

    def _archive(self, source: Endpoint) -> Archive:
        parts = matching(source, self.topics)
        archive = Archive.make(self.place, self.description, self.crash)
        numbers: dict[str, tuple[int, ...]] = {}
        for part in parts:
            numbers[part.topic] = (*numbers.get(part.topic, ()), part.partition)
        archive.learn(numbers)
        return archive

    def _bounds(self, source: Endpoint, archive: Archive) -> Bounds:
        """Return the bounds of the next step."""
        parts = matching(source, self.topics)
        begun = archive.description.begun
        bounds = self._find_bounds(source, parts, archive.records.progress(parts), begun)
        if self.begin != "earliest":
            # Stored before anything is archived: a later run would resolve ``begin`` to a higher offset, and lose the
            # records between the two.
            new = {part: start for part, start in bounds.start.items() if part not in bounds.done}
            if any(begun.get(str(part)) != start for part, start in new.items()):
                archive.begin(new)
        return bounds

    def _find_bounds(
        self,
        source: Endpoint,
        parts: list[TopicPartition],
        done: Mapping[TopicPartition, int],
        begun: Mapping[str, int],
    ) -> Bounds:
        positions = source.positions(parts)
        start = {**self._beginnings(source, positions, [part for part in parts if part not in done], begun), **done}
        for part, one in positions.items():
            if start[part] > one.high_watermark:
                raise PipelineError(
                    f"{part} is archived up to offset {start[part]}, and ends at {one.high_watermark}: the topic was"
                    " made anew, or has lost its end; archive it in another place"
                )
            if start[part] < one.start:
                if not self.allow_loss:
                    raise OffsetsGone(part.topic, part.partition, start[part], one.start)
                lost = part.range(start[part], one.start)
                if lost not in self.told.lost:
                    self.told.lost.append(lost)
                start[part] = one.start
        return Bounds(done, start, {part: one.stable for part, one in positions.items()})

    def _beginnings(
        self,
        source: Endpoint,
        positions: Mapping[TopicPartition, Positions],
        new: list[TopicPartition],
        begun: Mapping[str, int],
    ) -> dict[TopicPartition, int]:
        """Return the start of each partition that is not in the archive yet."""
        if self.begin == "earliest":
            return {part: positions[part].start for part in new}
        start = {part: begun[str(part)] for part in new if str(part) in begun}
        unknown = [part for part in new if part not in start]
        found: Mapping[TopicPartition, int | None] = {}
        if self.begin != "latest" and unknown:
            found = source.find_timestamp(dict.fromkeys(unknown, int(self.begin)))
        seen = {part.topic for part in positions if part not in unknown}
        for part in unknown:
            offset = found.get(part)
            if offset is None:
                # A partition that was added since has only records newer than "latest" at that time.
                came_later = self.begin == "latest" and part.topic in seen
                offset = positions[part].start if came_later else positions[part].stable
            start[part] = offset
        return start

    def _step(self, archive: Archive, bounds: Bounds) -> None:
        began = time.monotonic()
        before, start, ends = bounds.done, bounds.start, bounds.ends
        # If the source's ranges cannot be cut, a step takes everything, and a piece is a whole partition.
        cut = may_cut(self.url)
        admitted = admit(start, ends, self.step_offsets) if cut else ends
        after = {part: offset for part, offset in admitted.items() if offset > start[part]}
        pieces = [
            Piece(self.url, self.options, self.place, one, self.file_bytes)
            for one in split(between(start, after), max_records=self.piece_offsets if cut else None)
        ]
        self.crash("before-stage")
        staged = list(self.engine.map(stage, pieces))
        self.crash("after-stage")
        files = [one for piece in staged for one in piece.files]
        new = {part: start[part] for part in after if part not in before}
        if new:
            archive.begin(new)
        archive.records.commit(files, before, after)
        told = self.told
        told.steps += 1
        told.rows += sum(piece.rows for piece in staged)
        size = sum(piece.size for piece in staged)
        told.bytes += size
        told.files += len(files)
        for part, offset in after.items():
            told.before.setdefault(part, start[part])
            told.after[part] = offset
        told.left = sum(max(0, ends[part] - told.after.get(part, start[part])) for part in ends)
        told.seconds += time.monotonic() - began
        self.on_step(told)
        self._throttle.take(size)
