"""One broken callback costs nobody else's."""

from __future__ import annotations

from functools import partial

from structlog.testing import capture_logs

from bridges.barrier import Barrier
from bridges.node.metrics import Metrics


def raises(value: int) -> None:
    raise RuntimeError(f"broken {value}")


def test_what_a_callback_raises_is_counted_and_logged_with_its_kind_and_the_rest_goes_on() -> None:
    barrier = Barrier()
    called: list[int] = []
    with capture_logs() as lines:
        results = [barrier.call("waiter", one, n, topic="t") for n, one in enumerate([raises, called.append])]
    assert (results, called) == ([False, True], [1])
    assert barrier.failures == {"waiter": 1}
    [line] = lines
    assert (line["kind"], line["callback"], line["topic"], line["log_level"]) == ("waiter", "raises", "t", "error")
    assert str(line["exc_info"]) == "broken 0"


def test_a_storm_of_failures_writes_one_line_a_second_of_each_kind_and_is_counted_whole() -> None:
    now = 0.0
    barrier = Barrier(lambda: now)
    with capture_logs() as lines:
        for _ in range(100):
            barrier.call("append", partial(raises, 1))
        barrier.call("read", partial(raises, 1))
        now = 1.0
        barrier.call("append", partial(raises, 1))
    assert [(line["kind"], line["failures"], line["since_last_line"]) for line in lines] == [
        ("append", 1, 1),
        ("read", 1, 1),
        ("append", 101, 100),
    ]


def test_failures_of_callbacks_are_in_the_metrics() -> None:
    metrics = Metrics()
    metrics.barrier.call("append", raises, 1)
    assert b'anabranch_callback_failures_total{kind="append"} 1.0' in metrics.render()
