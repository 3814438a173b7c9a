"""Names of segments and streams, and ids of segments (docs/protocols/pravega.md, "Names")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from bridges.catalog.topic import partition_of

if TYPE_CHECKING:
    from bridges.catalog.lineage import PartitionInfo
    from bridges.catalog.topic import Topic

_SEGMENT = re.compile(r"([^/#]+)/([^/#]+)/(\d{1,10})(?:\.#epoch\.(\d{1,10}))?((?:#.*)?)", re.ASCII)
_USERS = re.compile(r"[A-Za-z0-9.-]{1,250}")
_INTERNAL = re.compile(r"_[A-Za-z0-9._-]{1,250}")
MARK = "_MARK"
"""In front of a stream's name: the stream of its watermarks."""
GROUP = "_RG"
"""In front of a reader group's name: the stream of its state."""
TRANSACTION = "#transaction."
"""Between a segment's name and a transaction's id: what the transaction writes there."""
TRANSIENT = "#transient."
"""Between a segment's name and the id of a writer: a large event that is written there and then merged."""
TABLE = "_kvtable"
"""Behind a key-value table's name, or a reader group's: the table segments that hold it."""
SYSTEM_SCOPE = "_system"
LONGEST_NAME = 1000
"""Characters of a segment's name: a scope, a stream and whatever Pravega puts behind them take fewer."""


class SegmentName(NamedTuple):
    """A segment of a stream: its number and the epoch in which it was made; ``suffix`` is what follows a '#'."""

    scope: str
    stream: str
    number: int
    epoch: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}/{self.number}.#epoch.{self.epoch}{self.suffix}"

    @property
    def segment_id(self) -> int:
        """The id that the controller's messages use."""
        return self.epoch << 32 | self.number


def segment_of(topic: Topic, partition: PartitionInfo) -> SegmentName:
    """The segment that a partition is."""
    scope, _, stream = topic.names["pravega"].partition("/")
    return SegmentName(scope, stream, topic.first_number + partition.index, partition.made_epoch)


def partition_at(topic: Topic, number: int, epoch: int) -> PartitionInfo | None:
    """The partition that the segment of a number and an epoch is."""
    found = partition_of(topic, number - topic.first_number)
    return None if found is None or found.made_epoch != epoch else found


def parse_segment(name: str) -> SegmentName | None:
    """The parts of a segment's name; None if it is not of that form, for which a long one is not looked through. One
    without an epoch is of epoch 0."""
    found = _SEGMENT.fullmatch(name) if len(name) <= LONGEST_NAME else None
    if found is None:
        return None
    scope, stream, number, epoch, suffix = found.groups()
    return SegmentName(scope, stream, int(number), int(epoch or 0), suffix)


def split_id(segment_id: int) -> tuple[int, int]:
    """(number, epoch) of a segment's id."""
    return segment_id & 0xFFFFFFFF, segment_id >> 32


def is_text(name: str) -> bool:
    """Whether a name came as UTF-8, without which the database keeps none."""
    return name.isascii() or not any("\ud800" <= one <= "\udfff" for one in name)


def is_users_name(name: str) -> bool:
    """Whether users may call a scope, a stream or a reader group so."""
    return _USERS.fullmatch(name) is not None


def is_internal_name(name: str) -> bool:
    """Whether it is a name that Pravega gives to what it keeps for itself."""
    return _INTERNAL.fullmatch(name) is not None


def is_transactions(name: str) -> bool:
    """Whether a segment is one of a transaction's own, not a large event that is written for it."""
    return TRANSACTION in name and TRANSIENT not in name
