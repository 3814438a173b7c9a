from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from bridges import metric_text
from bridges.metric_text import SLICE, Gathered, Piece, gauge, pieces, render, rendered, slices
from bridges.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(metrics).decode())
        for sample in family.samples
    }


def test_requests_are_counted_timed_and_measured() -> None:
    metrics = Metrics()
    kind = metrics.front("kafka").kind("Produce")
    kind.done(0.0004, 100, 10)
    kind.done(0.003, 200, 20)
    kind.done(60.0, 300, 30)
    kind.failed("NOT_LEADER")
    kind.failed("NOT_LEADER")
    found = samples(metrics)
    labels = (("front", "kafka"), ("kind", "Produce"))
    assert found["anabranch_request_seconds_count", labels] == 3
    assert abs(found["anabranch_request_seconds_sum", labels] - 60.0034) < 1e-9
    assert found["anabranch_request_seconds_bucket", (*labels, ("le", "0.0005"))] == 1
    assert found["anabranch_request_seconds_bucket", (*labels, ("le", "0.0025"))] == 1
    assert found["anabranch_request_seconds_bucket", (*labels, ("le", "0.005"))] == 2
    assert found["anabranch_request_seconds_bucket", (*labels, ("le", "10.0"))] == 2
    assert found["anabranch_request_seconds_bucket", (*labels, ("le", "+Inf"))] == 3
    assert found["anabranch_received_bytes_total", labels] == 600
    assert found["anabranch_sent_bytes_total", labels] == 60
    assert found["anabranch_request_errors_total", (("error", "NOT_LEADER"), *labels)] == 2


def test_connections_and_traffic() -> None:
    metrics = Metrics()
    front = metrics.front("kafka")
    assert metrics.front("kafka") is front
    front.connection_opened()
    front.connection_opened()
    front.connection_closed()
    front.connection_refused()
    front.topic("t").appended(1, 10, 1000)
    front.topic("t").fetched(2, 20, 2000)
    front.topic("gone").appended(1, 1, 1)
    metrics.topic_deleted("gone")
    found = samples(metrics)
    kafka, topic = (("front", "kafka"),), (("front", "kafka"), ("topic", "t"))
    assert found["anabranch_connections", kafka] == 1
    assert found["anabranch_connections_opened_total", kafka] == 2
    assert found["anabranch_connections_refused_total", kafka] == 1
    for name, value in (("batches", 1), ("records", 10), ("bytes", 1000)):
        assert found[f"anabranch_appended_{name}_total", topic] == value
        assert found[f"anabranch_fetched_{name}_total", topic] == 2 * value
    assert not any(("topic", "gone") in labels for _, labels in found)


@pytest.mark.usefixtures("slow_turns")
async def test_a_scrape_is_made_in_slices_and_says_the_same_as_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    for front in ("kafka", "http"):
        for number in range(900):
            metrics.front(front).topic(f"t{number}").appended(1, number, 1)
    sizes: list[int] = []

    def source() -> Iterator[Metric]:
        for some in slices(range(1200)):
            family = gauge("of_many", "Something of which there is much.", "number")
            for number in some:
                family.add_metric([str(number)], number)
            yield family

    metrics.add_source(source)
    text = metric_text.exposition

    def watched(families: list[Metric]) -> bytes:
        sizes.append(sum(len(family.samples) for family in families))
        return text(families)

    monkeypatch.setattr(metric_text, "exposition", watched)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    said = await rendered(metrics)
    counting.cancel()
    assert max(sizes) == SLICE
    assert turns >= len(sizes) - 1
    assert said == render(metrics)


def test_sources_are_asked_at_every_scrape_and_registries_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    calls = []

    def source():
        calls.append(1)
        family = gauge("extra", "Something.")
        family.add_metric([], len(calls))
        return [family]

    one.add_source(source)
    assert samples(one)["extra", ()] == 1
    assert samples(one)["extra", ()] == 2
    assert ("extra", ()) not in samples(other)


async def test_what_several_workers_count_is_one_text() -> None:
    """All samples of a family are together, and of those that name something only what may be seen."""
    gathered = Gathered(lambda labels: labels.get("topic") != "secret")
    alone = []
    for worker in ("0", "1"):
        metrics = Metrics()
        for topic in ("told", "secret"):
            metrics.front("kafka").topic(topic).appended(1, 5, 1)
        alone.append(render(metrics))
        async for piece in pieces(metrics, worker=worker):
            gathered.add(msgspec.msgpack.decode(msgspec.msgpack.encode(piece), type=Piece))
    text = b"".join(gathered.parts()).decode()
    assert b"worker" not in alone[0]
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert names == [family.name for family in text_string_to_metric_families(alone[0].decode())]
    found = [sample for family in families for sample in family.samples if "topic" in sample.labels]
    assert {(sample.labels["topic"], sample.labels["worker"]) for sample in found} == {("told", "0"), ("told", "1")}
    assert text.count("# TYPE anabranch_appended_records_total counter") == 1
