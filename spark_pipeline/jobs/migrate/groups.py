"""Carries the positions of consumer groups: by exact offset, since offsets are the same on both sides."""

from __future__ import annotations

from typing import Any

from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.migration import MigrationSource
from spark_pipeline.jobs.migrate.plan import Plan

_AT_ONCE = 5_000
_BUSY = frozenset({"Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})


def sync_groups(plan: Plan, source: MigrationSource, target: Importer) -> dict[str, Any]:
    """Set the groups' positions at the target to those at the source, for topics of the plan; it can be repeated.

    The report says by group how many positions were set, which were kept because a consumer has committed at the
    target, which lie ahead of the copied offsets, and whether the group still has members at the source.
    """
    names = {topic.name for topic in plan.topics}
    states = source.group_states()
    told: dict[str, Any] = {}
    for group, positions in sorted(source.group_positions().items()):
        wanted = [(part, at.offset, at.metadata) for part, at in sorted(positions.items()) if part.topic in names]
        if not wanted:
            continue
        done: dict[str, Any] = {"set": 0, "kept": [], "ahead": [], "members": states.get(group, "") in _BUSY}
        for start in range(0, len(wanted), _AT_ONCE):
            answer = target.positions(group, wanted[start : start + _AT_ONCE])
            done["set"] += answer.set
            done["kept"] += [list(one) for one in answer.kept]
            done["ahead"] += [list(one) for one in answer.ahead]
        told[group] = done
    return {
        "groups": told,
        "set": sum(one["set"] for one in told.values()),
        "kept": sum(len(one["kept"]) for one in told.values()),
        "ahead": sum(len(one["ahead"]) for one in told.values()),
    }
