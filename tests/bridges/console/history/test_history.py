"""Rings of samples: against a plain list of everything that was told, within their bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.console.history.rings import COARSE_S, FINE_S, SERIES_BYTES, Ends, History, Ring, Series, Span
from bridges.console.history.sampling import slope

MOMENTS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1000)), min_size=1, max_size=60)


@given(MOMENTS, st.integers(0, 300))
def test_a_ring_of_a_counter_is_what_came_in_each_step(told: list[tuple[int, int]], later: int) -> None:
    ring, step = Ring(50, told[0][0]), told[0][0]
    sums: dict[int, int] = {}
    for forward, amount in told:
        step += forward
        ring.add(step, amount)
        sums[step] = sums.get(step, 0) + amount
    end, first = step + later, told[0][0]
    assert ring.last(end, 0.0) == [
        # What was before it was made is not known.
        sums.get(one, 0) if one > first or one in sums else None
        for one in range(end - 49, end + 1)
    ]


@given(MOMENTS, st.integers(0, 300), st.booleans())
def test_a_ring_of_a_gauge_goes_on_with_what_was_measured_last(
    told: list[tuple[int, int]], later: int, highest: bool
) -> None:
    step = told[0][0]
    ring = Ring(50, step)
    seen: dict[int, int] = {}
    for forward, value in told:
        step += forward
        ring.put(step, value, highest=highest)
        seen[step] = max(value, seen.get(step, value)) if highest else value
    expected: list[float | None] = []
    for one in range(step + later - 49, step + later + 1):
        before = [at for at in seen if at <= one]
        expected.append(seen[max(before)] if before else None)
    assert ring.last(step + later, None) == expected


def test_a_series_tells_whole_steps_as_rates_and_a_day_as_the_highest() -> None:
    counter, gauge = Series(0.0, counter=True), Series(0.0, counter=False)
    for step in range(200):
        counter.tell(step * FINE_S + 1.0, 40)
        gauge.tell(step * FINE_S + 1.0, step % 7)
    now = 200.0 * FINE_S
    assert counter.points(Span.HOUR, now) == [2.0] * 180
    assert gauge.points(Span.HOUR, now)[-3:] == [197 % 7, 198 % 7, 199 % 7]
    day = gauge.points(Span.DAY, 7.0 * COARSE_S)
    assert day[-6:] == [6.0] * 6
    assert counter.points(Span.DAY, 7.0 * COARSE_S)[-7:-1] == [pytest.approx(2.0)] * 6
    assert counter.points(Span.HOUR, now + 2 * 3600) == [0.0] * 180


def test_there_are_no_more_series_than_room_and_the_quiet_ones_go() -> None:
    held = 0

    def count(change: int) -> None:
        nonlocal held
        held += change

    history = History({"some": 3, "none": 0}, count)
    for number in range(10):
        history.count("some", number, 0.0, 1)
    history.count("none", 1, 0.0, 1)
    history.count("some", "quiet", 0.0, 0)
    history.measure("some", "zero", 0.0, 0.0)
    assert (len(history), held, history.left_out) == (3, 3 * SERIES_BYTES, {"some": 7, "none": 1})
    history.count("some", 0, 3000.0, 1)
    history.count("some", "new", 3601.0, 1)
    assert set(history.keys("some")) == {0, 2, "new"}
    assert history.points("some", 1, Span.HOUR, 3601.0) is None
    history.forget("some", [0, 1, 2, "new"])
    assert (len(history), held) == (0, 0)


@given(st.lists(st.tuples(st.floats(1, 100), st.integers(0, 50)), min_size=1, max_size=500))
def test_an_age_lies_between_the_looks_at_which_the_record_was_not_there_and_was(
    looks: list[tuple[float, int]],
) -> None:
    ends, now, end = Ends(), 0.0, 0
    came: list[tuple[float, float]] = []  # by offset: the looks between which it came
    before = 0.0
    for forward, more in looks:
        now += forward
        came += [(before, now)] * more
        end += more
        ends.tell(now, end)
        before = now
    first = looks[0][1]
    assert ends.age(end, now) is None
    for offset in range(first, end):
        age, known = ends.age(offset, now) or (math.nan, False)
        assert known
        if len(looks) * 2 <= Ends.MOST:
            earliest, latest = came[offset]
            assert now - latest - 1e-6 <= age <= now - earliest + 1e-6
    if first:
        age, known = ends.age(0, now) or (math.nan, True)
        assert not known
        assert age == pytest.approx(now - looks[0][0])
    assert len(ends.times) <= Ends.MOST + 1


def test_a_log_that_is_shorter_is_another_one() -> None:
    ends = Ends()
    ends.tell(0.0, 100)
    ends.tell(10.0, 5)
    assert ends.age(4, 30.0) == (20.0, False)
    assert ends.age(5, 30.0) is None


def test_a_slope_is_that_of_the_line_through_what_is_known() -> None:
    assert slope([None, 10.0, 30.0, None, 70.0], 20) == pytest.approx(1.0)
    assert slope([None, 10.0, None], 20) is None
    assert slope([5.0, 5.0, 5.0], 20) == 0.0
