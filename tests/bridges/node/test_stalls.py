"""The metric of a busy event loop counts every beat, and shows what kept it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from anabranch_kit.run.stalls import BEAT_SECONDS, LoopStalls
from bridges.metrics import Metrics
from bridges.node.node_metrics import stall_metrics
from tests.bridges.test_metrics import samples


class Clock:
    """A loop whose time the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        assert when > self.now, "never at or before now"
        self.timers.append((when, call))
        return SimpleNamespace(cancel=lambda: None)

    def beat(self, late: float) -> None:
        when, call = self.timers.pop()
        self.now = when + late
        call()


def test_late_beats_are_counted_by_how_late_they_are() -> None:
    clock: Any = Clock()
    stalls = LoopStalls()
    metrics = Metrics()
    metrics.add_source(lambda: stall_metrics(stalls))
    stalls.start(clock)
    for late in (0.0, 0.0005, 0.03, 3.0, 70.0):
        clock.beat(late)
    found = samples(metrics)
    assert found["anabranch_loop_stall_seconds_count", ()] == 5
    assert abs(found["anabranch_loop_stall_seconds_sum", ()] - 73.0305) < 1e-6
    assert found["anabranch_loop_stall_seconds_bucket", (("le", "0.001"),)] == 2
    assert found["anabranch_loop_stall_seconds_bucket", (("le", "0.05"),)] == 3
    assert found["anabranch_loop_stall_seconds_bucket", (("le", "5.0"),)] == 4
    assert abs(found["anabranch_loop_stall_longest_seconds", ()] - 70) < 1e-6
    assert [when for when, _ in clock.timers] == [clock.now + BEAT_SECONDS]
    stalls.stop()
    stalls.stop()
