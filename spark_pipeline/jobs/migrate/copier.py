"""The copy of one partition: record sets of the source, unchanged, to their offsets at the target, with receipts.

It runs in threads of the local engine and in Spark's workers. It can be repeated after any failure: it begins where the
receipts end, and the target compares batches that it already has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from spark_pipeline.core import import_frames
from spark_pipeline.core.errors import OffsetsGone
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.kafka.client import FETCH_BYTES
from spark_pipeline.endpoints.migration import migration_source
from spark_pipeline.jobs.migrate.receipts import Receipt

RECEIPT_BYTES = 256 * 1024 * 1024
"""Bytes after which a receipt is written, at the end of the current record set."""


@dataclass(frozen=True, slots=True)
class Route:
    """The two systems between which a migration copies. Options may be secret and are in no plan and no receipt.

    ``target_ydb``: the URL of the target's YDB listener, "" if it is not known.
    """

    plan: str
    migration: str
    source: str
    target: str
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    target_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    target_ydb: str = ""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A task to copy ``[start, end)`` of a partition for run ``epoch``; the source's log begins at ``log_start``.

    ``once``: offsets that the target already has are not sent again for comparison, because the source may have
    compacted them, or makes other batches of the same records each time.
    """

    part: TopicPartition
    epoch: int
    log_start: int
    start: int
    end: int
    once: bool = False

    @property
    def offsets(self) -> int:
        """Return the number of offsets to copy, gaps included."""
        return max(0, self.end - self.start)


class Copier:
    """A copier of partitions, one after the other, over kept connections. It is not thread-safe."""

    def __init__(self, route: Route, throttle: Throttle | None = None) -> None:
        self._route = route
        self._throttle = throttle or Throttle(None)
        self._source = migration_source(route.source, route.source_options)
        self._target = Importer(route.target, route.target_options, route.migration)

    def close(self) -> None:
        """Close both connections."""
        self._source.close()
        self._target.close()

    def copy(
        self,
        task: CopyTask,
        copied: Callable[[int, int], object] = lambda offset, size: None,
        stopped: Callable[[], bool] = lambda: False,
        receipt_bytes: int = RECEIPT_BYTES,
    ) -> Iterator[Receipt]:
        """Yield the receipts of a task, each when its range is durable.

        ``copied`` is called with the reached offset and the bytes of each record set. Once ``stopped`` returns true,
        the copy ends with a receipt. Offsets that the source has trimmed meanwhile are left out: the target's log then
        begins as late. Raises EndpointUnavailable, Fenced, Conflict, OldFormat, OffsetsGone if the source no longer has
        any of it.
        """
        while True:
            try:
                yield from self._copy(task, copied, stopped, receipt_bytes)
                return
            except OffsetsGone as gone:
                if gone.start <= gone.wanted:
                    raise
                task = replace(task, log_start=gone.start, start=gone.start, end=max(task.end, gone.start))

    def _copy(
        self,
        task: CopyTask,
        copied: Callable[[int, int], object],
        stopped: Callable[[], bool],
        receipt_bytes: int,
    ) -> Iterator[Receipt]:
        part = task.part
        start = task.start
        if task.once:
            start = max(start, self._target.state(part.topic).partitions[part.partition].high_watermark)
        tally = _Tally(start)
        begins = task.log_start > 0
        wanted = part.range(start, task.end)
        try:
            for found in self._source.read_sets(wanted, self._throttle.piece(FETCH_BYTES)):
                size = len(found.payload)
                self._throttle.take(size)
                tally.digest = import_frames.digest(self._source.form, found.payload, str(part), tally.digest)
                self._target.append(part, task.epoch, (found.payload,), self._source.form)
                if begins:
                    # After the append: the source's first batch may begin below its log start.
                    self._target.bounds(part, task.epoch, start=min(task.log_start, found.end))
                    begins = found.end < task.log_start
                tally.batches += found.batches
                tally.bytes += size
                tally.end = found.end
                copied(found.end, size)
                if stopped():
                    yield self._receipt(task, tally)
                    return
                if tally.bytes >= receipt_bytes:
                    yield self._receipt(task, tally)
                    tally = _Tally(tally.end)
        except OffsetsGone:
            if tally.end > tally.start:
                yield self._receipt(task, tally)
            raise
        if tally.end < task.end or begins:
            self._target.bounds(part, task.epoch, start=task.log_start, end=task.end)
            tally.end = max(tally.end, task.end)
            copied(task.end, 0)
        if tally.end > tally.start:
            yield self._receipt(task, tally)

    def _receipt(self, task: CopyTask, tally: _Tally) -> Receipt:
        return Receipt(
            self._route.plan,
            task.epoch,
            task.part.topic,
            task.part.partition,
            tally.start,
            tally.end,
            tally.batches,
            tally.bytes,
            tally.digest,
            round(time.monotonic() - tally.began, 3),
            time.time_ns() // 1_000_000,
        )


@dataclass(slots=True)
class _Tally:
    """The contents of the next receipt."""

    start: int
    end: int = -1
    batches: int = 0
    bytes: int = 0
    digest: int = 0
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.end = max(self.end, self.start)
