"""The Spark engine of a migration: a task for each partition, receipts as rows; no byte passes through the JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.receipts import Receipt
from spark_pipeline.core.repeating import Repeating
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs.migrate_copy import Copier, CopyTask, Route

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_pipeline.jobs.progress import Progress

_POLL_S = 2.0


class SparkEngine:
    """Tasks of a Spark session, which is made with ``master`` unless there is one. ``rate`` is shared by ``parallel``
    tasks at a time."""

    def __init__(self, master: str | None, parallel: int, rate: float | None, progress: Progress | None = None) -> None:
        self._master = master
        self._rate = None if rate is None else rate / parallel
        self._progress = progress
        self._session: Any = None
        self._own = False

    def run(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        """See :class:`spark_pipeline.jobs.migrate_engine.Engine`. Spark repeats tasks that fail."""
        from pyspark.errors import PySparkException

        spark = self._spark()
        ordered = sorted(tasks, key=lambda one: -one.offsets)
        work = partial(copy_in_worker, route=route, tasks=ordered, rate=self._rate)
        numbers = spark.range(0, len(ordered), 1, len(ordered))
        with _watched(route, ordered, self._progress):
            try:
                rows = numbers.mapInArrow(work, "receipt string").collect()
            except PySparkException as error:
                raise PipelineError(f"a task of Spark failed: {_cause(str(error))}") from error
        for row in rows:
            receipt = Receipt(**json.loads(row.receipt))
            if self._progress is not None:
                self._progress.copied(receipt.of, receipt.end, receipt.bytes)
            done(receipt)

    def _spark(self) -> Any:
        if self._session is None:
            from pyspark.sql import SparkSession

            from spark_pipeline.spark.session import session

            self._own = SparkSession.getActiveSession() is None
            self._session = session("anabranch migrate", self._master)
        return self._session

    def close(self) -> None:
        """End the session, if this engine has made it."""
        session, self._session = self._session, None
        if session is not None and self._own:
            session.stop()


def copy_in_worker(
    batches: Iterator[pa.RecordBatch], *, route: Route, tasks: Sequence[CopyTask], rate: float | None
) -> Iterator[pa.RecordBatch]:
    """Runs in Spark's workers: the tasks whose numbers come in, their receipts out."""
    import pyarrow as pa

    from bridges.node.memory import keep_buffers

    keep_buffers()
    copier = Copier(route, Throttle(rate))
    try:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                told = [json.dumps(asdict(receipt)) for receipt in copier.copy(tasks[number])]
                yield pa.RecordBatch.from_pydict({"receipt": pa.array(told, pa.string())})
    finally:
        copier.close()


@contextmanager
def _watched(route: Route, tasks: Sequence[CopyTask], progress: Progress | None) -> Iterator[None]:
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


def _cause(text: str) -> str:
    """The last line of a worker's traceback that says what happened."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line or "spark_pipeline.core.errors" in line]
    return lines[-1] if lines else text[:500]
