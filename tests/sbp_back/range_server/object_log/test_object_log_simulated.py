"""Servers whose logs are objects keep every promise while they are killed, paused, cut off; no safeguard is idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sbp_back.range_server.object_log.objects.content import ObjectHead
from sbp_back.range_server.object_log.ownership.takeover import Takeover
from sbp_back.range_server.object_log.writer import Group, LogWriter, Put, State
from tests.depth import factor, timeout
from tests.sbp_back.range_server.object_log.checker import Broken, Checker
from tests.sbp_back.range_server.object_log.nodes import Rules
from tests.sbp_back.range_server.object_log.simulate import Schedule, first_broken


@pytest.mark.slow
@pytest.mark.timeout(timeout(900))
@pytest.mark.parametrize("schedules", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_every_promise_is_kept(schedules: int) -> None:
    """`make thorough` plays twenty times as many; simulate.py, run as a program, plays any number."""
    assert first_broken(range(schedules * factor())) is None


def test_the_same_seed_tells_the_same_story_twice() -> None:
    first, again, other = (Schedule(seed).run() for seed in (7, 7, 8))
    assert first.digest() == again.digest() != other.digest()
    assert first.world.story == again.world.story


def test_schedules_do_what_they_are_for() -> None:
    """Faults that no schedule meets would prove nothing."""
    stories = "\n".join("\n".join(Schedule(seed).run().world.story) for seed in range(200))
    for happening in ("kill", "pause", "it is fenced", "its log was ended", " gave ", " ends "):
        assert stories.count(happening) >= 10, happening


class Hasty(LogWriter[Any]):
    """Acknowledges a group as soon as it is there."""

    def put_ended(self, group: Group[Any], outcome: Put, there: bytes = b"") -> list[Any]:
        tokens = group.tokens if outcome is not Put.UNKNOWN and group.state is State.UNDER_WAY else []
        super().put_ended(group, outcome, there)
        return [] if self.fenced else tokens


class Trusting(LogWriter[Any]):
    """Takes whatever has its number for its own."""

    def put_ended(self, group: Group[Any], outcome: Put, there: bytes = b"") -> list[Any]:
        return super().put_ended(group, Put.CREATED if outcome is Put.TAKEN else outcome)


class Sure(LogWriter[Any]):
    """Takes no answer for a good one."""

    def put_ended(self, group: Group[Any], outcome: Put, there: bytes = b"") -> list[Any]:
        return super().put_ended(group, Put.CREATED if outcome is Put.UNKNOWN else outcome, there)


class Farther(Takeover):
    """Puts its fence behind everything that is listed, gaps included."""

    def __init__(self, incarnation: int, first: int, unique: bytes, listed: Mapping[int, int]) -> None:
        super().__init__(incarnation, first, unique, listed)
        self.number = max([first, *(number + 1 for number in listed)])


class Blind(Takeover):
    """Takes a fence in the listing for a group."""

    def __init__(self, incarnation: int, first: int, unique: bytes, listed: Mapping[int, int]) -> None:
        super().__init__(incarnation, first, unique, dict.fromkeys(listed, 1 << 20))


class Impatient(Takeover):
    """Takes a number that is taken for the end."""

    def put_ended(self, outcome: Put, there: ObjectHead | None = None) -> bool:
        return super().put_ended(Put.CREATED if outcome is Put.TAKEN else outcome, there)


class Assuming(Takeover):
    """Takes no answer for a fence that stands."""

    def put_ended(self, outcome: Put, there: ObjectHead | None = None) -> bool:
        return super().put_ended(Put.CREATED if outcome is Put.UNKNOWN else outcome, there)


WITHOUT: dict[str, Mapping[str, Any]] = {
    "groups are acknowledged in order": {"writer": Hasty},
    "a number that is taken by another fences": {"writer": Trusting},
    "no answer is no success": {"writer": Sure},
    "the fence goes to the first missing number": {"takeover": Farther},
    "a fence in a listing is no group": {"takeover": Blind},
    "a number that is taken is passed over": {"takeover": Impatient},
    "a fence whose answer is lost is put again": {"takeover": Assuming},
    "objects are put if there is none": {"put_if_absent": False},
    "the fence comes before the reading": {"fence_before_reading": False},
    "the first number is read with the mark": {"first_with_the_mark": False},
    "a log that is being ended gives up no objects": {"own_objects_only_while_open": False},
    "fences stay": {"fences_stay": False},
    "objects go when it is written down where their content is": {"commit_before_deleting": False},
    "a partition is handed over when all of it is decided": {"hand_over_when_decided": False},
    "a late handing-over finds another version": {"hand_over_by_version": False},
    "a log is ended once": {"end_once": False},
    "an old answer brings back no partition": {"given_stays_given": False},
    "only what is acknowledged is shown": {"show_what_is_acknowledged": False},
}


NOTICES = {
    "the first number is read with the mark": 500,
    "a log that is being ended gives up no objects": 13_909,
    "a late handing-over finds another version": 2055,
    "an old answer brings back no partition": 26,
}
"""The first schedule that notices, where that takes long to find: it is played before all others."""


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", WITHOUT)
def test_a_safeguard_that_is_left_out_is_noticed(safeguard: str) -> None:
    """Most within the first hundred schedules; those that need two rare things at once within some thousands."""
    seeds = [NOTICES.get(safeguard, 0), *range(20_000)]
    assert first_broken(seeds, replace(Rules(), **WITHOUT[safeguard])) is not None


def test_the_checker_finds_what_is_lost_and_what_has_two_values() -> None:
    checker = Checker()
    checker.acknowledge(0, 0, "a")
    checker.show(0, 1, "b")
    checker.judge({0: ["a", "b"]})
    with pytest.raises(Broken, match="shown and lost"):
        checker.judge({0: ["a"]})
    with pytest.raises(Broken, match="acknowledged and lost"):
        checker.judge({0: []})
    with pytest.raises(Broken, match="two values"):
        checker.judge({0: ["x", "b"]})
    with pytest.raises(Broken, match="two values"):
        checker.show(0, 1, "c")
