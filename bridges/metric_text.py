"""Prometheus' text format of a node's metrics.

Separate from the counters (:mod:`bridges.metrics`), so that prometheus_client is imported only in a node that is
scraped. The text is made in slices, and between two slices the event loop serves others: clients choose the number of
topics and partitions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from anabranch_kit.run.turns import in_turns
from bridges.metrics import LATENCY_BUCKETS

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from bridges.metrics import Metrics

SLICE = 500
"""Samples of a family that are collected and written in one step."""

T = TypeVar("T")

NAMING = frozenset({"topic", "group", "transactional_id", "job"})
"""Labels with names that a user chose: not everybody may see such samples."""

Shows = Callable[[Mapping[str, str]], bool]
"""Returns whether a sample with these labels may be shown."""


def render(metrics: Metrics) -> bytes:
    """Return the text of all metrics, made at once; for processes without other work."""
    return exposition(_whole(metrics))


async def rendered(metrics: Metrics, shows: Shows | None = None) -> bytes:
    """Return the text of the samples that ``shows`` lets pass, made slice by slice."""
    parts: list[bytes] = []
    last = None
    async for piece in in_turns(_pieces(metrics)):
        if shows is not None:
            piece.samples = [sample for sample in piece.samples if shows(sample.labels)]
        text = exposition([piece])
        parts.append(text if piece.name != last else _without_head(text))
        last = piece.name
    return b"".join(parts)


class Piece(Struct, array_like=True):
    """A slice of a family's samples, as text. ``named``: the samples with a label of :data:`NAMING`, each with its
    labels.
    """

    family: str
    head: bytes
    lines: bytes
    named: list[tuple[dict[str, str], bytes]]


async def pieces(metrics: Metrics, **more: str) -> AsyncIterator[Piece]:
    """Yield the text of all metrics slice by slice, each sample with the labels ``more`` besides its own."""
    async for piece in in_turns(_pieces(metrics)):
        labels = [sample.labels for sample in piece.samples]
        piece.samples = [sample._replace(labels={**sample.labels, **more}) for sample in piece.samples]
        head: list[bytes] = []
        free: list[bytes] = []
        named: list[tuple[dict[str, str], bytes]] = []
        left = iter(labels)
        for line in exposition([piece]).splitlines(keepends=True):
            if line.startswith(b"# "):
                head.append(line)
                continue
            own = next(left)
            if NAMING.isdisjoint(own):
                free.append(line)
            else:
                named.append((own, line))
        yield Piece(piece.name, b"".join(head), b"".join(free), named)


class Gathered:
    """Pieces of several nodes, joined by family, as a scrape must have them.

    Of the samples with a label of :data:`NAMING` it has those that ``shows`` lets pass.
    """

    def __init__(self, shows: Shows) -> None:
        self._shows = shows
        self._families: dict[str, list[bytes]] = {}

    def add(self, piece: Piece) -> None:
        """Add a piece, mostly of at most :data:`SLICE` samples."""
        parts = self._families.get(piece.family)
        if parts is None:
            parts = self._families[piece.family] = [piece.head]
        parts.append(piece.lines + b"".join(line for labels, line in piece.named if self._shows(labels)))

    def parts(self) -> Iterator[bytes]:
        """Yield the text, piece by piece."""
        for parts in self._families.values():
            yield from parts


class _Some:
    """A registry of given families, in the form that prometheus_client expects."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def exposition(families: list[Metric]) -> bytes:
    return generate_latest(cast("CollectorRegistry", _Some(families)))


def _whole(metrics: Metrics) -> list[Metric]:
    families: list[Metric] = []
    for piece in _pieces(metrics):
        if families and families[-1].name == piece.name:
            families[-1].samples.extend(piece.samples)
        else:
            families.append(piece)
    return families


def _without_head(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"# "))


def _pieces(metrics: Metrics) -> Iterator[Metric]:
    yield from _connections(metrics)
    yield from _requests(metrics)
    yield from _traffic(metrics)
    text = "Unexpected errors in the node's code, each of which failed one request."
    yield totals("anabranch_callback_failures", text, ("kind",), metrics.barrier.failures)
    for source in metrics.sources:
        yield from source()


