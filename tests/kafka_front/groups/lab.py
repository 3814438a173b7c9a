"""A group coordinator under a hand-driven clock, with a journal that answers when the test says so."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec.structs import replace

from kafka_front.service.groups.classic.coordinator import Coordinator
from kafka_front.service.groups.classic.group import Group, JoinReply, SyncReply
from kafka_front.service.groups.classic.requests import JoinRequest, Leaver, SavedCallback, SyncRequest
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, decode_snapshot, encode_snapshot
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

GROUP = "orders"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def bounded_groups(**constants: int) -> KafkaGroupSettings:
    """Settings in which constants have other values."""
    return type("Bounded", (KafkaGroupSettings,), constants)()


def subscription(*topics: str, tail: bytes = b"") -> bytes:
    """Consumer protocol subscription, version 0."""
    names = b"".join(struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1) + tail


def assignment(partitions: dict[str, list[int]]) -> bytes:
    """Consumer protocol assignment, version 0."""
    body = b""
    for topic, indexes in partitions.items():
        name = topic.encode()
        body += struct.pack(">h", len(name)) + name + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return struct.pack(">hi", 0, len(partitions)) + body + struct.pack(">i", -1)


@dataclass
class Journal:
    """Keeps what was saved, encoded; completes saves at once unless ``held``."""

    clock: Callable[[], int]
    held: bool = False
    stored: dict[str, bytes] = field(default_factory=dict)
    waiting: list[tuple[str, GroupSnapshot, SavedCallback]] = field(default_factory=list)
    saves: int = 0

    def save(self, group_id: str, snapshot: GroupSnapshot, done: SavedCallback) -> None:
        self.saves += 1
        self.waiting.append((group_id, snapshot, done))
        if not self.held:
            self.complete()

    def complete(self, error: int = ErrorCode.NONE) -> None:
        """Answer the oldest save."""
        group_id, snapshot, done = self.waiting.pop(0)
        if not error:
            self.stored[group_id] = encode_snapshot(snapshot)
        done(self.clock(), error)


def code_of(call: Callable[..., object], *args: object, **options: object) -> int:
    """The code with which a call is refused, or NONE."""
    try:
        call(*args, **options)
    except KafkaError as refused:
        return refused.code
    return ErrorCode.NONE


@dataclass
class Pending(Generic[T]):
    """One request's answer, checked to come once."""

    answers: list[T] = field(default_factory=list)

    def __call__(self, answer: T) -> None:
        assert not self.answers, f"answered twice: {self.answers[0]} and {answer}"
        self.answers.append(answer)

    @property
    def done(self) -> bool:
        return bool(self.answers)

    @property
    def answer(self) -> T:
        assert self.answers, "not answered yet"
        return self.answers[0]

    @property
    def error(self) -> int:
        answer = self.answer
        assert isinstance(answer, JoinReply | SyncReply)
        return answer.error


class Lab:
    """Short forms of the requests with sensible values in the fields a test does not care about."""

    def __init__(self, settings: KafkaGroupSettings | None = None) -> None:
        self.now = 1_000_000
        self.journal = Journal(lambda: self.now)
        self.settings = settings or KafkaGroupSettings()
        self._ids = 0
        self.steps = 0
        """Deadlines that were reached so far."""
        self.requests = 0
        """Requests of members so far."""
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> Coordinator:
        return Coordinator(self.settings, self.journal, self._new_id)

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    @property
    def group(self) -> Group:
        return self.coordinator.groups[GROUP]

    @property
    def state(self) -> str:
        return self.group.state.value

    def pass_time(self, ms: int) -> None:
        """Let time pass, stopping at every deadline on the way as a driver with a timer would."""
        until = self.now + ms
        while (deadline := self.coordinator.next_deadline_ms) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.advance()
        self.now = until

    def advance(self) -> None:
        """Let happen what is due now: in one go, and in as many steps as there were deadlines at most."""
        known = len(self.coordinator.timers)
        steps = self.coordinator.advance(self.now)
        assert steps <= known
        self.steps += steps
        deadline = self.coordinator.next_deadline_ms
        assert deadline is None or deadline > self.now

    def join(self, member_id: str = "", **fields: object) -> Pending[JoinReply]:
        request = JoinRequest(
            GROUP, member_id, None, "client", "/127.0.0.1", SESSION_MS, REBALANCE_MS, "consumer", (("range", b"m"),)
        )
        pending: Pending[JoinReply] = Pending()
        self.requests += 1
        self.coordinator.join(self.now, replace(request, **fields), pending)  # type: ignore[arg-type]
        return pending

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: object
    ) -> Pending[SyncReply]:
        request = SyncRequest(GROUP, member_id, None, generation, assignments=tuple((assignments or {}).items()))
        pending: Pending[SyncReply] = Pending()
        self.requests += 1
        self.coordinator.sync(self.now, replace(request, **fields), pending)  # type: ignore[arg-type]
        return pending

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> int:
        self.requests += 1
        return code_of(self.coordinator.heartbeat, self.now, GROUP, member_id, instance_id, generation)

    def leave(self, *leavers: str | Leaver) -> list[int]:
        """Errors by leaver; the answer must come at once."""
        return self.begin_leave(*leavers).answer

    def begin_leave(self, *leavers: str | Leaver) -> Pending[list[int]]:
        pending: Pending[list[int]] = Pending()

        def reply(error: int, errors: list[int]) -> None:
            assert error == ErrorCode.NONE
            pending(errors)

        given = [Leaver(item) if isinstance(item, str) else item for item in leavers]
        self.requests += 1
        self.coordinator.leave(self.now, GROUP, given, reply)
        return pending

    def commit(self, member_id: str, generation: int, instance_id: str | None = None, **options: object) -> int:
        return code_of(self.coordinator.check_commit, self.now, GROUP, member_id, instance_id, generation, **options)

    def stable(self, count: int = 1, *, static: bool = False, **fields: object) -> list[str]:
        """Bring up a stable group; member n is assigned b"a<n>". Returns the member ids, the leader first."""
        joins = [self.join(instance_id=f"instance{n}" if static else None, **fields) for n in range(count)]
        self.pass_time(self.settings.initial_rebalance_delay_ms * 2)
        ids = [join.answer.member_id for join in joins]
        generation = joins[0].answer.generation
        ids.sort(key=lambda member_id: member_id != joins[0].answer.leader)
        assignments = {member_id: b"a%d" % n for n, member_id in enumerate(ids)}
        syncs = [self.sync(member_id, generation, assignments if not n else None) for n, member_id in enumerate(ids)]
        assert [sync.error for sync in syncs] == [ErrorCode.NONE] * count
        assert self.state == "Stable"
        return ids

    def restart(self) -> None:
        """Forget everything but what was saved."""
        self.coordinator = self.new_coordinator()
        for group_id, blob in self.journal.stored.items():
            snapshot = decode_snapshot(blob)
            assert snapshot is not None
            self.coordinator.restore(self.now, group_id, snapshot)
