"""The copy of partitions: record sets of the source, unchanged, to their offsets at the target, with receipts.

A task copies a partition, in a thread of this process or in a worker of Spark's, from which only receipts come back: no
record passes through the JVM. It can be repeated after any failure: it begins where the receipts end, and the target
compares batches that it already has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anabranch_kit.run.clock import now_ms
from spark_pipeline.core import frames
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.repeating import Repeating
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.kafka.client import FETCH_BYTES
from spark_pipeline.endpoints.migration import migration_source
from spark_pipeline.jobs.engine import Engine, LocalEngine
from spark_pipeline.jobs.migrate.state import Receipt

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Meter

RECEIPT_BYTES = 256 * 1024 * 1024
"""Bytes after which a receipt is written, at the end of the current record set."""
_TRIES = 5
"""Most attempts at one task."""
_POLL_S = 2.0


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
                tally.digest = frames.digest(self._source.form, found.payload, str(part), tally.digest)
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
            now_ms(),
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


# --- engines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """The argument of a Spark task that copies. ``rate``: bytes per second, None for no limit."""

    route: Route
    task: CopyTask
    rate: float | None


class Copying:
    """Copies on ``engine``, ``parallel`` tasks at a time, which share ``rate`` bytes per second."""

    def __init__(
        self,
        engine: Engine,
        parallel: int,
        rate: float | None,
        progress: Meter,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._share = None if rate is None else rate / parallel
        self._throttle = Throttle(rate)
        self._progress = progress
        self._stopped = stopped
        self._idle: list[Copier] = []

    def run(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        """Copy all tasks; every call must have the same route. ``done`` gets each receipt, from any thread, one at a
        time.

        Raises the error of the first task that failed; the other tasks stop.
        """
        ordered = sorted(tasks, key=lambda one: -one.offsets)  # so that no long task is left alone at the end
        if isinstance(self._engine, LocalEngine):
            self._in_threads(route, ordered, done)
            return
        with self._watched(route, ordered):
            for receipts in self._engine.map(copy_in_worker, [Piece(route, task, self._share) for task in ordered]):
                for receipt in receipts:
                    self._progress.copied(receipt.part, receipt.end, receipt.bytes)
                    done(receipt)

    def _in_threads(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        """Copy in threads; receiving, checksums and sending release Python's global lock, so several pay off."""
        failed = threading.Event()
        lock = threading.Lock()

        def stopped() -> bool:
            return failed.is_set() or self._stopped()

        def copy(task: CopyTask) -> None:
            if stopped():
                return
            with lock:
                copier = self._idle.pop() if self._idle else None
            copier = copier or Copier(route, self._throttle)
            try:
                told = lambda offset, size: self._progress.copied(task.part, offset, size)  # noqa: E731
                for receipt in persistent(copier, task, told, stopped):
                    with lock:
                        done(receipt)
            except BaseException:
                failed.set()
                copier.close()
                raise
            with lock:
                self._idle.append(copier)

        for _ in self._engine.map(copy, tasks):
            pass

    @contextmanager
    def _watched(self, route: Route, tasks: Sequence[CopyTask]) -> Iterator[None]:
        """Poll the target for the partitions' progress, because workers report only at their ends."""
        target = Importer(route.target, route.target_options, route.migration)
        parts = {task.part for task in tasks}
        silent = False

        def poll() -> None:
            nonlocal silent
            if silent:
                return
            try:
                for topic in sorted({part.topic for part in parts}):
                    ends = target.state(topic).partitions
                    for part in parts:
                        if part.topic == topic:
                            self._progress.copied(part, ends[part.partition].high_watermark, 0)
            except PipelineError:
                silent = True  # the tasks fail with the same error, and report it

        with closing(target), Repeating(poll, _POLL_S, "watch"):
            yield

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for copier in idle:
            copier.close()
        self._engine.close()


def copy_in_worker(piece: Piece) -> list[Receipt]:
    """Copy one task in a Spark worker."""
    from bridges.node.process.memory import keep_buffers

    keep_buffers()
    with closing(Copier(piece.route, Throttle(piece.rate))) as copier:
        return list(persistent(copier, piece.task))


def persistent(
    copier: Copier,
    task: CopyTask,
    copied: Callable[[int, int], object] = lambda offset, size: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Receipt]:
    """Yield the receipts of a task; if a side does not answer, retry behind the last receipt."""
    start = task.start
    for attempt in range(1, _TRIES + 1):
        try:
            for receipt in copier.copy(replace(task, start=start), copied, stopped):
                start = receipt.end
                yield receipt
            return
        except EndpointUnavailable:
            if attempt == _TRIES or stopped():
                raise
