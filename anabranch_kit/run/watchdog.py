"""A watchdog: a thread that ends the process when its event loop no longer turns; and a log of slow threads.

A loop that stands still serves nobody, hears no signal and answers no health check; only a restart helps. A thread that
stands still while the loop turns waits for a disk or a database: a restart would wait for the same, and end the reads
that go on. So that is logged and measured, and the process lives.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable, Mapping
from traceback import walk_stack

import structlog

_log = structlog.get_logger("anabranch.watchdog")

LOOKS = 10
"""Looks at a loop that has not turned before the process ends.

Looks are counted and not seconds: a process that was stopped (SIGSTOP, a paused machine), or gets no processor, finds
itself and its loop equally late.
"""
_TELL_SECONDS = 2.0
"""Seconds that writing to the log may take: standard error may be what the loop is stuck at."""


class Watchdog:
    """Ends the process with ``code`` when ``turn``, called on the loop, was not called for about ``seconds``.

    ``seen`` is called on the thread each time the loop has turned since the look before. A loop that the kernel has put
    to sleep for a disk (``is_at_disk``) is left alone: no signal would end the process either.
    """

    def __init__(
        self,
        seconds: float,
        code: int,
        *,
        seen: Callable[[], object] = lambda: None,
        is_at_disk: Callable[[], bool] | None = None,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.pause = seconds / LOOKS
        """Seconds between two looks; ``turn`` is to be called as often."""
        self._code = code
        self._seen = seen
        self._is_at_disk = is_at_disk or _main_thread_is_at_disk
        self._end = end
        self._turns = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="anabranch-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._stopped.set()

    def turn(self) -> None:
        """Note that the loop turns."""
        self._turns += 1

    def _watch(self) -> None:
        known, silent = -1, 0
        while not self._stopped.wait(self.pause):
            if self._turns != known:
                known, silent = self._turns, 0
                self._seen()
            elif not self._is_at_disk():
                silent += 1
            if silent == LOOKS:
                told = threading.Event()
                # Not a Thread: its start takes a lock that the main thread may hold where it stands still.
                _thread.start_new_thread(self._tell, (told,))
                told.wait(_TELL_SECONDS)
                self._end(self._code)
                return

    def _tell(self, told: threading.Event) -> None:
        _log.critical(
            "the event loop has stopped turning: the process ends, and is to be started again",
            seconds=round(self.pause * LOOKS, 1),
            exit_code=self._code,
        )
        for name, stack in stacks().items():
            _log.critical(f"thread {name} is at", stack=stack)
        told.set()


def stacks() -> dict[str, str]:
    """Return the stack of each thread by its name, the main thread first; of a stack the innermost call first, since a
    long line of the log is cut."""
    frames = sys._current_frames()
    main = threading.main_thread()
    found = {}
    for thread in sorted(threading.enumerate(), key=lambda thread: thread is not main):
        if (frame := frames.get(thread.ident or 0)) is not None:
            calls = [f"{one.f_code.co_qualname} ({one.f_code.co_filename}:{line})" for one, line in walk_stack(frame)]
            found[thread.name] = ", called by ".join(calls)
    return found


def _main_thread_is_at_disk() -> bool:
    """Return whether the main thread is in uninterruptible sleep (state D of /proc/PID/stat)."""
    try:
        with open(f"/proc/self/task/{threading.main_thread().native_id}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"D"
    except (OSError, IndexError):
        return False


class SlowThreads:
    """Logs when work that only a thread can do has taken longer than ``seconds``, and when it goes on.

    ``waits`` returns, by name, how long the oldest work of each has been waited for.
    """

    def __init__(self, seconds: float, waits: Mapping[str, Callable[[], float]]) -> None:
        self._seconds = seconds
        self._waits = waits
        self._slow: set[str] = set()

    async def check(self, now_ms: int) -> None:
        for name, waits in self._waits.items():
            seconds = waits()
            if seconds >= self._seconds:
                if name not in self._slow:
                    self._slow.add(name)
                    _log.error(f"{name} does not get on: what needs it waits", seconds=round(seconds, 1))
            elif name in self._slow:
                self._slow.remove(name)
                _log.info(f"{name} gets on again")
