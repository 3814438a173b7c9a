"""A mapping of very many is a mapping, and may change while somebody goes through it."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from anabranch_kit.run.turns import Many

keys = st.integers(0, 40)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.many: Many[int, int] = Many()
        self.model: dict[int, int] = {}

    @rule(key=keys, value=st.integers())
    def put(self, key: int, value: int) -> None:
        self.many[key] = self.model[key] = value

    @rule(key=keys)
    def take(self, key: int) -> None:
        assert self.many.pop(key, None) == self.model.pop(key, None)

    @rule(key=keys, value=st.integers())
    def default(self, key: int, value: int) -> None:
        assert self.many.setdefault(key, value) == self.model.setdefault(key, value)

    @invariant()
    def is_the_same(self) -> None:
        assert self.many == self.model
        assert len(self.many) == len(self.model)
        assert {*self.many} == {*self.model}
        assert [self.many.get(key) for key in range(42)] == [self.model.get(key) for key in range(42)]
        assert [key in self.many for key in range(42)] == [key in self.model for key in range(42)]


TestModel = Model.TestCase


def test_it_changes_while_somebody_goes_through_it() -> None:
    many: Many[int, int] = Many()
    many.update({number: number for number in range(10_000)})
    met = []
    for number, key in enumerate(many):
        met.append(key)
        if number % 3 == 0:
            many.pop(key)
        if number < 5_000:
            many[10_000 + number] = 0
    assert len(met) == len({*met})
    assert {*met} >= {*range(10_000)}, "what was there all the time is met"
    assert all(key < 15_000 for key in met)


def test_no_step_of_going_through_it_is_long() -> None:
    many: Many[str, int] = Many()
    many.update({f"group-{number}": number for number in range(200_000)})
    longest = []
    for _ in range(3):
        times = [time.thread_time()]
        times += [time.thread_time() for _ in many]
        longest.append(max(after - before for before, after in pairwise(times)))
    assert min(longest) < 0.002
