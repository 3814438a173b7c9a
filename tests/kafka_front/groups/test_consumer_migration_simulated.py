"""Members of both protocols come and go in one group, which changes its kind with them; the node restarts meanwhile.

What must hold whatever happens: no partition is at two living members, and when it gets quiet everybody reads its share
in a group of the kind that its members ask for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest

from kafka_front.service.groups import migration
from kafka_front.service.groups.classic.embedded import assigned_partitions, owned_partitions
from kafka_front.service.groups.classic.group import JoinReply, SyncReply
from kafka_front.service.groups.classic.requests import JoinRequest, Leaver, SyncRequest
from kafka_front.service.groups.consumer.coordinator import ConsumerCoordinator
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.consumer_lab import GROUP, REBALANCE_MS, ConsumerLab, Reader, places
from tests.kafka_front.groups.lab import Pending, assignment, code_of, subscription

PARTITIONS = 6
STEPS = 250
SESSION_MS = 45_000


@dataclass
class ClassicReader:
    """A member of the classic protocol.

    An eager one gives everything back before it joins; a cooperative one says what it has, and gives back what it is
    not told of.
    """

    lab: ConsumerLab
    eager: bool
    member_id: str = ""
    generation: int = -1
    phase: str = "join"
    owned: set[int] = field(default_factory=set)
    joining: Pending[JoinReply] | None = None
    syncing: Pending[SyncReply] | None = None
    heard: int = -1
    leads: dict[str, set[int]] = field(default_factory=dict)

    @property
    def decides(self) -> Any:
        group = self.lab.directory.consumer.get(GROUP)
        if group is not None and group.members:
            return self.lab.classic_members
        self.lab.coordinator.make_way(GROUP)
        return self.lab.classic

    def lose_answers(self) -> None:
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.phase = "join"

    def beat(self) -> None:
        if self.phase == "join":
            self._join()
        elif self.phase == "sync":
            self._sync()
        elif self.phase == "stable":
            self._heartbeat()

    def _join(self) -> None:
        if self.joining is None:
            if self.eager:
                self.owned = set()
            reads = subscription("t")
            if not self.eager:
                reads = b"\0\1" + reads[2:] + assignment({"t": sorted(self.owned)})[2:-4]
            name = "range" if self.eager else "cooperative-sticky"
            request = JoinRequest(
                GROUP, self.member_id, None, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer",
                ((name, reads), ("both", reads)),
            )  # fmt: skip
            self.joining = Pending()
            self.decides.join(self.lab.now, request, self.joining)
        if not self.joining.done:
            return
        answer, self.joining = self.joining.answer, None
        if answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lost(answer.error)
        elif answer.error:
            assert answer.error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), answer
        else:
            self.member_id, self.generation, self.phase = answer.member_id, answer.generation, "sync"
            self.heard = self.lab.now
            self.leads = {}
            if answer.leader == self.member_id:
                self.leads = {one.member_id: set(owned_partitions(one.metadata).get("t", [])) for one in answer.members}

    def _sync(self) -> None:
        if self.syncing is None:
            shares = {one: assignment({"t": numbers}) for one, numbers in self._shares().items()}
            request = SyncRequest(GROUP, self.member_id, None, self.generation, assignments=tuple(shares.items()))
            self.syncing = Pending()
            self.decides.sync(self.lab.now, request, self.syncing)
        if not self.syncing.done:
            return
        answer, self.syncing = self.syncing.answer, None
        if answer.error:
            self._lost(answer.error)
            return
        given = set(assigned_partitions(answer.assignment).get("t", []))
        self.heard = self.lab.now
        gave_back = not self.eager and not self.owned <= given
        self.owned = given
        self.phase = "join" if gave_back else "stable"

    def _shares(self) -> dict[str, list[int]]:
        """What the leader assigns: to nobody what another one still has, as cooperative assignors do."""
        shares = {one: list(range(n, PARTITIONS, len(self.leads))) for n, one in enumerate(self.leads)}
        for one, numbers in shares.items():
            others = set().union(*(has for other, has in self.leads.items() if other != one))
            shares[one] = [number for number in numbers if number not in others]
        return shares

    def _heartbeat(self) -> None:
        error = code_of(self.decides.heartbeat, self.lab.now, GROUP, self.member_id, None, self.generation)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.heard = self.lab.now
        if error:
            self._lost(error)

    def _lost(self, error: int) -> None:
        self.phase = "join"
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation, self.owned = "", -1, set()
        elif error == ErrorCode.ILLEGAL_GENERATION:
            self.generation, self.owned = -1, set()
        else:
            assert error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), error

    def leave(self) -> None:
        self.decides.leave(self.lab.now, GROUP, [Leaver(self.member_id)], lambda error, errors: None)


class Mixture:
    """One life of a group; all members of the classic protocol are eager, or all are cooperative."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lab = ConsumerLab()
        self.topic = self.lab.topics.make("t", PARTITIONS)
        self.eager = self.random.random() < 0.5
        self.old: list[ClassicReader] = []
        self.new: list[Reader] = []
        self.heard: dict[str, int] = {}
        self.ids = 0

    def run(self) -> None:
        actions = [self.beat, self.come, self.go, self.restart, self.pass_time]
        for _ in range(STEPS):
            [action] = self.random.choices(actions, (40, 4, 3, 1, 12))
            action()
            self.check()
        self.settle()

    def beat(self) -> None:
        everybody = [*self.old, *self.new]
        if everybody:
            self.hear(self.random.choice(everybody))

    def hear(self, reader: ClassicReader | Reader) -> None:
        reader.beat()
        group = self.lab.directory.consumer.get(GROUP)
        if isinstance(reader, Reader) and group is not None and reader.member_id in group.members:
            self.heard[reader.member_id] = self.lab.now

    def come(self) -> None:
        if len(self.old) + len(self.new) >= 5:
            return
        if self.random.random() < 0.5:
            self.old.append(ClassicReader(self.lab, self.eager))
            self.old[-1].beat()
        else:
            self.ids += 1
            self.new.append(Reader(self.lab, f"new{self.ids}", frozenset({"t"})))
            self.hear(self.new[-1])

    def go(self) -> None:
        everybody: list[ClassicReader | Reader] = [*self.old, *self.new]
        if not everybody:
            return
        reader = self.random.choice(everybody)
        if isinstance(reader, Reader):
            self.new.remove(reader)
        else:
            self.old.remove(reader)
        if self.random.random() < 0.7:
            reader.leave()

    def restart(self) -> None:
        self.lab.start()
        for reader in self.old:
            reader.lose_answers()
        for one in self.new:
            one.asked, one.tell = None, True

    def pass_time(self) -> None:
        before = self.members()
        self.lab.pass_time(self.random.choice((10, 1_000, 5_000)))
        gone = before - self.members()
        for reader in self.old:
            if reader.member_id in gone:
                reader.heard = -1  # it has not joined again in time, and hears of that when it reports next

    def members(self) -> set[str]:
        group = self.lab.directory.get(GROUP)
        return set() if group is None else set(group.members)

    def check(self) -> None:
        since = self.lab.now - REBALANCE_MS
        owned = [(f"old {one.member_id}", one.owned) for one in self.old if one.heard > since and one.owned]
        for one in self.new:
            if self.heard.get(one.member_id, -1) > since and one.epoch:
                owned.append((one.member_id, {number for _, number in places(one.owned)}))
        for (first, some), (second, others) in combinations(owned, 2):
            assert not some & others, f"{first} and {second} both have {some & others}"

    def settle(self) -> None:
        for _ in range(60):
            for reader in (*self.old, *self.new):
                self.hear(reader)
                self.check()
            self.lab.pass_time(2_000)
        shares = [one.owned for one in self.old] + [{n for _, n in places(one.owned)} for one in self.new]
        if not shares:
            return
        assert sorted(number for share in shares for number in share) == list(range(PARTITIONS))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(one.phase == "stable" for one in self.old)
        kind = self.lab.directory.consumer if self.new else self.lab.directory.classic
        assert len(kind[GROUP].members) == len(shares)


@pytest.mark.parametrize("seed", range(100))
def test_groups_change_their_kind_and_lose_nothing(seed: int) -> None:
    Mixture(seed).run()


@pytest.mark.parametrize(
    ("attribute", "instead"),
    [
        ("_downgrade", lambda self, now_ms, group, then: then(0)),
        ("by_id", lambda self, named: {}),
    ],
)
def test_a_missing_safeguard_is_noticed(attribute: str, instead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerCoordinator, attribute, instead)
    with pytest.raises((AssertionError, KeyError)):
        _many_lives()


def test_what_a_broken_off_rebalance_leaves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_keep_owned", lambda upgrade, said, topics: None)
    with pytest.raises(AssertionError):
        _many_lives()


def _many_lives() -> None:
    for seed in range(100):
        Mixture(seed).run()
