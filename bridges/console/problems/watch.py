"""Counters of a node in the last hour, for rules about rates and increases."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from anabranch_kit.run.stalls import BUCKETS
from anabranch_kit.run.turns import in_turns
from bridges.console.history.rings import FINE_S
from bridges.console.history.sampling import slope
from bridges.console.problems.rules import SERVER_ERRORS, Measured

if TYPE_CHECKING:
    from anabranch_kit.run.stalls import LoopStalls
    from bridges.auth.authenticator import Authenticator
    from bridges.catalog.database.sql import Database
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.views.groups import Place
    from bridges.cluster.ownership import Membership
    from bridges.log.logs import Logs
    from bridges.metrics import Metrics
    from sbp_back.embedded import Embedded

_HOUR_S = 3600
_AHEAD_S = 6 * 3600
_KNOWN_S = 15 * 60
"""Seconds of free bytes that must be known before they foretell anything."""
_MOST_OPEN = 2_000
"""Most partitions with open transactions that are remembered."""


class Watched(Protocol):
    """The parts of a node that have the counters."""

    metrics: Metrics
    stalls: LoopStalls
    authenticator: Authenticator
    db: Database
    embedded: Embedded | None
    cluster: Membership
    logs: Logs
    catalog: Catalog


class _Sample(Struct, frozen=True):
    """Counters at a time of the monotonic clock; names as in :class:`StoreStats` and the metrics."""

    at: float
    damaged: int
    disk_free: int
    object_requests: int
    object_failures: int
    puts: int
    put_seconds: float
    failures: Mapping[str, int]
    errors: Mapping[str, int]
    stalls: Sequence[int]
    wrong_logins: int
    database_refused: int
    database_seconds: float
    takeovers: int


class Watch:
    """Counters of a node in the last hour; they take less than a megabyte."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=_HOUR_S // FINE_S + 1)
        self._open: dict[Place, tuple[int, float]] = {}
        """The last stable offset of partitions with an open transaction, and since when it has been seen to stay."""

    async def sample(self, node: Watched) -> None:
        """Remember the present counters, and which partitions have open transactions."""
        now = self._clock()
        self._samples.append(_now(node, now))
        seen: dict[Place, tuple[int, float]] = {}
        async for log in in_turns(node.logs):
            place, stable = (log.topic, log.partition), log.last_stable_offset
            if not log.is_open or log.high_watermark == stable or len(seen) >= _MOST_OPEN:
                continue
            if node.catalog.stream_of(*place) is not None:  # otherwise a front's internal log
                before = self._open.get(place)
                seen[place] = before if before is not None and before[0] == stable else (stable, now)
        self._open = seen

    def unstable(self) -> dict[Place, float]:
        """Return for how many seconds readers of committed data have waited for an open transaction, by partition.

        Exact to a round of samples; a partition is forgotten a round after the transaction's end.
        """
        now = self._clock()
        return {place: now - since for place, (_, since) in self._open.items()}

    def measures(self, node: Watched) -> Iterator[tuple[str, Measured]]:
        """Yield what follows from counters, each with the name of its rule."""
        now = _now(node, self._clock())
        hour = [one.disk_free for one in self._samples]
        if node.embedded is not None and len(hour) * FINE_S >= _KNOWN_S:
            yield "DiskFillsUp", Measured(-(now.disk_free + (slope(hour, FINE_S) or 0.0) * _AHEAD_S))
        if (before := self._before(now.at - 900)) is None:
            return
        yield "Damage", Measured(now.damaged - before.damaged)
        for kind, count in now.failures.items():
            yield "Defect", Measured(count - before.failures.get(kind, 0), {"kind": kind})
        before = self._before(now.at - 300) or before
        seconds = max(now.at - before.at, FINE_S)
        yield "Stalls", Measured(_quantile(0.99, [a - b for a, b in zip(now.stalls, before.stalls, strict=True)]))
        for front, count in now.errors.items():
            yield "RequestErrors", Measured((count - before.errors.get(front, 0)) / seconds, {"front": front})
        yield "WrongPasswords", Measured((now.wrong_logins - before.wrong_logins) / seconds)
        yield "DatabaseBusy", Measured((now.database_seconds - before.database_seconds) / seconds)
        if now.puts > before.puts:
            yield "ObjectStorageSlow", Measured((now.put_seconds - before.put_seconds) / (now.puts - before.puts))
        before = self._before(now.at - 120) or before
        if now.object_requests > before.object_requests:
            failed = now.object_failures - before.object_failures
            yield "ObjectStorageFails", Measured(failed / (now.object_requests - before.object_requests))
        before = self._before(now.at - 60) or before
        yield "DatabaseRefuses", Measured(now.database_refused - before.database_refused)

    def takeovers(self, node: Watched) -> int:
        """Return how many nodes this one has taken for dead in half an hour."""
        before = self._before(self._clock() - 1800)
        return 0 if before is None else node.cluster.outages().taken_over - before.takeovers

    def _before(self, at: float) -> _Sample | None:
        """Return the latest sample from ``at`` or before, or else the first one."""
        place = bisect_right(self._samples, at, key=attrgetter("at")) - 1
        return self._samples[max(place, 0)] if self._samples else None


def _now(node: Watched, at: float) -> _Sample:
    stats = None if node.embedded is None else node.embedded.store.stats
    objects = {} if stats is None else stats.objects
    puts = objects.get("put")
    errors: Counter[str] = Counter()
    for front in node.metrics.fronts.values():
        for kind in front.kinds.values():
            for name in SERVER_ERRORS & kind.errors.keys():
                errors[front.name] += kind.errors[name]
    return _Sample(
        at=at,
        damaged=0 if stats is None else stats.damaged_entries,
        disk_free=0 if stats is None else stats.disk_free,
        object_requests=sum(one.answered + one.failed for one in objects.values()),
        object_failures=sum(one.failed for one in objects.values()),
        puts=0 if puts is None else puts.answered + puts.failed,
        put_seconds=0.0 if puts is None else puts.seconds,
        failures=dict(node.metrics.barrier.failures),
        errors=errors,
        stalls=tuple(node.stalls.buckets),
        wrong_logins=node.authenticator.failed,
        database_refused=node.db.refused,
        database_seconds=node.db.seconds,
        takeovers=node.cluster.outages().taken_over,
    )


def _quantile(share: float, buckets: Sequence[int]) -> float:
    """Return the value that ``share`` of the beats are below, as Prometheus' histogram_quantile computes it."""
    sums = [*accumulate(buckets)]
    wanted = share * sums[-1]
    place = next((place for place, count in enumerate(sums) if count >= wanted > 0), 0)
    if place >= len(BUCKETS) or not sums[-1]:
        return BUCKETS[-1] if sums[-1] else 0.0
    low, before = (BUCKETS[place - 1], sums[place - 1]) if place else (0.0, 0)
    return low + (BUCKETS[place] - low) * (wanted - before) / buckets[place]
