"""What a topic is, what may happen to it, and what is wrong with what somebody asks of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from bridges.catalog.imports import NOT_IMPORTING, Import
from bridges.catalog.lineage import PartitionInfo, Takers
from bridges.errors import LogError, LogUnavailable

FOLLOWED = "topic"
"""What nodes follow of topics, and of what fronts keep of each, by its name (:mod:`bridges.catalog.following`)."""


class TopicKind(Enum):
    """Whose business a topic is. Those that are ``listed`` are visible to every front under their names."""

    USER = "user"
    INTERNAL = "internal"
    """A protocol keeps something of its own in it: others may read it and see that it is internal."""
    TRANSIENT = "transient"
    """Holds what nobody may see yet, as the streams of an open transaction do."""
    TABLE = "table"
    """Its records are entries of a table, of which retention must not take any away."""

    @property
    def listed(self) -> bool:
        return self in (TopicKind.USER, TopicKind.INTERNAL)


class Beside(Struct, frozen=True):
    """Where the partitions of a topic lie, if not by its own id: partition ``n`` is always owned by whom the partition
    ``partitions[n]`` of the topic with the id ``topic_id`` (16 bytes) is, or would be if it is gone."""

    topic_id: bytes
    partitions: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Topic:
    """A topic; the object stays the same for the topic's life and changes in place. ``config`` holds overrides only.

    ``partitions`` are in the order of their numbers, without gaps, sealed ones among them. ``epoch`` counts the changes
    of which partitions there are. ``imported`` is there if a migration made the topic, also after it was handed over.
    ``first_number`` is what partition 0 counts as for protocols that never give a number twice under a name
    (:mod:`bridges.catalog.former`). ``beside`` is there of one whose partitions have the owners of another's.
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
    """Sealed partitions that hold nothing any more, and count against no limit."""
    _takers: Takers = field(default=Takers(()), repr=False)
    _takers_of: tuple[int, int] = field(default=(-1, -1), repr=False)

    @property
    def import_epoch(self) -> int:
        """Which run of a migration may write to it; NOT_IMPORTING if everybody may."""
        return self.imported.epoch if self.imported is not None and self.imported.is_running else NOT_IMPORTING

    def place(self, partition: int) -> tuple[bytes, int]:
        """The topic's id and the number of a partition by which it is owned."""
        beside = self.beside
        if beside is None or partition >= len(beside.partitions):
            return self.topic_id.bytes, partition
        return beside.topic_id, beside.partitions[partition]

    @property
    def takers(self) -> Takers:
        """The partitions that take appends. Found anew only when there are others: every session asks."""
        now = self.epoch, len(self.partitions)
        if now != self._takers_of:
            self._takers = Takers(one for one in self.partitions if one.is_active)
            self._takers_of = now
        return self._takers

    @property
    def active(self) -> Sequence[PartitionInfo]:
        """The partitions that take appends, in the order of their numbers."""
        return self.takers.partitions

    def partitions_of(self, epoch: int) -> list[PartitionInfo]:
        """The partitions that were active in ``epoch``."""
        return [one for one in self.partitions if one.lived_in(epoch)]


def partition_of(topic: Topic | None, number: int) -> PartitionInfo | None:
    """The partition of that number, or None if there is no such topic or partition."""
    return topic.partitions[number] if topic is not None and 0 <= number < len(topic.partitions) else None


class ChangeKind(Enum):
    CREATED = "created"
    DELETED = "deleted"
    PARTITIONS = "partitions"
    """There are more partitions, and some may be sealed."""
    SEALED = "sealed"
    """The end of a sealed partition is final and known."""
    IMPORT = "import"
    """Another run of its migration has taken the topic, or it was handed over."""
    CONFIG = "config"
    NODE_CONFIG = "node_config"


class Change(Struct, frozen=True):
    """What happened to the catalog; ``topic`` is None for NODE_CONFIG."""

    kind: ChangeKind
    topic: Topic | None = None


class TopicExists(LogError):
    """A topic of that name exists, or is being created or deleted at this moment."""


class HeldUp(LogUnavailable):
    """Partitions cannot be sealed yet: what was promised to be appended to them before is not there."""


class TopicNotFound(LogError):
    """There is no topic of that name."""


class NameCollision(LogError):
    """The name, or what another protocol would call the topic, is taken by a different topic."""


class InvalidPartitions(LogError):
    """The number of partitions is out of bounds, or smaller than it is."""


class SplitNotAllowed(LogError):
    """The topic's configuration does not allow that its partitions are split or merged."""


class TopicEnded(LogError):
    """All partitions of the topic are sealed: it takes no more records and gets no more partitions."""
