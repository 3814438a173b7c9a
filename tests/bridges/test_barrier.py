"""What barriers stop is in the metrics."""

from __future__ import annotations

from bridges.metric_text import render
from bridges.metrics import Metrics


def test_failures_of_callbacks_are_in_the_metrics() -> None:
    def raises() -> None:
        raise RuntimeError("broken")

    metrics = Metrics()
    metrics.barrier.call("append", raises)
    assert b'anabranch_callback_failures_total{kind="append"} 1.0' in render(metrics)
