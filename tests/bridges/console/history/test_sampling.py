"""What a node's history tells of real traffic, and what it holds of the node's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch_kit.memory.budget import Kind
from bridges.catalog.progress import Committed
from bridges.console.history import sampling
from bridges.console.history.rings import FINE_S, SERIES_BYTES, Span
from bridges.console.history.sampling import GROUPS, NODE, PLACES, RECORDS, SECONDS, TOPICS
from bridges.node.assembly import Node
from tests.bridges.node.test_node import append, settings_of
from tests.kit.clock import Clock

GROUP = ("consumers", "readers")


async def test_rates_lags_and_ages_of_a_topic_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1_000_000.0)
    monkeypatch.setattr(sampling, "monotonic", clock)
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    recorder, history = node.floors.host.recorder, node.floors.host.recorder.history
    await node.catalog.create_topic("words", 2)
    log = node.logs.get("words", 0)
    assert log is not None
    await log.ready()
    await node.progress.front("kafka").commit("readers", [("words", 0, Committed(0)), ("words", 1, Committed(0))])
    traffic = node.metrics.front("kafka").topic("words")
    for _ in range(10):
        await append(node, "words", 0, 1)
        traffic.appended(1, 1, 100)
        await recorder.sample()
        clock.now += FINE_S

    def last(family: str, key: object, many: int = 10) -> list[float | None]:
        found = history.points(family, key, Span.HOUR, clock.now)
        assert found is not None
        return found[-many:]

    assert last(TOPICS, ("words", "kafka", "records_in")) == [1 / FINE_S] * 10
    assert last(TOPICS, ("words", "kafka", "bytes_in")) == [100 / FINE_S] * 10
    assert last(NODE, ("kafka", "records_in")) == [1 / FINE_S] * 10
    assert last(GROUPS, (*GROUP, RECORDS)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert last(PLACES, (*GROUP, RECORDS, "words", 0), 1) == [10.0]
    assert recorder.trend(GROUP) == 1 / FINE_S
    # The first record was there when somebody looked first; those behind it came a step apart.
    await node.progress.front("kafka").commit("readers", [("words", 0, Committed(4))])
    await recorder.sample()
    assert recorder.lags[GROUP] == (6, 6.0 * FINE_S, True)
    assert recorder.age(log, 9) == (1.0 * FINE_S, True)
    clock.now += FINE_S
    assert last(GROUPS, (*GROUP, SECONDS), 1) == [6.0 * FINE_S]
    held = node.budget.by_kind[Kind.HISTORY]
    assert held >= len(history) * SERIES_BYTES

    await node.catalog.delete_topic("words")
    assert history.points(TOPICS, ("words", "kafka", "records_in"), Span.HOUR, clock.now) is None
    await recorder.sample()
    await recorder.sample()
    assert history.keys(GROUPS) == history.keys(PLACES) == []
    assert recorder.lags == {}
    assert node.budget.by_kind[Kind.HISTORY] == len(history) * SERIES_BYTES
    await node.stop()


async def test_none_is_kept_where_there_is_to_be_none(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path, limits__history_bytes="0"), fronts=[])
    await node.start()
    node.metrics.front("kafka").topic("words").appended(1, 1, 1)
    await node.floors.host.recorder.sample()
    assert (len(node.floors.host.recorder.history), node.budget.by_kind[Kind.HISTORY]) == (0, 0)
    await node.stop()


async def test_of_many_positions_a_round_looks_at_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "POSITIONS", 10)
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("words", 1)
    log = node.logs.get("words", 0)
    assert log is not None
    await append(node, "words", 0, 1)
    for number in range(25):
        await node.progress.front("kafka").commit(f"g{number}", [("words", 0, Committed(0))])
    for seen in (10, 20, 25):
        await node.floors.host.recorder.sample()
        assert len(node.floors.host.recorder.lags) == seen
    await node.stop()
