"""A migration on the engines of all jobs: threads of this process, or tasks of Spark. They give receipts of tasks.

With Spark a partition is a task, and its receipts come as rows: no byte passes through the JVM.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_pipeline.core.errors import EndpointUnavailable, PipelineError
from spark_pipeline.core.receipts import Receipt
from spark_pipeline.core.repeating import Repeating
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs.engine import Engine, LocalEngine
from spark_pipeline.jobs.migrate_copy import Copier, CopyTask, Route

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Meter

_TRIES = 5
"""Attempts at one task."""
_POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task of Spark copies. ``rate``: bytes a second, None for as many as come."""

    route: Route
    task: CopyTask
    rate: float | None


class Copying:
    """Carries out tasks on ``engine``, ``parallel`` at the same time, which share ``rate`` bytes a second."""

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
        """Carry out all tasks of the one route that there is; ``done`` gets each receipt, from any thread but one at a
        time. Raises what the first task raised that could not be carried out; the others end where they are."""
        ordered = sorted(tasks, key=lambda one: -one.offsets)  # so that none is left alone at the end
        if isinstance(self._engine, LocalEngine):
            self._in_threads(route, ordered, done)
            return
        with self._watched(route, ordered):
            for receipts in self._engine.map(copy_in_worker, [Piece(route, task, self._share) for task in ordered]):
                for receipt in receipts:
                    self._progress.copied(receipt.of, receipt.end, receipt.bytes)
                    done(receipt)

    def _in_threads(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        """Receiving, checksums and sending leave Python's lock, so several are worth while."""
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
        """Ask the target now and then how far partitions are, for the progress: workers say so only at their ends."""
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
                silent = True  # the tasks meet it too, and say it

        with closing(target), Repeating(look, _POLL_S, "watch"):
            yield

    def close(self) -> None:
        """Let go of what it holds, the engine included."""
        idle, self._idle = self._idle, []
        for copier in idle:
            copier.close()
        self._engine.close()


def copy_in_worker(piece: Piece) -> list[Receipt]:
    """Runs in Spark's workers."""
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
    """The receipts of a task, which is tried again where the last one ended if a side is away."""
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
