"""Something that is done every so many seconds beside a job, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """Calls ``work`` every ``seconds`` from when it is entered until it is left; a context manager.

    The first call comes after ``seconds``. When it is left no call is under way any more. What ``work`` raises ends the
    thread, not the job.
    """

    def __init__(self, work: Callable[[], object], seconds: float, name: str) -> None:
        self._work = work
        self._seconds = seconds
        self._name = name
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Repeating:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._work()
