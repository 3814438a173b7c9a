"""Which neighbours are merged."""

from __future__ import annotations

from bridges.catalog.topics.lineage import KEY_SPACE, WHOLE, KeyRange, PartitionInfo
from ydb_topic_front.service.topics.auto_partitioning import Loads, cold_neighbours
from ydb_topic_front.service.topics.calls import evenly
from ydb_topic_front.service.topics.settings import Thresholds

BOUNDS = Thresholds(1000, 100, 60)


def pairs(*loads: int | None, keys: tuple[KeyRange, ...] | None = None) -> list[tuple[int, int]]:
    """None for a partition that was not looked at for long enough."""
    infos = [PartitionInfo(index, index, one) for index, one in enumerate(keys or evenly(len(loads)))]
    known: Loads = {index: (load or 0, load is not None) for index, load in enumerate(loads)}
    return cold_neighbours(infos, known, BOUNDS)


def test_neighbours_merge_that_are_cold_together() -> None:
    assert pairs(0, 0) == [(0, 1)]
    assert pairs(0, 0, 0, 0) == [(0, 1), (2, 3)]
    assert pairs(0, 0, 0) == [(0, 1)], "one has one partner"
    assert pairs(61, 0, 0) == [(1, 2)]
    assert pairs(60, 60) == [], "together they would be split at once"
    assert pairs(60, 39) == [(0, 1)]
    assert pairs(0, None) == []
    assert pairs(0) == []


def test_only_ranges_side_by_side_merge() -> None:
    third = KEY_SPACE // 3
    thirds = (KeyRange(2 * third, KEY_SPACE), KeyRange(0, third), KeyRange(third, 2 * third))
    assert pairs(0, 99, 0, keys=thirds) == [(2, 0)]
    assert pairs(0, 0, keys=(WHOLE, WHOLE)) == [], "ranges that lie over one another cannot become one"
