"""Results of a benchmark run as data and as a table that a person reads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.probe import on_machine
from benchmarks.targets import RIVALS, TARGETS
from benchmarks.workloads import Metrics, Workload

# Metrics for which less is better: times, costs and memory. All others are rates.
LOWER_IS_BETTER = ("_us", "_ms", "_per_gb", "_per_request", "_per_record", "_rss_mb", "_seconds")


@dataclass(slots=True)
class Results:
    """All numbers of one run; ``rounds`` holds for (workload, target) the metrics of each round."""

    machine: dict[str, object]
    disk: list[dict[str, float]]
    start: dict[str, dict[str, float]] = field(default_factory=dict)
    rounds: dict[str, dict[str, list[Metrics]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    options: dict[str, object] = field(default_factory=dict)

    def add(self, workload: str, target: str, metrics: Metrics) -> None:
        """Record one round."""
        self.rounds.setdefault(workload, {}).setdefault(target, []).append(metrics)

    def median(self, workload: str, target: str, metric: str) -> float | None:
        """Median over the rounds, None when nothing was measured."""
        values = [m[metric] for m in self.rounds.get(workload, {}).get(target, []) if metric in m]
        return statistics.median(values) if values else None

    def as_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        return asdict(self)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ratio(metric: str, ours: float | None, theirs: float | None) -> str:
    """How many times better ours is (above 1) or worse (below 1)."""
    if not ours or not theirs:
        return "-"
    better = theirs / ours if metric.endswith(LOWER_IS_BETTER) else ours / theirs
    return f"{better:.2f}x"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown(results: Results, workloads: Sequence[Workload], targets: Sequence[str]) -> str:
    """Tables of medians, with a ratio for every pair of targets that promise the same durability."""
    pairs = [(ours, theirs) for ours, theirs in RIVALS if ours in targets and theirs in targets]
    lines = ["# Benchmark", "", on_machine(results.machine), ""]
    lines += [f"Run with: {', '.join(f'{k}={v}' for k, v in results.options.items())}. Medians of the rounds.", ""]
    lines += ["What an acknowledgement survives:", ""]
    lines += [f"* {name}: {TARGETS[name].promise}" for name in targets]
    lines += ["", "A ratio above 1 means that our node is better. All servers and clients share the same cores.", ""]
    lines += ["## Disk: durable sequential writes (pwritev, RWF_DSYNC), one at a time", ""]
    lines += [_line(["bytes", "writes", "p50 us", "p99 us", "MB/s"]), "|---|---|---|---|---|"]
    for row in results.disk:
        lines.append(_line([_number(row[k]) for k in ("size", "writes", "p50_us", "p99_us", "mb_per_s")]))
    lines += ["", "## Start", "", _line(["target", "to first metadata s", "resident MB after start"]), "|---|---|---|"]
    for name in targets:
        start = results.start.get(name, {})
        lines.append(_line([name, _number(start.get("seconds")), _number(start.get("rss_mb"))]))
    for workload in workloads:
        measured = results.rounds.get(workload.name, {})
        if not measured:
            continue
        metrics = list(dict.fromkeys(name for rounds in measured.values() for m in rounds for name in m))
        heads = ["metric", *targets, *(f"{ours} / {theirs}" for ours, theirs in pairs)]
        lines += ["", f"## {workload.name}", "", _line(heads), "|---" * len(heads) + "|"]
        for metric in metrics:
            median = {target: results.median(workload.name, target, metric) for target in targets}
            cells = [_number(median[target]) for target in targets]
            cells += [_ratio(metric, median[ours], median[theirs]) for ours, theirs in pairs]
            lines.append(_line([metric, *cells]))
    if results.failures:
        lines += ["", "## Failures", "", *(f"* {failure}" for failure in results.failures)]
    return "\n".join(lines) + "\n"
