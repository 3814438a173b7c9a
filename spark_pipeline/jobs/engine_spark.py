"""An engine on Spark's executors: each piece is a task of its own, and its data never passes through the JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.spark.session import session, started

T = TypeVar("T")
R = TypeVar("R")

WAVE = 500
"""Most pieces of one Spark job, because each task receives the arguments of all of them."""
_RESULT = pa.schema([pa.field("result", pa.binary())])


@dataclass(slots=True)
class SparkEngine:
    """An :class:`Engine` on Spark. Spark retries a failed task as often as it is configured to, by new attempts of the
    piece.

    A piece's PipelineError is not retried, and is raised here unchanged. Without a ``session`` one is made at once:
    starting Java forks the process, and gRPC's threads do not survive a fork, so an engine is opened before any system.
    """

    master: str | None = None
    session: Any = None
    _own: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.session is None:
            self._own = SparkSession.getActiveSession() is None
            self.session = session("anabranch", self.master)

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for begin in range(0, len(items), WAVE):
            arguments = [pickle.dumps(item) for item in items[begin : begin + WAVE]]
            frame = self.session.range(0, len(arguments), 1, len(arguments))
            task = _Task(work.__module__, work.__qualname__, arguments)
            try:
                rows = started(frame.mapInArrow(task.run, "result binary").collect)
            except PySparkException as error:
                raise PipelineError(f"a task failed on Spark: {error}") from error
            for row in rows:
                result = pickle.loads(row["result"])
                if isinstance(result, PipelineError):
                    raise result
                yield result

    def close(self) -> None:
        """Close the session, unless it existed before."""
        if self._own and self.session is not None:
            self.session.stop()
            self.session = None


@dataclass(slots=True)
class _Task:
    """The task's function and arguments, which Spark sends to its workers."""

    module: str
    name: str
    arguments: list[bytes]

    def run(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = getattr(import_module(self.module), self.name)
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                try:
                    result = work(pickle.loads(self.arguments[number]))
                except PipelineError as error:
                    result = error
                yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]}, schema=_RESULT)
