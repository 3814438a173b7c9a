"""A migration on the engines of all jobs: threads of this process, or tasks of Spark. They give receipts of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from spark_pipeline.core.errors import EndpointUnavailable
from spark_pipeline.core.receipts import Receipt
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.jobs import engine
from spark_pipeline.jobs.migrate_copy import Copier, CopyTask, Route

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Meter

_TRIES = 5
"""Attempts at one task."""


class Engine(Protocol):
    """Carries out tasks, several at the same time."""

    def run(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        """Carry out all tasks; ``done`` gets each receipt, from any thread but one at a time.

        Raises what the first task raised that could not be carried out; the others end where they are.
        """

    def close(self) -> None:
        """Let go of what it holds."""


class LocalEngine:
    """Threads of this process. Receiving, checksums and sending leave Python's lock, so several are worth while."""

    def __init__(
        self,
        threads: int,
        throttle: Throttle,
        progress: Meter | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pieces = engine.LocalEngine(threads)
        self._throttle = throttle
        self._progress = progress
        self._stopped = stopped
        self._idle: list[Copier] = []
        self._route: Route | None = None

    def run(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        if route != self._route:
            self._let_go()
            self._route = route
        failed = threading.Event()
        lock = threading.Lock()
        progress = self._progress

        def stopped() -> bool:
            return failed.is_set() or self._stopped()

        def accept(receipt: Receipt) -> None:
            with lock:
                done(receipt)

        def copy(task: CopyTask) -> None:
            if stopped():
                return
            with lock:
                copier = self._idle.pop() if self._idle else None
            copier = copier or Copier(route, self._throttle)

            def copied(offset: int, size: int) -> None:
                if progress is not None:
                    progress.copied(task.part, offset, size)

            try:
                for receipt in persistent(copier, task, copied, stopped):
                    accept(receipt)
            except BaseException:
                failed.set()
                copier.close()
                raise
            with lock:
                self._idle.append(copier)

        for _ in self._pieces.map(copy, largest_first(tasks)):
            pass

    def _let_go(self) -> None:
        idle, self._idle = self._idle, []
        for copier in idle:
            copier.close()

    def close(self) -> None:
        self._let_go()
        self._pieces.close()


def largest_first(tasks: Sequence[CopyTask]) -> list[CopyTask]:
    """So that none is left alone at the end."""
    return sorted(tasks, key=lambda one: -one.offsets)


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
