"""How much a log has grown within a window, from looks at it from time to time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridges.log.state.growth import Growth

WINDOW = 12_000


def test_what_came_in_within_the_window() -> None:
    growth = Growth()
    assert growth.seen(0, 5_000, WINDOW) == 0, "what was there before anybody looked is not new"
    assert growth.seen(1_000, 6_000, WINDOW) == 1_000
    assert growth.seen(1_000, 6_500, WINDOW) == 1_500
    assert growth.seen(11_000, 7_000, WINDOW) == 2_000
    assert not growth.covers(11_999, WINDOW)
    assert growth.seen(12_000, 7_000, WINDOW) == 2_000
    assert growth.covers(12_000, WINDOW)
    assert growth.seen(13_000, 7_000, WINDOW) == 1_000, "a second of the window has passed"
    assert growth.seen(23_000, 7_000, WINDOW) == 0


def test_a_steady_stream_however_seldom_somebody_looks() -> None:
    for step in (100, 999, 1_000, 5_000, 12_000, 40_000):
        growth = Growth()
        found = [growth.seen(now, now * 3, WINDOW) for now in range(0, 400_000, step)]
        assert all(abs(one - 3 * WINDOW) <= 3 * WINDOW // 12 + 1 for one in found[WINDOW // step + 1 :]), step


def test_a_clock_or_a_log_that_begins_anew() -> None:
    growth = Growth()
    assert not growth.covers(0, WINDOW)
    growth.seen(50_000, 100, WINDOW)
    growth.seen(51_000, 900, WINDOW)
    assert growth.seen(20_000, 900, WINDOW) == 0
    assert growth.seen(21_000, 950, WINDOW) == 50
    assert growth.seen(22_000, 10, WINDOW) == 0
    assert growth.seen(23_000, 60, WINDOW) == 50


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 10_000)), max_size=200))
def test_it_is_never_more_than_there_was(steps: list[tuple[int, int]]) -> None:
    growth = Growth()
    now = total = 0
    for wait, more in steps:
        now, total = now + wait, total + more
        assert 0 <= growth.seen(now, total, WINDOW) <= total
        assert len(growth.times) <= 15, "however often somebody looks"
