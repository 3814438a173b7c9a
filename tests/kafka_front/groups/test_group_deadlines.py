"""Deadlines against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_front.service.groups.deadlines import Deadlines

LARGEST = 2**63 - 1
DELAYS = st.one_of(st.integers(-3, 50), st.sampled_from([-(2**63), LARGEST]))

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.integers(0, 5), st.integers(0, 50), DELAYS),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_same_as_a_dictionary(steps: list[tuple[str, int, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    latest = -1
    for action, key, now_ms, after_ms in steps:
        if action == "arm":
            deadlines.arm(key, now_ms, after_ms)
            model[key] = max(now_ms, latest) + max(after_ms, 1)
        elif action == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            latest = max(latest, now_ms)
            popped = deadlines.pop_due(now_ms)
            due = {k for k, at in model.items() if at <= now_ms}
            nearest = min((model[k] for k in due), default=None)
            if popped is None:
                assert not due
            else:
                assert model.pop(popped) == nearest
        assert len(deadlines) == len(model)
        assert deadlines.next_ms == min(model.values(), default=None)
        assert [deadlines.get(k) for k in range(6)] == [model.get(k) for k in range(6)]


@given(st.lists(st.tuples(st.integers(0, 9), DELAYS), max_size=30), st.integers(0, 100), DELAYS, st.integers(0, 100))
def test_whoever_arms_again_what_he_works_off_comes_to_an_end(
    armed: list[tuple[int, int]], now_ms: int, again_ms: int, earlier_ms: int
) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key, after_ms in armed:
        deadlines.arm(key, 0, after_ms)
    known = len(deadlines)
    steps = 0
    while (due := deadlines.pop_due(now_ms)) is not None:
        steps += 1
        assert steps <= known
        # A caller whose clock went back cannot set a deadline into the time that is worked off, either.
        deadlines.arm(due, now_ms - earlier_ms, again_ms)
    assert deadlines.next_ms is None or deadlines.next_ms > now_ms


def test_equal_deadlines_come_in_the_order_they_were_set() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in "cab":
        deadlines.arm(key, 0, 7)
    assert [deadlines.pop_due(7) for _ in range(4)] == ["c", "a", "b", None]


def test_moving_a_deadline_often_does_not_grow_the_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now_ms in range(10_000):
        deadlines.arm("member", now_ms, 5)
    assert len(deadlines._heap) == 1
