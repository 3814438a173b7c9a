"""A topic, the changes that it can undergo, and the errors of requests about it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from bridges.catalog.topics.lineage import PartitionInfo, Takers
from bridges.errors import LogError

FOLLOWED = "topic"
"""The kind of followed changes for topics and the fronts' data of each, by topic name
(:mod:`bridges.catalog.database.following`)."""


NOT_IMPORTING = -1
"""The import epoch of a topic that takes writes from every client."""


class Import(Struct, frozen=True):
    """A migration's import of one topic from elsewhere: the ``migration``, and the ``epoch`` of the run that may write.

    A topic is importing from the transaction that makes it. From then on only the latest run of the migration that made
    it may change its contents. Each run takes the next epoch, so a worker of an earlier run that still lives is
    refused. Everybody may read. One transaction hands all topics of a migration over; then they are ordinary topics.

    Times are wall clock in ms; ``handed_over_ms`` is None while the topic is being imported. ``origin`` describes what
    the migration brings, in its own words (empty: no description); a migration with another ``origin`` is another one.
    """

    migration: str
    epoch: int
    begun_ms: int
    handed_over_ms: int | None = None
    origin: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether the topic still belongs to the migration."""
        return self.handed_over_ms is None


class TopicKind(Enum):
    """The purpose of a topic. Topics of ``listed`` kinds are visible to every front under their names."""

    USER = "user"
    INTERNAL = "internal"
    """A protocol keeps data of its own in it: other clients may read it and see that it is internal."""
    TRANSIENT = "transient"
    """Holds data that nobody may see yet, such as the streams of an open transaction."""
    TABLE = "table"
    """Its records are entries of a table; retention must not remove any."""

    @property
    def listed(self) -> bool:
        return self in (TopicKind.USER, TopicKind.INTERNAL)


class Beside(Struct, frozen=True):
    """Ownership of a topic's partitions that follows another topic: partition ``n`` always has the owner of partition
    ``partitions[n]`` of the topic with the id ``topic_id`` (16 bytes), even if that one was deleted."""

    topic_id: bytes
    partitions: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Topic:
    """A topic; the object stays the same for the topic's life and changes in place. ``config`` holds overrides only.

    ``partitions`` are in the order of their numbers, without gaps, sealed ones included. ``epoch`` counts the changes
    of the set of partitions. ``imported`` is set if a migration made the topic, also after it was handed over.
    ``first_number`` is the number of partition 0 in protocols that never reuse a number under a name
    (:mod:`bridges.catalog.topics.former`). ``beside`` is set if the partitions have the owners of another topic's.
    """

    name: str
    topic_id: uuid.UUID
    partitions: list[PartitionInfo]
    config: dict[str, str]
    created_ms: int
    names: dict[str, str] = field(default_factory=dict)
    epoch: int = 0
    kind: TopicKind = TopicKind.USER
    imported: Import | None = None
    first_number: int = 0
    beside: Beside | None = None
    spent: int = 0
    """Sealed partitions of which everything was trimmed; they count against no limit."""
    _takers: Takers = field(default=Takers(()), repr=False)
    _takers_of: tuple[int, int] = field(default=(-1, -1), repr=False)

    @property
    def import_epoch(self) -> int:
        """Return the run of a migration that may write to the topic; NOT_IMPORTING if every client may."""
        return self.imported.epoch if self.imported is not None and self.imported.is_running else NOT_IMPORTING

    def place(self, partition: int) -> tuple[bytes, int]:
        """Return the topic id and partition number that decide who owns a partition."""
        if partition < len(self.partitions):
            partition = self.partitions[partition].root
        beside = self.beside
        if beside is None or partition >= len(beside.partitions):
            return self.topic_id.bytes, partition
        return beside.topic_id, beside.partitions[partition]

    @property
    def takers(self) -> Takers:
        """Return the active partitions. Cached until the set of partitions changes, because every session asks."""
        now = self.epoch, len(self.partitions)
        if now != self._takers_of:
            self._takers = Takers(one for one in self.partitions if one.is_active)
            self._takers_of = now
        return self._takers

    @property
    def active(self) -> Sequence[PartitionInfo]:
        """Return the active partitions, in the order of their numbers."""
        return self.takers.partitions

    def partitions_of(self, epoch: int) -> list[PartitionInfo]:
        """Return the partitions that were active in ``epoch``."""
        return [one for one in self.partitions if one.lived_in(epoch)]


def partition_of(topic: Topic | None, number: int) -> PartitionInfo | None:
    """Return the partition with that number, or None if there is no such topic or partition."""
    return topic.partitions[number] if topic is not None and 0 <= number < len(topic.partitions) else None


class ChangeKind(Enum):
    CREATED = "created"
    DELETED = "deleted"
    PARTITIONS = "partitions"
    """Partitions were added, and some may have been sealed."""
    SEALED = "sealed"
    """The end of a sealed partition is final and known."""
    IMPORT = "import"
    """Another run of its migration has taken the topic, or it was handed over."""
    CONFIG = "config"
    NODE_CONFIG = "node_config"


class Change(Struct, frozen=True):
    """A change of the catalog; ``topic`` is None for NODE_CONFIG."""

    kind: ChangeKind
    topic: Topic | None = None


class TopicExists(LogError):
    """A topic with that name exists, or is being created or deleted."""


class TopicNotFound(LogError):
    """There is no topic of that name."""


class NameCollision(LogError):
    """The name, or another protocol's name for the topic, belongs to a different topic."""


class InvalidPartitions(LogError):
    """The number of partitions is out of bounds, or below the present number."""


class SplitNotAllowed(LogError):
    """The topic's configuration does not allow splits and merges."""


class TopicEnded(LogError):
    """All partitions of the topic are sealed: it takes no more records and gets no more partitions."""
