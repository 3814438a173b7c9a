"""Where the pieces of a job are worked on: threads of this process, or the executors of Spark.

A piece is a function of a module and one argument, both picklable; it opens what it needs where it runs and returns
something small. The data never passes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from spark_pipeline.core.errors import OptionError

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Works on pieces."""

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """The results, in whatever order they come. Raises what the first failing piece raised."""

    def close(self) -> None:
        """Let go of threads and sessions; again makes no difference."""


@dataclass(slots=True)
class LocalEngine:
    """Threads of this process: reading, compressing and writing leave Python's lock alone."""

    parallel: int = 2
    _pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="piece")

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """See Engine."""
        waiting: set[Future[Any]] = {self._pool.submit(work, item) for item in items}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for one in done:
                    yield one.result()
        finally:
            for one in waiting:
                one.cancel()
            wait(waiting)  # what has begun: it must not write on when the job has failed

    def close(self) -> None:
        """See Engine."""
        self._pool.shutdown(cancel_futures=True)


def open_engine(name: str, parallel: int, master: str | None) -> Engine:
    """``local``, or ``spark`` with a master. Raises OptionError for a master without Spark, or no Java."""
    if name == "spark":
        from spark_pipeline.jobs.engine_spark import SparkEngine

        return SparkEngine(master)
    if master is not None:
        raise OptionError("--master is for --engine spark")
    return LocalEngine(parallel)
