"""Something that is done every so many seconds beside a job, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
