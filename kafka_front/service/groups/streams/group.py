"""One streams group: a group of KIP-848 whose partitions are tasks.

A task is a subtopology and a number. In a member's assignment the "topic" of its tasks is a role and the subtopology's
id (:func:`tasks_key`), so that the steps from one assignment to the next are those of consumer groups. Only the rule
who may hold what differs: a task is active at one member of the group, and in one role at one member of a process,
since the members of a process share the directory of the task's state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from enum import Enum

from bridges.catalog.views.groups import Place
from kafka_front.service.groups.consumer.group import (
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerMember,
    Partitions,
    Process,
)
from kafka_front.service.groups.streams.topology import Plan, Status, Topology


class Role(Enum):
    """The use that a member makes of a task."""

    ACTIVE = b"A"
    STANDBY = b"S"  # keeps a copy of its state
    WARMUP = b"W"  # makes a copy of its state, to process the task afterwards


Named = Sequence[tuple[str, list[int]]]
"""Partitions by topic."""

Endpoints = Sequence[tuple[tuple[str, int], Named, Named]]
"""Endpoint of a member, and the topics' partitions of its active and of its standby tasks."""


def tasks_key(role: Role, subtopology: str) -> bytes:
    """Return the key of a subtopology's tasks in assignments."""
    return role.value + subtopology.encode()


def tasks_of(tasks: Partitions, *roles: Role) -> Iterator[tuple[str, frozenset[int]]]:
    """Iterate over the tasks of some roles by subtopology."""
    marks = tuple(role.value for role in roles)
    return ((key[1:].decode(), numbers) for key, numbers in tasks.items() if key[:1] in marks)


class StreamsGroup(ConsumerGroup):
    """The state of one group. ``standbys`` is the number of standby tasks of each task with state, and ``stopped_by``
    the member that has asked all others to shut down."""

    topology: Topology | None = None
    plan: Plan = Plan()
    standbys: int = 0
    stopped_by: str | None = None
    endpoints_epoch: int = 0
    """Rises whenever the answer of :meth:`endpoints` changes."""
    endpoints_seen: tuple[int, Endpoints] = (-1, ())

    @property
    def state(self) -> ConsumerGroupState:
        """Return the state: a group whose topics do not fit has no tasks and is not ready, whoever its members are."""
        if self.members and self.plan.status is not None:
            return ConsumerGroupState.NOT_READY
        return super().state

    def is_subscribed(self, topic: str) -> bool:
        """Return whether the tasks of members process ``topic``."""
        return bool(self.members) and self.topology is not None and topic in self.topology.reads()

    def has_kept(self, member: ConsumerMember, epoch: int, places: Set[Place]) -> bool:
        """Return whether a member has had the tasks of these partitions since its previous epoch: then its commit was
        under way while it was told of the present one. A refusal would make it close all its tasks (KIP-1251)."""
        if epoch != member.previous_epoch or not places:
            return False
        held = self.named_partitions(member.assigned, Role.ACTIVE)
        return places <= {(name, number) for name, numbers in held for number in numbers}

    def locks(self, member: ConsumerMember, topic_id: bytes) -> Collection[bytes]:
        """Return what a member locks with tasks: their place in its process, and that of active tasks in the group."""
        in_process = b"P" + member.process.process_id.encode() + b"\n" + topic_id[1:]
        return (topic_id, in_process) if topic_id[:1] == Role.ACTIVE.value else (in_process,)

    def runs_in(self, member: ConsumerMember, process: Process) -> bool:
        """Replace what is known of a member's process; return whether tasks must be assigned anew."""
        before = member.process
        if process == before:
            return False
        self._count(member, -1)
        self._let_go(member)
        member.process = process
        self._hold(member)
        self._count(member, 1)
        self.changed(member)
        if process.endpoint != before.endpoint:
            self.endpoints_epoch += 1
        return (process.process_id, process.tags, process.topology_epoch) != (
            before.process_id,
            before.tags,
            before.topology_epoch,
        )

    def takes(self, topology: Topology) -> None:
        """Set the topology of the application."""
        if self.topology is not None:
            self.said_bytes -= self.topology.said_bytes
        self.topology = topology
        self.said_bytes += topology.said_bytes
        self.seen_version = -1
        self.changed()

    def statuses(self, member: ConsumerMember) -> list[tuple[int, str]]:
        """Return what a member is told of its group, as codes and texts."""
        found: list[tuple[int, str]] = []
        if self.topology is not None and member.process.topology_epoch < self.topology.epoch:
            text = f"The member's topology epoch {member.process.topology_epoch} is behind the group's topology epoch "
            found.append((Status.STALE_TOPOLOGY, f"{text}{self.topology.epoch}."))
        if self.plan.status is not None:
            found.append(self.plan.status)
        if self.stopped_by is not None:
            text = f"Streams group member {self.stopped_by} encountered a fatal error and requested a shutdown for "
            found.append((Status.SHUTDOWN_APPLICATION, f"{text}the entire application."))
        return found

    def named_partitions(self, tasks: Partitions, *roles: Role) -> Named:
        """Return the partitions that tasks of these roles process, by topic, in order."""
        reads = {one.subtopology_id: one.reads for one in self.topology.subtopologies} if self.topology else {}
        topics = self.topics or {}
        return [
            (name, sorted(number for number in numbers if number < topics[name][1]))
            for subtopology, numbers in tasks_of(tasks, *roles)
            for name in reads.get(subtopology, ())
            if name in topics
        ]

    def endpoints(self) -> Endpoints:
        """Return which member has which partitions, for queries; computed once for each epoch of the endpoints."""
        if self.endpoints_seen[0] != self.endpoints_epoch:
            self.endpoints_seen = (
                self.endpoints_epoch,
                [
                    (
                        member.process.endpoint,
                        self.named_partitions(member.assigned, Role.ACTIVE),
                        self.named_partitions(member.assigned, Role.STANDBY, Role.WARMUP),
                    )
                    for member in self.members.values()
                    if member.process.endpoint is not None
                ],
            )
        return self.endpoints_seen[1]
