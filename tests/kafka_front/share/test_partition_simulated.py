"""The share partition against a model that knows nothing of spans: each record by itself, a dictionary.

Members fetch, acknowledge, go away, and time passes, at random; the log grows, has gaps and is trimmed; now and then
the partition is stored and made anew, as after ``kill -9``. Leaving out a safeguard is noticed: see the last test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kafka_front.service.groups.share.partition import (
    Ack,
    AckType,
    Acquired,
    InvalidState,
    RecordState,
    SharePartition,
    Span,
)

LOCK_MS = 100
MOST_DELIVERIES = 3
MOST_IN_FLIGHT = 40
STEPS = 400


@dataclass
class Lock:
    member: str
    until_ms: int


@dataclass
class Model:
    """What every record is, without any idea of ranges."""

    locks: dict[int, Lock] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    """What was acknowledged, rejected, trimmed, or delivered often enough."""

    def free(self, offset: int) -> None:
        del self.locks[offset]
        if self.deliveries[offset] >= MOST_DELIVERIES:
            self.over.add(offset)

    def pass_time(self, now_ms: int) -> None:
        for offset in [one for one, lock in self.locks.items() if lock.until_ms <= now_ms]:
            self.free(offset)


class World:
    """A log in which some offsets have no record, the partition, its model, and members."""

    def __init__(self, seed: int, make: Callable[..., SharePartition] = SharePartition) -> None:
        self.random = random.Random(seed)
        self.make = make
        self.partition = make(0, MOST_DELIVERIES)
        self.model = Model()
        self.now_ms = 0
        self.batches: list[tuple[int, int, bool]] = []
        self.end = 0
        self.log_start = 0

    def step(self) -> None:
        choice = self.random.choice
        choice([self.write, self.fetch, self.fetch, self.fetch, self.say, self.say, self.say, self.wait, self.leave])()
        if self.random.random() < 0.03:
            self.trim()
        if self.random.random() < 0.05:
            self.restart()
        self.check()

    def write(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            first = self.end + self.random.choice([0, 0, 0, 2])
            self.end = first + self.random.randint(1, 12)
            self.batches.append((first, self.end - 1, self.random.random() < 0.9))

    def member(self) -> str:
        return self.random.choice("abc")

    def look(self) -> None:
        """What whoever uses the partition does first."""
        self.partition.expire(self.now_ms)
        self.partition.trimmed(self.log_start)
        self.model.pass_time(self.now_ms)

    def fetch(self) -> None:
        self.look()
        member, whole = self.member(), self.random.random() < 0.5
        most = self.random.randint(1, 10)
        offset = self.partition.next_offset()
        read = [one for one in self.batches if one[1] >= offset][: self.random.randint(1, 5)]
        before = self.partition.start
        got = self.partition.acquire(
            self.now_ms, member, LOCK_MS, offset, read, most, whole_batches=whole, most_in_flight=MOST_IN_FLIGHT
        )
        offsets = [one for part in got for one in range(part.first, part.last + 1)]
        assert offsets == sorted(set(offsets))
        assert whole or len(offsets) <= most
        with_records = {one for first, last, there in self.batches if there for one in range(first, last + 1)}
        for part in got:
            for one in range(part.first, part.last + 1):
                assert one in with_records, f"nothing is at {one}"
                assert one not in self.model.locks, f"{one} was somebody's"
                assert one not in self.model.over, f"{one} was dealt with"
                assert one < before + MOST_IN_FLIGHT
                assert part.count == self.model.deliveries.get(one, 0) + 1
                assert part.count <= MOST_DELIVERIES
                self.model.deliveries[one] = part.count
                self.model.locks[one] = Lock(member, self.now_ms + LOCK_MS)

    def say(self) -> None:
        self.look()
        member = self.member()
        own = sorted(one for one, lock in self.model.locks.items() if lock.member == member)
        if not own:
            return
        acks: list[Ack] = []
        for one in self.random.sample(own, self.random.randint(1, len(own))):
            acks.append(Ack(one, one, self.random.choice(list(AckType))))
        acks.sort(key=lambda ack: ack.first)
        foreign = [one for one in range(self.partition.start, self.end + 2) if one not in own]
        wrong = self.random.random() < 0.2 and foreign
        if wrong:
            one = self.random.choice(foreign)
            acks = sorted([*acks, Ack(one, one, AckType.ACCEPT)], key=lambda ack: ack.first)
        try:
            self.partition.acknowledge(self.now_ms, member, acks, LOCK_MS)
        except InvalidState:
            assert wrong
            return
        assert not wrong
        for ack in acks:
            if ack.kind is AckType.RENEW:
                self.model.locks[ack.first].until_ms = self.now_ms + LOCK_MS
            elif ack.kind is AckType.RELEASE:
                self.model.free(ack.first)
            else:
                del self.model.locks[ack.first]
                self.model.over.add(ack.first)

    def wait(self) -> None:
        self.now_ms += self.random.randint(0, LOCK_MS)
        self.look()

    def leave(self) -> None:
        self.look()
        member = self.member()
        had = [one for one, lock in self.model.locks.items() if lock.member == member]
        assert self.partition.release(member) == bool(had)
        for one in had:
            self.model.free(one)

    def trim(self) -> None:
        self.log_start = self.random.randint(self.log_start, self.end)
        for one in [one for one in self.model.locks if one < self.log_start]:
            del self.model.locks[one]
        self.model.over.update(range(self.log_start))
        self.look()

    def restart(self) -> None:
        self.look()
        for one in list(self.model.locks):
            self.model.deliveries[one] -= 1  # what was under way is not stored
        self.model.locks.clear()
        self.partition = self.make(self.partition.start, MOST_DELIVERIES, self.partition.stored())

    def check(self) -> None:
        self.partition_is_whole()
        spans = {one: span for span in self.partition.spans for one in range(span.first, span.last + 1)}
        for one, lock in self.model.locks.items():
            held = spans[one]
            assert (held.state, held.member, held.until_ms) == (RecordState.ACQUIRED, lock.member, lock.until_ms)
        for one, its in spans.items():
            assert (its.state is RecordState.ACQUIRED) == (one in self.model.locks), f"{one} is {its}"
            if its.state is RecordState.AVAILABLE:
                assert one not in self.model.over, f"{one} would be delivered again"
        with_records = [one for first, last, there in self.batches if there for one in range(first, last + 1)]
        for one in with_records:
            if one < self.partition.start or (
                one in spans and spans[one].state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
            ):
                assert one in self.model.over, f"{one} was left out"

    def partition_is_whole(self) -> None:
        position = self.partition.start
        for span in self.partition.spans:
            assert span.first == position <= span.last
            position = span.last + 1
        assert position == self.partition.end
        if self.partition.spans:
            assert self.partition.spans[0].state in (RecordState.AVAILABLE, RecordState.ACQUIRED)

    def drain(self) -> None:
        """Members that accept everything come to the end."""
        for _ in range(2_000):
            self.now_ms += LOCK_MS + 1
            self.look()
            if self.partition.start >= self.batches[-1][1] + 1 if self.batches else True:
                return
            offset = self.partition.next_offset()
            read = [one for one in self.batches if one[1] >= offset]
            got = self.partition.acquire(
                self.now_ms, "z", LOCK_MS, offset, read, 50, whole_batches=True, most_in_flight=MOST_IN_FLIGHT
            )
            acks = [Ack(one.first, one.last, AckType.ACCEPT) for one in got]
            self.partition.acknowledge(self.now_ms, "z", acks, LOCK_MS)
        raise AssertionError("it stands still")


def simulate(seed: int, make: Callable[..., SharePartition] = SharePartition) -> None:
    world = World(seed, make)
    for _ in range(STEPS):
        world.step()
    world.drain()


@pytest.mark.parametrize("seed", range(25))
def test_records_are_delivered_to_one_at_a_time_and_none_is_left_out(seed: int) -> None:
    simulate(seed)


class Forgetful(SharePartition):
    """Locks never end."""

    __slots__ = ()

    def expire(self, now_ms: int) -> bool:
        return False


class Trusting(SharePartition):
    """Members may acknowledge what they do not have."""

    __slots__ = ()

    def _holds(self, member: str, first: int, last: int) -> bool:
        return True


class Patient(SharePartition):
    """Records are delivered for ever."""

    __slots__ = ()

    def _release(self, span: Span) -> None:
        span.state = RecordState.AVAILABLE


class Careless(SharePartition):
    """What was acknowledged out of order is not stored."""

    __slots__ = ()

    def stored(self) -> list[tuple[int, int, int, int]]:
        return [one for one in super().stored() if one[2] == RecordState.AVAILABLE]


class Generous(SharePartition):
    """What somebody has is given to others as well."""

    __slots__ = ()

    def _take(
        self, until_ms: int, member: str, first: int, last: int, left: int, whole: bool, got: list[Acquired]
    ) -> int:
        for span in self._within(first, last):
            if span.state is RecordState.ACQUIRED:
                span.state = RecordState.AVAILABLE
        return super()._take(until_ms, member, first, last, left, whole, got)


class Stuck(SharePartition):
    """Gaps are waited for."""

    __slots__ = ()

    def _pass_over(self, first: int, last: int) -> None:
        pass


@pytest.mark.parametrize("broken", [Forgetful, Trusting, Patient, Careless, Generous, Stuck])
def test_what_is_left_out_is_noticed(broken: type[SharePartition]) -> None:
    noticed = 0
    for seed in range(5):
        try:
            simulate(seed, broken)
        except (AssertionError, KeyError, ValueError):
            noticed += 1
    assert noticed
