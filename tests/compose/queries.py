"""The queries of the alert rules and of the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bridges.console.problems.rules import RULES

MONITORING = Path(__file__).resolve().parents[2] / "compose" / "monitoring"
_METRIC = re.compile(r"\banabranch_\w+")
_PARTS = ("_bucket", "_count", "_sum")


def alerts() -> list[str]:
    """The expression of each alert."""
    return [rule.query for rule in RULES]


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression of each query of the dashboard, with what Grafana puts in put in."""
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$node", ".*")


def metrics_of(query: str) -> set[str]:
    """The metrics that a query names."""
    return set(_METRIC.findall(query))


def unknown(query: str, families: set[str]) -> set[str]:
    """Metrics of a query that nobody exports. Histograms are known by their parts as well."""
    return {
        name
        for name in metrics_of(query)
        if name not in families and not any(name == family + part for family in families for part in _PARTS)
    }
