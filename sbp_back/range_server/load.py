"""Load of a range server: the figures of REPORT_METRICS from its counters (docs/protocols/sbp.md, "Tables")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch_kit.memory.heap import resident
from sbp_back.range_server.ranges import RangeState
from sbp_back.wire.model import RangeServerMetrics

if TYPE_CHECKING:
    from sbp_back.range_server.appends import Appends
    from sbp_back.range_server.fetches import Fetches
    from sbp_back.range_server.store import StoreStats

_MAX_INT16 = (1 << 15) - 1
_MAX_INT32 = (1 << 31) - 1


class LoadMeter:
    """Turns counters that only grow into rates since it was last asked."""

    def __init__(self) -> None:
        self._last: list[float] = [0] * 9

    def measure(
        self, seconds: float, stats: StoreStats, appends: Appends, fetches: Fetches, ranges: Iterable[RangeState]
    ) -> RangeServerMetrics:
        """Return the metrics since the last call, ``seconds`` ago; latencies are in milliseconds. A full disk reports
        no free space, whatever the file system says, so that the placement driver stops choosing this server.
        """
        now: list[float] = [stats.group_bytes, stats.read_bytes, stats.groups, stats.flush_seconds]
        now += [appends.requests, appends.failed, appends.latency_seconds, fetches.requests, fetches.failed]
        since = [new - old for new, old in zip(now, self._last, strict=True)]
        self._last = now
        log_bytes, read_bytes, groups, flush_seconds, asked, refused, append_seconds, fetched, failed = since
        seconds = max(seconds, 1e-3)
        return RangeServerMetrics(
            disk_in_rate=int(log_bytes / seconds),
            disk_out_rate=int(read_bytes / seconds),
            disk_free_space=0 if stats.disk_full else stats.disk_free,
            memory_used=resident(),
            uring_task_rate=_int16(groups / seconds),
            uring_pending_task_cnt=min(_MAX_INT32, stats.pending_bytes >> 10),
            uring_task_avg_latency=_int16(flush_seconds / max(1, groups) * 1000),
            network_append_rate=_int16(asked / seconds),
            network_fetch_rate=_int16(fetched / seconds),
            network_failed_append_rate=_int16(refused / seconds),
            network_failed_fetch_rate=_int16(failed / seconds),
            network_append_avg_latency=_int16(append_seconds / max(1, asked) * 1000),
            range_active_cnt=_int16(sum(1 for state in ranges if state.writable)),
        )


def _int16(value: float) -> int:
    return min(_MAX_INT16, int(value))
