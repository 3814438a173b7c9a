"""Engines that run the pieces of a job: threads of this process, or Spark's executors.

A piece is a module's function and one argument, both picklable. It opens its connections where it runs and returns
something small. The data never passes through the engine.
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
    """An executor of pieces."""

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the results in any order. Raises the error of the first failing piece."""

    def close(self) -> None:
        """Close threads and sessions; a second call has no effect."""


@dataclass(slots=True)
class LocalEngine:
    """An engine of threads: reading, compressing and writing release Python's global lock."""

    parallel: int = 2
    _pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="piece")

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        waiting: set[Future[Any]] = {self._pool.submit(work, item) for item in items}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for one in done:
                    yield one.result()
        finally:
            for one in waiting:
                one.cancel()
            wait(waiting)  # running pieces must not go on writing after the job has failed

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def open_engine(name: str, parallel: int, master: str | None) -> Engine:
    """Return the engine ``local``, or ``spark`` with a master.

    Raises OptionError for a master without Spark, or if Java is missing.
    """
    if name == "spark":
        from spark_pipeline.jobs.engine_spark import SparkEngine

        return SparkEngine(master)
    if master is not None:
        raise OptionError("--master needs --engine spark")
    return LocalEngine(parallel)
