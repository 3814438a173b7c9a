"""Deadlines against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_front.service.groups.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 50)),
    ),
    max_size=60,
)


@given(STEPS)
def test_same_as_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for action, key, at_ms in steps:
        if action == "set":
            deadlines.set(key, at_ms)
            model[key] = at_ms
        elif action == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            popped = deadlines.pop_due(at_ms)
            due = {k for k, at in model.items() if at <= at_ms}
            nearest = min((model[k] for k in due), default=None)
            if popped is None:
                assert not due
            else:
                assert model.pop(popped) == nearest
        assert len(deadlines) == len(model)
        assert deadlines.next_ms == min(model.values(), default=None)
        assert [deadlines.get(k) for k in range(6)] == [model.get(k) for k in range(6)]


def test_equal_deadlines_come_in_the_order_they_were_set() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in "cab":
        deadlines.set(key, 7)
    assert [deadlines.pop_due(7) for _ in range(4)] == ["c", "a", "b", None]


def test_moving_a_deadline_often_does_not_grow_the_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at_ms in range(10_000):
        deadlines.set("member", at_ms)
    assert len(deadlines._heap) == 1
