"""A coordinator of streams groups under a hand-driven clock, with members that behave as Kafka Streams does."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from kafka_front.service.groups.consumer.group import Partitions
from kafka_front.service.groups.consumer.requests import HeartbeatReply
from kafka_front.service.groups.streams.coordinator import StreamsCoordinator
from kafka_front.service.groups.streams.group import Role, StreamsGroup, tasks_of
from kafka_front.service.groups.streams.requests import StreamsHeartbeat, StreamsReply
from kafka_front.service.groups.streams.snapshot import decode_streams
from kafka_front.service.groups.streams.topology import InternalTopic, Subtopology, Topology
from tests.kafka_front.groups.consumer_lab import GROUP, REBALANCE_MS, ConsumerLab
from tests.kafka_front.groups.lab import Pending

COPY = Topology(0, (Subtopology("0", ("in",)),))
COUNT = Topology(0, (Subtopology("0", ("in",), changelogs=(InternalTopic("changes"),)),))


class StreamsLab(ConsumerLab):
    """The lab of consumer groups, with a coordinator of streams groups beside."""

    def start(self) -> None:
        super().start()
        self.streams = StreamsCoordinator(
            self.settings,
            self.directory,
            self.journal,
            self.topics,
            self._compute,
            self.classic,
            configured=lambda group_id, key: self.configured.get((group_id, key)),
        )
        for group_id, blob in self.journal.stored.items():
            if (group := decode_streams(group_id, blob, lambda ms: ms)) is not None:
                self.streams.restore(self.now, group)

    @property
    def streams_group(self) -> StreamsGroup:
        return self.directory.streams[GROUP]

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while (deadline := self.streams.next_deadline_ms) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.streams.advance(self.now)
        super().pass_time(until - self.now)

    def ask(self, request: StreamsHeartbeat) -> Pending[HeartbeatReply]:
        pending: Pending[HeartbeatReply] = Pending()
        self.streams.heartbeat(self.now, request, pending)
        return pending


class Worker:
    """A member: it runs what it was given, and stops what it has to give up before it says so."""

    def __init__(self, lab: StreamsLab, member_id: str, topology: Topology = COPY, **fields: Any) -> None:
        self._lab = lab
        self.member_id = member_id
        self.process = fields.pop("process_id", f"process of {member_id}")
        self.fields = {"topology": topology, "process_id": self.process, **fields}
        self.epoch = 0
        self.owned: Partitions = {}
        self.last: HeartbeatReply = HeartbeatReply()
        self.waiting: Pending[HeartbeatReply] | None = None

    def ask(self, **fields: Any) -> None:
        """Send a heartbeat, unless one waits, and follow its answer if there is one."""
        if self.waiting is None:
            request = StreamsHeartbeat(
                GROUP, self.member_id, self.epoch, self.fields.get("instance_id"), owned=self.owned or {}
            )
            if self.epoch == 0:
                request = replace(request, rebalance_timeout_ms=REBALANCE_MS, **self.fields)
            self.waiting = self._lab.ask(replace(request, **fields))
        if not self.waiting.done:
            return
        self.last, self.waiting = self.waiting.answer, None
        if self.last.error:
            self.epoch, self.owned = 0, {}
            return
        self.epoch = self.last.epoch
        if self.last.assignment is not None:
            self.owned = self.last.assignment

    @property
    def statuses(self) -> list[tuple[int, str]]:
        assert isinstance(self.last, StreamsReply), self.last
        return list(self.last.statuses)

    def runs(self, role: Role = Role.ACTIVE) -> set[tuple[str, int]]:
        return {(one, number) for one, numbers in tasks_of(self.owned, role) for number in numbers}


def settle(*workers: Worker) -> None:
    """Send heartbeats until nothing changes."""
    for _ in range(10):
        for worker in workers:
            worker.ask()
