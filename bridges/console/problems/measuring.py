"""Measurement of what the rules compare: the values that Prometheus would compute, read in the node itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.catalog.views.transactions import KeepsIds
from bridges.console.problems.rules import BY_NAME, Measured, Problem, Rule

if TYPE_CHECKING:
    from bridges.console.host import Host
    from sbp_back.range_server.store.stats import StoreStats

_MOST = 20
"""Most problems of one rule; the last of them says how many more there are."""
_NAMED = 5
"""Most jobs that a sentence names."""


async def find_problems(node: Host) -> list[Problem]:
    """Return what is wrong at this node, without what concerns the cluster as a whole."""
    found: dict[str, list[Measured]] = {}

    def take(name: str, measured: Measured) -> None:
        if measured.value > BY_NAME[name].threshold:
            found.setdefault(name, []).append(measured)

    for name, measured in node.watch.measures(node):
        take(name, measured)
    for name, measured in _gauges(node):
        take(name, measured)
    recorder, late = node.recorder, BY_NAME["GroupFallsBehind"].threshold
    async for (space, group), (_, seconds, _) in in_turns([*recorder.lags.items()]):
        if seconds > late and (recorder.trend((space, group)) or 0.0) > 0:
            take("GroupFallsBehind", Measured(seconds, {"group": group}, space=space))
    for (topic, partition), waited in node.watch.unstable().items():
        take("TransactionHangs", Measured(waited, {"topic": topic, "partition": str(partition)}))
    problems = [
        problem
        for name, measured_all in found.items()
        for problem in tell(BY_NAME[name], measured_all, name_of(node, node.cluster.node_id), node.cluster.node_id)
    ]
    findings = await node.check()
    return problems + [one for one in findings if "DiskFull" not in found or one.about != "disk"]


def name_of(node: Host, node_id: int) -> str:
    """Return the words for a node in a sentence."""
    alone = node_id == node.cluster.node_id and len(node.cluster.nodes) == 1
    return "this node" if alone else f"node {node_id}"


def tell(rule: Rule, measured: Sequence[Measured], name: str, node_id: int) -> list[Problem]:
    """Return the problems of a rule, the worst first."""
    worst = sorted(measured, key=attrgetter("value"), reverse=True)
    left = max(0, len(worst) - _MOST)
    return [
        Problem(
            severity=rule.severity,
            sentence=rule.tell(name, one.value, one.labels) + one.detail,
            remedy=rule.remedy,
            about=rule.name,
            node=node_id,
            topic=one.labels.get("topic"),
            group=one.labels.get("group"),
            space=one.space,
            more=left if place == _MOST - 1 else 0,
        )
        for place, one in enumerate(worst[:_MOST])
    ]


def _gauges(node: Host) -> Iterator[tuple[str, Measured]]:
    """Yield what can be read now."""
    stats = None if node.embedded is None else node.embedded.store.stats
    if stats is not None:
        yield "DiskFull", Measured(float(stats.disk_full))
        yield "OldDataStays", Measured(float(_moves_too_little(stats)))
    stuck = 0.0 if stats is None else stats.stuck_seconds
    yield "Stuck", Measured(max(stuck, node.db.busy_seconds))
    yield "MemoryShort", Measured(node.budget.waiting)
    ids = [one.ids for one in node.transaction_directories().values() if isinstance(one, KeepsIds)]
    yield "TransactionalIdsMany", Measured(max(ids, default=0))
    jobs: dict[tuple[str, str], list[str]] = {}
    for directory in node.job_directories().values():
        for job in directory.jobs():
            jobs.setdefault((job.kind, job.state), []).append(job.name)
    for (kind, state), names in jobs.items():
        rule = {"silent": "JobSilent", "failed": "JobFailed", "different": "JobFailed"}.get(state)
        if rule is not None:
            detail = ": " + ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
            yield rule, Measured(len(names), {"kind": kind, "state": state}, detail)


def _moves_too_little(stats: StoreStats) -> bool:
    return stats.moving_fails or 0 < 2 * stats.local_limit_bytes < stats.log_bytes
