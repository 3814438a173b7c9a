"""Names of segments and streams, and ids of segments (docs/protocols/pravega.md, "Names")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from bridges.catalog.topics.topic import partition_of

if TYPE_CHECKING:
    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.catalog.topics.topic import Topic

_SEGMENT = re.compile(r"([^/#]+)/([^/#]+)/(\d{1,10})(?:\.#epoch\.(\d{1,10}))?((?:#.*)?)", re.ASCII)
_USERS = re.compile(r"[A-Za-z0-9.-]{1,250}")
_INTERNAL = re.compile(r"_[A-Za-z0-9._-]{1,250}")
MARK = "_MARK"
"""Prefix before a stream's name: the stream of its watermarks."""
GROUP = "_RG"
"""Prefix before a reader group's name: the stream of its state."""
TRANSACTION = "#transaction."
"""Separator between a segment's name and a transaction's id: the transaction's segment."""
TRANSIENT = "#transient."
"""Separator between a segment's name and a writer's id: the segment for a large event, which is then merged."""
TABLE = "_kvtable"
"""Suffix after the name of a key-value table or reader group: the table segments that hold it."""
SYSTEM_SCOPE = "_system"
LONGEST_NAME = 1000
"""Most characters of a segment's name; a scope, a stream and Pravega's suffixes take fewer."""


class SegmentName(NamedTuple):
    """Name of a stream's segment: its number and the epoch of its creation; ``suffix`` is the part from a '#' on."""

    scope: str
    stream: str
    number: int
    epoch: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}/{self.number}.#epoch.{self.epoch}{self.suffix}"

    @property
    def segment_id(self) -> int:
        """Return the segment's id in the controller's messages."""
        return self.epoch << 32 | self.number


def segment_of(topic: Topic, partition: PartitionInfo) -> SegmentName:
    scope, _, stream = topic.names["pravega"].partition("/")
    return SegmentName(scope, stream, topic.first_number + partition.index, partition.made_epoch)


def partition_at(topic: Topic, number: int, epoch: int) -> PartitionInfo | None:
    """Return the partition of a segment's number and epoch, or None."""
    found = partition_of(topic, number - topic.first_number)
    return None if found is None or found.made_epoch != epoch else found


def parse_segment(name: str) -> SegmentName | None:
    """Parse a segment's name; None if it does not have that form. A name without an epoch means epoch 0. A name that is
    too long is not matched at all, to save time."""
    found = _SEGMENT.fullmatch(name) if len(name) <= LONGEST_NAME else None
    if found is None:
        return None
    scope, stream, number, epoch, suffix = found.groups()
    return SegmentName(scope, stream, int(number), int(epoch or 0), suffix)


def split_id(segment_id: int) -> tuple[int, int]:
    """Return (number, epoch) of a segment's id."""
    return segment_id & 0xFFFFFFFF, segment_id >> 32


def is_text(name: str) -> bool:
    """Return whether a name was valid UTF-8; the database stores no other names."""
    return name.isascii() or not any("\ud800" <= one <= "\udfff" for one in name)


def is_users_name(name: str) -> bool:
    """Return whether users may give a scope, a stream or a reader group this name."""
    return _USERS.fullmatch(name) is not None


def is_internal_name(name: str) -> bool:
    """Return whether the name has the form of Pravega's internal streams."""
    return _INTERNAL.fullmatch(name) is not None


def is_transactions(name: str) -> bool:
    """Return whether a segment belongs to a transaction itself, and is not a large event written for one."""
    return TRANSACTION in name and TRANSIENT not in name
