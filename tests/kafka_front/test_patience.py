"""One timer for the waits of a connection: it goes off when the time of the present one is up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_front.service.fetch.patience import Patience


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A loop whose time the test sets; it runs timers up to a millisecond early, as loops may."""

    def __init__(self) -> None:
        self.now = 100.0
        self.made: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        assert seconds > 0, "a timer comes after now"
        self.made.append(Timer(self.now + seconds, call))
        return self.made[-1]

    @property
    def waiting(self) -> list[Timer]:
        return [timer for timer in self.made if not timer.cancelled]

    def go(self, until: float) -> None:
        while due := [timer for timer in self.waiting if timer.at <= until]:
            timer = min(due, key=lambda one: one.at)
            timer.cancelled = True
            self.now = timer.at - 0.0009
            timer.call()
        self.now = until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def patience(clock: Clock) -> Patience:
    return Patience(clock)  # type: ignore[arg-type]


def test_a_wait_ends_after_its_time(clock: Clock, patience: Patience) -> None:
    ended: list[float] = []
    patience.wait(0.5, lambda: ended.append(clock.now))
    clock.go(100.49)
    assert not ended
    clock.go(101)
    assert ended == [pytest.approx(100.5, abs=0.001)]
    assert not clock.waiting


def test_a_thousand_waits_that_are_answered_make_few_timers(clock: Clock, patience: Patience) -> None:
    for number in range(1000):
        patience.wait(0.5, lambda: pytest.fail("it was answered"))
        clock.go(100 + number * 0.001)
        patience.end()
    clock.go(200)
    assert len(clock.made) <= 4
    assert not clock.waiting


def test_the_last_wait_has_all_of_its_time(clock: Clock, patience: Patience) -> None:
    ended: list[float] = []
    patience.wait(0.5, lambda: pytest.fail("it was answered"))
    clock.go(100.3)
    patience.end()
    patience.wait(0.5, lambda: ended.append(clock.now))
    clock.go(100.79)
    assert not ended
    clock.go(101)
    assert ended == [pytest.approx(100.8, abs=0.002)]


def test_a_shorter_wait_ends_in_its_time(clock: Clock, patience: Patience) -> None:
    ended: list[str] = []
    patience.wait(60, lambda: ended.append("long"))
    patience.end()
    patience.wait(0.01, lambda: ended.append("short"))
    clock.go(101)
    assert ended == ["short"]
    assert not clock.waiting


def test_a_wait_of_no_time_ends_in_a_later_turn(clock: Clock, patience: Patience) -> None:
    ended: list[str] = []
    patience.wait(0, lambda: ended.append("now"))
    assert not ended
    clock.go(100.1)
    assert ended == ["now"]


def test_nothing_is_left_of_a_connection_that_is_gone(clock: Clock, patience: Patience) -> None:
    patience.wait(0.5, lambda: pytest.fail("nobody waits"))
    patience.close()
    assert not clock.waiting
