"""A job's progress: one meter for all jobs, shown on standard error and reported to nodes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from spark_pipeline.core.client.job_client import JobProgress, Rate
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.repeating import Repeating

EVERY_S = 10.0
_EVERY_ON_TERMINALS_S = 1.0


class Meter:
    """A thread-safe counter of a job's progress in ``unit``s. ``step`` names the current step in a few words.

    A job either reports progress by partition, gaps counted like records (:meth:`aim`, :meth:`copied`), or as done and
    total (:meth:`set_progress`).
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
        self._moved = 0  # by this process only
        self._speed, self._byte_speed = Rate(), Rate()
        self._speeds()

    def set_progress(self, done: int, total: int) -> None:
        """Set the progress to ``done`` of ``total``; a lower ``done`` than before means that a new pass has begun."""
        with self._lock:
            self._moved += done - self._done if done >= self._done else done
            self._done, self._total = done, total

    def aim(self, part: TopicPartition, start: int, at: int, end: int) -> None:
        """Set a partition's start, reached offset ``at``, and end by now."""
        with self._lock:
            self._starts[part] = start
            self._at[part] = max(at, start)
            self._ends[part] = end

    def copied(self, part: TopicPartition, offset: int, size: int) -> None:
        """Record that a partition has reached ``offset``, by ``size`` more bytes."""
        with self._lock:
            before = self._at.get(part, 0)
            self._at[part] = max(offset, before)
            self._moved += self._at[part] - before
            self.bytes += size

    def _speeds(self) -> tuple[float, float]:
        """Return units and bytes per second over about the last half minute."""
        return self._speed.at(self._moved) or 0.0, self._byte_speed.at(self.bytes) or 0.0

    def progress(self) -> JobProgress:
        """Return the progress for a node's list of jobs, of the whole job with the part of earlier runs."""
        with self._lock:
            left = self._total - self._done
            left += sum(max(0, end - self._at.get(part, 0)) for part, end in self._ends.items())
            total = self._total + sum(max(0, end - self._starts[part]) for part, end in self._ends.items())
            speed, byte_speed = self._speeds()
        details = {"step": self.step, "throughput": f"{byte_speed / 1e6:.1f} MB/s" if self.bytes else ""}
        seconds = round(left / speed, 1) if speed > 0 else (None if left or not total else 0.0)
        return JobProgress(max(0, total - left), total or None, self.unit, round(speed), seconds, details)

    def facts(self) -> dict[str, float | int | None]:
        """Return figures for reports: bytes copied, offsets left, both per second, seconds left (None: unknown)."""
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
        """Return the progress in words; empty before anything was counted."""
        now = self.progress()
        if now.total is None:
            return ""
        words = [f"{now.done:,} of {now.total:,} {self.unit}", f"{now.rate:,}/s", now.details["throughput"]]
        left = "?" if now.seconds_left is None else str(timedelta(seconds=round(now.seconds_left)))
        return ", ".join(word for word in (*words, f"{left} left") if word)


@contextmanager
def show_progress(tell: Callable[[], str], seconds: float = EVERY_S, *, quiet: bool = False) -> Iterator[None]:
    """Print a changed text of ``tell`` every ``seconds``, and at the end; in place on a terminal."""
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
