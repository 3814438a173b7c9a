"""Something that is done again and again: beside a job, in a thread of its own, or by who follows a system."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_pipeline.core.errors import EndpointUnavailable

AWAY_S = 300.0
"""How long a system may be away before who follows it gives up."""


def follow(work: Callable[[], bool], stopped: Callable[[], bool], wait: Callable[[], object]) -> None:
    """Do ``work``, once at least, until ``stopped``, and ``wait`` whenever it says that there was nothing to do.

    A system that is away, as while it is restarted, is waited for: what was done is known. Raises EndpointUnavailable
    when that takes too long, or it was not there before whoever follows was stopped.
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
    """Calls ``work`` every ``seconds`` from :meth:`start` to :meth:`stop`; as a context manager, of the block.

    The first call comes after ``seconds``. After the end no call is under way any more. What ``work`` raises ends the
    thread, not the job.
    """

    def __init__(self, work: Callable[[], object], seconds: float, name: str) -> None:
        self._work = work
        self._seconds = seconds
        self._name = name
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; once."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End for good, when the call that is under way has returned."""
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
