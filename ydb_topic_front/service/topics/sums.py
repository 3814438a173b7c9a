"""Sums of statistics over partitions, and over a consumer's partitions. Times are protobuf messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ydb_topic_front.session.measured import WINDOWS

if TYPE_CHECKING:
    from ydb_topic_front.session.measured import ReadMeasure

LAGS = ("max_read_time_lag", "max_write_time_lag", "max_committed_time_lag")
"""Lag fields of a consumer's statistics, per partition and in total."""


class Sums:
    """Statistics of several partitions together."""

    __slots__ = ("_bytes", "_first_ms", "_lag", "_windows")

    def __init__(self) -> None:
        self._bytes = 0
        self._first_ms: int | None = None
        self._lag = 0
        self._windows = dict.fromkeys((name for name, _ in WINDOWS), 0)

    def add(self, stats: Any) -> None:
        self._bytes += stats.store_size_bytes
        if stats.HasField("last_write_time"):
            written_ms = _milliseconds(stats.last_write_time)
            self._first_ms = written_ms if self._first_ms is None else min(self._first_ms, written_ms)
        self._lag = max(self._lag, _milliseconds(stats.max_write_time_lag))
        for name in self._windows:
            self._windows[name] += getattr(stats.bytes_written, name)

    def fill(self, target: Any) -> None:
        target.store_size_bytes = self._bytes
        if self._first_ms is not None:
            fill_time(target.min_last_write_time, self._first_ms)
        fill_duration(target.max_write_time_lag, self._lag)
        target.bytes_written.SetInParent()
        for name, many in self._windows.items():
            setattr(target.bytes_written, name, many)


class ConsumerSums:
    """Statistics of a consumer over all its partitions."""

    __slots__ = ("_first_ms", "_lags", "_windows")

    def __init__(self) -> None:
        self._first_ms: int | None = None
        self._lags = dict.fromkeys(LAGS, 0)
        self._windows = dict.fromkeys((name for name, _ in WINDOWS), 0)

    def add(self, stats: Any) -> None:
        if stats.HasField("last_read_time"):
            read_ms = _milliseconds(stats.last_read_time)
            self._first_ms = read_ms if self._first_ms is None else min(self._first_ms, read_ms)
        for name in LAGS:
            self.lag(name, _milliseconds(getattr(stats, name)))
        for name in self._windows:
            self._windows[name] += getattr(stats.bytes_read, name)

    def measured(self, measure: ReadMeasure, now_ms: int) -> None:
        """Add the measure of one partition."""
        self._first_ms = measure.last_ms if self._first_ms is None else min(self._first_ms, measure.last_ms)
        self.lag("max_read_time_lag", measure.read_lag.most(now_ms))
        self.lag("max_write_time_lag", measure.write_lag.most(now_ms))
        for name, size in measure.size.sums(now_ms).items():
            self._windows[name] += size

    def lag(self, name: str, milliseconds: int) -> None:
        """Add one partition's lag: the highest counts."""
        self._lags[name] = max(self._lags[name], milliseconds)

    def fill(self, target: Any) -> None:
        target.SetInParent()
        if self._first_ms is not None:
            fill_time(target.min_partitions_last_read_time, self._first_ms)
        for name, lag in self._lags.items():
            fill_duration(getattr(target, name), lag)
        target.bytes_read.SetInParent()
        for name, many in self._windows.items():
            setattr(target.bytes_read, name, many)


def fill_time(target: Any, milliseconds: int) -> None:
    target.seconds, rest = divmod(milliseconds, 1000)
    target.nanos = rest * 1_000_000


def fill_duration(target: Any, milliseconds: int) -> None:
    """Set a Duration, present even if it is zero."""
    target.SetInParent()
    fill_time(target, milliseconds)


def _milliseconds(told: Any) -> int:
    return int(told.seconds * 1000 + told.nanos // 1_000_000)
