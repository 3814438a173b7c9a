"""The Spark engine of a migration: a task for each partition, receipts as rows; no byte passes through the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.receipts import Receipt
from spark_pipeline.core.repeating import Repeating
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs import engine_spark
from spark_pipeline.jobs.migrate_copy import Copier, CopyTask, Route
from spark_pipeline.jobs.migrate_engine import largest_first, persistent

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Meter

_POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task of Spark copies. ``rate``: bytes a second, None for as many as come."""

    route: Route
    task: CopyTask
    rate: float | None


class SparkEngine:
    """Tasks of a Spark session, which is made with ``master`` unless there is one. ``rate`` is shared by ``parallel``
    tasks at a time."""

    def __init__(self, master: str | None, parallel: int, rate: float | None, progress: Meter | None = None) -> None:
        self._master = master
        self._rate = None if rate is None else rate / parallel
        self._progress = progress
        self._pieces: engine_spark.SparkEngine | None = None

    def run(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        """See :class:`spark_pipeline.jobs.migrate_engine.Engine`."""
        if self._pieces is None:
            self._pieces = engine_spark.SparkEngine(self._master)
        pieces = [Piece(route, task, self._rate) for task in largest_first(tasks)]
        with _watched(route, tasks, self._progress):
            for receipts in self._pieces.map(copy_in_worker, pieces):
                for receipt in receipts:
                    if self._progress is not None:
                        self._progress.copied(receipt.of, receipt.end, receipt.bytes)
                    done(receipt)

    def close(self) -> None:
        """End the session, if this engine has made it."""
        if self._pieces is not None:
            self._pieces.close()


def copy_in_worker(piece: Piece) -> list[Receipt]:
    """Runs in Spark's workers."""
    from bridges.node.memory import keep_buffers

    keep_buffers()
    with closing(Copier(piece.route, Throttle(piece.rate))) as copier:
        return list(persistent(copier, piece.task))


@contextmanager
def _watched(route: Route, tasks: Sequence[CopyTask], progress: Meter | None) -> Iterator[None]:
    """Ask the target now and then how far partitions are, for the progress: workers say so only at their ends."""
    if progress is None:
        yield
        return
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
                        progress.copied(part, ends[part.partition].high_watermark, 0)
        except PipelineError:
            silent = True  # the tasks meet it too, and say it

    with closing(target), Repeating(look, _POLL_S, "watch"):
        yield
