"""The two engines of a migration: threads of this process, or tasks of Spark. Both take tasks and give receipts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from spark_pipeline.core.errors import EndpointUnavailable
from spark_pipeline.core.receipts import Receipt
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.jobs.migrate_copy import Copier, CopyTask, Route

if TYPE_CHECKING:
    from spark_pipeline.jobs.progress import Progress

_TRIES = 5
"""Attempts of the local engine at one task; each begins where the last receipt ended."""


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
        progress: Progress | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._threads = threads
        self._throttle = throttle
        self._progress = progress
        self._stopped = stopped
        self._idle: list[Copier] = []
        self._route: Route | None = None

    def run(self, route: Route, tasks: Sequence[CopyTask], done: Callable[[Receipt], object]) -> None:
        if route != self._route:
            self.close()
            self._route = route
        # The largest first, so that none is left alone at the end.
        waiting: queue.SimpleQueue[CopyTask] = queue.SimpleQueue()
        for task in sorted(tasks, key=lambda one: -one.offsets):
            waiting.put(task)
        failures: list[BaseException] = []
        lock = threading.Lock()

        def stopped() -> bool:
            return bool(failures) or self._stopped()

        def accept(receipt: Receipt) -> None:
            with lock:
                done(receipt)

        def work() -> None:
            try:
                copier = self._copier(route)
                try:
                    while not stopped():
                        try:
                            task = waiting.get_nowait()
                        except queue.Empty:
                            break
                        self._carry_out(copier, task, accept, stopped)
                except BaseException:
                    copier.close()
                    raise
                with lock:
                    self._idle.append(copier)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                failures.append(error)

        threads = [
            threading.Thread(target=work, name=f"copier-{number}", daemon=True)
            for number in range(min(self._threads, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _copier(self, route: Route) -> Copier:
        return self._idle.pop() if self._idle else Copier(route, self._throttle)

    def _carry_out(
        self, copier: Copier, task: CopyTask, accept: Callable[[Receipt], object], stopped: Callable[[], bool]
    ) -> None:
        progress = self._progress
        start = task.start
        for attempt in range(1, _TRIES + 1):
            rest = replace(task, start=start)
            try:
                for receipt in copier.copy(
                    rest,
                    lambda offset, size: None if progress is None else progress.copied(task.part, offset, size),
                    stopped,
                ):
                    accept(receipt)
                    start = receipt.end
                return
            except EndpointUnavailable:
                if attempt == _TRIES or stopped():
                    raise

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for copier in idle:
            copier.close()
