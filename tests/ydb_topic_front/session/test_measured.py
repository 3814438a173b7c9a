"""Lags and sums of the last minute, hour and day, beside a list of all that was told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ydb_topic_front.session.measured import WINDOWS, ReadMeasure, RecentMost, RecentSums

NOW = 1_700_000_000_000
PASSED = st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 1000)), min_size=1, max_size=30)
"""(ms since the one before, what was told)."""


@given(PASSED)
def test_the_most_of_a_minute(told: list[tuple[int, int]]) -> None:
    lag, now, seen = RecentMost(), NOW, []
    for passed, value in told:
        now += passed
        lag.tell(now, value)
        seen.append((now, value))
        found = lag.most(now)
        assert found >= max(value for at, value in seen if at > now - 55_000)
        assert found in {value for at, value in seen if at > now - 60_000}


@given(PASSED)
def test_sums_of_windows(told: list[tuple[int, int]]) -> None:
    sums, now, seen = RecentSums(), NOW, []
    for passed, value in told:
        now += passed
        sums.add(now, value)
        seen.append((now, value))
        for name, window_ms in WINDOWS:
            found = sums.sums(now)[name]
            least = sum(value for at, value in seen if at > now - window_ms * 11 // 12)
            assert least <= found <= sum(value for at, value in seen if at > now - window_ms)


def test_nothing_stays_and_a_clock_that_is_set_back_begins_anew() -> None:
    measure = ReadMeasure()
    measure.read(NOW, 500, 8, NOW - 70, 30)
    assert (measure.read_lag.most(NOW), measure.write_lag.most(NOW)) == (70, 30)
    assert measure.size.sums(NOW + 61_000) == {"per_minute": 0, "per_hour": 500, "per_day": 500}
    assert measure.read_lag.most(NOW + 61_000) == 0
    measure.read(NOW - 10_000_000, 1, 9, -1, 0)
    assert measure.size.sums(NOW - 10_000_000)["per_minute"] == 1
    assert (measure.last_ms, measure.last_offset) == (NOW - 10_000_000, 9)
