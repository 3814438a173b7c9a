"""A bucket lets its speed through, and a burst."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.bucket import UNLIMITED, Bucket, Speed
from tests.kit.clock import Clock


@given(
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_never_more_than_its_speed(rate: int, burst: int, requests: list[tuple[int, float]]) -> None:
    clock = Clock(100.0)
    bucket = Bucket(Speed(rate, burst), clock)
    written = 0
    for size, pause in requests:
        clock.now += pause
        waited = 0
        while (wait := bucket.wait()) > 0:
            clock.now += wait
            waited += 1
            assert waited <= 2, "it tells how long to wait"
        # One request may begin when there is anything left, so what was written before it is what counts.
        assert written <= burst + rate * (clock.now - 100) + 1e-3
        bucket.take(size)
        written += size


def test_who_comes_seldom_never_waits() -> None:
    clock = Clock(100.0)
    bucket = Bucket(Speed(1000, 500), clock)
    for _ in range(10):
        assert bucket.wait() == 0
        bucket.take(900)
        assert bucket.wait() > 0
        clock.now += 1


def test_a_speed_that_changes_holds_for_what_is_owed_already() -> None:
    clock = Clock(100.0)
    bucket = Bucket(Speed(1, 1), clock)
    bucket.take(1000)
    assert 999 <= bucket.wait() <= 1001
    bucket.change(Speed(1000, 1000))
    assert 0.9 <= bucket.wait() <= 1.1
    bucket.change(UNLIMITED)
    assert bucket.wait() == 0
    bucket.take(1 << 40)
    assert bucket.wait() == 0
