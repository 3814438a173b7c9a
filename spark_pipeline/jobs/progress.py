"""How far a job is: one meter for all jobs, whose line is told on standard error, and which nodes are told, too."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from spark_pipeline.core.job_client import JobProgress, Rate
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.repeating import Repeating

EVERY_S = 10.0
_EVERY_ON_TERMINALS_S = 1.0


class Meter:
    """Counts what threads report: ``unit`` names of what. ``step`` is what is being done, in a few words.

    A job either says by partition how far it is, gaps counted like records (:meth:`aim`, :meth:`copied`), or how much
    is done of how much (:meth:`told`).
    """

    def __init__(self, unit: str = "offsets") -> None:
        self.unit = unit
        self.step = ""
        self.bytes = 0
        self._lock = threading.Lock()
        self._starts: dict[TopicPartition, int] = {}
        self._at: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._done = self._total = 0
        self._moved = 0  # by this process, whatever earlier ones did
        self._speed, self._byte_speed = Rate(), Rate()
        self._speeds()

    def told(self, done: int, total: int) -> None:
        """``done`` of ``total``; what is less than before begins anew, as a second pass does."""
        with self._lock:
            self._moved += done - self._done if done >= self._done else done
            self._done, self._total = done, total

    def aim(self, part: TopicPartition, start: int, at: int, end: int) -> None:
        """A partition that begins at ``start`` is done up to ``at`` and has grown up to ``end``."""
        with self._lock:
            self._starts[part] = start
            self._at[part] = max(at, start)
            self._ends[part] = end

    def copied(self, part: TopicPartition, offset: int, size: int) -> None:
        """A partition has come to ``offset``, by ``size`` bytes."""
        with self._lock:
            before = self._at.get(part, 0)
            self._at[part] = max(offset, before)
            self._moved += self._at[part] - before
            self.bytes += size

    def _speeds(self) -> tuple[float, float]:
        """Units and bytes a second over the last half minute or so."""
        return self._speed.at(self._moved) or 0.0, self._byte_speed.at(self.bytes) or 0.0

    def progress(self) -> JobProgress:
        """For a node's list of jobs: of all that there is, what earlier runs did included."""
        with self._lock:
            left = self._total - self._done
            left += sum(max(0, end - self._at.get(part, 0)) for part, end in self._ends.items())
            total = self._total + sum(max(0, end - self._starts[part]) for part, end in self._ends.items())
            speed, byte_speed = self._speeds()
        details = {"step": self.step, "throughput": f"{byte_speed / 1e6:.1f} MB/s" if self.bytes else ""}
        seconds = round(left / speed, 1) if speed > 0 else (None if left or not total else 0.0)
        return JobProgress(max(0, total - left), total or None, self.unit, round(speed), seconds, details)

    def facts(self) -> dict[str, float | int | None]:
        """For reports: bytes copied, offsets left, both a second, seconds left (None: not to be told)."""
        now = self.progress()
        with self._lock:
            _, byte_speed = self._speeds()
        return {
            "bytes": self.bytes,
            "offsets_left": round((now.total or 0) - now.done),
            "bytes_per_second": round(byte_speed),
            "offsets_per_second": now.rate,
            "seconds_left": 0.0 if now.total is None else now.seconds_left,
        }

    def line(self) -> str:
        """The same in words; none before anything was counted."""
        now = self.progress()
        if now.total is None:
            return ""
        words = [f"{now.done:,} of {now.total:,} {self.unit}", f"{now.rate:,}/s", now.details["throughput"]]
        left = "?" if now.seconds_left is None else str(timedelta(seconds=round(now.seconds_left)))
        return ", ".join(word for word in (*words, f"{left} left") if word)


@contextmanager
def told(tell: Callable[[], str], seconds: float = EVERY_S, *, quiet: bool = False) -> Iterator[None]:
    """Print what ``tell`` says every so many seconds if it is something new, and at the end; a terminal sees one line
    that changes."""
    if quiet:
        yield
        return
    terminal = sys.stderr.isatty()
    last = ""

    def say() -> None:
        nonlocal last
        line = tell()
        if line != last:
            last = line
            sys.stderr.write(f"\r\x1b[K{line}" if terminal else line + "\n")
            sys.stderr.flush()

    try:
        with Repeating(say, min(seconds, _EVERY_ON_TERMINALS_S) if terminal else seconds, "progress"):
            yield
    finally:
        say()
        if terminal and last:
            sys.stderr.write("\n")
