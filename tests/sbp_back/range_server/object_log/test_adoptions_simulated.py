"""Servers that adopt each other's logs keep every promise while they are killed, paused, cut off; no safeguard is
idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sbp_back.range_server.object_log.ownership.chain import Chain, Entry
from sbp_back.range_server.object_log.ownership.claims import Claim, Closing
from tests.depth import factor, timeout
from tests.sbp_back.range_server.object_log.adoptions import AdoptionRules, Cluster, first_broken

SCHEDULES = 1_000


@pytest.mark.slow
@pytest.mark.timeout(timeout(900))
@pytest.mark.parametrize("part", range(4))
def test_every_promise_is_kept(part: int) -> None:
    count = SCHEDULES // 4 * factor()
    assert first_broken(range(part * count, (part + 1) * count)) is None


def test_schedules_do_what_they_are_for() -> None:
    """Faults that no schedule meets would prove nothing."""
    clusters = [Cluster(seed, AdoptionRules()).run() for seed in range(40)]
    stories = "\n".join("\n".join(cluster.world.story) for cluster in clusters)
    for happening in ("kill", "pause", "is fenced", "has adopted", "has indexed"):
        assert stories.count(happening) >= 10, happening
    again = Cluster(7, AdoptionRules()).run()
    assert again.world.story == clusters[7].world.story


class Forgetful(Claim):
    """Takes it that the last claim that is known of closes nothing."""

    def __init__(self, unique: bytes, listed: list[int]) -> None:
        super().__init__(unique, listed)
        self.number += bool(listed)


class Returning(Claim):
    """Goes on in a log that is closed."""

    def answered(self, there: bytes) -> bool:
        ended = super().answered(there)
        if not self.closed:
            return ended
        self.closed = False
        self.number += 1
        return False


class Hurried(Closing):
    """Takes whatever claim it finds for its own."""

    def put(self, there: bytes) -> bool:
        self.by = self.adopter
        return True


class Unmoved(Chain):
    """Goes on in a chain that a later one writes."""

    def take_entry(self, there: Entry | None) -> bool:
        ended = super().take_entry(there)
        self.fenced = False
        return ended


WITHOUT: dict[str, Mapping[str, Any]] = {
    "the last claim that is known of is looked at": {"claim": Forgetful},
    "nobody goes on in a log that is closed": {"claim": Returning},
    "a claim is the one that was put": {"closing": Hurried},
    "a log is claimed before it is read": {"claim_before_reading": False},
    "what somebody else has closed is left to them": {"others_claims_count": False},
    "who was closed may have adopted before": {"look_before_judging": False},
    "a later one fences the chain of indexes": {"chain": Unmoved},
    "who opens a log says so in the chain": {"entry_of_ones_own": False},
    "an index that was read is still the last one": {"chain_is_looked_at_again": False},
    "an index is there before anything is deleted": {"index_before_deleting": False},
    "it is in the own log before anybody hears of it": {"record_before_telling": False},
    "what was adopted is read with the log": {"record_when_read": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", WITHOUT)
def test_a_safeguard_that_is_left_out_is_noticed(safeguard: str) -> None:
    assert first_broken(range(2_000), replace(AdoptionRules(), **WITHOUT[safeguard])) is not None
