"""Rates of a node's activity, computed from two scrapes of its metrics (docs/operations.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TextIO, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import astuple, replace
from prometheus_client.parser import text_fd_to_metric_families

_Key = TypeVar("_Key", str, float)
_TOPIC = {
    "anabranch_appended_records_total": "records_in",
    "anabranch_appended_bytes_total": "bytes_in",
    "anabranch_fetched_records_total": "records_out",
    "anabranch_fetched_bytes_total": "bytes_out",
}
_STALLS = "anabranch_loop_stall_seconds_bucket"
_LAG = "anabranch_group_lag_records"
_LATE = "anabranch_group_lag_seconds"
_ERRORS = "anabranch_request_errors_total"
_REQUESTS = "anabranch_request_seconds_count"
_CONNECTIONS = "anabranch_connections"
_HELD = "anabranch_connections_memory_bytes"


class Flow(Struct):
    """Traffic in and out: totals in a scrape, per second in :class:`Figures`."""

    records_in: float = 0
    bytes_in: float = 0
    records_out: float = 0
    bytes_out: float = 0

    def less(self, before: Flow, seconds: float) -> Flow:
        """Return the traffic per second since ``before``. A counter that has restarted, with its node, counts
        from 0.
        """
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Flow(*(_rate(now, then, seconds) for now, then in pairs))

    def add(self, other: Flow) -> None:
        """Add the traffic of another node or front."""
        for way in self.__struct_fields__:
            setattr(self, way, getattr(self, way) + getattr(other, way))


class Scrape(Struct):
    """The sums of one scrape. ``at`` is its time in seconds of a monotonic clock."""

    at: float
    fronts: dict[str, Flow] = field(default_factory=lambda: defaultdict(Flow))
    topics: dict[str, Flow] = field(default_factory=lambda: defaultdict(Flow))
    lag: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    late: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    requests: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    errors: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    connections: dict[str, float] = field(default_factory=dict)
    stalls: dict[float, float] = field(default_factory=dict)
    """Number of beats that were at most this many seconds late."""
    held: float = 0
    single: dict[str, float] = field(default_factory=dict)
    """Samples without labels, by name."""

    def value(self, name: str) -> float:
        """Return a sample without labels, 0 if the node does not have it."""
        return self.single.get(name, 0.0)


class Protocol(Struct, frozen=True):
    """A row of a front; all fields but ``connections`` are per second."""

    name: str
    connections: int
    requests: float
    errors: float
    flow: Flow


class Topic(Struct, frozen=True):
    name: str
    flow: Flow


class Group(Struct, frozen=True):
    """A row of a group. ``lag``: records over all partitions; ``late``: seconds; ``trend``: growth in records per
    second.
    """

    name: str
    lag: int
    late: float
    trend: float


class Member(Struct, frozen=True):
    """A row of a node of a cluster, or of a worker; all but ``connections`` and ``resident_bytes`` are per second."""

    name: str
    connections: int
    cpu: float
    resident_bytes: int
    stall_s: float
    flow: Flow


class Figures(Struct, frozen=True):
    """The activity of a node, or of a whole cluster.

    ``stall_s``: upper bound of the last interval's longest stall, 0 for none worth mentioning. ``flush_s``: mean
    duration of a flush. ``cpu``: fraction of one core.
    """

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
    nodes: list[Member] = []
    """The rows of a cluster's nodes, or of workers."""
    unheard: int = 0
    """Number of nodes that did not answer."""


_SAME = frozenset({"anabranch_topics", "anabranch_partitions", "anabranch_groups", "anabranch_store_disk_full"})
"""Samples that have the same meaning on all nodes of a cluster, so that they are not added."""
_FREE = "anabranch_store_disk_free"


def together(scrapes: Mapping[str, Scrape]) -> Scrape:
    """Return the sum of several nodes' scrapes."""
    found = Scrape(max(one.at for one in scrapes.values()))
    for one in scrapes.values():
        for mine, theirs in ((found.fronts, one.fronts), (found.topics, one.topics)):
            for name, flow in theirs.items():
                mine[name].add(flow)
        _add_up(found.lag, one.lag)
        _add_up(found.requests, one.requests)
        _add_up(found.errors, one.errors)
        _add_up(found.connections, one.connections)
        _add_up(found.stalls, one.stalls)
        for name, late in one.late.items():
            found.late[name] = max(found.late[name], late)
        found.held += one.held
        for name, value in one.single.items():
            before = found.single.get(name, value if name == _FREE else 0.0)
            found.single[name] = (
                max(before, value) if name in _SAME else min(before, value) if name == _FREE else before + value
            )
    return found


def _add_up(sums: dict[_Key, float], more: Mapping[_Key, float]) -> None:
    for key, value in more.items():
        sums[key] = sums.get(key, 0.0) + value


def all_figures(before: Mapping[str, Scrape], now: Mapping[str, Scrape], unheard: int) -> Figures:
    """Return the figures of a cluster, from scrapes by node name. At least one node must have answered both times."""
    both = [name for name in now if name in before]
    whole = figures(together({name: before[name] for name in both}), together({name: now[name] for name in both}))
    members = []
    for name in both:
        one = figures(before[name], now[name])
        flow = Flow()
        for protocol in one.protocols:
            flow.add(protocol.flow)
        clients = sum(protocol.connections for protocol in one.protocols)
        members.append(Member(name, clients, one.cpu, one.resident_bytes, one.stall_s, flow))
    return replace(whole, nodes=members, unheard=unheard)


def scrape(lines: Iterable[str], at: float) -> Scrape:
    """Parse the lines of ``/metrics``. Raises ValueError if they are malformed."""
    found = Scrape(at)
    # The parser only iterates over the lines of the file.
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
        case n if n == _LATE:
            found.late[labels["group"]] = max(found.late[labels["group"]], value)
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
    """Return the activity between two scrapes, with all topics by traffic and all groups by lag, the highest first."""
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
        Group(
            name,
            int(lag),
            now.late[name] if lag else 0.0,
            (lag - before.lag[name]) / seconds if name in before.lag else 0.0,
        )
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
    """Return the bound of the last cumulative bucket with a new count, 0 if that is the first bucket."""
    bounds = sorted(now)
    below = 0.0
    longest = 0.0
    for place, bound in enumerate(bounds):
        new = now[bound] - before.get(bound, 0.0)
        if new > below and place:
            longest = bound if bound != float("inf") else bounds[place - 1]
        below = max(below, new)
    return longest
