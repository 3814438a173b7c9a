"""A coordinator of KIP-848's groups under a hand-driven clock, with members that behave as clients do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import re2
from msgspec.structs import replace

from anabranch_kit.run.sliced import Sliced, at_once
from bridges.auth import Principal
from kafka_front.service.groups.classic.coordinator import Coordinator
from kafka_front.service.groups.classic.requests import SavedCallback
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, decode_snapshot, encode_snapshot
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.classic_members import ClassicMembers
from kafka_front.service.groups.consumer.coordinator import ConsumerCoordinator
from kafka_front.service.groups.consumer.group import ConsumerGroup, Partitions, View
from kafka_front.service.groups.consumer.requests import Encode, HeartbeatReply, HeartbeatRequest
from kafka_front.service.groups.consumer.snapshot import decode_group
from kafka_front.service.groups.directory import Directory
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.lab import Pending

GROUP = "orders"
REBALANCE_MS = 20_000
SETTINGS = KafkaGroupSettings(max_size=20)
Places = set[tuple[bytes, int]]


def places(partitions: Partitions) -> Places:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


@dataclass
class FakeTopics:
    """Topics that a test makes, and what patterns match of them."""

    known: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    version: int = 0
    hidden: dict[Principal, set[str]] = field(default_factory=dict)
    """Names of topics that somebody may not describe."""

    def make(self, name: str, partitions: int) -> bytes:
        topic_id = (
            self.known[name][0] if name in self.known else uuid.uuid5(uuid.NAMESPACE_OID, f"{name}{self.version}").bytes
        )
        self.known[name] = (topic_id, partitions)
        self.version += 1
        return topic_id

    def delete(self, name: str) -> None:
        del self.known[name]
        self.version += 1

    def find(self, name: str) -> tuple[bytes, int] | None:
        return self.known.get(name)

    def seen(self, view: View) -> Collection[str]:
        hidden: set[str] = set() if view.viewer is None else self.hidden.get(view.viewer, set())
        return [name for name in self.known if name not in hidden and re2.fullmatch(view.pattern, name)]


@dataclass
class ConsumerJournal:
    """Keeps what was saved; completes saves at once unless ``held``."""

    clock: Callable[[], int]
    held: bool = False
    stored: dict[str, bytes] = field(default_factory=dict)
    waiting: list[tuple[str, Encode, SavedCallback]] = field(default_factory=list)

    def put(self, group_id: str, encode: Encode, done: SavedCallback) -> None:
        self.waiting.append((group_id, encode, done))
        if not self.held:
            self.complete()

    def save(self, group_id: str, snapshot: GroupSnapshot, done: SavedCallback) -> None:
        blob = encode_snapshot(snapshot)
        self.put(group_id, lambda _: blob, done)

    def complete(self, error: int = ErrorCode.NONE) -> None:
        """Answer the oldest save."""
        group_id, encode, done = self.waiting.pop(0)
        if not error:
            self.stored[group_id] = encode(lambda ms: ms)
        done(self.clock(), error)


class ConsumerLab:
    """Short forms of the requests."""

    def __init__(self, settings: KafkaGroupSettings = SETTINGS) -> None:
        self.now = 1_000_000
        self.ids = 0
        self.settings = settings
        self.topics = FakeTopics()
        self.journal = ConsumerJournal(lambda: self.now)
        self.slow: list[Callable[[], None]] | None = None
        """Computations that wait, if the test lets them."""
        self.configured: dict[tuple[str, str], int] = {}
        """What groups have of their own, by name and key."""
        self.start()

    def start(self) -> None:
        """A coordinator that knows what was stored."""
        self.journal.waiting.clear()
        if self.slow is not None:
            self.slow.clear()
        self.directory = Directory()
        self.classic = Coordinator(self.settings, self.journal, self._new_id, None, self.directory)
        self.coordinator = ConsumerCoordinator(
            self.settings,
            self.directory,
            self.journal,
            self.topics,
            self._compute,
            self.classic,
            configured=lambda group_id, key: self.configured.get((group_id, key)),
        )
        self.classic_members = ClassicMembers(self.coordinator, self.settings, self._new_id)
        for group_id, blob in self.journal.stored.items():
            group = decode_group(group_id, blob, lambda ms: ms)
            snapshot = decode_snapshot(blob)
            assert group is None or snapshot is None
            if group is not None:
                self.coordinator.restore(self.now, group)
            if snapshot is not None:
                self.classic.restore(self.now, group_id, snapshot)

    def _new_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}-{self.ids}"

    def _compute(self, begin: Callable[[], Sliced[Targets]], done: Callable[[int, Targets | None], None]) -> None:
        if self.slow is None:
            done(self.now, at_once(begin()))
        else:
            self.slow.append(lambda: done(self.now, at_once(begin())))

    @property
    def group(self) -> ConsumerGroup:
        return self.directory.consumer[GROUP]

    @property
    def state(self) -> str:
        return self.group.state.value

    def pass_time(self, ms: int) -> None:
        """Let time pass, stopping at every deadline on the way."""
        until = self.now + ms
        while (deadline := self.next_deadline_ms) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.coordinator.advance(self.now)
            self.classic.advance(self.now)
            following = self.next_deadline_ms
            assert following is None or following > self.now
        self.now = until

    @property
    def next_deadline_ms(self) -> int | None:
        both = (self.coordinator.next_deadline_ms, self.classic.next_deadline_ms)
        return min((one for one in both if one is not None), default=None)

    def send(self, request: HeartbeatRequest) -> Pending[HeartbeatReply]:
        pending: Pending[HeartbeatReply] = Pending()
        self.coordinator.heartbeat(self.now, request, pending)
        return pending

    def beat(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatReply:
        return self.send(replace(HeartbeatRequest(GROUP, member_id, epoch), **fields)).answer

    def join(self, member_id: str, *topics: str, **fields: Any) -> HeartbeatReply:
        request = HeartbeatRequest(
            GROUP, member_id, 0, rebalance_timeout_ms=REBALANCE_MS, topics=frozenset(topics), owned={}
        )
        return self.send(replace(request, **fields)).answer


@dataclass
class Reader:
    """A member as a client plays it: it reads what it was given, and gives back before it says so."""

    lab: ConsumerLab
    member_id: str
    topics: frozenset[str] | None = None
    pattern: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    viewer: Principal | None = None
    epoch: int = 0
    owned: Partitions = field(default_factory=dict)
    asked: Pending[HeartbeatReply] | None = None
    tell: bool = True
    """Whether the next heartbeat says what it has."""
    errors: list[int] = field(default_factory=list)

    def request(self) -> HeartbeatRequest:
        request = HeartbeatRequest(GROUP, self.member_id, self.epoch, self.instance_id, viewer=self.viewer)
        if self.epoch == 0 or self.tell:
            request = replace(
                request,
                rebalance_timeout_ms=REBALANCE_MS,
                topics=self.topics if self.topics is not None else frozenset(),
                pattern=self.pattern,
                assignor=self.assignor,
                owned=self.owned if self.epoch else {},
            )
        return request

    def beat(self, *, lose: bool = False) -> None:
        """Send a heartbeat, unless one waits; ``lose`` its answer."""
        if self.asked is None:
            asked = self.lab.send(self.request())
            self.tell = False
            self.asked = asked
        if lose:
            self.asked, self.tell = None, True
            return
        self.take()

    def take(self) -> None:
        """Follow the answer, if there is one."""
        if self.asked is None or not self.asked.done:
            return
        answer, self.asked = self.asked.answer, None
        if answer.error:
            self.errors.append(answer.error)
            self.tell = True
            if answer.error in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self.epoch, self.owned = 0, {}
            return
        assert answer.member_id == self.member_id
        assert answer.epoch > 0
        self.epoch = answer.epoch
        if answer.assignment is not None and answer.assignment != self.owned:
            self.owned = answer.assignment
            self.tell = True

    def leave(self, epoch: int = -1) -> None:
        self.lab.send(HeartbeatRequest(GROUP, self.member_id, epoch, self.instance_id))
        self.epoch, self.owned, self.asked, self.tell = 0, {}, None, True
