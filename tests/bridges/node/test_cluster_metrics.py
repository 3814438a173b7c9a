"""What a scrape tells of a cluster's nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from bridges.cluster.members import Member, State
from bridges.cluster.service import Cluster
from bridges.cluster.slots import NOBODY, Slot
from bridges.node.node_metrics import cluster_metrics


def told(slots: list[Slot], *members: Member) -> dict[str, dict[str, float]]:
    """Of each family its samples by node."""
    keeper = SimpleNamespace(
        members={one.start: one for one in members}, slots=slots, acting=set(), unowned=1, still=lambda _start: 0.0
    )
    cluster = cast(Cluster, SimpleNamespace(keeper=keeper, taken_over=0, given=0))
    return {
        family.name: {sample.labels["node"]: sample.value for sample in family.samples if "node" in sample.labels}
        for family in cluster_metrics(cluster)
    }


def test_slots_that_are_pinned_are_told_of_each_node_also_of_one_that_is_away() -> None:
    here = Member(7, 1, State.UP)
    slots = [Slot(7, 1, 1), Slot(7, 1, 1), Slot(7, 1, 3), Slot(7, 1), Slot(NOBODY, 1)]
    families = told(slots, here)
    assert families["anabranch_cluster_slots_pinned"] == {"1": 2, "3": 1}
    assert families["anabranch_cluster_slots"] == {"1": 4}


def test_nobody_is_told_where_nothing_is_pinned() -> None:
    assert told([Slot(7, 1)], Member(7, 1, State.UP))["anabranch_cluster_slots_pinned"] == {}
