"""The counters of a node: plain integers, without locks and without a lookup of labels per event.

:mod:`bridges.metric_text` makes families of metrics from them at a scrape. All counters belong to one object of the
node, so that two nodes in one process do not mix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from anabranch_kit.run.barrier import Barrier

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of request latencies, in seconds."""

Source = Callable[[], "Iterable[Metric]"]
"""Returns metric families. A family with many samples comes in pieces of at most :data:`bridges.metric_text.SLICE`:
consecutive families of the same name are one.
"""


class RequestCounts:
    """Counters of requests of one kind: number, duration, bytes, and errors by name."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "count", "errors", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.errors: dict[str, int] = {}
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def done(self, seconds: float, received: int = 0, sent: int = 0) -> None:
        """Count a request that was answered after ``seconds``, with ``received`` and ``sent`` bytes on the wire."""
        self.count += 1
        self.seconds += seconds
        self.bytes_in += received
        self.bytes_out += sent
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def many(self, count: int, seconds: float, received: int = 0) -> None:
        """Count ``count`` requests that were answered together after ``seconds``, with ``received`` bytes on
        the wire.
        """
        self.count += count
        self.seconds += count * seconds
        self.bytes_in += received
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += count

    def failed(self, error: str) -> None:
        """Count an error sent to a client (an answer may carry several)."""
        self.errors[error] = self.errors.get(error, 0) + 1


class TopicTraffic:
    """Counters of the traffic through one front into and out of one topic."""

    __slots__ = ("batches_in", "batches_out", "bytes_in", "bytes_out", "records_in", "records_out", "sampled")

    def __init__(self) -> None:
        self.batches_in = self.records_in = self.bytes_in = 0
        self.batches_out = self.records_out = self.bytes_out = 0
        self.sampled = (0, 0, 0, 0)
        """Records in and out, bytes in and out, as last sampled for the node's history."""

    def appended(self, batches: int, records: int, size: int) -> None:
        """Count ``batches`` with ``records`` and ``size`` bytes that became durable."""
        self.batches_in += batches
        self.records_in += records
        self.bytes_in += size

    def fetched(self, batches: int, records: int, size: int) -> None:
        """Count ``batches`` with ``records`` and ``size`` bytes that were sent to a reader."""
        self.batches_out += batches
        self.records_out += records
        self.bytes_out += size


class FrontMetrics:
    """Counters of one front. Keep the objects that :meth:`kind` and :meth:`topic` return; they stay valid."""

    __slots__ = ("connections", "connections_refused", "connections_total", "kinds", "name", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.connections_total = 0
        self.connections_refused = 0
        self.kinds: dict[str, RequestCounts] = {}
        self.topics: dict[str, TopicTraffic] = {}

    def kind(self, name: str) -> RequestCounts:
        """Return the counters of one kind of request."""
        counts = self.kinds.get(name)
        if counts is None:
            counts = self.kinds[name] = RequestCounts()
        return counts

    def topic(self, name: str) -> TopicTraffic:
        """Return the counters of a topic. Only for topics that exist, so that clients cannot make metrics grow."""
        traffic = self.topics.get(name)
        if traffic is None:
            traffic = self.topics[name] = TopicTraffic()
        return traffic

    def connection_opened(self) -> None:
        self.connections += 1
        self.connections_total += 1

    def connection_closed(self) -> None:
        self.connections -= 1

    def connection_refused(self) -> None:
        self.connections_refused += 1


class Metrics:
    """All metrics of a node."""

    def __init__(self) -> None:
        self.fronts: dict[str, FrontMetrics] = {}
        self.barrier = Barrier()
        """The barrier of the whole node: it counts the exceptions of callbacks."""
        self.sources: list[Source] = []
        self.denied = 0
        """Operations that the access rules have denied."""

    def front(self, name: str) -> FrontMetrics:
        metrics = self.fronts.get(name)
        if metrics is None:
            metrics = self.fronts[name] = FrontMetrics(name)
        return metrics

    def count_denial(self) -> None:
        self.denied += 1

    def add_source(self, source: Source) -> None:
        """Have ``source`` called at every scrape, on the event loop; each step of its iteration must be quick."""
        self.sources.append(source)

    def topic_deleted(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        for front in self.fronts.values():
            front.topics.pop(topic, None)
