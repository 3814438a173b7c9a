"""Groups of KIP-848 under random joins, leaves, lost heartbeats, restarts of the node and changes of topics.

What must hold: no partition is at two living members, nobody is told what a restart would take back, and when it gets
quiet everybody has its share. Leaving out a safeguard must be noticed: the second half takes them out one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from bridges.auth import Principal
from kafka_front.service.groups import heartbeats
from kafka_front.service.groups.consumer import snapshot as consumer_snapshot
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.coordinator import ConsumerCoordinator
from kafka_front.service.groups.consumer.group import ConsumerGroup, ConsumerMember, MemberState, Partitions, View
from kafka_front.service.groups.consumer.requests import HeartbeatRequest
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.consumer_lab import GROUP, REBALANCE_MS, ConsumerLab, Reader, places

STEPS = 250
NAMES = ("a1", "a2", "b1", "b2")
SUBSCRIPTIONS = (frozenset({"a1"}), frozenset({"a1", "b1"}), frozenset(NAMES), frozenset({"b2", "gone"}))
VIEWERS = (Principal("User", "alice"), Principal("User", "bob", "10.0.0.2"))


class Simulation:
    """One life of a group, whose members may describe what the rules for ``viewers`` allow. All that happens follows
    from the seed."""

    def __init__(self, seed: int, viewers: tuple[Principal, ...] = ()) -> None:
        self.random = random.Random(seed)
        self.viewers = viewers
        self.lab = ConsumerLab()
        if self.random.random() < 0.5:
            self.lab.slow = []
        self.readers: dict[str, Reader] = {}
        self.beaten: dict[str, int] = {}
        self.ids = 0
        self.sent: list[HeartbeatRequest] = []
        for name in NAMES[:2]:
            self.lab.topics.make(name, self.random.randint(1, 6))

    def run(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.beat, 40),
            (partial(self.beat, lose=True), 4),
            (self.join, 6),
            (self.leave, 3),
            (self.vanish, 1),
            (self.return_static, 4),
            (self.repeat_old, 4),
            (self.subscribe, 2),
            (self.change_topics, 3),
            (self.restart, 2),
            (self.hold_saves, 3),
            (self.save, 10),
            (self.compute, 10),
            (self.pass_time, 10),
        ]
        if self.viewers:
            actions.append((self.change_rules, 3))
        choices, weights = zip(*actions, strict=True)
        for _ in range(STEPS):
            [action] = self.random.choices(choices, weights)
            action()
            self.check()
        if self.viewers:
            self.change_rules()
        self.settle()

    # --- what happens --------------------------------------------------------------------------------------------

    def some(self) -> Reader | None:
        return self.random.choice(list(self.readers.values())) if self.readers else None

    def beat(self, *, lose: bool = False) -> None:
        reader = self.some()
        if reader is not None:
            self.heard(reader, lose=lose)

    def heard(self, reader: Reader, *, lose: bool = False) -> None:
        sends = reader.asked is None
        if sends and reader.epoch:
            self.sent.append(reader.request())
        reader.beat(lose=lose)
        group = self.lab.directory.consumer.get(GROUP)
        if sends and group is not None and reader.member_id in group.members:
            self.beaten[reader.member_id] = self.lab.now
        elif sends:
            self.beaten.pop(reader.member_id, None)  # it was given up on, whether it hears of that or not

    def join(self) -> None:
        if len(self.readers) >= 7:
            return
        self.ids += 1
        static = self.random.random() < 0.4
        reader = Reader(
            self.lab,
            f"m{self.ids}",
            self.random.choice(SUBSCRIPTIONS),
            self.random.choice((None, None, "a.*", "b[0-9]")),
            f"i{self.ids}" if static else None,
            self.random.choice((None, "uniform", "range")),
            self.random.choice((None, *self.viewers)) if self.viewers else None,
        )
        self.readers[reader.member_id] = reader
        self.heard(reader)

    def leave(self) -> None:
        reader = self.some()
        if reader is not None and reader.epoch:
            del self.readers[reader.member_id]
            reader.leave()

    def return_static(self) -> None:
        """A static member's process ends, and comes up again under another id."""
        static = [one for one in self.readers.values() if one.instance_id is not None and one.epoch]
        if static:
            old = self.random.choice(static)
            old.leave(-2)
            del self.readers[old.member_id]
            self.ids += 1
            new = Reader(self.lab, f"m{self.ids}", old.topics, old.pattern, old.instance_id, old.assignor, old.viewer)
            self.readers[new.member_id] = new
            self.heard(new)

    def vanish(self) -> None:
        reader = self.some()
        if reader is not None:
            del self.readers[reader.member_id]

    def repeat_old(self) -> None:
        """A heartbeat of long ago arrives once more, as when somebody kept it: it is refused and changes nothing."""
        group = self.lab.directory.consumer.get(GROUP)
        old = self.random.choice(self.sent) if self.sent else None
        member = None if group is None or old is None else group.members.get(old.member_id)
        if group is None or old is None or member is None or old.epoch in (member.epoch, member.previous_epoch):
            return
        version = group.version
        assert self.lab.send(old).answer.error == ErrorCode.FENCED_MEMBER_EPOCH
        assert group.version == version

    def subscribe(self) -> None:
        reader = self.some()
        if reader is not None:
            reader.topics, reader.tell = self.random.choice(SUBSCRIPTIONS), True

    def change_topics(self) -> None:
        name = self.random.choice(NAMES)
        there = self.lab.topics.find(name)
        if there is not None and self.random.random() < 0.3:
            self.lab.topics.delete(name)
        else:
            self.lab.topics.make(name, (there[1] if there else 0) + self.random.randint(1, 3))

    def change_rules(self) -> None:
        """Somebody may describe other topics now."""
        hidden = set(self.random.sample(NAMES, self.random.randint(0, len(NAMES))))
        self.lab.topics.hidden[self.random.choice(self.viewers)] = hidden
        self.lab.topics.version += 1

    def restart(self) -> None:
        """What was not stored is gone, and so are the answers that waited."""
        self.lab.start()
        self.lab.journal.held = False
        for reader in self.readers.values():
            reader.take()
            if reader.asked is not None:
                reader.asked, reader.tell = None, True

    def hold_saves(self) -> None:
        self.lab.journal.held = True

    def save(self) -> None:
        if self.lab.journal.waiting:
            self.lab.journal.complete(self.random.choice((0, 0, 0, ErrorCode.COORDINATOR_NOT_AVAILABLE)))
            self.take()
        else:
            self.lab.journal.held = False

    def compute(self) -> None:
        if self.lab.slow:
            self.lab.slow.pop(0)()
            self.take()

    def pass_time(self) -> None:
        group = self.lab.directory.consumer.get(GROUP)
        owing = [] if group is None else [one for one in group.members.values() if one.state is MemberState.UNREVOKED]
        self.lab.pass_time(self.random.choice((10, 1_000, 5_000, 15_000)))
        for member in owing:
            if group is not None and member.member_id not in group.members:
                # It was heard, but has not given back in time: it hears of that when it reports next.
                self.beaten.pop(member.member_id, None)
        self.take()

    def take(self) -> None:
        for reader in self.readers.values():
            reader.take()

    # --- what must hold ------------------------------------------------------------------------------------------

    def living(self) -> list[Reader]:
        """Those that were heard so recently that nobody may have given up on them."""
        since = self.lab.now - REBALANCE_MS
        return [one for one in self.readers.values() if self.beaten.get(one.member_id, -1) > since and one.epoch]

    def check(self) -> None:
        living = self.living()
        for one, other in combinations(living, 2):
            both = places(one.owned) & places(other.owned)
            assert not both, f"{one.member_id} and {other.member_id} both have {both}"
        group = self.lab.directory.consumer.get(GROUP)
        if group is None:
            return
        held: set[tuple[bytes, int]] = set()
        for member in group.members.values():
            own = places(member.assigned) | places(member.revoking)
            assert len(own) == len(places(member.assigned)) + len(places(member.revoking))
            assert not held & own
            held |= own
            assert member.epoch <= group.target_epoch <= group.epoch
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking)
        if group.epoch == group.target_epoch:
            wanted = [place for member in group.members.values() for place in places(member.target)]
            assert len(wanted) == len(set(wanted)), "two members are to have the same"
        for topic, numbers in group.holders.items():
            for number in numbers:
                assert (topic, number) in held
        assert sum(len(numbers) for numbers in group.holders.values()) == len(held)

    def wanted(self, *readers: Reader) -> set[tuple[bytes, int]]:
        """Everything that these, or all, want to read."""
        names = set()
        for reader in readers or self.readers.values():
            names |= {name for name in reader.topics or () if name in self.lab.topics.known}
            names |= set(self.lab.topics.seen(View(reader.pattern, reader.viewer))) if reader.pattern else set()
        return {(self.lab.topics.known[name][0], n) for name in names for n in range(self.lab.topics.known[name][1])}

    def settle(self) -> None:
        """Everybody that is there goes on, nothing else happens: soon each reads its share."""
        self.lab.journal.held = False
        for _ in range(40):
            while self.lab.journal.waiting:
                self.lab.journal.complete()
            while self.lab.slow:
                self.lab.slow.pop(0)()
            self.take()
            for reader in list(self.readers.values()):
                self.heard(reader)
            self.check()
            self.lab.pass_time(5_000)
        if not self.readers:
            return
        group = self.lab.group
        assert group.state.value == "Stable", group.state
        assert set(group.members) == set(self.readers)
        read = set()
        for reader in self.readers.values():
            member = group.members[reader.member_id]
            assert reader.owned == member.assigned == member.target
            assert reader.epoch == member.epoch == group.target_epoch == group.epoch
            read |= places(reader.owned)
            assert places(reader.owned) <= self.wanted(reader)
        assert read == self.wanted()
        stored = self.lab.journal.stored[GROUP]
        self.lab.start()
        assert {one: (m.epoch, m.assigned, m.view) for one, m in self.lab.group.members.items()} == {
            one: (m.epoch, m.assigned, m.view) for one, m in group.members.items()
        }, stored


