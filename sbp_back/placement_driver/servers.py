"""The range servers that are alive, and the choice of those that keep a new range."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable

from msgspec import Struct

from sbp_back.wire.model import RangeServerInfo, RangeServerMetrics

logger = logging.getLogger(__name__)

_MB = 1 << 20
_GB = 1 << 30


def score(metrics: RangeServerMetrics | None) -> float:
    """Rate a server as the place of a new range; more is better.

    The weights are those of elastic-stream, with fetch latency counted where the original counts append latency twice.
    A server without metrics counts as idle with an empty disk of unknown size.
    """
    if metrics is None:
        return 10_000.0
    load = (
        metrics.disk_in_rate / (100 * _MB)
        + metrics.disk_out_rate / (100 * _MB)
        - metrics.disk_free_space / (50 * _GB)
        + metrics.disk_unindexed_data_size / (100 * _MB)
        + metrics.memory_used / _GB
        + metrics.uring_task_rate / 1024
        + metrics.uring_inflight_task_cnt / 128
        + metrics.uring_pending_task_cnt / 1024
        + metrics.uring_task_avg_latency / 10
        + metrics.network_append_rate / 256
        + metrics.network_fetch_rate / 256
        + metrics.network_failed_append_rate
        + metrics.network_failed_fetch_rate
        + metrics.network_append_avg_latency
        + metrics.network_fetch_avg_latency
        + metrics.range_missing_replica_cnt / 2
        + metrics.range_active_cnt / 10
    )
    return 10_000.0 - 10 * load


def _is_full(metrics: RangeServerMetrics | None) -> bool:
    return metrics is not None and metrics.disk_free_space <= 0


class _Server(Struct):
    info: RangeServerInfo
    heard: float
    metrics: RangeServerMetrics | None = None
    given: int = 0  # ranges placed since its last metrics
    connections: int = 0  # connections over which it has reported
    doubtful: bool = False  # its last connection has ended, and it has not reported since


class Servers:
    """The range servers this placement driver has heard of since it started.

    Liveness is not kept over a restart: a server counts again as soon as it reports again, which takes one heartbeat
    interval. ``clock`` gives seconds.
    """

    def __init__(self, alive_seconds: float, clock: Callable[[], float], rng: random.Random) -> None:
        self._alive_seconds = alive_seconds
        self._clock = clock
        self._rng = rng
        self._servers: dict[int, _Server] = {}
        self._passed_over: set[int] = set()

    def pass_over(self, server_id: int) -> None:
        """Give the server no new ranges; it keeps those it has."""
        self._passed_over.add(server_id)

    def note_report(self, info: RangeServerInfo, metrics: RangeServerMetrics | None = None) -> bool:
        """Note a sign of life. Return True when the server is new here or its address changed: worth persisting."""
        known = self._servers.get(info.server_id)
        self._tell_of_room(info, None if known is None else known.metrics, metrics)
        if known is None:
            self._servers[info.server_id] = _Server(info, self._clock(), metrics)
            return True
        known.heard = self._clock()
        known.doubtful = False
        if metrics is not None:
            known.metrics = metrics
            known.given = 0
        if info.advertise_addr in ("", known.info.advertise_addr):
            return False
        known.info = info
        return True

    def forget(self, server_id: int) -> None:
        """Remove a server until it reports again."""
        self._servers.pop(server_id, None)

    def _tell_of_room(
        self, info: RangeServerInfo, before: RangeServerMetrics | None, now: RangeServerMetrics | None
    ) -> None:
        """Log when a server runs out of room or has room again: it still looks healthy, but gets no new ranges."""
        if now is None or _is_full(before) == _is_full(now):
            return
        if _is_full(now):
            logger.warning(
                "range server %d (%s) reports no free space: it is given no ranges", info.server_id, info.advertise_addr
            )
        else:
            logger.info("range server %d (%s) has space again", info.server_id, info.advertise_addr)

    def note_connection(self, server_id: int) -> None:
        """Note that a known server reports over one more connection."""
        server = self._servers.get(server_id)
        if server is not None:
            server.connections += 1

    def note_disconnection(self, server_id: int) -> None:
        """Note that a connection over which a server reported has ended. With the last one its process may have ended
        too: until it reports again, other servers are preferred.
        """
        server = self._servers.get(server_id)
        if server is not None:
            server.connections -= 1
            server.doubtful = server.connections <= 0

    def is_alive(self, server_id: int) -> bool:
        """Return whether the server reported within the set time and its disk is not known to be full
        (docs/protocols/sbp.md, "Placement driver").
        """
        server = self._servers.get(server_id)
        if server is None or self._clock() - server.heard > self._alive_seconds:
            return False
        return not _is_full(server.metrics)

    def info(self, server_id: int) -> RangeServerInfo | None:
        server = self._servers.get(server_id)
        return None if server is None else server.info

    def alive(self) -> list[int]:
        return [server_id for server_id in self._servers if self.is_alive(server_id)]

    def open(self) -> list[int]:
        """Return the living servers that may be given new ranges."""
        return [server_id for server_id in self.alive() if server_id not in self._passed_over]

    def choose(self, count: int) -> list[int] | None:
        """Return ``count`` different living servers, or None when there are not so many; doubtful ones last.

        Each is the better of two drawn at random: close to the best choice, without sending every new range to the
        server that looks best until its next report. The first one counts as given a range until that report. Otherwise
        many ranges made at once would all avoid the server that looks slightly worse.
        """
        alive = self.open()
        if len(alive) < count:
            return None
        pool = [server_id for server_id in alive if not self._servers[server_id].doubtful]
        doubtful = [server_id for server_id in alive if self._servers[server_id].doubtful]
        chosen = []
        for _ in range(count):
            pool = pool or doubtful
            pair = self._rng.sample(pool, min(2, len(pool)))
            best = max(pair, key=self._score_of)
            pool.remove(best)
            chosen.append(best)
        if chosen:
            self._servers[chosen[0]].given += 1
        return chosen

    def _score_of(self, server_id: int) -> float:
        server = self._servers[server_id]
        # Each given range lowers the score as it will once the server reports the range as active.
        return score(server.metrics) - server.given


def addressed(server_ids: Iterable[int], known: dict[int, RangeServerInfo]) -> list[RangeServerInfo]:
    """Return the servers with the addresses the placement driver knows; an unknown address is empty."""
    return [known.get(server_id, RangeServerInfo(server_id, "")) for server_id in server_ids]