def _connections(metrics: Metrics) -> Iterator[Metric]:
    fronts, label = metrics.fronts.items(), ("front",)
    now = {name: front.connections for name, front in fronts}
    yield values("anabranch_connections", "Open connections.", label, now)
    opened = {name: front.connections_total for name, front in fronts}
    yield totals("anabranch_connections_opened", "Connections accepted.", label, opened)
    text = "Connections refused, or closed while idle, because of a limit."
    refused = {name: front.connections_refused for name, front in fronts}
    yield totals("anabranch_connections_refused", text, label, refused)


def _requests(metrics: Metrics) -> Iterator[Metric]:
    errors = counter("anabranch_request_errors", "Errors sent to clients.", "front", "kind", "error")
    received = counter("anabranch_received_bytes", "Bytes of requests.", "front", "kind")
    sent = counter("anabranch_sent_bytes", "Bytes of responses.", "front", "kind")
    latency = HistogramMetricFamily(
        "anabranch_request_seconds", "Seconds from a request's last byte to its response.", labels=["front", "kind"]
    )
    for name, front in metrics.fronts.items():
        for kind, counts in front.kinds.items():
            if not counts.count and not counts.errors:
                continue  # a protocol has many kinds of request, most of which are never used
            labels = [name, kind]
            received.add_metric(labels, counts.bytes_in)
            sent.add_metric(labels, counts.bytes_out)
            for error, number in counts.errors.items():
                errors.add_metric([*labels, error], number)
            latency.add_metric(labels, cumulative(LATENCY_BUCKETS, counts.buckets), counts.seconds)
    yield from (errors, received, sent, latency)


def _traffic(metrics: Metrics) -> Iterator[Metric]:
    topics = [
        (name, topic, traffic) for name, front in metrics.fronts.items() for topic, traffic in front.topics.items()
    ]
    for verb, said, way in (("appended", "made durable", "in"), ("fetched", "sent to readers", "out")):
        for unit, what in (("batches", "Batches"), ("records", "Records"), ("bytes", "Bytes of batches")):
            for piece in slices(topics):
                family = counter(f"anabranch_{verb}_{unit}", f"{what} {said}.", "front", "topic")
                for name, topic, traffic in piece:
                    family.add_metric([name, topic], getattr(traffic, f"{unit}_{way}"))
                yield family


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield ``items`` in slices of at most :data:`SLICE`; an empty slice if there are none, so that the family still
    appears.
    """
    for start in range(0, max(1, len(items)), SLICE):
        yield items[start : start + SLICE]


def cumulative(bounds: Sequence[float], buckets: Sequence[int]) -> list[tuple[str, float]]:
    """Return a histogram's cumulative buckets: the count up to each bound, the last one without a bound."""
    running = 0
    rows: list[tuple[str, float]] = []
    for bound, number in zip((*map(str, bounds), "+Inf"), buckets, strict=True):
        running += number
        rows.append((bound, running))
    return rows


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return an empty gauge family, to be filled at a scrape."""
    return GaugeMetricFamily(name, text, labels=labels)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """Return an empty counter family, to be filled at a scrape; ``_total`` is added to its name."""
    return CounterMetricFamily(name, text, labels=labels)


def values(name: str, text: str, labels: Sequence[str], numbers: Mapping[Any, float]) -> Metric:
    """Return a gauge with a sample for each of ``numbers``; a key is the value of the only label, or of all labels."""
    return _filled(gauge(name, text, *labels), numbers)


def totals(name: str, text: str, labels: Sequence[str], numbers: Mapping[Any, float]) -> Metric:
    """Return a counter with samples, like :func:`values`."""
    return _filled(counter(name, text, *labels), numbers)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, numbers: Mapping[Any, float]) -> Metric:
    for key, number in numbers.items():
        family.add_metric([key] if isinstance(key, str) else key, number)
    return family


def value(name: str, text: str, number: float) -> Metric:
    """Return a gauge without labels."""
    return values(name, text, (), {(): number})


def total(name: str, text: str, number: float) -> Metric:
    """Return a counter without labels."""
    return totals(name, text, (), {(): number})
