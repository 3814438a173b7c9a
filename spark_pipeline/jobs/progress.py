"""How far a copy has come, told on standard error: rate and time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_pipeline.core.job_client import JobProgress
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.repeating import Repeating

_WINDOW_S = 30.0
"""The rate is that of so many seconds, or of all if there were fewer."""


class Progress:
    """Counts what threads report; gaps count like records. ``step`` is what is being done, in a few words."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: dict[TopicPartition, int] = {}
        self._at: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._seen: list[tuple[float, int, int]] = [(time.monotonic(), 0, 0)]
        self._offsets = 0
        self.bytes = 0
        self.step = ""

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
            self._offsets += self._at[part] - before
            self.bytes += size

    def facts(self) -> dict[str, float | int | None]:
        """Bytes copied, offsets left, both a second, seconds left (None: not to be told)."""
        with self._lock:
            now = time.monotonic()
            left = sum(max(0, end - self._at.get(part, 0)) for part, end in self._ends.items())
            self._seen.append((now, self.bytes, self._offsets))
            while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
                self._seen.pop(0)
            since, bytes_then, offsets_then = self._seen[0]
            span = max(now - since, 1e-6)
            speed = (self._offsets - offsets_then) / span
            return {
                "bytes": self.bytes,
                "offsets_left": left,
                "bytes_per_second": round((self.bytes - bytes_then) / span),
                "offsets_per_second": round(speed),
                "seconds_left": round(left / speed, 1) if speed > 0 else (0.0 if not left else None),
            }

    def of_job(self) -> JobProgress:
        """The same for a node's list of jobs: offsets of all that there is, what earlier runs did included."""
        facts = self.facts()
        with self._lock:
            total = sum(max(0, end - self._starts[part]) for part, end in self._ends.items())
        left = facts["offsets_left"] or 0
        details = {"step": self.step, "throughput": f"{(facts['bytes_per_second'] or 0) / 1e6:.1f} MB/s"}
        done = max(0, total - left)
        return JobProgress(done, total, "offsets", facts["offsets_per_second"], facts["seconds_left"], details)

    def line(self) -> str:
        """The same in words."""
        facts = self.facts()
        rate = f"{facts['bytes_per_second'] / 1e6:.1f} MB/s" if facts["bytes_per_second"] is not None else "-"
        left = facts["seconds_left"]
        words = "?" if left is None else f"{left:.0f} s"
        return f"{facts['bytes'] or 0:,} bytes copied, {facts['offsets_left']:,} offsets left, {rate}, {words} left"


@contextmanager
def told(tell: Callable[[], str], seconds: float, *, quiet: bool) -> Iterator[None]:
    """Print what ``tell`` says every so many seconds, and at the end."""
    if quiet:
        yield
        return

    def say() -> None:
        sys.stderr.write(tell() + "\n")
        sys.stderr.flush()

    try:
        with Repeating(say, seconds, "progress"):
            yield
    finally:
        say()