@pytest.mark.parametrize("seed", range(60))
def test_no_partition_is_at_two_members_and_all_settles(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.parametrize("seed", range(20))
def test_every_member_reads_what_it_may_describe(seed: int) -> None:
    Simulation(seed, VIEWERS).run()


def many_lives(viewers: tuple[Principal, ...] = ()) -> None:
    for seed in range(60):
        Simulation(seed, viewers).run()


# --- what must be noticed ------------------------------------------------------------------------------------------


def _assigns_what_others_hold(
    self: ConsumerGroup, member: ConsumerMember, wanted: Partitions
) -> tuple[Partitions, bool]:
    return wanted, False


def _asks_nobody_to_give_back(self: ConsumerGroup, member: ConsumerMember, owned: Partitions | None) -> bool:
    return self._towards_target(member, member.epoch, {})


def _does_not_wait_for_the_disk(
    self: ConsumerCoordinator, group: ConsumerGroup, reply: Any, answer: Any, failed: Any
) -> None:
    self._save(group)
    self._answers.post(reply, answer)


def _forgets_renamed(
    original: Any, self: ConsumerCoordinator, group: ConsumerGroup, epoch: int, now_ms: int, targets: Targets | None
) -> None:
    group.renamed.clear()
    original(self, group, epoch, now_ms, targets)


def _forgets_what_is_revoked(
    original: Any,
    self: ConsumerGroup,
    member: ConsumerMember,
    state: MemberState,
    epoch: int,
    assigned: Partitions,
    revoking: Partitions,
) -> bool:
    changed: bool = original(self, member, state, epoch, assigned, revoking)
    for topic, numbers in revoking.items():
        for number in numbers:
            self.holders.get(topic, {}).pop(number, None)
    return changed


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "gives what others hold": (ConsumerGroup, "_free_for", _assigns_what_others_hold),
    "takes revocation for granted": (ConsumerGroup, "reconcile", _asks_nobody_to_give_back),
    "answers before it is durable": (ConsumerCoordinator, "answer_saved", _does_not_wait_for_the_disk),
    "does not look at topics again": (ConsumerCoordinator, "_refresh", lambda self, group: None),
    "does not fence": (heartbeats, "_check_epoch", lambda member, request: None),
    "no rebalance after leaving": (ConsumerCoordinator, "_bump", lambda self, group: None),
    "never gives up on a member": (ConsumerCoordinator, "renew_session", lambda self, now_ms, group, member: None),
}


