"""Copying on the engines of all jobs: threads of this process, or Spark's tasks. Each task returns receipts.

With Spark a partition is a task, and its receipts come back as rows: no record passes through the JVM.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_pipeline.core.errors import EndpointUnavailable, PipelineError
from spark_pipeline.core.repeating import Repeating
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs.engine import Engine, LocalEngine
from spark_pipeline.jobs.migrate.copier import Copier, CopyTask, Route
from spark_pipeline.jobs.migrate.receipts import Receipt

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Meter

_TRIES = 5
"""Most attempts at one task."""
_POLL_S = 2.0


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
                    self._progress.copied(receipt.of, receipt.end, receipt.bytes)
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

        def look() -> None:
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

        with closing(target), Repeating(look, _POLL_S, "watch"):
            yield

    def close(self) -> None:
        """Close the connections and the engine."""
        idle, self._idle = self._idle, []
        for copier in idle:
            copier.close()
        self._engine.close()


def copy_in_worker(piece: Piece) -> list[Receipt]:
    """Copy one task in a Spark worker."""
    from bridges.node.memory import keep_buffers

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
