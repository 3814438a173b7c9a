"""Repeated work: in a thread beside a job, or in a loop that follows a system."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_pipeline.core.errors import EndpointUnavailable

AWAY_S = 300.0
"""How long :func:`follow` retries a system that does not answer, in seconds."""


def follow(work: Callable[[], bool], stopped: Callable[[], bool], wait: Callable[[], object]) -> None:
    """Call ``work`` at least once, until ``stopped``; call ``wait`` whenever ``work`` returns that it had nothing to
    do.

    A system that does not answer, for example during its restart, is retried: no work is lost. Raises
    EndpointUnavailable if that takes longer than ``AWAY_S``, or if ``stopped`` before the system ever answered.
    """
    begun = heard = time.monotonic()
    while True:
        try:
            worked = work()
            heard = time.monotonic()
        except EndpointUnavailable:
            if time.monotonic() - heard > AWAY_S or (stopped() and heard == begun):
                raise
            worked = False
        if stopped():
            return
        if not worked:
            wait()
            if stopped():
                return


class Repeating:
    """Calls of ``work`` every ``seconds`` from :meth:`start` to :meth:`stop`; a context manager does both.

    The first call comes after ``seconds``. After :meth:`stop` no call is running any more. An exception of ``work``
    ends the thread, not the job.
    """

    def __init__(self, work: Callable[[], object], seconds: float, name: str) -> None:
        self._work = work
        self._seconds = seconds
        self._name = name
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End for good, after the running call has returned."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Repeating:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._work()
