"""What a node does a second, from two scrapes of its metrics (docs/operations.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TextIO, cast

from msgspec import Struct, field
from prometheus_client.parser import text_fd_to_metric_families

_TOPIC = {
    "anabranch_appended_records_total": "records_in",
    "anabranch_appended_bytes_total": "bytes_in",
    "anabranch_fetched_records_total": "records_out",
    "anabranch_fetched_bytes_total": "bytes_out",
}
_STALLS = "anabranch_loop_stall_seconds_bucket"
_LAG = "anabranch_group_lag_records"
_ERRORS = "anabranch_request_errors_total"
_REQUESTS = "anabranch_request_seconds_count"
_CONNECTIONS = "anabranch_connections"
_HELD = "anabranch_connections_memory_bytes"


class Flow(Struct):
    """What goes in and out: totals in a scrape, per second in :class:`Figures`."""

    records_in: float = 0
    bytes_in: float = 0
    records_out: float = 0
    bytes_out: float = 0

    def less(self, before: Flow, seconds: float) -> Flow:
        """What was added since ``before``, a second. What began anew, as a node that was started again, counts from
        nothing."""
        now, then = self, before
        return Flow(
            _rate(now.records_in, then.records_in, seconds),
            _rate(now.bytes_in, then.bytes_in, seconds),
            _rate(now.records_out, then.records_out, seconds),
            _rate(now.bytes_out, then.bytes_out, seconds),
        )


class Scrape(Struct):
    """What one scrape says, summed up. ``at`` is when, seconds of a monotonic clock."""

    at: float
    fronts: dict[str, Flow] = field(default_factory=lambda: defaultdict(Flow))
    topics: dict[str, Flow] = field(default_factory=lambda: defaultdict(Flow))
    lag: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    requests: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    errors: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    connections: dict[str, float] = field(default_factory=dict)
    stalls: dict[float, float] = field(default_factory=dict)
    """How many beats came at most so many seconds late."""
    held: float = 0
    single: dict[str, float] = field(default_factory=dict)
    """Samples without labels, by name."""

    def value(self, name: str) -> float:
        """A sample without labels; 0 where the node does not tell it."""
        return self.single.get(name, 0.0)


class Protocol(Struct, frozen=True):
    """A front; all but ``connections`` a second."""

    name: str
    connections: int
    requests: float
    errors: float
    flow: Flow


class Topic(Struct, frozen=True):
    name: str
    flow: Flow


class Group(Struct, frozen=True):
    """``lag`` in records over all partitions; ``trend``: records a second by which it grows."""

    name: str
    lag: int
    trend: float


class Figures(Struct, frozen=True):
    """What a node does. ``stall_s``: the longest of the last interval is at most this late, 0 for none to speak of;
    ``flush_s``: how long a flush took, on average; ``cpu``: of one core, 1.0 being all of it."""

    seconds: float
    protocols: list[Protocol]
    topics: list[Topic]
    groups: list[Group]
    topic_count: int
    partition_count: int
    group_count: int
    cpu: float
    resident_bytes: int
    held_bytes: int
    budget_bytes: int
    waiting: int
    stall_s: float
    flushes: float
    flush_s: float
    log_bytes: int
    free_bytes: int
    is_full: bool
    denials: float


def scrape(lines: Iterable[str], at: float) -> Scrape:
    """Of the lines of ``/metrics``. Raises ValueError for what is none."""
    found = Scrape(at)
    # All that the parser asks of a file is its lines.
    for family in text_fd_to_metric_families(cast("TextIO", iter(lines))):
        for sample in family.samples:
            _add(found, sample.name, sample.labels, sample.value)
    return found


def _add(found: Scrape, name: str, labels: Mapping[str, str], value: float) -> None:
    if not labels:
        found.single[name] = value
        return
    front = labels.get("front", "")
    match name:
        case _ if name in _TOPIC:
            what = _TOPIC[name]
            for flow in (found.fronts[front], found.topics[labels["topic"]]):
                setattr(flow, what, getattr(flow, what) + value)
        case n if n == _LAG:
            found.lag[labels["group"]] += value
        case n if n == _REQUESTS:
            found.requests[front] += value
        case n if n == _ERRORS:
            found.errors[front] += value
        case n if n == _CONNECTIONS:
            found.connections[front] = value
        case n if n == _HELD:
            found.held += value
        case n if n == _STALLS:
            found.stalls[float(labels["le"])] = value


def figures(before: Scrape, now: Scrape) -> Figures:
    """What was done between two scrapes. Topics and groups are all there, the busiest and those most behind first."""
    seconds = max(now.at - before.at, 1e-9)

    def grew(name: str) -> float:
        return _rate(now.value(name), before.value(name), seconds)

    protocols = [
        Protocol(
            name,
            int(number),
            _rate(now.requests[name], before.requests[name], seconds),
            _rate(now.errors[name], before.errors[name], seconds),
            now.fronts[name].less(before.fronts[name], seconds),
        )
        for name, number in now.connections.items()
    ]
    topics = [Topic(name, flow.less(before.topics[name], seconds)) for name, flow in now.topics.items()]
    topics.sort(key=lambda one: (-one.flow.bytes_in - one.flow.bytes_out, one.name))
    groups = [
        Group(name, int(lag), (lag - before.lag[name]) / seconds if name in before.lag else 0.0)
        for name, lag in now.lag.items()
    ]
    groups.sort(key=lambda one: (-one.lag, one.name))
    flushes = grew("anabranch_store_groups_total")
    return Figures(
        seconds,
        protocols,
        topics,
        groups,
        int(now.value("anabranch_topics")),
        int(now.value("anabranch_partitions")),
        int(now.value("anabranch_groups")),
        grew("anabranch_cpu_seconds_total"),
        int(now.value("anabranch_memory_bytes")),
        int(now.held),
        int(now.value("anabranch_connections_memory_limit_bytes")),
        int(now.value("anabranch_connections_memory_waiting")),
        _longest(before.stalls, now.stalls),
        flushes,
        grew("anabranch_store_flush_seconds_total") / flushes if flushes else 0.0,
        int(now.value("anabranch_store_log_bytes")),
        int(now.value("anabranch_store_disk_free")),
        bool(now.value("anabranch_store_disk_full")),
        grew("anabranch_denials_total"),
    )


def _rate(now: float, then: float, seconds: float) -> float:
    return (now - then if now >= then else now) / seconds


def _longest(before: Mapping[float, float], now: Mapping[float, float]) -> float:
    """The bound of the last bucket that has something new, of cumulative ones; 0 if that is the first."""
    bounds = sorted(now)
    below = 0.0
    longest = 0.0
    for place, bound in enumerate(bounds):
        new = now[bound] - before.get(bound, 0.0)
        if new > below and place:
            longest = bound if bound != float("inf") else bounds[place - 1]
        below = max(below, new)
    return longest
