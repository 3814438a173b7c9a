"""Metrics of one node in Prometheus' text format.

What happens often is counted in plain integers, without locks and labels looked up per event; a collector turns them
into metric families when somebody scrapes, in slices: between two of them the event loop does other things, since how
many topics and partitions there are is for clients to choose. Everything hangs off the node's own registry: two nodes
in one process do not mix.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from bridges.barrier import Barrier

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of request latencies, in seconds."""

Source = Callable[[], Iterable[Metric]]
"""Gives metric families, those with many samples in pieces of at most :data:`SLICE`: families of the same name that
follow one another are one."""

SLICE = 500
"""Samples of a family that are collected and written in one turn of the event loop."""

T = TypeVar("T")


class RequestCounts:
    """Requests of one kind: how many, how long, how much; errors by name."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "count", "errors", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.errors: dict[str, int] = {}
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)

    def done(self, seconds: float, received: int = 0, sent: int = 0) -> None:
        """One request was answered after ``seconds``, with ``received`` and ``sent`` bytes on the wire."""
        self.count += 1
        self.seconds += seconds
        self.bytes_in += received
        self.bytes_out += sent
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def many(self, count: int, seconds: float, received: int = 0) -> None:
        """``count`` requests were answered together after ``seconds``, with ``received`` bytes on the wire."""
        self.count += count
        self.seconds += count * seconds
        self.bytes_in += received
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += count

    def failed(self, error: str) -> None:
        """One error was told to a client (a request may carry several)."""
        self.errors[error] = self.errors.get(error, 0) + 1


class TopicTraffic:
    """What went through one front into or out of one topic."""

    __slots__ = ("batches_in", "batches_out", "bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.batches_in = self.records_in = self.bytes_in = 0
        self.batches_out = self.records_out = self.bytes_out = 0

    def appended(self, batches: int, records: int, size: int) -> None:
        """``batches`` with ``records`` and ``size`` bytes became durable."""
        self.batches_in += batches
        self.records_in += records
        self.bytes_in += size

    def fetched(self, batches: int, records: int, size: int) -> None:
        """``batches`` with ``records`` and ``size`` bytes were handed to a reader."""
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
        """Counters of one kind of request."""
        counts = self.kinds.get(name)
        if counts is None:
            counts = self.kinds[name] = RequestCounts()
        return counts

    def topic(self, name: str) -> TopicTraffic:
        """Counters of one topic; only for topics that exist, so that strangers cannot make metrics grow."""
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


class Metrics(Collector):
    """All metrics of a node."""

    def __init__(self) -> None:
        self.fronts: dict[str, FrontMetrics] = {}
        self.barrier = Barrier()
        """Of the whole node: what callbacks raise is counted here."""
        self.registry = CollectorRegistry(auto_describe=False)
        self._sources: list[Source] = []
        self.registry.register(self)

    def front(self, name: str) -> FrontMetrics:
        """The counters of the front called ``name``."""
        metrics = self.fronts.get(name)
        if metrics is None:
            metrics = self.fronts[name] = FrontMetrics(name)
        return metrics

    def add_source(self, source: Source) -> None:
        """Have ``source`` called at every scrape, on the event loop; each step of what it gives must be quick."""
        self._sources.append(source)

    def topic_deleted(self, topic: str) -> None:
        """Forget the counters of a topic that is no more."""
        for front in self.fronts.values():
            front.topics.pop(topic, None)

    def render(self) -> bytes:
        """The text of all metrics, at once: for whoever has nothing else to do."""
        return generate_latest(self.registry)

    async def rendered(self) -> bytes:
        """The text a scrape is answered with, made a slice at a time."""
        parts: list[bytes] = []
        last = None
        for piece in self._pieces():
            text = _text(piece)
            parts.append(text if piece.name != last else _without_head(text))
            last = piece.name
            await asyncio.sleep(0)
        return b"".join(parts)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for."""
        whole: Metric | None = None
        for piece in self._pieces():
            if whole is not None and piece.name == whole.name:
                whole.samples.extend(piece.samples)
                continue
            if whole is not None:
                yield whole
            whole = piece
        if whole is not None:
            yield whole

    def _pieces(self) -> Iterator[Metric]:
        yield from self._connections()
        yield from self._requests()
        yield from self._traffic()
        failures = counter("anabranch_callback_failures", "Unexpected errors, each of one request.", "kind")
        for kind, number in self.barrier.failures.items():
            failures.add_metric([kind], number)
        yield failures
        for source in self._sources:
            yield from source()

    def _connections(self) -> Iterator[Metric]:
        now = gauge("anabranch_connections", "Connections open now.", "front")
        total = counter("anabranch_connections_opened", "Connections accepted.", "front")
        refused = counter(
            "anabranch_connections_refused", "Connections refused, or closed when idle, because of a limit.", "front"
        )
        for name, front in self.fronts.items():
            now.add_metric([name], front.connections)
            total.add_metric([name], front.connections_total)
            refused.add_metric([name], front.connections_refused)
        yield from (now, total, refused)

    def _requests(self) -> Iterator[Metric]:
        errors = counter("anabranch_request_errors", "Errors told to clients.", "front", "kind", "error")
        received = counter("anabranch_received_bytes", "Bytes of requests.", "front", "kind")
        sent = counter("anabranch_sent_bytes", "Bytes of responses.", "front", "kind")
        latency = HistogramMetricFamily(
            "anabranch_request_seconds", "Time from a request's last byte to its response.", labels=["front", "kind"]
        )
        for name, front in self.fronts.items():
            for kind, counts in front.kinds.items():
                if not counts.count and not counts.errors:
                    continue  # a protocol has many kinds of request, and most are never used
                labels = [name, kind]
                received.add_metric(labels, counts.bytes_in)
                sent.add_metric(labels, counts.bytes_out)
                for error, number in counts.errors.items():
                    errors.add_metric([*labels, error], number)
                running = 0
                buckets: list[tuple[str, float]] = []
                for bound, number in zip((*map(str, LATENCY_BUCKETS), "+Inf"), counts.buckets, strict=True):
                    running += number
                    buckets.append((bound, running))
                latency.add_metric(labels, buckets, counts.seconds)
        yield from (errors, received, sent, latency)

    def _traffic(self) -> Iterator[Metric]:
        topics = [
            (name, topic, traffic) for name, front in self.fronts.items() for topic, traffic in front.topics.items()
        ]
        for verb, said, way in (("appended", "made durable", "in"), ("fetched", "handed to readers", "out")):
            for unit, what in (("batches", "Batches"), ("records", "Records"), ("bytes", "Bytes of batches")):
                for piece in slices(topics):
                    family = counter(f"anabranch_{verb}_{unit}", f"{what} {said}.", "front", "topic")
                    for name, topic, traffic in piece:
                        family.add_metric([name, topic], getattr(traffic, f"{unit}_{way}"))
                    yield family


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """``items``, at most :data:`SLICE` at a time; an empty slice if there are none: a family is told nevertheless."""
    for start in range(0, max(1, len(items)), SLICE):
        yield items[start : start + SLICE]


class _One:
    """A registry of one family, as prometheus_client wants one."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def _text(family: Metric) -> bytes:
    return generate_latest(cast(CollectorRegistry, _One(family)))


def _without_head(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"# "))


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """An empty gauge family to fill at a scrape."""
    return GaugeMetricFamily(name, text, labels=labels)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """An empty counter family to fill at a scrape; ``_total`` is added to its name."""
    return CounterMetricFamily(name, text, labels=labels)