def _sees_no_rules(original: Any, self: ConsumerGroup, seen: Any) -> str:
    digest: str = original(self, {})
    return digest


def _forgets_who_looks(original: Any, pattern: str | None, viewer: Any) -> View | None:
    view: View | None = original(pattern, None)
    return view


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_safeguard_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, instead = MUTATIONS[name]
    monkeypatch.setattr(place, attribute, instead)
    with pytest.raises((AssertionError, KeyError)):
        many_lives()


@pytest.mark.parametrize(
    ("place", "attribute", "instead"),
    [(ConsumerCoordinator, "_computed", _forgets_renamed), (ConsumerGroup, "hold", _forgets_what_is_revoked)],
)
def test_a_forgotten_duty_is_noticed(place: Any, attribute: str, instead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(place, attribute)

    def changed(self: Any, *args: Any) -> Any:
        return instead(original, self, *args)

    monkeypatch.setattr(place, attribute, changed)
    with pytest.raises((AssertionError, KeyError)):
        many_lives()


@pytest.mark.parametrize(
    ("place", "attribute", "instead"),
    [(ConsumerGroup, "digest", _sees_no_rules), (consumer_snapshot, "_view", _forgets_who_looks)],
)
def test_a_rule_that_is_not_looked_at_is_noticed(
    place: Any, attribute: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(place, attribute)
    monkeypatch.setattr(place, attribute, lambda *args: instead(original, *args))
    with pytest.raises(AssertionError):
        many_lives(VIEWERS)
