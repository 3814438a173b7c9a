"""How far a copy has come, told on standard error: rate and time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping

from spark_pipeline.core.ranges import TopicPartition

_WINDOW_S = 30.0
"""The rate is that of so many seconds, or of all if there were fewer."""


class Progress:
    """Counts what threads report. ``ends`` are the offsets to be reached, by partition; gaps count like records."""

    def __init__(self, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        self._lock = threading.Lock()
        self._at = dict(at)
        self._ends = dict(ends)
        self._seen: list[tuple[float, int, int]] = [(time.monotonic(), 0, self.offsets_left)]
        self.bytes = 0

    @property
    def offsets_left(self) -> int:
        """Offsets that are still to be copied."""
        return sum(max(0, end - self._at.get(part, 0)) for part, end in self._ends.items())

    def aim(self, part: TopicPartition, at: int, end: int) -> None:
        """A partition is at ``at`` and has grown up to ``end``."""
        with self._lock:
            self._at[part] = at
            self._ends[part] = end

    def copied(self, part: TopicPartition, offset: int, size: int) -> None:
        """A partition has come to ``offset``, by ``size`` bytes."""
        with self._lock:
            self._at[part] = max(offset, self._at.get(part, 0))
            self.bytes += size

    def facts(self) -> dict[str, float | int | None]:
        """Bytes copied, offsets left, bytes a second, seconds left (None: not to be told)."""
        with self._lock:
            now, left = time.monotonic(), self.offsets_left
            self._seen.append((now, self.bytes, left))
            while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
                self._seen.pop(0)
            since, bytes_then, left_then = self._seen[0]
            span = max(now - since, 1e-6)
            speed = (left_then - left) / span
            return {
                "bytes": self.bytes,
                "offsets_left": left,
                "bytes_per_second": round((self.bytes - bytes_then) / span),
                "seconds_left": round(left / speed, 1) if speed > 0 else (0.0 if not left else None),
            }

    def line(self) -> str:
        """The same in words."""
        facts = self.facts()
        rate = f"{facts['bytes_per_second'] / 1e6:.1f} MB/s" if facts["bytes_per_second"] is not None else "-"
        left = facts["seconds_left"]
        words = "?" if left is None else f"{left:.0f} s"
        return f"{facts['bytes'] or 0:,} bytes copied, {facts['offsets_left']:,} offsets left, {rate}, {words} left"


class Ticker:
    """Calls ``tell`` now and then until it is left; a context manager."""

    def __init__(self, tell: Callable[[], str], seconds: float, *, quiet: bool) -> None:
        self._tell = tell
        self._seconds = seconds
        self._quiet = quiet
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Ticker:
        if not self._quiet:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._print()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._print()

    def _print(self) -> None:
        sys.stderr.write(self._tell() + "\n")
        sys.stderr.flush()
