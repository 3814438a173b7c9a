"""The topology of a Kafka Streams application, and its plan: the number of tasks of each subtopology, and the internal
topics that are missing (KIP-1071, "Topology configuration").

A repartition topic without a number of partitions has as many as the largest topic of the subtopologies that write to
it, unless topics that are partitioned alike demand another number. A changelog topic has as many as its subtopology has
tasks, and a subtopology has as many tasks as its largest topic has partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

Find = Callable[[str], "tuple[bytes, int] | None"]
"""Returns id and number of partitions of a topic."""

_NAMED = 3
"""Most topics that a status names."""


class Status(IntEnum):
    """Facts about a group that its members get besides their tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4


class InternalTopic(Struct, frozen=True):
    """A repartition or changelog topic; 0 leaves a number to the node."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class Subtopology(Struct, frozen=True):
    """A part of an application whose tasks are independent of each other. ``copartitions`` are the names of topics that
    must have the same number of partitions."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartitions: tuple[tuple[str, ...], ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of all topics that its tasks process."""
        return (*self.source_topics, *(topic.name for topic in self.repartition_sources))


class Topology(Struct, frozen=True):
    """All subtopologies of an application, in one of its versions."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    @property
    def said_bytes(self) -> int:
        """Return the approximate bytes of the topology."""
        return sum(
            200 + len(text)
            for one in self.subtopologies
            for text in (
                *one.source_topics,
                *one.repartition_sinks,
                *(text for topic in (*one.repartition_sources, *one.changelogs) for text in _texts(topic)),
                *(name for names in one.copartitions for name in names),
            )
        )

    def reads(self) -> set[str]:
        """Return the names of the topics that tasks process."""
        return {name for one in self.subtopologies for name in one.reads}

    def names(self) -> set[str]:
        """Return the names of all its topics."""
        return self.reads() | {topic.name for one in self.subtopologies for topic in one.changelogs}


def _texts(topic: InternalTopic) -> Iterable[str]:
    return (topic.name, *(text for pair in topic.configs for text in pair))


class Plan(NamedTuple):
    """A topology with the topics that exist. ``tasks`` are numbers of tasks by subtopology; without a
    ``status``, they can be assigned. ``missing`` are internal topics with their numbers of partitions."""

    tasks: Mapping[str, int] = {}
    missing: Collection[InternalTopic] = ()
    status: tuple[int, str] | None = None


class _Wrong(Exception):
    """The topics' numbers of partitions do not fit the topology."""


def plan(topology: Topology, find: Find) -> Plan:
    """Return the plan of a topology."""
    topics = {name: found[1] for name in topology.names() if (found := find(name)) is not None}
    absent = sorted({name for one in topology.subtopologies for name in one.source_topics if name not in topics})
    if absent:
        return Plan(status=(Status.MISSING_SOURCE_TOPICS, f"Source topics {_list(absent)} are missing."))
    try:
        decided = _repartitioned(topology, topics)
        internal = {topic.name: topic for one in topology.subtopologies for topic in one.repartition_sources}
        fixed = {name for name, topic in internal.items() if topic.partitions}
        for one in topology.subtopologies:
            for names in one.copartitions:
                _partition_alike(names, topics, decided, fixed)
        tasks: dict[str, int] = {}
        for one in topology.subtopologies:
            count = max((decided.get(name) or topics[name] for name in one.reads), default=0)
            tasks[one.subtopology_id] = count
            for topic in one.changelogs:
                decided[topic.name], internal[topic.name] = count, topic
        for name in internal:
            if topics.get(name, decided[name]) != decided[name]:
                raise _Wrong(
                    f"Existing topic {name} has different number of partitions: expected {decided[name]}, found "
                    f"{topics[name]}"
                )
    except _Wrong as wrong:
        return Plan(status=(Status.INCORRECTLY_PARTITIONED_TOPICS, str(wrong)))
    missing = [replace(topic, partitions=decided[name]) for name, topic in internal.items() if name not in topics]
    if missing:
        text = f"Internal topics are missing: {_list(sorted(topic.name for topic in missing))}"
        return Plan(tasks, missing, (Status.MISSING_INTERNAL_TOPICS, text))
    return Plan(tasks)


def _repartitioned(topology: Topology, topics: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of partitions of repartition topics, from the topics that are processed towards those that are
    written."""
    repartitions = {topic.name: topic for one in topology.subtopologies for topic in one.repartition_sources}
    decided = {name: topic.partitions for name, topic in repartitions.items() if topic.partitions}
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    largest = []
    for index, one in enumerate(topology.subtopologies):
        for name in one.repartition_sinks:
            writers.setdefault(name, []).append(index)
        for topic in one.repartition_sources:
            readers.setdefault(topic.name, []).append(index)
        counts = [decided.get(name, 0) if name in repartitions else topics[name] for name in one.reads]
        largest.append(max(counts, default=0))
    known = deque(index for index, count in enumerate(largest) if count)
    while known:
        for name in topology.subtopologies[known.popleft()].repartition_sinks:
            if name in repartitions and name not in decided:
                decided[name] = max(largest[index] for index in writers[name])
                for index in readers[name]:
                    if not largest[index]:
                        known.append(index)
                    largest[index] = max(largest[index], decided[name])
    if undecided := sorted(repartitions.keys() - decided.keys()):
        raise _Wrong(f"Failed to compute number of partitions for repartition topics {_list(undecided)}")
    return decided


def _partition_alike(
    names: Collection[str], topics: Mapping[str, int], decided: dict[str, int], fixed: Collection[str]
) -> None:
    """Give the repartition topics of ``names`` the number of partitions that the other topics have, those with a
    ``fixed`` number among them."""
    given = {name: decided.get(name) or topics[name] for name in names if name in fixed or name not in decided}
    if len(set(given.values())) > 1:
        raise _Wrong(f"Following topics do not have the same number of partitions: {dict(sorted(given.items()))}")
    flexible = {name: decided[name] for name in names if name not in given}
    if flexible:
        decided.update(dict.fromkeys(flexible, max((given or flexible).values())))


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
