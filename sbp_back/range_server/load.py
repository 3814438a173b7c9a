"""How busy a range server is: the figures of REPORT_METRICS from its counters (reference/sbp.md, section 1.5)."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sbp_back.range_server.ranges import RangeState
from sbp_back.wire.model import RangeServerMetrics

if TYPE_CHECKING:
    from sbp_back.range_server.appends import Appends
    from sbp_back.range_server.fetches import Fetches
    from sbp_back.range_server.store import StoreStats

_MAX_INT16 = (1 << 15) - 1
_MAX_INT32 = (1 << 31) - 1
_STATM = Path("/proc/self/statm")


class _Counters(Struct):
    """Totals since the start."""

    log_bytes: int = 0
    read_bytes: int = 0
    groups: int = 0
    flush_seconds: float = 0.0
    appends: int = 0
    failed_appends: int = 0
    append_seconds: float = 0.0
    fetches: int = 0
    failed_fetches: int = 0


class LoadMeter:
    """Turns counters that only grow into rates since it was last asked."""

    def __init__(self) -> None:
        self._last = _Counters()

    def measure(
        self, seconds: float, stats: StoreStats, appends: Appends, fetches: Fetches, ranges: Iterable[RangeState]
    ) -> RangeServerMetrics:
        """``seconds`` since the last call; latencies are in milliseconds. A full disk has no free space to offer,
        whatever the file system says, so that the placement driver stops choosing this server."""
        now = _Counters(
            stats.group_bytes,
            stats.read_bytes,
            stats.groups,
            stats.flush_seconds,
            appends.requests,
            appends.failed,
            appends.latency_seconds,
            fetches.requests,
            fetches.failed,
        )
        last, self._last = self._last, now
        seconds = max(seconds, 1e-3)
        flushes = max(1, now.groups - last.groups)
        answered = max(1, now.appends - last.appends)
        return RangeServerMetrics(
            disk_in_rate=int((now.log_bytes - last.log_bytes) / seconds),
            disk_out_rate=int((now.read_bytes - last.read_bytes) / seconds),
            disk_free_space=0 if stats.disk_full else stats.disk_free,
            memory_used=_memory_used(),
            uring_task_rate=_int16((now.groups - last.groups) / seconds),
            uring_pending_task_cnt=min(_MAX_INT32, stats.pending_bytes >> 10),
            uring_task_avg_latency=_int16((now.flush_seconds - last.flush_seconds) / flushes * 1000),
            network_append_rate=_int16((now.appends - last.appends) / seconds),
            network_fetch_rate=_int16((now.fetches - last.fetches) / seconds),
            network_failed_append_rate=_int16((now.failed_appends - last.failed_appends) / seconds),
            network_failed_fetch_rate=_int16((now.failed_fetches - last.failed_fetches) / seconds),
            network_append_avg_latency=_int16((now.append_seconds - last.append_seconds) / answered * 1000),
            range_active_cnt=_int16(sum(1 for state in ranges if state.writable)),
        )


def _int16(value: float) -> int:
    return min(_MAX_INT16, int(value))


def _memory_used() -> int:
    """Resident bytes of the process; where the system does not tell, the most it ever had."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
